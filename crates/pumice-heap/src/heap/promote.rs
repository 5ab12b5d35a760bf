//! Pages that move from the demand zone to the ready zone.
//!
//! The first request of a size is served from the demand zone. When it is freed and turns out to be dense, the next one
//! is served from the ready zone, where the same amount would have to be faulted in again, in huge pages. On a virtual
//! machine whose host takes free memory back those cost 9 ms each (1 ms in small pages, 0.3 if the host has them). So
//! the pages move there with the page tables (`mremap`), some ns each, and are free, dirty and ready. They are small
//! ones for as long as they are used, unless the kernel collapses them, as they are advised to be.
//!
//! Each move leaves a mapping of its own, so there are only so many: sizes become known once.

use super::classes::Density;
use super::hints::WithHints;
use super::moves::Moved;
use super::serve::{whole_blocks, Keeps};
use super::{Heap, PoolZone, ZoneKind};
use pumice_frames::addr::{PageRange, BLOCK_FRAMES, BLOCK_SIZE};
use pumice_frames::frame::Run;
use pumice_frames::sync::atomic::{AtomicUsize, Ordering};
use pumice_frames::sys::mem::{Huge, Memory};

/// Moves in the life of a process.
const MOST: usize = 256;
/// A run moves if all but this share of it is resident.
const ABSENT_SHARE: usize = 16;

/// The counts that decide about moves. Relaxed: numbers that order nothing.
#[derive(Debug)]
pub(super) struct Promotions {
    /// Moves that are left.
    left: AtomicUsize,
    /// Runs of the demand zone in use of which nobody knows whether they will be touched: pages that
    /// stay for another could come on top of theirs.
    unknown: AtomicUsize,
}

impl Promotions {
    pub(super) fn new() -> Promotions {
        Promotions { left: AtomicUsize::new(MOST), unknown: AtomicUsize::new(0) }
    }

    /// A run of the demand zone is given out to see how much of it is touched.
    pub(super) fn add_unknown(&self) {
        self.unknown.fetch_add(1, Ordering::Relaxed);
    }

    /// It is known.
    pub(super) fn subtract_unknown(&self) {
        let less = |unknown: usize| unknown.checked_sub(1);
        let _ = self.unknown.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    fn take(&self) -> bool {
        let less = |left: usize| left.checked_sub(1);
        self.unknown.load(Ordering::Relaxed) == 0
            && self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

impl Heap {
    /// Moves the pages of a run of the demand zone that is about to be freed to free blocks of the
    /// ready zone; of so many blocks, which hold nothing then.
    pub(super) fn promote(&self, zone: &PoolZone, range: PageRange) -> usize {
        let whole = whole_blocks(range);
        let may_move = |block: usize| {
            let word = zone.ledger().block(block);
            !word.tainted() || word.hints().advised()
        };
        // Relaxed: the thread that installs the filter has set it before.
        let may = !whole.is_empty()
            && self.classes.density(range.frames) == Density::Dense
            && !self.quiet.load(Ordering::Relaxed)
            && whole.clone().all(may_move);
        if !may {
            return 0;
        }
        let (from, frames) = (zone.block_address(whole.start), whole.len() * BLOCK_FRAMES);
        let resident = self.resident(zone, from, whole.len() * BLOCK_SIZE);
        let is_full = resident.is_some_and(|resident| resident >= frames - frames / ABSENT_SHARE);
        if !is_full || !self.may_add(whole.len()) || !self.promotions.take() {
            return 0;
        }
        let ready = self.zones.local(zone.node, ZoneKind::Ready);
        let Some(run) = self.get_pristine(ready, frames) else { return 0 };
        let moved = self.move_blocks(zone, from, ready, &run);
        let epoch = ready.ledger().epoch();
        match moved {
            Moved::Yes => ready.ledger().put_range(run.range, |_, word| {
                word.with_zeroed(false).with_ready(true).with_epoch(epoch)
            }),
            Moved::No => ready.ledger().put_range(run.range, |_, word| word.emptied()),
            Moved::Lost => {}
        }
        let moved = moved == Moved::Yes;
        for block in whole.clone() {
            let word = zone.ledger().block(block).with_hints(|it| it.with_sampled(false));
            let word = if moved { word.emptied() } else { word };
            // Its owner makes one mapping of it again before it is freed.
            zone.set_owned(block, word.with_tainted(true).with_hints(|it| it.with_advised(false)));
        }
        if !moved {
            return 0;
        }
        whole.len()
    }

    fn move_blocks(&self, zone: &PoolZone, from: *mut u8, ready: &PoolZone, run: &Run) -> Moved {
        self.settle(ready, run, Keeps::Pages);
        let len = run.range.bytes();
        // As the ready zone has it, and the same for all, so that it is one mapping that moves. A
        // kernel without huge pages refuses it.
        // SAFETY: advice on blocks of a run that is about to be freed.
        let _ = unsafe { zone.memory().set_huge(from, len, Huge::Yes) };
        // SAFETY: both are whole blocks, of that run and of one just got, which holds nothing.
        unsafe { self.move_pages(from, len, ready, run.range) }
    }
}
