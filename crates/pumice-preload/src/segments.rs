//! `shmat` and `shmdt` at the heap's addresses.
//!
//! A segment that is attached over memory of the heap's is one more mapping that a program sets at a fixed address.
//! When it is detached, fresh memory takes its place: the kernel's own `shmdt` would open a gap in the heap's
//! addresses.

use core::ffi::{c_int, c_long, c_void};

use linux_raw_sys::general as linux;
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::{raw, segment};
use rustix::io::Errno;

use crate::errno::{answer, Outcome};
use crate::{mapping, state};

const SHM_RND: c_int = 0o20_000;
const SHM_REMAP: c_int = 0o40_000;

#[no_mangle]
unsafe extern "C" fn shmat(id: c_int, at: *const c_void, flags: c_int) -> *mut c_void {
    // SAFETY: forwarded with the caller's promise.
    answer(unsafe { attach(id, at as usize, flags) }) as *mut c_void
}

#[no_mangle]
unsafe extern "C" fn shmdt(at: *const c_void) -> c_int {
    // SAFETY: forwarded with the caller's promise.
    answer(unsafe { detach(at as usize) }) as c_int
}

/// The same calls made through `syscall`; `None` if it is another one.
///
/// # Safety
/// As the system call.
pub(crate) unsafe fn by_number(number: u32, [a, b, c, ..]: [usize; 6]) -> Option<c_long> {
    match number {
        // SAFETY: forwarded with the caller's promise.
        linux::__NR_shmat => Some(answer(unsafe { attach(a as c_int, b, c as c_int) })),
        // SAFETY: as above.
        linux::__NR_shmdt => Some(answer(unsafe { detach(a) })),
        _ => None,
    }
}

/// # Safety
/// As `shmat`.
unsafe fn attach(id: c_int, at: usize, flags: c_int) -> Outcome {
    let make = |flags: c_int| {
        let args = [id as usize, at, flags as usize, 0, 0, 0];
        // SAFETY: as the caller promises.
        unsafe { raw::syscall(linux::__NR_shmat, args) }
    };
    if at == 0 || state::serving_heap().is_none() {
        return make(flags);
    }
    let place = if flags & SHM_RND != 0 { at - at % FRAME_SIZE } else { at };
    let status = segment::status(id as u32).ok().filter(|_| place % FRAME_SIZE == 0);
    let Some(len) = status.map(|status| status.len) else {
        return make(flags);
    };
    // SAFETY: as the caller promises.
    unsafe {
        mapping::put_at(place, len, flags & SHM_REMAP != 0, |replaces| {
            make(if replaces { flags | SHM_REMAP } else { flags })
        })
    }
}

/// # Safety
/// As `shmdt`.
unsafe fn detach(at: usize) -> Outcome {
    if !mapping::is_heaps(at) {
        // SAFETY: as the caller promises.
        return unsafe { raw::syscall(linux::__NR_shmdt, [at, 0, 0, 0, 0, 0]) };
    }
    let (mut inode, mut outcome) = (0, Err(Errno::INVAL));
    loop {
        let (found, pieces) = mapping::pieces_of_segment(at, inode);
        for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
            // SAFETY: as the caller promises.
            outcome = unsafe { mapping::unmap(piece.start, piece.len()) };
        }
        let may_be_more = !pieces[pieces.len() - 1].is_empty();
        if outcome.is_err() || !may_be_more {
            return outcome;
        }
        inode = found;
    }
}
