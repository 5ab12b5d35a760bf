//! A thread's part in a space.

use core::cell::{Cell, UnsafeCell};

use super::error::Trap;
use super::history::{Batch, LastWalk, Prefault, SwapAhead};
use super::rss::{Counter, Hold, TaskRecord, MAX_HELD, MAX_LEVEL};
use super::vma::VmaId;
use super::{Access, Place, Result, VmError, VmSpace};
use crate::page_table::tables::FrameList;
use crate::page_table::{FrameSource, Middle, TableOps, Tables};
use pumice_frames::addr::{Pfn, FRAME_SIZE};
use pumice_frames::frame::{Gfp, Reclaim};
use pumice_io::sync::atomic::{fence, Ordering};

/// Times that a frame of the reserve is asked for, where others have them all.
const RESERVE_TRIES: u32 = 2;

/// A thread's part in a [`VmSpace`]: its list of frames, its counts, its holds, and how its faults
/// have gone so far. One thread uses it at a time; a thread has as many as it likes.
///
/// When it is dropped, its frames go back to the zone and its counts stay with the space.
#[derive(Debug)]
pub struct Task<'s, F: FrameSource, T: TableOps> {
    pub(super) space: &'s VmSpace<F, T>,
    record: TaskRecord<'s>,
    list: UnsafeCell<F::List>,
    /// Flags for reclaim on behalf of its requests.
    gfp: Cell<Gfp>,
    /// Whether there is a pager, to which new pages are reported.
    pub(super) is_paged: bool,
    batch: UnsafeCell<Batch>,
    /// The VMA that is held for addresses, as the record says at `level`; only this thread writes that.
    held: Cell<VmaId>,
    /// How many accesses of this task are on their way, one in what another has others do ([`Task::let_others_run`]).
    level: Cell<usize>,
    /// A bit for each of the record's places for regions that is taken.
    regions: Cell<u8>,
    /// Of the VMA that is held for addresses.
    pub(super) last_walk: Cell<LastWalk<F>>,
    pub(super) prefault: Cell<Prefault>,
    pub(super) swap_ahead: Cell<SwapAhead>,
    /// Where the last fault's byte was.
    pub(super) last_data: Cell<usize>,
    /// How far that was from the one before.
    pub(super) last_step: Cell<usize>,
}

impl<'s, F: FrameSource, T: TableOps> Task<'s, F, T> {
    pub(super) fn new(space: &'s VmSpace<F, T>) -> Result<Self> {
        let record = TaskRecord::take(&space.records).ok_or(VmError::OutOfRecords("thread"))?;
        let pager = space.tables.source.pager();
        Ok(Task {
            space,
            record,
            list: UnsafeCell::new(space.tables.source.list()),
            gfp: Cell::new(Gfp::KERNEL),
            is_paged: pager.is_some(),
            batch: UnsafeCell::new(Batch::of(pager.map_or(1, |pager| pager.batch()))),
            held: Cell::new(0),
            level: Cell::new(0),
            regions: Cell::new(0),
            last_walk: Cell::new(LastWalk::NONE),
            prefault: Cell::new(Prefault::default()),
            swap_ahead: Cell::new(SwapAhead::default()),
            last_data: Cell::new(0),
            last_step: Cell::new(0),
        })
    }

    /// The space.
    pub fn space(&self) -> &'s VmSpace<F, T> {
        self.space
    }

    /// Uses the list of frames.
    #[inline]
    pub(super) fn with_list<R>(&self, work: impl FnOnce(&mut F::List) -> R) -> R {
        // SAFETY: a task is one thread's, and no list operation comes back to the task.
        work(unsafe { &mut *self.list.get() })
    }

    /// While the scope lasts, reclaim does no more for this task's accesses than `allowed`, as the kernel's
    /// `memalloc_noio_save` has it: with [`Gfp::NOIO`] no I/O is begun for them, with [`Gfp::NOWAIT`] they wait for
    /// nothing and fail at once. Scopes within each other allow what all of them allow. [`Gfp::MEMALLOC`] is the other
    /// way round: with it they may use the reserve, and nothing is reclaimed for them. It is for code
    /// that gives more memory back than it takes. In a space over several zones [`Gfp::within`] names those that frames
    /// may come from.
    pub fn gfp_scope(&self, allowed: Gfp) -> GfpScope<'_, 's, F, T> {
        let before = self.gfp.get();
        let now = (before & allowed) | ((before | allowed) & Gfp::IF_ANY);
        self.set_gfp(now);
        GfpScope { task: self, before }
    }

    /// The flags of its requests.
    pub(super) fn gfp(&self) -> Gfp {
        self.gfp.get()
    }

    fn set_gfp(&self, gfp: Gfp) {
        self.gfp.set(gfp);
        self.with_list(|list| list.set_gfp(gfp));
    }

    /// A frame that reads as zeros, if need be after reclaim.
    pub(super) fn get_zeroed(&self) -> Option<Pfn> {
        self.get_frame(|list| list.get_zeroed())
    }

    /// A frame of unknown content, if need be after reclaim.
    pub(super) fn get_any(&self) -> Option<Pfn> {
        self.get_frame(|list| list.get_any())
    }

    #[inline]
    fn get_frame(&self, get: impl Fn(&mut F::List) -> Option<Pfn>) -> Option<Pfn> {
        loop {
            let found = self.with_list(&get);
            if found.is_some() {
                return found;
            }
            if !self.reclaim() {
                // Pages that others unmapped meanwhile gave frames, of which reclaim is not told.
                return self.with_list(&get);
            }
        }
    }

    /// Has frames reclaimed: whether it is worth looking again. The list is not in use meanwhile, since others' code
    /// may run in here.
    #[cold]
    #[inline(never)]
    fn reclaim(&self) -> bool {
        // Frames that the list has put aside are frames to be had, and pages that came may be the next to go.
        self.with_list(|list| list.flush());
        self.lru_drain();
        let zone = self.space.tables.source.pager().and_then(|pager| pager.zone());
        let reclaim = |zone: &dyn Reclaim| zone.reclaim(self.gfp.get(), 1) > 0;
        zone.and_then(|zone| self.let_others_run(|| reclaim(zone))).unwrap_or(false)
    }

    /// Writes that reclaim had to put off may be begun now: it tries again, for which this does not wait.
    #[doc(hidden)]
    pub fn wake_reclaim(&self) {
        let _scope = self.gfp_scope(Gfp::NOWAIT);
        self.reclaim();
    }

    /// A frame of the reserve, for a page that is to come from swap: its slot is free then, and another
    /// can go. So it goes on where swap and memory are full.
    #[cold]
    #[inline(never)]
    pub(super) fn get_reserved(&self) -> Option<Pfn> {
        let may_wait = self.gfp.get().contains(Gfp::DIRECT_RECLAIM);
        let mut tries = if may_wait { RESERVE_TRIES } else { 1 };
        loop {
            let scope = self.gfp_scope(Gfp::all());
            let found = self.with_list(|list| list.get_any());
            drop(scope);
            tries -= 1;
            if found.is_some() || tries == 0 {
                return found;
            }
            // Others have them all, and will be done soon.
            self.reclaim();
        }
    }

    /// Uses the batch of pages that came in.
    pub(super) fn with_batch<R>(&self, work: impl FnOnce(&mut Batch) -> R) -> R {
        // SAFETY: a task is one thread's, and no batch operation comes back to the task.
        work(unsafe { &mut *self.batch.get() })
    }

    #[inline]
    pub(super) fn count(&self, counter: Counter, pages: i64) {
        self.record.count(counter, pages);
    }

    /// Keeps the VMA of a granule, and so its tables, until the next call of this: its number.
    #[inline]
    pub(super) fn hold(&self, middle: Middle<'_>) -> core::result::Result<VmaId, Trap> {
        // Acquire: the record of the VMA is as it was when the number was stored.
        let id = middle.vma.load(Ordering::Acquire);
        if id == self.held.get() && id != 0 {
            // It was held all the time since it was checked, so this is the VMA it was then.
            return Ok(id);
        }
        self.hold_other(middle, id)
    }

    #[cold]
    #[inline(never)]
    fn hold_other(&self, middle: Middle<'_>, id: VmaId) -> core::result::Result<VmaId, Trap> {
        self.last_walk.set(LastWalk::NONE);
        let held = self.hold_in(Hold::Addresses(self.level.get()), middle, id);
        self.held.set(held);
        if held == 0 {
            return Err(Trap::Unmapped);
        }
        Ok(held)
    }

    /// Holds whatever VMA the granule has, in a place of the record; 0 if it has none.
    fn hold_in(&self, place: Hold, middle: Middle<'_>, id: VmaId) -> VmaId {
        let mut id = id;
        loop {
            self.record.hold(place, id);
            if id == 0 {
                return 0;
            }
            // SeqCst: 2 in the protocol at the top of the module; pairs with that in `free_retired`.
            fence(Ordering::SeqCst);
            // Acquire: as in `hold`.
            let now = middle.vma.load(Ordering::Acquire);
            if now == id {
                return id;
            }
            id = now;
        }
    }

    /// Holds nothing for addresses any more.
    pub(super) fn let_go(&self) {
        self.last_walk.set(LastWalk::NONE);
        self.record.hold(Hold::Addresses(self.level.get()), 0);
        self.held.set(0);
    }

    /// Runs code of others that may come back to this task: a pager that is told of pages, reclaim that asks caches.
    /// The access of this task that is on its way goes on afterwards in tables that it holds, so holds meanwhile have
    /// another place: if that code unmaps by this task, it is as if another thread did. `None`, and nothing ran, where
    /// that code has come back [`MAX_LEVEL`] times already.
    #[cold]
    #[inline(never)]
    pub(super) fn let_others_run<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        let held = self.held.get();
        if held == 0 {
            return Some(work());
        }
        let level = self.level.get();
        if level == MAX_LEVEL {
            return None;
        }
        self.last_walk.set(LastWalk::NONE);
        self.held.set(0);
        self.level.set(level + 1);
        let within = Within { task: self, level, held };
        let result = work();
        drop(within);
        Some(result)
    }

    /// Holds a granule's VMA as a region: the place, and the number.
    pub(super) fn hold_region(&self, middle: Middle<'_>) -> Result<Option<(u8, VmaId)>> {
        let taken = self.regions.get();
        let free = (!taken).trailing_zeros() as u8;
        if usize::from(free) >= MAX_HELD {
            return Err(VmError::TooManyHeld(MAX_HELD));
        }
        // Acquire: as in `hold`.
        let now = middle.vma.load(Ordering::Acquire);
        let id = self.hold_in(Hold::Region(free), middle, now);
        if id == 0 {
            return Ok(None);
        }
        self.regions.set(taken | 1 << free);
        Ok(Some((free, id)))
    }

    pub(super) fn let_go_region(&self, place: u8) {
        self.record.hold(Hold::Region(place), 0);
        self.regions.set(self.regions.get() & !(1 << place));
    }

    /// Where an address is, for an error.
    #[cold]
    #[inline(never)]
    pub(super) fn place(&self, address: usize) -> Place {
        let granule = (address / FRAME_SIZE) >> F::TABLE_BITS;
        let middle =
            (granule < Tables::<F, T>::GRANULES).then(|| self.space.tables.middle(granule));
        let id = middle.flatten().and_then(|middle| self.hold(middle).ok());
        let region = id.and_then(|id| self.space.vma(id)).map(|vma| vma.extent());
        Place { address, region }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn error(&self, trap: Trap, address: usize, access: Access) -> VmError {
        trap.at(self.place(address), access)
    }

    /// Gives up a frame that this space had: to the zone, unless another space has it too.
    pub(super) fn put_frame(&self, frame: Pfn, is_shared: bool) {
        if !is_shared || self.space.unshare(frame) {
            self.with_list(|list| list.put(frame));
        }
    }
}

/// Others' code runs in the middle of an access; also one that panics ends.
struct Within<'t, 's, F: FrameSource, T: TableOps> {
    task: &'t Task<'s, F, T>,
    level: usize,
    held: VmaId,
}

impl<F: FrameSource, T: TableOps> Drop for Within<'_, '_, F, T> {
    fn drop(&mut self) {
        self.task.let_go();
        self.task.level.set(self.level);
        self.task.held.set(self.held);
    }
}

/// Ends [`Task::gfp_scope`] when it is dropped.
#[must_use = "a scope ends when it is dropped"]
pub struct GfpScope<'t, 's, F: FrameSource, T: TableOps> {
    task: &'t Task<'s, F, T>,
    before: Gfp,
}

impl<F: FrameSource, T: TableOps> Drop for GfpScope<'_, '_, F, T> {
    fn drop(&mut self) {
        self.task.set_gfp(self.before);
    }
}

impl<F: FrameSource, T: TableOps> Drop for Task<'_, F, T> {
    fn drop(&mut self) {
        self.lru_drain();
        self.record.leave();
    }
}
