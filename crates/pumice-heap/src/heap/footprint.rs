//! The limit on free memory: the memory that a process would have without the pool.
//!
//! Free memory that stays is reused at no cost, but it stands beside memory in use: a program that frees small arrays
//! and makes large ones would have both. So the memory that the ready zones hold never exceeds the most that was ever
//! *resident in use* there (but for a little, and for what `--ready` asked for). As much as is beyond that is given
//! back, before a request has pages faulted in and when memory is freed.
//!
//! Memory in use is counted; how much of it is resident is not known, since a program touches it without us. `array =
//! zeros(n)` in a loop has two arrays in use, and never more than one resident: the new one has not been touched when
//! the old one is freed. So before anything is given back because of the limit, the blocks that were handed out
//! unpopulated are looked at (`mincore`), and the limit is raised to the pages that are found. Memory that was
//! resident when it was handed out counts in full.

use super::{is_free, Heap, PoolZone, ZoneKind};
use pumice_frames::addr::{BLOCK_FRAMES, BLOCK_SIZE};
use pumice_frames::frame::{BlockState, BlockWord};
use pumice_frames::sync::atomic::{AtomicUsize, Ordering};

/// The spare beyond the peak: this share of it...
const SPARE_SHARE: usize = 64;
/// ... but at least this many blocks.
const SPARE_BLOCKS: usize = (2 << 20) / BLOCK_SIZE;

/// Blocks that may be held beyond `most`.
fn spare(most: usize) -> usize {
    (most / SPARE_SHARE).max(SPARE_BLOCKS)
}

/// Blocks that may be looked at for each one that has been freed. A look takes about 150 ns, and to fault
/// a block in again hundreds of times that.
const LOOKS: usize = 4;
/// Blocks that may be looked at before any is freed.
const FIRST_LOOKS: usize = 1 << 14;

/// Frames of the ready zones in use. Relaxed: amounts that order nothing.
#[derive(Debug)]
pub(super) struct Footprint {
    in_use: AtomicUsize,
    /// The most that was seen to be resident of them.
    peak: AtomicUsize,
    /// Blocks looked at so far.
    looked: AtomicUsize,
}

impl Footprint {
    pub(super) fn new() -> Footprint {
        let zero = || AtomicUsize::new(0);
        Footprint { in_use: zero(), peak: zero(), looked: zero() }
    }

    /// `frames` more are in use.
    pub(super) fn add(&self, frames: usize) {
        self.in_use.fetch_add(frames, Ordering::Relaxed);
    }

    /// `frames` fewer are in use.
    pub(super) fn subtract(&self, frames: usize) {
        self.in_use.fetch_sub(frames, Ordering::Relaxed);
    }

    /// Memory that was occupied piece by piece is not counted, but is subtracted.
    pub(super) fn in_use(&self) -> usize {
        let now = self.in_use.load(Ordering::Relaxed);
        if now > isize::MAX as usize {
            0
        } else {
            now
        }
    }

    /// Blocks that the zones may hold with `in_use` frames in use, free ones included.
    fn blocks(&self, in_use: usize) -> usize {
        let most = self.peak.load(Ordering::Relaxed).max(in_use).div_ceil(BLOCK_FRAMES);
        most + spare(most)
    }

    /// Takes note of `frames` that are resident in use.
    fn note(&self, frames: usize) {
        // The spare memory was resident before it was asked for: counting it would raise the limit by as much again,
        // and again.
        let blocks = frames.div_ceil(BLOCK_FRAMES);
        let own = frames.saturating_sub(spare(blocks) * BLOCK_FRAMES);
        self.peak.fetch_max(own, Ordering::Relaxed);
    }

    /// In a fork's child, which has freed nothing yet.
    pub(super) fn after_fork(&self) {
        self.looked.store(0, Ordering::Relaxed);
    }

    /// Whether `blocks` blocks may be looked at, where `freed` frames have been freed so far.
    fn afford(&self, blocks: usize, freed: usize) -> bool {
        let most = FIRST_LOOKS + freed / BLOCK_FRAMES * LOOKS;
        let more = |looked: usize| Some(looked + blocks).filter(|&sum| sum <= most);
        self.looked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

impl Heap {
    /// Before the owner of new blocks on a node faults their pages in: gives back memory that would be too much with
    /// them.
    #[inline]
    pub(super) fn make_room(&self, node: usize) {
        let may_hold = self.may_hold(self.footprint.in_use());
        if self.held_blocks() > may_hold {
            self.note_peak();
            self.give_back_surplus(node);
        }
    }

    /// As [`Heap::make_room`], for a run of a zone that has grown.
    pub(super) fn make_room_in(&self, zone: &PoolZone) {
        if zone.kind == ZoneKind::Ready {
            self.make_room(zone.node);
        }
    }

    /// Before `frames` of the ready zones are freed: sees how much is resident, if it matters.
    #[inline]
    pub(super) fn before_free(&self, frames: usize) {
        let left = self.footprint.in_use().saturating_sub(frames);
        if self.held_blocks() > self.may_hold(left) {
            self.note_peak();
        }
    }

    /// After memory of a node was freed: gives back the surplus.
    #[inline]
    pub(super) fn after_free(&self, node: usize) {
        if self.held_blocks() > self.may_hold(self.footprint.in_use()) {
            self.give_back_surplus(node);
        }
    }

    /// Blocks that the ready zones may hold.
    fn may_hold(&self, in_use: usize) -> usize {
        self.footprint.blocks(in_use) + self.ahead.keep()
    }

    /// Blocks that the ready zones hold.
    pub(super) fn held_blocks(&self) -> usize {
        self.zones.all_of(ZoneKind::Ready).map(|zone| zone.budget().blocks()).sum()
    }

    /// Whether looking at all blocks of the ready zones costs little beside the frees so far.
    fn may_look(&self) -> bool {
        // Relaxed: an amount that orders nothing.
        let freed = self.freed_frames.load(Ordering::Relaxed);
        self.footprint.afford(self.held_blocks(), freed)
    }

    /// Raises the peak to the part of the memory in use that is resident now.
    #[cold]
    fn note_peak(&self) {
        if self.may_look() {
            self.footprint.note(self.resident_in_use(|_| true));
        }
    }

    /// Before the pages of `blocks` blocks, in use until now, are added to the ready zones: whether they may be. The
    /// limit is raised to these pages and the others that are surely resident: memory that was handed out resident may
    /// never have been touched.
    pub(super) fn may_add(&self, blocks: usize) -> bool {
        if !self.may_look() {
            return false;
        }
        let seen = self.resident_in_use(|word| !word.ready());
        self.footprint.note(seen + blocks * BLOCK_FRAMES);
        self.held_blocks() + blocks <= self.may_hold(self.footprint.in_use())
    }

    /// The memory farthest from the node goes first.
    #[cold]
    fn give_back_surplus(&self, node: usize) {
        for zone in self.zones.by_distance(node, ZoneKind::Ready).rev() {
            zone.ledger().join_all();
            let may_hold = self.may_hold(self.footprint.in_use());
            let mut surplus = self.held_blocks().saturating_sub(may_hold);
            // Requests are served from blocks that are ready, and from the first ones.
            for wanted in [|word: BlockWord| !word.ready(), |_| true] {
                let is_held = |block: &usize| {
                    let word = zone.ledger().block(*block);
                    is_free(word) && !word.is_pristine() && wanted(word)
                };
                let mut from = zone.ledger().grown();
                for block in (0..from).rev().filter(is_held).take(surplus) {
                    from = block;
                }
                surplus = surplus.saturating_sub(self.drop_free_blocks(zone, from, wanted));
            }
        }
    }

    /// Frames of blocks that are in use as a whole or in parts, of those that `counts` says, but for
    /// those of whole ones that were handed out unpopulated and have not been touched.
    fn resident_in_use(&self, counts: impl Fn(BlockWord) -> bool) -> usize {
        // Blocks in parts of which all is free seem to be in use.
        for zone in self.zones.all_of(ZoneKind::Ready) {
            zone.ledger().join_all();
        }
        let resident = |zone: &PoolZone, block: usize| {
            let word = zone.ledger().block(block);
            match word.state() {
                BlockState::Absent | BlockState::Free | BlockState::Claimed => 0,
                _ if !counts(word) => 0,
                BlockState::Whole if !word.ready() => {
                    let seen = self.resident(zone, zone.block_address(block), BLOCK_SIZE);
                    seen.unwrap_or(BLOCK_FRAMES).min(BLOCK_FRAMES)
                }
                _ => BLOCK_FRAMES,
            }
        };
        let in_zone = |zone: &PoolZone| -> usize {
            (0..zone.ledger().grown()).map(|block| resident(zone, block)).sum()
        };
        self.zones.all_of(ZoneKind::Ready).map(in_zone).sum()
    }
}
