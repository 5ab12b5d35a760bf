//! Memory that processes share by a number: System V's, made so that it goes with the last process that has it.
//!
//! Among the kinds of shared memory this one suits counters. It lies in no folder that may be full, or that others can
//! write to; it can't be made shorter, and its pages are promised when it is made, so touching it is never SIGBUS. Its
//! number means the same under every root folder, in every namespace of processes and of users; a descriptor under
//! `/proc` does not, and one that is inherited is the program's to see and to close.
//!
//! It is marked for removal as soon as it is made. Linux still lets others attach it by its number for as long as
//! somebody has it (shmctl(2)), and then nothing is left to remove.

use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr::{with_exposed_provenance_mut, NonNull};

use rustix::io::Errno;

use super::mem;
use super::raw::{self, number};

const IPC_CREAT: usize = 0o1000;
const IPC_PRIVATE: usize = 0;
const IPC_RMID: usize = 0;
const IPC_STAT: usize = 2;
const SHM_STAT: usize = 13;
const SHM_INFO: usize = 14;
const SHM_RDONLY: usize = 0o10_000;
/// Its user may read and write, nobody else.
const MODE: u32 = 0o600;

/// The kernel's description of a segment: `struct shmid64_ds`, the same on x86-64 and aarch64.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Status {
    key: i32,
    user: u32,
    group: u32,
    creator: u32,
    creators_group: u32,
    mode: u32,
    /// A running number, and room for more.
    rest_of_permissions: [u64; 3],
    /// Bytes that were asked for.
    pub len: usize,
    times: [u64; 3],
    /// The process that made it, by its number here; 0 for one of another namespace.
    pub maker: u32,
    last: u32,
    attached: u64,
    reserved: [u64; 2],
}

impl Status {
    /// The owner, if nobody else may use the segment: other users can give theirs away, but stay their creators.
    pub fn owner(&self) -> Option<u32> {
        (self.user == self.creator && self.mode & 0o777 == MODE).then_some(self.user)
    }
}

/// Makes a segment of zeros and maps it for good: its number, and where it is.
///
/// # Errors
/// As shmget(2) and shmat(2).
pub fn create(len: usize) -> Result<(u32, NonNull<u8>), Errno> {
    let args = [IPC_PRIVATE, len, IPC_CREAT | MODE as usize, 0, 0, 0];
    // SAFETY: plain numbers.
    let id = unsafe { raw::syscall(number::__NR_shmget, args)? } as u32;
    let mapped = map(id, mem::place_apart(len), 0);
    // SAFETY: plain numbers. It is ours, so this can't fail.
    let _ = unsafe { raw::syscall(number::__NR_shmctl, [id as usize, IPC_RMID, 0, 0, 0, 0]) };
    Ok((id, mapped?))
}

/// Maps a segment of so many bytes for good, if it is this user's and nobody else's.
///
/// # Errors
/// As shmat(2); `PERM` where it is of another length, or may be another user's.
pub fn attach(id: u32, len: usize, user: u32) -> Result<NonNull<u8>, Errno> {
    let at = map(id, mem::place_apart(len), 0)?;
    // From here on the number means this one, which is there for as long as it is mapped.
    match status(id) {
        Ok(status) if status.len == len && status.owner() == Some(user) => Ok(at),
        _ => {
            unmap(at);
            Err(Errno::PERM)
        }
    }
}

/// The kernel's description of a segment that this process may read.
///
/// # Errors
/// As shmctl(2).
pub fn status(id: u32) -> Result<Status, Errno> {
    ask(id, IPC_STAT).map(|(_, status)| status)
}

/// All segments that this process may read, with their numbers.
pub fn all() -> impl Iterator<Item = (u32, Status)> {
    // The answer of this call is the highest index in use. The structure it fills is a shorter one.
    let highest = ask(0, SHM_INFO).map_or(0, |(highest, _)| highest);
    (0..=highest).filter_map(|index| ask(index, SHM_STAT).ok())
}

fn ask(id: u32, command: usize) -> Result<(u32, Status), Errno> {
    let mut status = MaybeUninit::<Status>::zeroed();
    let args = [id as usize, command, status.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: the kernel fills a structure that is not longer than this one.
    let answer = unsafe { raw::syscall(number::__NR_shmctl, args)? };
    // SAFETY: zeros are one, and so is whatever the kernel wrote over them.
    Ok((answer as u32, unsafe { status.assume_init() }))
}

/// A segment of any owner, mapped for reading until this is dropped.
#[derive(Debug)]
pub struct View {
    at: NonNull<u8>,
    /// Bytes that are mapped.
    len: usize,
    /// Of the segment that is mapped.
    pub status: Status,
}

impl View {
    /// Maps it.
    ///
    /// # Errors
    /// As shmat(2).
    pub fn open(id: u32) -> Result<View, Errno> {
        let at = map(id, 0, SHM_RDONLY)?;
        match status(id) {
            Ok(status) => Ok(View { at, len: status.len, status }),
            Err(errno) => {
                unmap(at);
                Err(errno)
            }
        }
    }

    /// Copies a part of it. The kernel copies: of huge pages there may be fewer than were promised, and a thread that
    /// touches one that is not there gets SIGBUS.
    ///
    /// # Errors
    /// As `process_vm_readv`(2); `FAULT` where not all of it is there.
    pub fn copy(&self, part: Range<usize>, into: &mut [u8]) -> Result<(), Errno> {
        if part.start > part.end || part.end > self.len || part.len() != into.len() {
            return Err(Errno::FAULT);
        }
        let from = [self.at.as_ptr() as usize + part.start, part.len()];
        let to = [into.as_mut_ptr() as usize, into.len()];
        let own = super::thread::process_id() as usize;
        let args = [own, to.as_ptr() as usize, 1, from.as_ptr() as usize, 1, 0];
        // SAFETY: it writes to `into` alone; where it can't read, it only fails.
        match unsafe { raw::syscall(number::__NR_process_vm_readv, args)? } {
            copied if copied == into.len() => Ok(()),
            _ => Err(Errno::FAULT),
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        unmap(self.at);
    }
}

/// `hint`: where it is to be, if that is free; 0 for anywhere.
fn map(id: u32, hint: usize, flags: usize) -> Result<NonNull<u8>, Errno> {
    // SAFETY: a new mapping, where there is none.
    let map_at =
        |at| unsafe { raw::syscall(number::__NR_shmat, [id as usize, at, flags, 0, 0, 0]) };
    // A place that is not free is refused. So is a segment, but then the kernel's choice is as well.
    let at = map_at(hint).or_else(|_| map_at(0))?;
    NonNull::new(with_exposed_provenance_mut(at)).ok_or(Errno::NOMEM)
}

fn unmap(at: NonNull<u8>) {
    // SAFETY: the caller mapped it, and nobody has looked into it.
    let _ = unsafe { raw::syscall(number::__NR_shmdt, [at.as_ptr() as usize, 0, 0, 0, 0, 0]) };
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const LEN: usize = 3 * 4096 + 100;

    fn own() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn a_segment_is_shared_and_goes_with_the_last_who_has_it() {
        let (id, at) = create(LEN).expect("shared memory");
        let again = attach(id, LEN, own()).expect("marked for removal, and still there");
        assert_ne!(at, again);
        // SAFETY: mapped, and written by this thread alone.
        unsafe {
            at.add(LEN - 1).write_volatile(7);
            assert_eq!(again.add(LEN - 1).read_volatile(), 7);
        }
        let status = status(id).expect("there");
        assert_eq!(
            (status.len, status.owner(), status.maker),
            (LEN, Some(own()), std::process::id())
        );
        assert!(all().any(|(listed, it)| listed == id && it.maker == status.maker));
        unmap(at);
        assert!(attach(id, LEN, own()).map(unmap).is_ok());
        unmap(again);
        assert!(attach(id, LEN, own()).is_err());
        assert!(all().all(|(listed, _)| listed != id));
    }

    #[test]
    fn what_is_not_as_it_should_be_is_not_taken() {
        let (id, at) = create(LEN).expect("shared memory");
        assert_eq!(attach(id, LEN + 1, own()), Err(Errno::PERM));
        assert_eq!(attach(id, LEN, own() + 1), Err(Errno::PERM));
        assert_eq!(status(id).expect("there").attached, 1, "and not kept");
        unmap(at);
        for absurd in [u32::MAX, 1 << 31] {
            assert!(attach(absurd, LEN, own()).is_err());
            assert!(View::open(absurd).is_err());
        }
    }

    #[test]
    fn what_others_may_use_belongs_to_nobody() {
        let (id, _) = create(LEN).expect("shared memory");
        let status = status(id).expect("there");
        assert_eq!(Status { mode: 0o1666, ..status }.owner(), None);
        assert_eq!(Status { creator: status.user + 1, ..status }.owner(), None, "given away");
    }

    #[test]
    fn a_view_copies_what_is_there() {
        let (id, at) = create(LEN).expect("shared memory");
        // SAFETY: mapped, and written by this thread alone.
        unsafe { at.add(10).write_volatile(3) };
        let view = View::open(id).expect("ours");
        let mut bytes = [1; 12];
        if view.copy(0..12, &mut bytes) == Err(Errno::NOSYS) {
            println!("skipped: no process_vm_readv here, as under qemu");
            return;
        }
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0]);
        assert!(view.copy(LEN - 4..LEN + 8, &mut bytes).is_err());
        unmap(at);
        assert!(view.copy(0..12, &mut bytes).is_ok());
    }
}
