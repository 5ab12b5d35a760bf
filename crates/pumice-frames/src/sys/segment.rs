//! Memory that processes share by a number: System V's, made so that it goes with the last process that has it.
//!
//! Among the kinds of shared memory this one suits counters. It lies in no folder that may be full, or that others can
//! write to; it can't be made shorter, and its pages are promised when it is made, so touching it is never SIGBUS. Its
//! number means the same under every root folder, in every namespace of processes and of users; a descriptor under
//! `/proc` does not, and one that is inherited is the program's to see and to close.
//!
//! It is marked for removal as soon as it is made. Linux still lets others attach it by its number for as long as
//! somebody has it (shmctl(2)), and then nothing is left to remove.
//!
//! Processes that don't know a number can have one in common by a key ([`common`]). A key is taken from a segment when
//! it is marked for removal, so processes find it among all segments ([`all`]), by its length and its content. The key
//! is the lock of those that make it:
//! ```text
//! look --none is there--> make it under the key --> look again --none--> prepare, mark for removal --> found by all
//!   ^                          |                        +--found--> remove it, take the other
//!   +-- another has the key <--+ (for MOST_WAITS; then its maker was killed or stopped: it is prepared and marked)
//! ```
//! A maker that is killed in these few microseconds leaves its segment to the next process that looks for it.

use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr::{with_exposed_provenance_mut, NonNull};
use core::time::Duration;

use rustix::io::Errno;

use super::raw::{self, number};
use super::{mem, thread};

const IPC_CREAT: usize = 0o1000;
const IPC_EXCL: usize = 0o2000;
const IPC_PRIVATE: usize = 0;
const IPC_RMID: usize = 0;
const IPC_STAT: usize = 2;
const SHM_STAT: usize = 13;
const SHM_INFO: usize = 14;
const SHM_RDONLY: usize = 0o10_000;
/// Its user may read and write, nobody else.
const MODE: u32 = 0o600;
/// A maker needs some microseconds. So often others look again, a wait between, before they take it for dead.
const MOST_WAITS: usize = 40;
const WAIT: Duration = Duration::from_micros(50);

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
    /// When it was last attached, and detached.
    attached_and_detached: [u64; 2],
    /// When it was made, or its owner or key changed, in seconds since 1970.
    pub changed_s: u64,
    /// The process that made it, by its number here; 0 for one of another namespace.
    pub maker: u32,
    last: u32,
    /// How often it is mapped.
    pub attached: u64,
    reserved: [u64; 2],
}

impl Status {
    /// Whether its maker was killed before it took the key away ([`common`]), or has not come to that yet.
    pub fn has_key(&self) -> bool {
        self.key != 0
    }

    /// The owner, if nobody else may use the segment: other users can give theirs away, but stay their creators.
    pub fn owner(&self) -> Option<u32> {
        (self.user == self.creator && self.mode & 0o777 == MODE).then_some(self.user)
    }
}

/// Makes a segment of zeros and maps it for good, where the kernel chooses: its number, and where it is.
///
/// # Errors
/// As shmget(2) and shmat(2).
pub fn create(len: usize) -> Result<(u32, NonNull<u8>), Errno> {
    let id = get(IPC_PRIVATE, len, IPC_CREAT)?;
    let mapped = map(id, 0, 0);
    // Its own segment: this can't fail.
    let _ = remove(id);
    Ok((id, mapped?))
}

/// The segments that processes of one user have in common.
#[derive(Clone, Copy, Debug)]
pub struct Common {
    /// Two of one key, length and user are the same where `is_it` says so. Not 0.
    pub key: u32,
    /// Bytes.
    pub len: usize,
    /// Its owner, and nobody else's.
    pub user: u32,
}

/// The segment that processes have in common, mapped for good: one that is there, or a new one that `prepare` has
/// filled. It is there for as long as one of them has it. `is_it` is asked of segments of the length; `prepare` may
/// find what another `prepare` has written, in part or in whole.
///
/// # Errors
/// As shmget(2), shmat(2) and shmctl(2); `PERM` where the key is another's.
pub fn common(
    of: Common,
    is_it: impl Fn(&View) -> bool,
    prepare: impl Fn(NonNull<u8>),
) -> Result<NonNull<u8>, Errno> {
    let Common { key, len, user } = of;
    // `own`: the one that is under the key, which is not looked at.
    let find = |own: Option<u32>| -> Result<Option<NonNull<u8>>, Errno> {
        let fits = |status: &Status| status.len == len && status.owner() == Some(user);
        for (id, status) in all()?.filter(|&(id, status)| Some(id) != own && fits(&status)) {
            let is_it = View::open(id).is_ok_and(|view| fits(&view.status) && is_it(&view));
            // It goes if all who have it do meanwhile.
            if let Some(at) = is_it.then(|| attach(id, len, user).ok()).flatten() {
                if status.has_key() {
                    // Its maker was killed before it took the key away, or comes to that now.
                    let _ = remove(id);
                }
                return Ok(Some(at));
            }
        }
        Ok(None)
    };
    // Takes one that is under the key, or was until now, and takes the key away.
    let take = |id: u32| {
        let at = attach(id, len, user).inspect(|&at| prepare(at));
        let _ = remove(id);
        at
    };
    // Where others take it as well, or it is gone, the next look says which it is.
    let mut waits = 0;
    loop {
        if let Some(at) = find(None)? {
            return Ok(at);
        }
        let made = get(key as usize, len, IPC_CREAT | IPC_EXCL);
        let result = match made {
            Ok(id) => {
                // One may have been made between the look and the lock.
                match find(Some(id)) {
                    Ok(None) => take(id),
                    found => {
                        let _ = remove(id);
                        found.and_then(|at| at.ok_or(Errno::NOENT))
                    }
                }
            }
            Err(Errno::EXIST) if waits % (MOST_WAITS + 1) < MOST_WAITS => {
                thread::sleep(WAIT);
                Err(Errno::IDRM)
            }
            // Its maker was killed, or stopped, before it took the key away.
            Err(Errno::EXIST) => get(key as usize, len, 0).and_then(take),
            Err(errno) => return Err(errno),
        };
        match result {
            // Gone meanwhile: another has taken it, and ended, or has it.
            Err(Errno::IDRM | Errno::INVAL | Errno::NOENT) if waits < 2 * MOST_WAITS => waits += 1,
            result => return result,
        }
    }
}

/// Marks a segment of this user's for removal: it goes now if nobody has it, else with the last who has.
///
/// # Errors
/// As shmctl(2).
pub fn remove(id: u32) -> Result<(), Errno> {
    // SAFETY: plain numbers.
    unsafe { raw::syscall(number::__NR_shmctl, [id as usize, IPC_RMID, 0, 0, 0, 0]) }.map(drop)
}

fn get(key: usize, len: usize, flags: usize) -> Result<u32, Errno> {
    let args = [key, len, flags | MODE as usize, 0, 0, 0];
    // SAFETY: plain numbers.
    let id = unsafe { raw::syscall(number::__NR_shmget, args)? };
    Ok(id as u32)
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

/// All segments that this process may read, with their numbers: those that were made last first, as a rule. One that is
/// there all the time is among them, whatever is made and removed meanwhile: it stays at its index, and each index is
/// looked at.
///
/// # Errors
/// As shmctl(2), where it tells of none.
pub fn all() -> Result<impl Iterator<Item = (u32, Status)>, Errno> {
    // The answer of this call is the highest index in use. The structure it fills is a shorter one.
    let (highest, _) = ask(0, SHM_INFO)?;
    // Of an index without a segment there is no answer; others' may not be looked at.
    Ok((0..=highest).rev().filter_map(|index| ask(index, SHM_STAT).ok()))
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
        let own = thread::process_id() as usize;
        let args = [own, to.as_ptr() as usize, 1, from.as_ptr() as usize, 1, 0];
        // SAFETY: it writes to `into` alone; where it can't read, it only fails.
        match unsafe { raw::syscall(number::__NR_process_vm_readv, args)? } {
            copied if copied == into.len() => Ok(()),
            _ => Err(Errno::FAULT),
        }
    }

    /// As [`View::copy`]; where the kernel does not copy (a filter, an emulator of processes), this thread does, and is
    /// killed where the segment is of huge pages that are not there.
    ///
    /// # Errors
    /// `FAULT` where not all of it is there.
    pub fn read(&self, part: Range<usize>, into: &mut [u8]) -> Result<(), Errno> {
        match self.copy(part.clone(), into) {
            Err(Errno::NOSYS | Errno::PERM) => {
                for (at, byte) in part.zip(into) {
                    // SAFETY: mapped: `copy` looked at the length before it made the call.
                    *byte = unsafe { self.at.add(at).read_volatile() };
                }
                Ok(())
            }
            answer => answer,
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
        assert!(all()
            .expect("shmctl")
            .any(|(listed, it)| listed == id && it.maker == status.maker));
        unmap(at);
        assert!(attach(id, LEN, own()).map(unmap).is_ok());
        unmap(again);
        assert!(attach(id, LEN, own()).is_err());
        assert!(all().expect("shmctl").all(|(listed, _)| listed != id));
    }

    #[test]
    fn one_that_stays_is_found_whatever_comes_and_goes() {
        let (id, at) = create(LEN).expect("shared memory");
        std::thread::scope(|scope| {
            let others = scope.spawn(|| {
                for _ in 0..2000 {
                    // Of some there are later ones before they go: their indices are free below the highest.
                    let early = create(LEN).expect("shared memory").1;
                    let later = [(); 8].map(|()| create(LEN).expect("shared memory").1);
                    unmap(early);
                    later.into_iter().for_each(unmap);
                }
            });
            while !others.is_finished() {
                assert!(all().expect("shmctl").any(|(listed, _)| listed == id));
            }
        });
        unmap(at);
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

    /// One in common, whose first byte is 1 when it is prepared.
    fn one_of(key: u32) -> Result<NonNull<u8>, Errno> {
        let of = Common { key, len: LEN + 1 + key as usize % 1000, user: own() };
        let is_it = |view: &View| {
            let mut first = [0];
            view.read(0..1, &mut first).is_ok() && first == [1]
        };
        // SAFETY: as above.
        common(of, is_it, |at| unsafe { at.write_volatile(1) })
    }

    fn a_key() -> u32 {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        0x7b00_0000 | (std::process::id() & 0xffff) << 8 | next
    }

    /// qemu, as an emulator of processes, loses count of what several threads have mapped.
    fn is_emulated() -> bool {
        let (id, at) = create(LEN).expect("shared memory");
        let copied = View::open(id).expect("ours").copy(0..1, &mut [0]);
        unmap(at);
        copied == Err(Errno::NOSYS)
    }

    #[test]
    fn those_that_start_at_once_have_one_in_common() {
        let rounds = if is_emulated() { 1 } else { 50 };
        for _ in 0..rounds {
            let key = a_key();
            let threads: Vec<_> = (0..8)
                .map(|_| std::thread::spawn(move || one_of(key).expect("memory").as_ptr() as usize))
                .collect();
            let at: Vec<_> = threads.into_iter().map(|it| it.join().expect("an address")).collect();
            // Each has mapped it at a place of its own, and all see the writes of one.
            // SAFETY: mapped by the threads, and unmapped by nobody.
            unsafe {
                (at[0] as *mut u8).add(9).write_volatile(7);
                assert!(at.iter().all(|&at| (at as *const u8).add(9).read_volatile() == 7));
            }
            for at in at {
                unmap(NonNull::new(at as *mut u8).expect("mapped"));
            }
            let again = one_of(key).expect("memory");
            // SAFETY: as above.
            let is_new = unsafe { again.add(9).read_volatile() } == 0;
            assert!(is_new || is_emulated(), "it went with the last");
            unmap(again);
        }
    }

    #[test]
    fn one_whose_maker_was_killed_is_taken() {
        let key = a_key();
        let len = LEN + 1 + key as usize % 1000;
        let left = get(key as usize, len, IPC_CREAT | IPC_EXCL).expect("a segment");
        let at = one_of(key).expect("taken");
        assert!(status(left).is_ok_and(|status| status.attached == 1));
        let other = one_of(key).expect("found");
        assert!(status(left).is_ok_and(|status| status.attached == 2));
        unmap(at);
        unmap(other);
        assert!(status(left).is_err(), "nothing is left behind");
    }

    #[test]
    fn one_that_is_found_with_its_key_loses_it() {
        let key = a_key();
        let len = LEN + 1 + key as usize % 1000;
        let left = get(key as usize, len, IPC_CREAT | IPC_EXCL).expect("a segment");
        let maker = attach(left, len, own()).expect("a place");
        // SAFETY: mapped, and nobody else's. Its maker is killed here.
        unsafe { maker.write_volatile(1) };
        let at = one_of(key).expect("found");
        assert!(status(left).is_ok_and(|status| status.attached == 2 && !status.has_key()));
        unmap(maker);
        unmap(at);
        assert!(status(left).is_err(), "nothing is left behind");
    }

    #[test]
    fn a_key_of_anothers_is_refused() {
        let key = a_key();
        let id = get(key as usize, 100, IPC_CREAT | IPC_EXCL).expect("a segment");
        assert!(one_of(key).is_err(), "it is shorter");
        assert!(status(id).is_ok(), "and is left alone");
        let _ = remove(id);
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
