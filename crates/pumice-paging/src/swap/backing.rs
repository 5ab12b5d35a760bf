//! Swap as the backing of anonymous pages.

use std::ops::Range;
use std::ptr::NonNull;

use rustix::io::Errno;

use super::{Swap, SwapError, SwapSlot};
use crate::backing::{Backing, Came, Outgoing, Place, Refusal, SwapCaches};
use crate::page_table::pager::{Evicted, Incoming, Page, ReadFailed, ReadResult, SpaceId};
use crate::page_table::Rights;
use crate::space::swap_in::READ_AHEAD;
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::frame::Gfp;
use pumice_io::engine::Piece;
use pumice_io::sync::Mutex;
use pumice_io::{Bytes, Engines, Queues};

/// A swap area as a [`Backing`]: pages that leave together get slots beside each other, as far as there are any.
///
/// A page that comes back keeps its slot until it is written, or until slots are scarce (SPEC E7): it is in the swap
/// cache.
#[derive(Debug)]
pub struct SwapBacking {
    swap: Swap,
    /// Queues for one page, and for many: for runs of those that are asked for.
    readers: Queues,
    ahead_readers: Queues<Range<usize>>,
    last_error: Mutex<Option<SwapError>>,
    caches: SwapCaches,
}

impl SwapBacking {
    /// Over a swap area, read from by these engines.
    pub fn new(swap: Swap, engines: &Engines) -> SwapBacking {
        SwapBacking {
            swap,
            readers: Queues::new(engines.clone(), 1),
            ahead_readers: Queues::new(engines.clone(), READ_AHEAD as u32),
            last_error: Mutex::new(None),
            caches: SwapCaches::default(),
        }
    }

    /// With other engines.
    #[doc(hidden)]
    #[must_use]
    pub fn with_engines(self, engines: &Engines) -> SwapBacking {
        SwapBacking::new(self.swap, engines)
    }

    /// The swap area.
    pub fn swap(&self) -> &Swap {
        &self.swap
    }

    /// The last error of the device, or that swap is full; once.
    pub fn take_error(&self) -> Option<SwapError> {
        self.last_error.lock().take()
    }

    fn note_error(&self, error: SwapError) {
        *self.last_error.lock() = Some(error);
    }

    fn read_one(&self, slot: SwapSlot, into: &mut Page) -> Result<(), SwapError> {
        let mut reader = self.readers.take();
        let at = NonNull::from(&mut *into).cast();
        // SAFETY: the bytes are borrowed until the queue is empty, or dropped.
        unsafe { self.swap.read(&mut reader, slot, Bytes::Run { at, len: FRAME_SIZE }, ()) }?;
        let mut went = Ok(());
        self.readers.drain(reader, |(), result| went = result);
        went.map_err(|errno| SwapError::Read { slot, errno })?;
        self.swap.check(slot, into)
    }

    /// Reads pages, those in slots beside each other by one request.
    ///
    /// # Safety
    /// The frames are this call's.
    unsafe fn read_many(&self, pages: &mut [Incoming]) {
        // Before the queue, which is dropped first.
        let pieces: Vec<Piece> = pages.iter().map(|page| Piece::frame(page.into.cast())).collect();
        let mut reader = self.ahead_readers.take();
        let slots: Vec<SwapSlot> = pages.iter().map(|page| slot_of(page.from)).collect();
        pages.iter_mut().for_each(|page| page.result = Err(ReadFailed));
        let mut first = 0;
        for run in slots.chunk_by(|one, next| one.0 + 1 == next.0) {
            let list = NonNull::from(&pieces[first..]).cast();
            let bytes = Bytes::Frames { pieces: list, count: run.len() };
            let own = first..first + run.len();
            first = own.end;
            // SAFETY: the caller's promise, and the list stays until the queue is empty, or dropped.
            if unsafe { self.swap.read(&mut reader, run[0], bytes, own) }.is_err() {
                break;
            }
        }
        self.ahead_readers.drain(reader, |run, went| {
            if went.is_ok() {
                pages[run].iter_mut().for_each(|page| page.result = Ok(()));
            }
        });
        for (page, slot) in pages.iter_mut().zip(slots).filter(|(page, _)| page.result.is_ok()) {
            // SAFETY: the caller's promise.
            let bytes = unsafe { page.into.as_mut() };
            page.result = self.swap.check(slot, bytes).map_err(|_| ReadFailed);
        }
    }
}

fn slot_of(evicted: Evicted) -> SwapSlot {
    match evicted {
        Evicted::Swapped(slot) | Evicted::Shadow(slot) => SwapSlot(slot),
    }
}

/// The slot of a page of a place.
fn slot_at(place: &Place, nth: usize) -> SwapSlot {
    SwapSlot(place.tag as u32 + nth as u32)
}

// SAFETY: it knows of no task.
unsafe impl Backing for SwapBacking {
    fn needs(&self) -> Gfp {
        Gfp::IO
    }

    fn swap_caches(&self) -> Option<&SwapCaches> {
        Some(&self.caches)
    }

    fn read(&self, _space: SpaceId, _page: usize, from: Evicted, into: &mut Page) -> ReadResult {
        self.read_one(slot_of(from), into).map_err(|error| {
            self.note_error(error);
            ReadFailed
        })
    }

    unsafe fn read_all(&self, space: SpaceId, pages: &mut [Incoming]) {
        // SAFETY: the caller's promise.
        unsafe { self.read_many(pages) };
        if let Some(first) = pages.first_mut().filter(|first| first.result.is_err()) {
            // By itself: it may have failed for another's sake, and somebody is to be told why.
            // SAFETY: as above.
            let into = unsafe { first.into.as_mut() };
            first.result = self.read(space, first.page, first.from, into);
        }
    }

    fn came_in(&self, _space: SpaceId, _page: usize, from: Evicted, used: Rights) -> Came {
        let slot = slot_of(from);
        let note = Some(self.swap.note(slot));
        if !used.contains(Rights::WRITE) && !self.swap.is_scarce() {
            return Came { note, slot: slot.0 };
        }
        self.swap.put(slot);
        Came { note, slot: 0 }
    }

    fn share(&self, from: Evicted) -> bool {
        self.swap.share(slot_of(from))
    }

    fn free(&self, _space: SpaceId, from: Evicted) {
        self.swap.put(slot_of(from));
    }

    fn drop_clean(&self, page: &Outgoing) -> Option<Evicted> {
        if page.slot == 0 {
            return None;
        }
        self.swap.set_note(SwapSlot(page.slot), page.note);
        Some(Evicted::Swapped(page.slot))
    }

    unsafe fn place(&self, pages: &[Outgoing]) -> Result<Place, Refusal> {
        let run = self.swap.get_run(pages.len() as u32);
        let (first, run) = run.map_err(|_| Refusal::Full)?;
        for (slot, page) in (first.0..first.0 + run).map(SwapSlot).zip(pages) {
            self.swap.set_note(slot, page.note);
        }
        let (file, offset) = (self.swap.file().reference(), Swap::offset(first));
        let pages = run as usize;
        Ok(Place { file, offset, pages, bytes: pages * FRAME_SIZE, tag: u64::from(first.0) })
    }

    fn stays_full(&self) {
        self.note_error(SwapError::Full { slots: self.swap.usage().0 });
    }

    fn written(&self, place: &Place, _pages: &[Outgoing], result: Result<(), Errno>) {
        if let Err(errno) = result {
            self.note_error(SwapError::Write { slot: slot_at(place, 0), errno });
        }
    }

    fn evicted(&self, place: &Place, nth: usize, _page: &Outgoing) -> Evicted {
        Evicted::Swapped(slot_at(place, nth).0)
    }

    fn note_content(&self, place: &Place, nth: usize, bytes: &Page) {
        self.swap.seal(slot_at(place, nth), bytes);
    }

    fn give_up(&self, place: &Place, nth: usize) {
        self.swap.put(slot_at(place, nth));
    }

    fn release(&self, slots: &mut dyn Iterator<Item = u32>) {
        self.swap.put_all(slots.map(SwapSlot));
    }
}
