//! Pages of the demand zone that stay for the next request.
//!
//! A program that asks for much, touches some of it here and there and frees it, over and over, finds the pages it
//! touched still there under other allocators, and would fault them in each time here. So pages that a sparse class
//! has touched stay when they are freed, and not for longer than anything else that is free. Requests for zeros have
//! them cleared ([`super::cleared`]).
//!
//! Counting them takes a `mincore` of all of a run, which costs more than many faults. So the pages are *expected*:
//! each block's word says how many there are, a request adds what its class touches, and only where that seems to be
//! too much for the limit are they counted.
//!
//! The limit is the memory that the process would have without this: the most that its requests of sparse classes were
//! expected to touch at a time, and a little. Pages that stay lie in free blocks, or under a request that touches
//! others. Both count in whole blocks. A request that would have more lie under it than the limit lets, gets blocks
//! without pages.

use super::hints::WithHints;
use super::serve::whole_blocks;
use super::{Heap, PoolZone, ZoneKind};
use core::num::NonZeroUsize;
use core::ops::Range;
use pumice_frames::addr::{PageRange, BLOCK_FRAMES, BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::frame::ledger::Want;
use pumice_frames::frame::{BlockWord, Dirt, Native};
use pumice_frames::sync::atomic::{AtomicUsize, Ordering};

/// Frames beyond the most that was touched at a time: this share of it...
const SPARE_SHARE: usize = 8;
/// ... but at least so many.
const SPARE_FRAMES: usize = (32 << 20) / FRAME_SIZE;

/// So many runs may stay behind all that is in use, where such runs are held and hardly touched.
const TOP_RUNS: usize = 2;

/// Of runs that may stay the pages of one are counted for so many frames...
const COUNTED_ONCE_IN: usize = (64 << 20) / FRAME_SIZE;
/// ... but of one in so many at least...
const LEAST_COUNTED: usize = 32;
/// ... and at most.
const MOST_COUNTED: usize = 8;

/// A request's share of pages that are added, in 256ths, by level. A block in use has its level
/// ([`super::hints::Hints::added`]): a count of its pages says something of the share only where it is known what was
/// expected.
const LEVELS: [usize; 8] = [256, 0, 8, 24, 64, 128, 192, 256];

/// Runs that are counted after one of which a number was expected that was off by a quarter and more.
const DOUBTS: usize = 2;

/// Blocks that may be counted for each whose pages are to stay and may not: a look at a word takes a nanosecond, and a
/// fault hundreds.
const BLOCKS_COUNTED: usize = 256;

/// Sums over the demand zones' blocks. Relaxed: amounts that order nothing.
#[derive(Debug)]
pub(super) struct Retained {
    /// Frames that are expected in free blocks.
    free: AtomicUsize,
    /// Frames that are expected in blocks in use.
    in_use: AtomicUsize,
    /// Frames that the requests which have these blocks are expected to touch.
    own: AtomicUsize,
    /// The most that [`Retained::own`] was.
    most: AtomicUsize,
    /// The share of a request's touched pages, in 256ths, that was not resident when its blocks had pages: requests
    /// that touch the same pages again and again add none.
    added_share: AtomicUsize,
    /// Runs that could stay, so far.
    runs: AtomicUsize,
    /// Of the next such runs so many are counted, since another number was expected of the last one.
    doubts: AtomicUsize,
    /// Tails that could stay, so far, and the pages that are there in a tail's block, as 256ths of those that its owner
    /// touches.
    tails: AtomicUsize,
    tail_share: AtomicUsize,
    /// Blocks that may be counted now.
    countable: AtomicUsize,
}

/// The frames of a run in a block with others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    pub(super) content: Want,
    /// Behind whole blocks whose pages stay: those that stay as well, and are counted.
    pub(super) expected: Option<NonZeroUsize>,
}

impl Rest {
    pub(super) fn of(content: Want) -> Rest {
        Rest { content, expected: None }
    }
}

/// Subtracts from a count of frames that orders nothing, and may be a little short.
pub(super) fn subtract(from: &AtomicUsize, frames: usize) {
    let less = |now: usize| Some(now.saturating_sub(frames));
    let _ = from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}

fn spare(most: usize) -> usize {
    (most / SPARE_SHARE).max(SPARE_FRAMES)
}

fn one_in(frames: usize) -> usize {
    (COUNTED_ONCE_IN / frames.max(1)).clamp(MOST_COUNTED, LEAST_COUNTED)
}

impl Retained {
    pub(super) fn new() -> Retained {
        let zero = || AtomicUsize::new(0);
        let (free, in_use, own, most) = (zero(), zero(), zero(), zero());
        let added_share = AtomicUsize::new(256);
        let (runs, doubts, tails, countable) = (zero(), zero(), zero(), zero());
        let tail_share = AtomicUsize::new(256);
        Retained {
            free,
            in_use,
            own,
            most,
            added_share,
            runs,
            doubts,
            tails,
            tail_share,
            countable,
        }
    }

    /// Frames in free blocks, in blocks in use, and of their requests.
    #[cfg(test)]
    pub(super) fn sums(&self) -> [usize; 3] {
        [&self.free, &self.in_use, &self.own].map(|sum| sum.load(Ordering::Relaxed))
    }

    pub(super) fn is_any(&self) -> bool {
        self.free.load(Ordering::Relaxed) > 0
    }

    /// Whether so many stayed already.
    fn has(&self, frames: usize) -> bool {
        self.free.load(Ordering::Relaxed) >= frames
    }

    /// Frames that may be there, with `more` touched than now.
    fn limit(&self, more: usize) -> usize {
        let own = self.own.load(Ordering::Relaxed) + more;
        let most = self.most.load(Ordering::Relaxed).max(own);
        most + spare(most)
    }

    /// Lets `frames` more stay, if they may.
    fn add(&self, frames: usize) -> bool {
        let limit = self.limit(0).saturating_sub(self.in_use.load(Ordering::Relaxed));
        let within = |now: usize| Some(now + frames).filter(|&sum| sum <= limit);
        self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
    }

    /// Whether a request that touches `frames` frames may get blocks in which others stayed. Pages that lie under
    /// requests which touch others can't be dropped: they are never more than the spare part of the limit.
    fn may_reuse(&self, frames: usize) -> bool {
        let in_use = self.in_use.load(Ordering::Relaxed);
        let own = self.own.load(Ordering::Relaxed);
        let most = self.most.load(Ordering::Relaxed).max(own + frames);
        let is_under_limit =
            self.free.load(Ordering::Relaxed) + in_use + frames <= self.limit(frames);
        is_under_limit && in_use.saturating_sub(own) <= spare(most)
    }

    /// Whether the pages of a run of so many frames that may stay are to be counted.
    fn is_sample(&self, frames: usize) -> bool {
        let is_due = self.runs.fetch_add(1, Ordering::Relaxed) % one_in(frames) == 0;
        let less = |left: usize| left.checked_sub(1);
        is_due || self.doubts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// The same of the tail of such a run.
    fn is_tail_sample(&self, frames: usize) -> bool {
        self.tails.fetch_add(1, Ordering::Relaxed) % one_in(frames) == 0
    }

    /// Pages that are expected where a tail's owner touches so many.
    fn expected_in_tail(&self, touched: NonZeroUsize) -> NonZeroUsize {
        let there = touched.get() * self.tail_share.load(Ordering::Relaxed) / 256;
        NonZeroUsize::new(there.min(BLOCK_FRAMES)).unwrap_or(touched)
    }

    /// Learns that there are `seen`.
    fn learn_of_tail(&self, touched: NonZeroUsize, seen: usize) {
        let share = self.tail_share.load(Ordering::Relaxed);
        // As in [`Retained::learn`].
        let share = (seen * 256 / touched).max(share - share.div_ceil(4));
        self.tail_share.store(share, Ordering::Relaxed);
    }

    /// Whether `all` blocks may be counted anew for the sake of `blocks`: not each time where they are many.
    fn may_count(&self, all: usize, blocks: usize) -> bool {
        let spend = |left: usize| {
            let left = left + blocks * BLOCKS_COUNTED;
            Some(left.checked_sub(all).unwrap_or(left).min(all))
        };
        let before = self.countable.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend);
        before.is_ok_and(|left| left + blocks * BLOCKS_COUNTED >= all)
    }

    /// The level of the share that is added now.
    fn level(&self) -> u8 {
        let share = self.added_share.load(Ordering::Relaxed);
        (1..LEVELS.len()).find(|&level| LEVELS[level] >= share).unwrap_or(0) as u8
    }

    /// The frames that are expected in a block with `before` of them, where a request touches so many and adds a share
    /// of this level.
    fn sum(before: usize, touched: usize, level: u8) -> usize {
        let added = touched * LEVELS[usize::from(level)] / 256;
        touched.max(before + added).min(BLOCK_FRAMES)
    }

    /// Learns that in blocks where `expected` frames were expected, `touched` of which were a request's that added a
    /// share of this level, `seen` are.
    fn learn(&self, expected: usize, touched: usize, level: u8, seen: usize) {
        if level == 0 || expected <= touched {
            // There may have been none before.
            return;
        }
        if expected.abs_diff(seen) > seen / 4 {
            self.doubts.store(DOUBTS, Ordering::Relaxed);
        }
        let share = self.added_share.load(Ordering::Relaxed);
        let before = expected.saturating_sub(touched * LEVELS[usize::from(level)] / 256);
        if before > 0 && touched > 0 {
            let sample = (seen.saturating_sub(before) * 256 / touched).min(256);
            // More is believed at once, less bit by bit.
            self.added_share.store(sample.max(share - share.div_ceil(4)), Ordering::Relaxed);
        }
    }

    fn begin_use(&self, frames: usize, own: usize) {
        self.in_use.fetch_add(frames, Ordering::Relaxed);
        let own = self.own.fetch_add(own, Ordering::Relaxed) + own;
        self.most.fetch_max(own, Ordering::Relaxed);
    }

    /// Frames that are there and should not be.
    fn surplus(&self) -> usize {
        let there = self.free.load(Ordering::Relaxed) + self.in_use.load(Ordering::Relaxed);
        there.saturating_sub(self.limit(0))
    }

    /// In a fork's child, which keeps nothing that is free.
    pub(super) fn forget(&self) {
        self.free.store(0, Ordering::Relaxed);
    }
}

impl Heap {
    /// Frames that are expected in blocks of a zone.
    fn expected(&self, zone: &PoolZone, blocks: Range<usize>) -> usize {
        blocks.map(|block| zone.ledger().block(block).expected()).sum()
    }

    /// Writes down that `frames` frames are expected in these blocks, as many in each.
    pub(super) fn expect(&self, zone: &PoolZone, blocks: Range<usize>, frames: usize) {
        let each = frames.div_ceil(blocks.len().max(1));
        for block in blocks {
            let word = zone.ledger().block(block);
            zone.set_owned(block, word.with_expected(each));
        }
    }

    /// Whether the pages of a run of the demand zone that is being freed are to stay. Its blocks
    /// say so from now on.
    pub(super) fn retain(&self, zone: &PoolZone, range: PageRange) -> bool {
        let whole = whole_blocks(range);
        if whole.is_empty() || !self.classes.is_worth_retaining(range.frames) {
            return false;
        }
        self.forget_parted();
        let expected = self.expected(zone, whole.clone());
        if zone.ledger().block(whole.start).hints().sampled() && self.retained.has(expected) {
            // The next look finds blocks without pages, and has none dropped that others could use.
            return false;
        }
        let is_known = expected > 0 && !self.retained.is_sample(range.frames);
        if !(is_known && self.retained.add(expected)) {
            let Some(seen) = self.count_expected(zone, range) else { return false };
            let is_room = || self.retained.add(seen);
            if !(is_room() || self.recounts(zone, whole.clone()) && is_room()) {
                return false;
            }
        }
        let epoch = zone.ledger().epoch();
        for block in whole {
            let word = zone.ledger().block(block).with_zeroed(false).with_ready(false).with_own(0);
            zone.set_owned(block, word.with_epoch(epoch));
        }
        true
    }

    /// Has the pages stay that a run of a sparse class has behind its whole blocks, which stay as well: how many are
    /// expected. All of the block counts, since other pages may have stayed there. [`Heap::expect_in_tail`] says
    /// afterwards where they are.
    pub(super) fn retain_tail(&self, zone: &PoolZone, range: PageRange) -> Option<NonZeroUsize> {
        // Of one that is hardly ever touched, too: to look for its pages each time would cost more than they do.
        let touched = self.classes.touched_of_tail(range.frames);
        let touched = NonZeroUsize::new(touched).unwrap_or(NonZeroUsize::MIN);
        let there = match self.retained.is_tail_sample(range.frames) {
            true => {
                let at = zone.block_address(range.end().block());
                let seen = NonZeroUsize::new(self.resident(zone, at, BLOCK_SIZE)?)?;
                self.retained.learn_of_tail(touched, seen.get());
                seen
            }
            false => self.retained.expected_in_tail(touched),
        };
        // As many as its block's word will say: they are subtracted.
        let there = BlockWord::new().with_expected(there.get()).expected();
        self.retained.add(there).then_some(NonZeroUsize::new(there)?)
    }

    /// After a run of which the tail stays was freed: its block says so, if it is free as a whole. Else others have
    /// parts of it, and what stays is one of their rests.
    pub(super) fn expect_in_tail(&self, zone: &PoolZone, range: PageRange, touched: NonZeroUsize) {
        let of_pages = |dirt: &Dirt| {
            // A zeroed frame of a demand zone has no page.
            let end = dirt.end::<Native>() % BLOCK_FRAMES;
            BlockWord::new().with_expected(touched.get()).with_own(end).of_pages()
        };
        if !zone.ledger().join_with(range.end().block(), of_pages) {
            self.forget_tail(touched);
        }
    }

    /// Pages of a tail are not there any more, or not known to be.
    pub(super) fn forget_tail(&self, touched: NonZeroUsize) {
        subtract(&self.retained.free, touched.get());
    }

    /// After a run was freed whose size is held: gives back the pages that stayed behind all that is in use, if they
    /// are many. A program that fills some such runs and frees them would have others lie on their pages next.
    pub(super) fn drop_top(&self, zone: &PoolZone, range: PageRange) {
        if !self.classes.is_held(range.frames) || !self.retained.is_any() {
            return;
        }
        let least = TOP_RUNS * range.frames.div_ceil(BLOCK_FRAMES);
        let is_free = |block: usize| super::is_free(zone.ledger().block(block));
        let (from, end) = (whole_blocks(range).start, zone.ledger().grown());
        if (from..end).all(is_free) {
            let last = (0..from).rev().find(|&block| !is_free(block));
            let first = last.map_or(0, |block| block + 1);
            let stayed = |block: &usize| zone.ledger().block(*block).expected() > 0;
            if (first..end).filter(stayed).count() > least {
                self.drop_free_blocks(zone, first, |word| word.expected() > 0);
            }
        }
    }

    /// Counts the frames of a run's blocks that are resident, and learns from it. `None`: it is not known, or there are
    /// none.
    fn count_expected(&self, zone: &PoolZone, range: PageRange) -> Option<usize> {
        let whole = whole_blocks(range);
        let at = zone.block_address(whole.start);
        let seen = self.resident(zone, at, whole.len() * BLOCK_SIZE).filter(|&seen| seen > 0)?;
        let first = zone.ledger().block(whole.start).hints();
        if !first.sampled() {
            // Of one that was looked at it was written down already how many there are.
            let touched = whole.clone().map(|block| zone.ledger().block(block).own()).sum();
            let expected = self.expected(zone, whole.clone());
            self.retained.learn(expected, touched, first.added(), seen);
        }
        self.expect(zone, whole.clone(), seen);
        Some(self.expected(zone, whole))
    }

    /// Whether a request of a sparse class may get blocks in which pages of others stayed.
    pub(super) fn may_reuse_retained(&self, frames: usize) -> bool {
        self.forget_parted();
        let blocks = frames / BLOCK_FRAMES;
        self.retained.may_reuse(self.classes.touched_of_block(frames) * blocks)
    }

    /// A request of a sparse class has got a run of the demand zone: the pages that stayed there, and those that its
    /// class touches, are in use.
    pub(super) fn expect_more(&self, zone: &PoolZone, range: PageRange) {
        let blocks = whole_blocks(range);
        let touched = self.classes.touched_of_block(range.frames);
        let level = self.retained.level();
        let (mut sum, mut own) = (0, 0);
        for block in blocks {
            let word = zone.ledger().block(block);
            let expected = Retained::sum(word.expected(), touched, level);
            let word = word.with_expected(expected).with_own(touched);
            let word = word.with_hints(|it| it.with_added(level));
            zone.set_owned(block, word);
            sum += word.expected();
            own += word.own();
        }
        self.retained.begin_use(sum, own);
        if self.retained.surplus() > 0 {
            self.drop_retained();
        }
    }

    /// Blocks of the demand zone, not in use any more, stay where they are for good.
    pub(super) fn expect_nothing(&self, zone: &PoolZone, blocks: Range<usize>) {
        for block in blocks {
            let word = zone.ledger().block(block);
            zone.set_owned(block, word.with_expected(0).with_own(0));
        }
    }

    /// Blocks of the demand zone are not in use any more.
    pub(super) fn end_use(&self, zone: &PoolZone, blocks: Range<usize>) {
        subtract(&self.retained.in_use, self.expected(zone, blocks.clone()));
        let own = |block| zone.ledger().block(block).own();
        subtract(&self.retained.own, blocks.map(own).sum());
    }

    /// Subtracts the pages that had stayed in blocks of the demand zone that were free until now.
    pub(super) fn take_retained(&self, zone: &PoolZone, blocks: Range<usize>) {
        if zone.kind == ZoneKind::Demand && self.retained.is_any() {
            subtract(&self.retained.free, self.expected(zone, blocks));
        }
    }

    /// Subtracts the pages that had stayed in free blocks that went into parts: they are gone.
    fn forget_parted(&self) {
        for zone in self.zones.all_of(ZoneKind::Demand) {
            subtract(&self.retained.free, zone.budget().take_parted());
        }
    }

    /// Gives back the pages above the limit, the last blocks first, and an eighth of all with them.
    #[cold]
    fn drop_retained(&self) {
        // A sum that is too large would have all of it go at each request.
        self.recount_retained();
        let surplus = self.retained.surplus();
        if surplus == 0 {
            return;
        }
        let mut left = surplus + self.retained.free.load(Ordering::Relaxed) / 8;
        for zone in self.zones.all_of(ZoneKind::Demand) {
            let mut from = zone.ledger().grown();
            while from > 0 && left > 0 {
                from -= 1;
                let word = zone.ledger().block(from);
                let expected = if super::is_free(word) { word.expected() } else { 0 };
                left = left.saturating_sub(expected);
            }
            self.drop_free_blocks(zone, from, |word| word.expected() > 0);
        }
    }

    /// Counts anew where that costs little beside so many blocks: whether it did.
    fn recounts(&self, zone: &PoolZone, blocks: Range<usize>) -> bool {
        let all = self.zones.all_of(ZoneKind::Demand).map(|zone| zone.ledger().grown()).sum();
        let may_count = self.retained.may_count(all, blocks.len());
        if may_count {
            self.recount_retained();
            // They are about to be freed.
            self.end_use(zone, blocks);
        }
        may_count
    }

    /// Counts the demand zones' sums anew: blocks that were taken apart have not been subtracted.
    pub(super) fn recount_retained(&self) {
        self.forget_parted();
        let (mut free, mut in_use, mut own) = (0, 0, 0);
        for zone in self.zones.all_of(ZoneKind::Demand) {
            for block in 0..zone.ledger().grown() {
                let word = zone.ledger().block(block);
                if super::is_free(word) {
                    free += word.expected();
                } else {
                    in_use += word.expected();
                    own += word.own();
                }
            }
        }
        self.retained.free.store(free, Ordering::Relaxed);
        self.retained.in_use.store(in_use, Ordering::Relaxed);
        self.retained.own.store(own, Ordering::Relaxed);
    }
}
