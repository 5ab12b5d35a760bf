//! `madvise` and its relations.

use core::ffi::{c_int, c_uint, c_void};

use linux_raw_sys::general as linux;
use pumice_frames::sys::{raw, thread};
use pumice_heap::heap::Effect;
use rustix::io::Errno;

use crate::errno::{answer, Outcome};
use crate::guards;
use crate::parts::{concerned, each_part, has_hole, note, AtHole};
use crate::state;

// Called as others call it: one of them may have written a jump over its beginning.
#[inline(never)]
#[no_mangle]
pub(crate) unsafe extern "C" fn madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: forwarded with the caller's promise.
    answer(unsafe { advise(at, len, advice) }) as c_int
}

#[no_mangle]
unsafe extern "C" fn posix_madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    // The C libraries ignore this one: theirs would lose the written data.
    const POSIX_MADV_DONTNEED: c_int = 4;
    if advice == POSIX_MADV_DONTNEED {
        return 0;
    }
    // SAFETY: forwarded with the caller's promise.
    unsafe { advise(at, len, advice) }.map_or_else(Errno::raw_os_error, |_| 0)
}

/// `madvise`.
///
/// # Safety
/// As `madvise`.
pub(crate) unsafe fn advise(at: *mut c_void, len: usize, advice: c_int) -> Outcome {
    let effect = effect_of(advice as u32);
    let args = [at as usize, len, advice as usize, 0, 0, 0];
    // SAFETY: forwarded with the caller's promise.
    unsafe { each_part(linux::__NR_madvise, args, effect, AtHole::GoOn) }
}

/// The effect of advice on memory, if it outlives the call.
fn effect_of(advice: u32) -> Option<Effect> {
    match advice {
        linux::MADV_NORMAL
        | linux::MADV_WILLNEED
        | linux::MADV_COLD
        | linux::MADV_POPULATE_READ
        | linux::MADV_POPULATE_WRITE
        | linux::MADV_COLLAPSE => None,
        linux::MADV_DONTNEED
        | linux::MADV_FREE
        | linux::MADV_PAGEOUT
        | linux::MADV_DONTNEED_LOCKED => Some(Effect::Drops),
        linux::MADV_HUGEPAGE => Some(Effect::AsksForHuge),
        linux::MADV_GUARD_INSTALL => {
            guards::note();
            Some(Effect::Taints)
        }
        _ => Some(Effect::Taints),
    }
}

/// `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Piece {
    at: usize,
    len: usize,
}

#[no_mangle]
pub(crate) unsafe extern "C" fn process_madvise(
    process: c_int,
    pieces: *const c_void,
    count: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    // For any process: where another's has the same addresses, that costs a fresh mapping.
    let args = [process as usize, pieces as usize, count, advice as usize, flags as usize, 0];
    if state::serving_heap().is_none() {
        // SAFETY: forwarded with the caller's promise.
        return answer(unsafe { raw::syscall(linux::__NR_process_madvise, args) }) as isize;
    }
    let effect = effect_of(advice as u32);
    let mut meets_hole = false;
    for piece in (0..count.min(1024)).map_while(|index| copy_in(pieces as usize, index)) {
        if let Some((heap, len)) = concerned(piece.at, piece.len) {
            meets_hole |= has_hole(heap, piece.at, len);
        }
        if let Some(effect) = effect {
            note(piece.at, piece.len, effect);
        }
    }
    if meets_hole && flags == 0 && is_own(process) {
        // SAFETY: forwarded with the caller's promise.
        return answer(unsafe { advise_pieces(pieces as usize, count, advice) }) as isize;
    }
    // SAFETY: forwarded with the caller's promise.
    answer(unsafe { raw::syscall(linux::__NR_process_madvise, args) }) as isize
}

/// `process_madvise` of this process, where the kernel does not know of a hole: the bytes of the pieces before the
/// first that fails.
///
/// # Safety
/// As `process_madvise`.
unsafe fn advise_pieces(pieces: usize, count: usize, advice: c_int) -> Outcome {
    let mut done = 0;
    for index in 0..count {
        let piece = copy_in(pieces, index).ok_or(Errno::FAULT)?;
        // SAFETY: as the caller promises.
        match unsafe { advise(piece.at as *mut c_void, piece.len, advice) } {
            Ok(_) => done += piece.len,
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Whether a descriptor of a process, or a number that stands for one, means this process.
fn is_own(process: c_int) -> bool {
    /// `PIDFD_SELF_THREAD` and `PIDFD_SELF_THREAD_GROUP`, since Linux 6.14.
    const SELF: [c_int; 2] = [-10_000, -10_001];
    if process < 0 {
        return SELF.contains(&process);
    }
    // Each process has an inode of its own, since Linux 6.9.
    // SAFETY: a descriptor of the program's, for as long as this call; if there is none, the call fails.
    let named = unsafe { rustix::fd::BorrowedFd::borrow_raw(process) };
    let own = rustix::process::pidfd_open(
        rustix::process::getpid(),
        rustix::process::PidfdFlags::empty(),
    );
    let inode =
        |file: rustix::fd::BorrowedFd<'_>| rustix::fs::fstat(file).map(|it| (it.st_dev, it.st_ino));
    own.is_ok_and(|own| {
        use rustix::fd::AsFd;
        inode(own.as_fd()).is_ok_and(|own| inode(named) == Ok(own))
    })
}

/// Reads an entry of the program's at an address, which may be a bad one: the kernel refuses it then.
fn copy_in(pieces: usize, index: usize) -> Option<Piece> {
    const LEN: usize = size_of::<Piece>();
    let mut piece = Piece { at: 0, len: 0 };
    let own = Piece { at: &raw mut piece as usize, len: LEN };
    let its = Piece { at: pieces.checked_add(index * LEN)?, len: LEN };
    let (own, its) = (&raw const own as usize, &raw const its as usize);
    let args = [thread::process_id() as usize, own, 1, its, 1, 0];
    // SAFETY: the kernel writes as many bytes as there are.
    let copied = unsafe { raw::syscall(linux::__NR_process_vm_readv, args) };
    (copied == Ok(LEN)).then_some(piece)
}
