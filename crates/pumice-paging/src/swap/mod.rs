//! Pages that are not in memory: slots of a file or a block device.
//!
//! - [`header`]: the content of the first slot's place, so that nothing else is taken for swap; [`foreign`]: the owner
//!   of an area without a header.
//! - [`slots`]: the slots that are taken; [`checksum`]: the checksums of their bytes.
//! - [`mod@backing`]: swap as reclaim and faults see it.
//!
//! A [`Swap`] says where a page goes, and checks that it comes back unchanged: of each slot it keeps a checksum, and
//! the policy's note of the page (eight bytes a slot). The bytes go by a [`Queue`] of the caller's. Nothing is found in
//! a swap area by the next process: it is a place for this one's pages, no more.

pub mod backing;
pub mod checksum;
pub mod foreign;
#[cfg(all(test, not(any(loom, shuttle))))]
mod foreign_tests;
pub mod header;
pub mod slots;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use rustix::io::Errno;

use foreign::Foreign;
use header::{Header, HeaderError};
use pumice_frames::addr::FRAME_SIZE;
use pumice_io::engine::Direction;
use pumice_io::sync::Mutex;
use pumice_io::{BlockFile, Bytes, Cached, Engine, Queue, Request};
use slots::SlotMap;

/// A slot's number. The first is 1: in the place of 0 is the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SwapSlot(pub u32);

/// Most slots there can be, as many as a page's entry has numbers for: 1 TiB.
pub const MOST_SLOTS: u32 = (1 << 28) - 1;

/// Why a page is not in swap, or not back.
#[derive(Debug, thiserror::Error)]
pub enum SwapError {
    /// The file can't be opened or made.
    #[error("can't use {} for swap: {errno}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
    /// The area is in use.
    #[error("{} is in use for swap already; end its user, or give another file", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It has other content.
    #[error("{0} is no swap area of pumice: {reason}; if nobody needs it: {clearing} {0}", path.display())]
    NotSwap {
        /// The file.
        path: PathBuf,
        /// The contents that it has.
        reason: Foreign,
        /// The command that clears it.
        clearing: &'static str,
    },
    /// A size that is none.
    #[error("swap of {bytes} bytes: it takes two pages, and 1 TiB at most")]
    BadSize {
        /// The size that was asked for.
        bytes: u64,
    },
    /// All slots are taken.
    #[error("swap is full: all {slots} slots are taken; make it larger")]
    Full {
        /// How many there are.
        slots: u32,
    },
    /// A page could not be written, and is still in memory.
    #[error("can't write slot {} of swap: {errno}", slot.0)]
    Write {
        /// Where it was to go.
        slot: SwapSlot,
        /// The kernel's error; `ENOSPC` where the file system is full.
        errno: Errno,
    },
    /// A page could not be read.
    #[error("can't read slot {} of swap: {errno}", slot.0)]
    Read {
        /// Where it is.
        slot: SwapSlot,
        /// The kernel's error.
        errno: Errno,
    },
    /// The bytes that were read are not those that were written.
    #[error("slot {} of swap has other bytes than were written there; the device lost them", slot.0)]
    Checksum {
        /// Where it is.
        slot: SwapSlot,
    },
}

/// See the module's top.
#[derive(Debug)]
pub struct Swap {
    file: Arc<BlockFile>,
    map: Mutex<SlotMap>,
    /// As the map says, for threads that ask without its lock.
    taken: AtomicU32,
    /// For each slot a checksum, and above it what the policy wrote. Relaxed: a thread has the slot's number from a
    /// page's entry, whose ordering covers this.
    records: Vec<AtomicU64>,
}

impl Swap {
    /// Makes a swap area of `bytes` bytes in a file, which is made if there is none, or on a block device. It must have
    /// been one before, or be zero at all places where file systems and others sign ([`foreign`]).
    ///
    /// # Errors
    /// [`SwapError::Open`], with `ENOSPC` where there is no room; [`SwapError::InUse`]; [`SwapError::NotSwap`] for
    /// other content; [`SwapError::BadSize`].
    pub fn create(path: &Path, bytes: u64, cached: Cached) -> Result<Swap, SwapError> {
        Swap::make(path, bytes, cached, whose)
    }

    /// As [`Swap::create`], without a look at the file or the device: its content is lost.
    ///
    /// # Errors
    /// As there, but for [`SwapError::NotSwap`].
    pub fn create_over_anything(
        path: &Path,
        bytes: u64,
        cached: Cached,
    ) -> Result<Swap, SwapError> {
        Swap::make(path, bytes, cached, |_, _| Ok(None))
    }

    fn make(
        path: &Path,
        bytes: u64,
        cached: Cached,
        whose: impl Fn(&BlockFile, u64) -> Result<Option<Foreign>, Errno>,
    ) -> Result<Swap, SwapError> {
        let slots =
            (bytes / FRAME_SIZE as u64).checked_sub(1).and_then(|slots| u32::try_from(slots).ok());
        let slots = slots.filter(|slots| (1..=MOST_SLOTS).contains(slots));
        let slots = slots.ok_or(SwapError::BadSize { bytes })?;
        let open = |errno| match errno {
            // A mounted device, of a kernel that lets nobody else write to such.
            Errno::BUSY => SwapError::InUse { path: path.to_owned() },
            errno => SwapError::Open { path: path.to_owned(), errno },
        };
        let mut file = BlockFile::open(path, cached).map_err(open)?;
        // Late writes of the last process, which was killed, must not end up in this one's slots.
        file.lock().map_err(open)?;
        if let Some(reason) = whose(&file, bytes).map_err(open)? {
            let clearing = if file.is_device() { "blkdiscard --zeroout" } else { "rm" };
            return Err(SwapError::NotSwap { path: path.to_owned(), reason, clearing });
        }
        file.reserve(bytes).map_err(open)?;
        let mut first = FirstFrame([0; FRAME_SIZE]);
        Header { slots }.write(&mut first.0);
        first.transfer(&file, Direction::Write).map_err(open)?;
        Ok(Swap {
            file: Arc::new(file),
            map: Mutex::new(SlotMap::new(slots)),
            taken: AtomicU32::new(0),
            records: (0..=slots).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    /// The file.
    pub(crate) fn file(&self) -> &Arc<BlockFile> {
        &self.file
    }

    /// Slots there are, and slots taken.
    pub fn usage(&self) -> (u32, u32) {
        let map = self.map.lock();
        (map.len(), map.taken())
    }

    /// Whether a page that came back should give its slot up at once: swap is more than half full. Else it keeps
    /// it, in the swap cache, which saves writing it again, until it is written to (SPEC E7).
    pub(crate) fn is_scarce(&self) -> bool {
        // Relaxed: a hint, of a number that changes all the time.
        self.taken.load(Ordering::Relaxed) as usize > self.records.len() / 2
    }

    /// A slot.
    ///
    /// # Errors
    /// [`SwapError::Full`].
    #[cfg(test)]
    pub(crate) fn get(&self) -> Result<SwapSlot, SwapError> {
        self.get_run(1).map(|(first, _)| first)
    }

    /// Slots that lie beside each other, `most` at most: the first, and how many.
    ///
    /// # Errors
    /// [`SwapError::Full`].
    pub(crate) fn get_run(&self, most: u32) -> Result<(SwapSlot, u32), SwapError> {
        let mut map = self.map.lock();
        let run = map.get_run(most);
        self.taken.store(map.taken(), Ordering::Relaxed);
        run.map(|(first, run)| (SwapSlot(first), run)).ok_or(SwapError::Full { slots: map.len() })
    }

    /// One more has a slot, and gives it back by itself. `false`: it is not taken.
    pub(crate) fn share(&self, slot: SwapSlot) -> bool {
        self.map.lock().share(slot.0)
    }

    /// Gives a slot back that its caller does not read any more. `false`: it is not taken.
    pub(crate) fn put(&self, slot: SwapSlot) -> bool {
        self.put_all([slot])
    }

    /// As [`Swap::put`], of many. `false`: one of them is not taken.
    pub(crate) fn put_all(&self, slots: impl IntoIterator<Item = SwapSlot>) -> bool {
        let mut slots = slots.into_iter().peekable();
        if slots.peek().is_none() {
            return true;
        }
        let mut map = self.map.lock();
        let mut were_taken = true;
        slots.for_each(|slot| were_taken &= map.put(slot.0));
        self.taken.store(map.taken(), Ordering::Relaxed);
        were_taken
    }

    /// Where a slot is in the file.
    fn offset(slot: SwapSlot) -> u64 {
        u64::from(slot.0) * FRAME_SIZE as u64
    }

    fn request(&self, direction: Direction, first: SwapSlot, bytes: Bytes) -> Request {
        let offset = Swap::offset(first);
        Request { file: self.file.reference(), direction, bytes, offset, token: 0 }
    }

    /// Keeps the checksum of what a slot of the caller's has, or is to have, by when it may be read.
    pub(crate) fn seal(&self, slot: SwapSlot, page: &[u8; FRAME_SIZE]) {
        let sum = checksum::of_page(page, slot.0);
        if let Some(record) = self.records.get(slot.0 as usize) {
            let note = record.load(Ordering::Relaxed) & !u64::from(u32::MAX);
            record.store(note | u64::from(sum), Ordering::Relaxed);
        }
    }

    /// Asks `queue` to read pages from slots from `first` on; when it is done, [`Swap::check`] says whether each is the
    /// one that went.
    ///
    /// # Errors
    /// [`SwapError::Read`] if it can't be asked for.
    ///
    /// # Safety
    /// As [`Queue::submit`]: the frames are the queue's until then, and this stays.
    pub(crate) unsafe fn read<E: Engine, P>(
        &self,
        queue: &mut Queue<E, P>,
        first: SwapSlot,
        bytes: Bytes,
        payload: P,
    ) -> Result<(), SwapError> {
        let request = self.request(Direction::Read, first, bytes);
        // SAFETY: the caller's promise.
        unsafe { queue.submit(request, payload) }
            .map_err(|(errno, _)| SwapError::Read { slot: first, errno })
    }

    /// Whether a page that was read from a slot is the one that was written there.
    ///
    /// # Errors
    /// [`SwapError::Checksum`].
    pub(crate) fn check(&self, slot: SwapSlot, page: &[u8; FRAME_SIZE]) -> Result<(), SwapError> {
        let record = self.records.get(slot.0 as usize).map(|record| record.load(Ordering::Relaxed));
        let sum = checksum::of_page(page, slot.0);
        match record {
            Some(record) if record as u32 == sum => Ok(()),
            _ => Err(SwapError::Checksum { slot }),
        }
    }

    /// Notes something else of the page in a slot.
    pub(crate) fn set_note(&self, slot: SwapSlot, note: u32) {
        if let Some(record) = self.records.get(slot.0 as usize) {
            let sum = record.load(Ordering::Relaxed) & u64::from(u32::MAX);
            record.store(u64::from(note) << 32 | sum, Ordering::Relaxed);
        }
    }

    /// The note of the page in a slot.
    pub(crate) fn note(&self, slot: SwapSlot) -> u32 {
        let record = self.records.get(slot.0 as usize);
        record.map_or(0, |record| (record.load(Ordering::Relaxed) >> 32) as u32)
    }
}

/// The owner of something else where a swap area of `bytes` bytes is to be.
fn whose(file: &BlockFile, bytes: u64) -> Result<Option<Foreign>, Errno> {
    let mut first = FirstFrame([0; FRAME_SIZE]);
    if file.len() >= FRAME_SIZE as u64 {
        first.transfer(file, Direction::Read)?;
    }
    match Header::read(&first.0) {
        // The old area contains pages. Behind it a RAID may have its end, in which the area was.
        Ok(Header { slots }) => {
            foreign::known(file, (u64::from(slots) + 1) * FRAME_SIZE as u64..bytes)
        }
        Err(HeaderError::Magic) => foreign::look(file),
        Err(like_ours) => Ok(Some(Foreign::Header(like_ours))),
    }
}

/// A frame where direct I/O takes it.
#[repr(align(4096))]
struct FirstFrame([u8; FRAME_SIZE]);

impl FirstFrame {
    fn transfer(&mut self, file: &BlockFile, direction: Direction) -> Result<(), Errno> {
        let at = NonNull::from(&mut self.0).cast();
        // SAFETY: all of the frame, which nobody else has.
        unsafe { file.transfer(direction, at, FRAME_SIZE, 0) }
    }
}
