//! The operations that a zone asks of its address space.

use core::ffi::c_void;
use core::ptr::{null_mut, NonNull};
use linux_raw_sys::general::MREMAP_DONTUNMAP;
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};

use super::raw;
use crate::addr::FRAME_SIZE;
// The machine's own: a static can't be a model's.
use core::sync::atomic::{AtomicUsize as StaticUsize, Ordering};

/// Page-table work on ranges of one reservation. All ranges are whole frames, given as address
/// and length in bytes.
///
/// # Safety
/// An implementation must leave memory outside the given ranges alone, and must return `Ok` from
/// [`Memory::discard`] only if the range then reads as zeros.
pub unsafe trait Memory: Sync {
    /// Reserves `len` bytes of addresses aligned to `align`; they can't be touched yet and cost
    /// nothing. They are not where the kernel puts mappings by itself, if there is room elsewhere ([`place_apart`]).
    fn reserve(&self, len: usize, align: usize) -> Result<NonNull<u8>, Errno>;

    /// Gives a reservation back, with all that is in it.
    ///
    /// # Safety
    /// It is all of a reservation, and nobody uses it any more.
    unsafe fn release(&self, at: NonNull<u8>, len: usize) -> Result<(), Errno>;

    /// Makes reserved addresses readable and writable. They read as zeros, unpopulated.
    ///
    /// # Safety
    /// The range lies in a reservation and nothing else relies on it being untouchable.
    unsafe fn commit(&self, at: *mut u8, len: usize) -> Result<(), Errno>;

    /// Turns committed addresses back into untouchable ones; their content and every attribute
    /// that anyone set on them is lost.
    ///
    /// # Safety
    /// Nobody uses the range.
    unsafe fn decommit(&self, at: *mut u8, len: usize) -> Result<(), Errno>;

    /// Replaces the range by a fresh mapping, readable, writable, zero, with no attribute left.
    ///
    /// # Safety
    /// Nobody uses the range.
    unsafe fn reset(&self, at: *mut u8, len: usize) -> Result<(), Errno>;

    /// Asks for (`true`) or declines (`false`) huge pages on the range.
    ///
    /// # Safety
    /// The range lies in a reservation.
    unsafe fn set_huge(&self, at: *mut u8, len: usize, huge: Huge) -> Result<(), Errno>;

    /// Says whether a core dump holds the range.
    ///
    /// # Safety
    /// The range lies in a reservation.
    unsafe fn set_dumped(&self, at: *mut u8, len: usize, dump: Dump) -> Result<(), Errno>;

    /// Faults every page of the range in.
    ///
    /// # Safety
    /// The range is committed.
    unsafe fn populate(&self, at: *mut u8, len: usize) -> Result<(), Errno>;

    /// Gives the pages back to the kernel now; the range reads as zeros afterwards.
    ///
    /// # Safety
    /// Nobody uses the range.
    unsafe fn discard(&self, at: *mut u8, len: usize) -> Result<(), Errno>;

    /// Lets the kernel take the pages when it is short of memory. Until then they keep their
    /// content; afterwards they read as zeros.
    ///
    /// # Safety
    /// Nobody uses the range, and it is zeroed already.
    unsafe fn offer(&self, at: *mut u8, len: usize) -> Result<(), Errno>;

    /// Moves the pages of one range to another of the same length. The range they came from stays as it is and reads as
    /// zeros. On an error nothing has moved, and the target may be the kernel's: it unmaps the target before it looks
    /// whether it can move, and another thread's mapping may be there by now.
    ///
    /// # Safety
    /// Both ranges are committed, nobody else uses them, and they do not overlap. The target reads as zeros. The first
    /// is within one mapping ([`is_one_mapping`]): of several the kernel may move some and then fail.
    unsafe fn relocate(&self, from: *mut u8, to: *mut u8, len: usize) -> Result<(), Errno>;

    /// Moves the pages of a range to the beginning of a longer one, all of which is one mapping then. The addresses
    /// they came from are the kernel's afterwards. An error is as one of [`Memory::relocate`].
    ///
    /// # Safety
    /// As for [`Memory::relocate`], but for the target's content, which goes.
    unsafe fn move_and_grow(
        &self,
        from: *mut u8,
        len: usize,
        to: *mut u8,
        new_len: usize,
    ) -> Result<(), Errno>;

    /// Counts the frames of the range that are resident.
    ///
    /// # Safety
    /// The range is committed.
    unsafe fn resident(&self, at: *mut u8, len: usize) -> Result<usize, Errno>;
}

/// Whether huge pages are wanted on a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Huge {
    /// `MADV_HUGEPAGE`
    Yes,
    /// `MADV_NOHUGEPAGE`
    No,
}

/// Whether a range is to be in core dumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dump {
    /// `MADV_DODUMP`
    Yes,
    /// `MADV_DONTDUMP`
    No,
}

/// The kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Os;

const COMMITTED: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
const PRIVATE: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

// SAFETY: each call acts on the given range only, and MADV_DONTNEED on private anonymous memory
// leaves zeros (madvise(2)).
unsafe impl Memory for Os {
    fn reserve(&self, len: usize, align: usize) -> Result<NonNull<u8>, Errno> {
        let padded = len.checked_add(align).ok_or(Errno::NOMEM)?;
        let hint = place_below(padded) as *mut c_void;
        // SAFETY: a new mapping, where there is none.
        let base =
            unsafe { mm::mmap_anonymous(hint, padded, ProtFlags::empty(), PRIVATE)? } as usize;
        let start = base.next_multiple_of(align);
        let (head, tail) = (start - base, base + padded - (start + len));
        // SAFETY: both ends are parts of the mapping just made, outside what is returned.
        unsafe {
            if head > 0 {
                mm::munmap(base as *mut c_void, head)?;
            }
            if tail > 0 {
                mm::munmap((start + len) as *mut c_void, tail)?;
            }
        }
        NonNull::new(start as *mut u8).ok_or(Errno::NOMEM)
    }

    unsafe fn release(&self, at: NonNull<u8>, len: usize) -> Result<(), Errno> {
        // SAFETY: as the caller promises.
        unsafe { unmap(at, len) }
    }

    unsafe fn commit(&self, at: *mut u8, len: usize) -> Result<(), Errno> {
        let flags = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: as the caller promises.
        unsafe { mm::mprotect(at.cast(), len, flags) }
    }

    unsafe fn decommit(&self, at: *mut u8, len: usize) -> Result<(), Errno> {
        let flags = PRIVATE | MapFlags::FIXED;
        // SAFETY: the caller owns the range that is replaced.
        unsafe { mm::mmap_anonymous(at.cast(), len, ProtFlags::empty(), flags).map(drop) }
    }

    unsafe fn reset(&self, at: *mut u8, len: usize) -> Result<(), Errno> {
        let flags = PRIVATE | MapFlags::FIXED;
        // SAFETY: the caller owns the range that is replaced.
        let replace = || unsafe { mm::mmap_anonymous(at.cast(), len, COMMITTED, flags).map(drop) };
        let outcome = replace();
        if outcome != Err(Errno::NOMEM) {
            return outcome;
        }
        // A process with more mappings than it may have gets no new one, not even in the place of several. Those that
        // differ by their protection alone become one again.
        // SAFETY: as above.
        let _ = unsafe { self.commit(at, len) };
        replace()
    }

    unsafe fn set_huge(&self, at: *mut u8, len: usize, huge: Huge) -> Result<(), Errno> {
        let advice = match huge {
            Huge::Yes => Advice::LinuxHugepage,
            Huge::No => Advice::LinuxNoHugepage,
        };
        // SAFETY: the advice changes no content.
        unsafe { mm::madvise(at.cast(), len, advice) }
    }

    unsafe fn set_dumped(&self, at: *mut u8, len: usize, dump: Dump) -> Result<(), Errno> {
        let advice = match dump {
            Dump::Yes => Advice::LinuxDoDump,
            Dump::No => Advice::LinuxDontDump,
        };
        // SAFETY: the advice changes no content.
        unsafe { mm::madvise(at.cast(), len, advice) }
    }

    unsafe fn populate(&self, at: *mut u8, len: usize) -> Result<(), Errno> {
        // SAFETY: populating changes no content.
        unsafe { mm::madvise(at.cast(), len, Advice::LinuxPopulateWrite) }
    }

    unsafe fn discard(&self, at: *mut u8, len: usize) -> Result<(), Errno> {
        // SAFETY: the caller owns the range, whose content may go.
        unsafe { mm::madvise(at.cast(), len, Advice::LinuxDontNeed) }
    }

    unsafe fn offer(&self, at: *mut u8, len: usize) -> Result<(), Errno> {
        // SAFETY: the caller owns the range, which is zero before and after.
        unsafe { mm::madvise(at.cast(), len, Advice::LinuxFree) }
    }

    unsafe fn relocate(&self, from: *mut u8, to: *mut u8, len: usize) -> Result<(), Errno> {
        let keep_mapped = MremapFlags::from_bits_retain(MREMAP_DONTUNMAP);
        let flags = MremapFlags::MAYMOVE | keep_mapped;
        // SAFETY: the caller owns both ranges.
        unsafe { mm::mremap_fixed(from.cast(), len, len, flags, to.cast()).map(drop) }
    }

    unsafe fn move_and_grow(
        &self,
        from: *mut u8,
        len: usize,
        to: *mut u8,
        new_len: usize,
    ) -> Result<(), Errno> {
        // SAFETY: the caller owns both ranges.
        unsafe {
            mm::mremap_fixed(from.cast(), len, new_len, MremapFlags::MAYMOVE, to.cast()).map(drop)
        }
    }

    unsafe fn resident(&self, at: *mut u8, len: usize) -> Result<usize, Errno> {
        const CHUNK: usize = 2048;
        let mut seen = [0u8; CHUNK];
        let mut count = 0;
        for done in (0..len).step_by(CHUNK * FRAME_SIZE) {
            let piece = (len - done).min(CHUNK * FRAME_SIZE);
            let pages = residence(at.wrapping_add(done), piece, &mut seen)?;
            count += pages.iter().filter(|&&byte| byte & 1 != 0).count();
        }
        Ok(count)
    }
}

/// A range, laid out as the kernel's `struct iovec`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Range {
    /// First byte.
    pub at: *mut u8,
    /// Bytes.
    pub len: usize,
}

impl Range {
    /// Nothing.
    pub const EMPTY: Range = Range { at: null_mut(), len: 0 };
}

/// `include/uapi/linux/pidfd.h`, since Linux 6.14: the calling thread, without a descriptor
const PIDFD_SELF: isize = -10_000;

/// `madvise` on many ranges of this process by one call: how many it was done for, from the first
/// on. Before Linux 6.14 it is an error.
///
/// # Safety
/// As `madvise` with this advice on each of them.
pub unsafe fn advise_ranges(ranges: &[Range], advice: Advice) -> Result<usize, Errno> {
    let (at, count) = (ranges.as_ptr() as usize, ranges.len());
    let args = [PIDFD_SELF as usize, at, count, advice as usize, 0, 0];
    // SAFETY: the kernel reads `count` ranges; the caller vouches for what is done to them.
    let mut bytes = unsafe { raw::syscall(raw::number::__NR_process_madvise, args)? };
    let is_whole = |range: &&Range| match bytes.checked_sub(range.len) {
        Some(rest) => {
            bytes = rest;
            true
        }
        None => false,
    };
    Ok(ranges.iter().take_while(is_whole).count())
}

/// Addresses for `len` bytes that are not the program's, a way below where the kernel puts mappings by itself: there a
/// thread may have unmapped some memory only to map other memory in its place, whatever has come between. They are not
/// so far below that a program would find them which takes the middle of the largest gap for its own. They are a hint
/// for `mmap`; 0 for none.
pub fn place_apart(len: usize) -> usize {
    let len = len.next_multiple_of(FRAME_SIZE);
    let next = |at: usize| if at == NOWHERE { None } else { at.checked_add(len) };
    place_next();
    NEXT_APART.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or(0)
}

/// As [`place_apart`], for a mapping that goes at once.
pub fn place_for_a_moment() -> usize {
    const PLACES: usize = 256;
    const BETWEEN: usize = 1 << 27;
    // A filter may not know the call for a thread's number.
    let thread = super::thread::pointer() / FRAME_SIZE;
    match place_next() {
        NOWHERE => 0,
        at => at.saturating_sub((1 + thread % PLACES) * BETWEEN),
    }
}

/// Addresses for a reservation of `len` bytes, as far below those of [`place_apart`] as these are below the kernel's.
/// They are a hint for `mmap`; 0 for none.
fn place_below(len: usize) -> usize {
    let first = place_next();
    let next = |at: usize| {
        let at = at.checked_sub(len)?;
        (first.abs_diff(at) <= FARTHEST).then_some(at)
    };
    let before = NEXT_BELOW.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    before.map_or(0, |before| before - len)
}

/// The next place apart; 0 before the first. Relaxed: of two mappings with one hint, the kernel puts one elsewhere.
static NEXT_APART: StaticUsize = StaticUsize::new(0);
/// The end of the next place for a reservation; as [`NEXT_APART`], and set before it.
static NEXT_BELOW: StaticUsize = StaticUsize::new(0);
/// There is none.
const NOWHERE: usize = 1;

/// Reservations are no farther from the first place than this: programs have memory at addresses of their choice.
const FARTHEST: usize = 1 << 44;
/// The distance from the kernel's next mapping to the first place, and as much again to reservations, is such a part of
/// that mapping's address: 4 TiB of 128.
const PART: usize = 32;
/// So many places are tried, each as far from the one before.
const TRIES: usize = 12;
/// So many bytes are free at a place.
const ROOM: usize = 1 << 30;

fn place_next() -> usize {
    if NEXT_APART.load(Ordering::Relaxed) == 0 {
        let (below, apart) = find_place().unwrap_or((0, NOWHERE));
        // Another thread's are as good. Release: pairs with the Acquire below.
        let _ = NEXT_BELOW.compare_exchange(0, below, Ordering::Relaxed, Ordering::Relaxed);
        let _ = NEXT_APART.compare_exchange(0, apart, Ordering::Release, Ordering::Relaxed);
    }
    NEXT_APART.load(Ordering::Acquire)
}

/// The end of the place for reservations, and the first place apart. The kernel's next mapping is near all that it
/// places by itself, and it has chosen at random where that begins.
fn find_place() -> Option<(usize, usize)> {
    let map = |hint: usize, len: usize| {
        // SAFETY: a new mapping, where there is none, that nobody has used.
        unsafe {
            mm::mmap_anonymous(hint as *mut c_void, len, ProtFlags::empty(), PRIVATE)
                .and_then(|at| mm::munmap(at, len).map(|()| at as usize))
        }
    };
    let next = map(0, FRAME_SIZE).ok()?;
    let step = (next / PART).next_multiple_of(ROOM);
    let places = (1..=TRIES).map_while(|nth| next.checked_sub(nth * step));
    let places = places.map(|at| at / FRAME_SIZE * FRAME_SIZE).filter(|&at| at > step);
    let mut free = places.filter(|&at| map(at, ROOM) == Ok(at));
    free.next().map(|at| (at - step, at))
}

/// Maps `len` bytes of zeroed private memory for the crate's own tables.
pub fn map_table(len: usize) -> Result<NonNull<u8>, Errno> {
    map_above_gap(0, len)
}

/// As [`map_table`], for a stack: no table of ours comes to be in the `gap` bytes below it.
pub fn map_above_gap(gap: usize, len: usize) -> Result<NonNull<u8>, Errno> {
    let hint = match place_apart(gap + len) {
        0 => null_mut(),
        at => (at + gap) as *mut c_void,
    };
    // SAFETY: a new mapping, where there is none.
    let at = unsafe { mm::mmap_anonymous(hint, len, COMMITTED, PRIVATE)? };
    NonNull::new(at.cast()).ok_or(Errno::NOMEM)
}

/// Maps and populates `len` bytes of zeroed private memory that a child process does not have after `fork`
/// (`MADV_DONTFORK`): for memory that a device writes to.
pub fn map_kept_from_children(len: usize) -> Result<NonNull<u8>, Errno> {
    let at = map_table(len)?;
    // SAFETY: mapped a moment ago, and holds nothing.
    unsafe {
        mm::madvise(at.as_ptr().cast(), len, Advice::LinuxDontFork)?;
        mm::madvise(at.as_ptr().cast(), len, Advice::LinuxPopulateWrite)?;
    }
    Ok(at)
}

/// A byte for each page of a range, whose lowest bit says whether it is resident.
///
/// # Panics
/// If the range has more pages than `seen` has room for.
pub fn residence(at: *const u8, len: usize, seen: &mut [u8]) -> Result<&[u8], Errno> {
    let pages = &mut seen[..len.div_ceil(FRAME_SIZE)];
    let args = [at as usize, len, pages.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: there is a byte for each page. The answer is an error if there is no mapping.
    unsafe { raw::syscall(raw::number::__NR_mincore, args)? };
    Ok(pages)
}

/// Maps what is at each page of a range, or zeros, as reading it would (`MADV_POPULATE_READ`, since Linux 5.14).
///
/// # Errors
/// The kernel's, after some of them: a page is not to be read, or the kernel does not know the call.
pub fn populate_read(at: *const u8, len: usize) -> Result<(), Errno> {
    // SAFETY: it reads.
    unsafe { mm::madvise(at.cast_mut().cast(), len, Advice::LinuxPopulateRead) }
}

/// Copies what the process has at some addresses, those for which `wanted` says so. The kernel copies: an error where
/// one is not to be read.
pub fn copy_own<const LEN: usize, const N: usize>(
    at: [usize; N],
    wanted: [bool; N],
    into: &mut [[u8; LEN]; N],
) -> Result<(), Errno> {
    let len = |nth: usize| if wanted[nth] { LEN } else { 0 };
    let from: [[usize; 2]; N] = core::array::from_fn(|nth| [at[nth], len(nth)]);
    let to: [[usize; 2]; N] = core::array::from_fn(|nth| [(&raw mut into[nth]) as usize, len(nth)]);
    let own = super::thread::process_id() as usize;
    let args = [own, to.as_ptr() as usize, N, from.as_ptr() as usize, N, 0];
    // SAFETY: it writes to `into` alone; where it can't read, it only fails.
    match unsafe { raw::syscall(raw::number::__NR_process_vm_readv, args)? } {
        copied if copied == (0..N).map(len).sum() => Ok(()),
        _ => Err(Errno::FAULT),
    }
}

/// Whether a range that nobody else changes lies within one mapping. `false` where the kernel does not say.
///
/// No system call asks for that. But `mremap` refuses to lengthen a range of several mappings, and says so by another
/// error than where there is no room (mm/mremap.c; the same in all versions since 2.6).
///
/// # Safety
/// The caller owns the range, and addresses behind it are mapped, or may be for a moment.
pub unsafe fn is_one_mapping(at: *mut u8, len: usize) -> bool {
    // SAFETY: it stays where it is.
    match unsafe { mm::mremap(at.cast(), len, len + FRAME_SIZE, MremapFlags::empty()) } {
        Ok(_) => {
            // There was room. Should the frame stay, it is a place that another mapping does not get.
            // SAFETY: the frame that it grew by.
            let _ = unsafe { mm::munmap(at.wrapping_add(len).cast(), FRAME_SIZE) };
            true
        }
        // A mapping that is locked may be too much for the limit of those.
        Err(errno) => matches!(errno, Errno::NOMEM | Errno::AGAIN),
    }
}

/// The lengths of the mappings that a range consists of, and their number. `None`: there are more than `lengths` has
/// room for, or the kernel does not say.
///
/// # Safety
/// As [`is_one_mapping`].
pub unsafe fn mappings(at: *mut u8, len: usize, lengths: &mut [usize]) -> Option<usize> {
    let (mut done, mut count) = (0, 0);
    while done < len {
        let length = lengths.get_mut(count)?;
        // SAFETY: as the caller promises.
        *length = unsafe { one_mapping(at.wrapping_add(done), len - done)? };
        done += *length;
        count += 1;
    }
    Some(count)
}

/// The bytes from an address on that are one mapping.
///
/// # Safety
/// As [`is_one_mapping`].
unsafe fn one_mapping(at: *mut u8, len: usize) -> Option<usize> {
    // SAFETY: as the caller promises.
    let is_one = |frames: usize| unsafe { is_one_mapping(at, frames * FRAME_SIZE) };
    if is_one(len / FRAME_SIZE) {
        return Some(len);
    }
    // So many frames are, and so many are not.
    let (mut least, mut most) = (1, len / FRAME_SIZE);
    if !is_one(least) {
        return None;
    }
    while most - least > 1 {
        let middle = least.midpoint(most);
        match is_one(middle) {
            true => least = middle,
            false => most = middle,
        }
    }
    Some(least * FRAME_SIZE)
}

/// Maps zeroed private memory at addresses where there is nothing, as [`Memory::reset`] leaves it. An error if there is
/// something by now.
pub fn map_where_none(at: *mut u8, len: usize) -> Result<(), Errno> {
    let flags = PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: it replaces nothing.
    let got = unsafe { mm::mmap_anonymous(at.cast(), len, COMMITTED, flags)? };
    if got != at.cast() {
        // A kernel from before 4.17 takes the address for a hint.
        // SAFETY: a new mapping, which nobody has used.
        unsafe { mm::munmap(got, len)? };
        return Err(Errno::EXIST);
    }
    Ok(())
}

/// Lengthens or shortens a range, which may be moved for that: its new place. It is as before where this fails, as it
/// does where the kernel would not promise so much more memory: it does not count that of the crate's own mappings.
///
/// # Safety
/// The caller owns the range, and uses it at its new place only.
pub unsafe fn resize(at: *mut u8, len: usize, new_len: usize) -> Result<NonNull<u8>, Errno> {
    if new_len > len {
        let (hint, more) = (place_for_a_moment() as *mut c_void, new_len - len);
        // SAFETY: a new mapping, where there is none, that nobody has used.
        unsafe { mm::munmap(mm::mmap_anonymous(hint, more, COMMITTED, MapFlags::PRIVATE)?, more)? };
    }
    // SAFETY: as the caller promises.
    let new = unsafe { mm::mremap(at.cast(), len, new_len, MremapFlags::MAYMOVE)? };
    NonNull::new(new.cast()).ok_or(Errno::NOMEM)
}

/// Gives addresses and their pages back to the kernel.
///
/// # Safety
/// The range was mapped by this crate, and nobody uses it any more.
pub unsafe fn unmap(at: NonNull<u8>, len: usize) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    unsafe { mm::munmap(at.as_ptr().cast(), len) }
}

/// Maps one page that a child process finds zeroed after `fork` (`MADV_WIPEONFORK`).
pub fn map_wiped_on_fork() -> Result<NonNull<u8>, Errno> {
    let page = map_table(FRAME_SIZE)?;
    // SAFETY: the page was mapped a moment ago and holds nothing.
    unsafe { mm::madvise(page.as_ptr().cast(), FRAME_SIZE, Advice::LinuxWipeOnFork)? };
    Ok(page)
}

/// `include/uapi/asm-generic/mman-common.h`, since Linux 6.1
const MADV_COLLAPSE: usize = 25;

/// Faults in all pages of a shared mapping, as writing to them would.
///
/// # Safety
/// `at` and `len` are a mapping of the caller's, or part of one.
pub unsafe fn populate_shared(at: *mut u8, len: usize) -> Result<(), Errno> {
    // SAFETY: as the caller promises.
    unsafe { mm::madvise(at.cast(), len, Advice::LinuxPopulateWrite) }
}

/// Puts the mapped memory into huge pages, also where `shmem_enabled` forbids them; holes become zeros.
///
/// # Safety
/// As [`populate_shared`].
pub unsafe fn collapse(at: *mut u8, len: usize) -> Result<(), Errno> {
    let args = [at as usize, len, MADV_COLLAPSE, 0, 0, 0];
    // SAFETY: madvise(2) reads and writes nothing of the caller's; collapsing keeps contents.
    unsafe { raw::syscall(raw::number::__NR_madvise, args) }.map(|_zero| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::BLOCK_SIZE;

    #[test]
    fn tables_are_apart_and_beside_each_other() {
        let tables: [usize; 8] = core::array::from_fn(|nth| {
            map_table((nth + 1) * 1000).expect("memory").as_ptr() as usize
        });
        // SAFETY: a new mapping, where there is none.
        let other = unsafe { mm::mmap_anonymous(null_mut(), FRAME_SIZE, COMMITTED, PRIVATE) };
        let other = other.expect("memory") as usize;
        for (nth, at) in tables.into_iter().enumerate() {
            let (len, behind) =
                (((nth + 1) * 1000).next_multiple_of(FRAME_SIZE), &tables[nth + 1..]);
            assert!(behind.iter().all(|&next| next >= at + len), "{at:#x}");
            let apart = at.abs_diff(other);
            assert!((ROOM..other / PART * (TRIES + 1)).contains(&apart), "{at:#x} and {other:#x}");
        }
        assert!(place_for_a_moment() < tables[0], "before the tables");
        assert_ne!(place_apart(1), place_apart(1));
        let zone = Os.reserve(BLOCK_SIZE, BLOCK_SIZE).expect("addresses");
        assert!((zone.as_ptr() as usize) < tables[0], "below the tables");
        // SAFETY: all of it, which nobody uses.
        unsafe { Os.release(zone, BLOCK_SIZE) }.expect("it is there");
    }

    #[test]
    fn a_range_is_as_many_mappings_as_have_attributes_of_their_own() {
        const LEN: usize = 64 * FRAME_SIZE;
        let at = map_table(2 * LEN).expect("memory").as_ptr();
        let frame = |nth: usize| at.wrapping_add(nth * FRAME_SIZE);
        let lengths = |from: usize, frames: usize| {
            let mut lengths = [0; 6];
            // SAFETY: the test's own memory, with more of it behind.
            let count = unsafe { mappings(frame(from), frames * FRAME_SIZE, &mut lengths) };
            count.map(|count| lengths[..count].iter().map(|len| len / FRAME_SIZE).collect())
        };
        assert_eq!(lengths(0, 64), Some(vec![64]));
        let set = |nth: usize| {
            // SAFETY: as above. An emulator of another processor may ignore advice, but not this.
            unsafe { mm::mprotect(frame(nth).cast(), FRAME_SIZE, MprotectFlags::READ) }
                .expect("mapped");
        };
        set(0);
        set(40);
        set(41);
        assert_eq!(lengths(0, 64), Some(vec![1, 39, 2, 22]));
        assert_eq!(lengths(1, 39), Some(vec![39]));
        assert_eq!(lengths(41, 10), Some(vec![1, 9]));
        (50..60).step_by(2).for_each(set);
        assert_eq!(lengths(0, 64), None, "more than there is room for");
        // SAFETY: as above.
        unsafe { mm::munmap(frame(100).cast(), FRAME_SIZE) }.expect("mapped");
        // SAFETY: as above.
        assert!(unsafe { is_one_mapping(frame(64), 36 * FRAME_SIZE) }, "nothing is behind it");
        // SAFETY: as above.
        assert!(unsafe { !is_one_mapping(frame(64), 37 * FRAME_SIZE) });
        assert_eq!(residence(frame(100), FRAME_SIZE, &mut [0]), Err(Errno::NOMEM), "as before");
    }
}
