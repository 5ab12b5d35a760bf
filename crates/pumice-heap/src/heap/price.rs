//! The price of new memory: huge pages while they are cheap, small ones while they are dear.
//!
//! A new huge page costs the time to clear it. It costs 30 times more where the kernel has to make one first, or where
//! the host of a virtual machine has to bring the memory: a host that takes free memory back (*free page reporting*)
//! takes whole huge pages, and small ones come from the rest. No figure of the kernel tells, so a price is found out.
//! Of a run with new blocks one is touched, and its owner's processor time taken. After one that took long the next
//! block comes in small pages, and is timed as well. Where the huge page was dearer by far, new blocks come in small
//! pages for a while. Then both are tried again.
//!
//! A try has pages faulted in that the run's owner may never touch. So before each try there is a *witness*: a new
//! block that went out with a page at most, and that its owner has touched since. Without one, all goes on as it was.
//! Advice is as it was afterwards, so the kernel may make huge pages of small ones later (`khugepaged`).

use core::ops::Range;

use super::hints::WithHints;
use super::{Heap, PoolZone, ZoneKind};
use pumice_frames::addr::{Pfn, BLOCK_FRAMES, BLOCK_SIZE};
use pumice_frames::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use pumice_frames::sys::mem::{Huge, Memory};
use pumice_frames::sys::thread;

/// A huge page that took less is cheap, at any price of small ones: twice as long as old machines take to clear one.
const CHEAP_NS: u64 = 1_000_000;
/// Huge pages are dear that take so many times as long as small ones.
const DEAR: u64 = 2;
/// Blocks that come in small pages before the next try, at first...
const FIRST: usize = 16;
/// ... and at most. It doubles each time.
const MOST: usize = 128;

/// Pages of a block that are touched for its owner, so that the others are small ones.
pub(super) const TOUCHED_AHEAD: usize = 1;

/// A witness is a block of which this share has been touched.
const TOUCHED_SHARE: usize = 4;

/// The prices that were found out. Relaxed: amounts that order nothing. Two threads that try at once both learn.
#[derive(Debug)]
pub(super) struct Price {
    /// Blocks that are still to come in small pages.
    small_left: AtomicUsize,
    /// As many will be the next time.
    next: AtomicUsize,
    /// The time that a huge page took which was not cheap; 0 if small ones are not to be tried.
    huge_ns: AtomicU64,
    /// The address of the witness to be; 0 if there is none.
    witness: AtomicUsize,
}

/// The way in which new blocks come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// A huge page, timed; the rest comes as the kernel gives it.
    TryHuge,
    /// Small pages, timed, of one block, after a huge page that took so long.
    TrySmall { huge_ns: u64 },
    /// Small pages for so many blocks.
    Small { blocks: usize },
}

impl Price {
    pub(super) fn new() -> Price {
        Price {
            small_left: AtomicUsize::new(0),
            next: AtomicUsize::new(FIRST),
            huge_ns: AtomicU64::new(0),
            witness: AtomicUsize::new(0),
        }
    }

    /// The way of the first of so many new blocks, or of several.
    pub(super) fn turn(&self, blocks: usize) -> Turn {
        let less = |left: usize| (left > 0).then(|| left.saturating_sub(blocks));
        if let Ok(left) = self.small_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
            return Turn::Small { blocks: left.min(blocks) };
        }
        match self.huge_ns.swap(0, Ordering::Relaxed) {
            0 => Turn::TryHuge,
            huge_ns => Turn::TrySmall { huge_ns },
        }
    }

    /// Undoes a turn that could not be timed.
    fn untried(&self, turn: Turn) {
        if let Turn::TrySmall { huge_ns } = turn {
            self.huge_ns.store(huge_ns, Ordering::Relaxed);
        }
    }

    /// Notes the time of a huge page. Returns whether small ones are to be tried.
    fn tried_huge(&self, took_ns: u64) -> bool {
        let is_cheap = took_ns < CHEAP_NS;
        if is_cheap {
            self.next.store(FIRST, Ordering::Relaxed);
        } else {
            self.huge_ns.store(took_ns, Ordering::Relaxed);
        }
        !is_cheap
    }

    /// Notes the time of a block in small pages, and that of the huge page before it, `huge_ns`.
    fn tried_small(&self, took_ns: u64, huge_ns: u64) {
        if huge_ns > took_ns.saturating_mul(DEAR) {
            let blocks = self.next.load(Ordering::Relaxed);
            self.next.store((2 * blocks).min(MOST), Ordering::Relaxed);
            self.small_left.store(blocks, Ordering::Relaxed);
        } else {
            self.next.store(FIRST, Ordering::Relaxed);
        }
    }

    /// Goes on in small pages if huge ones were dear the last time.
    fn go_on(&self) -> bool {
        let is_dear = self.next.load(Ordering::Relaxed) > FIRST;
        if is_dear {
            self.small_left.store(FIRST, Ordering::Relaxed);
        }
        is_dear
    }
}

impl Heap {
    /// Whether new memory is touched, as far as the last that went out untouched shows. Each shows it once.
    fn is_witness_touched(&self) -> bool {
        let at = self.price.witness.swap(0, Ordering::Relaxed) as *mut u8;
        let Some(zone) = self.zone_of(at) else { return false };
        self.resident(zone, at, BLOCK_SIZE).is_some_and(|it| it >= BLOCK_FRAMES / TOUCHED_SHARE)
    }

    /// Touches a new block of a run that is known to be filled, to know its price.
    pub(super) fn try_price(&self, zone: &PoolZone, block: usize, turn: Turn) {
        let first = Pfn::of_block(block).0;
        let touch = |frames| (first..first + frames).for_each(|frame| zone.touch(Pfn(frame)));
        match turn {
            Turn::TryHuge => {
                self.price.tried_huge(timed(|| touch(TOUCHED_AHEAD)));
            }
            Turn::TrySmall { huge_ns } => {
                self.price.tried_small(timed(|| touch(BLOCK_FRAMES)), huge_ns);
            }
            Turn::Small { .. } => {}
        }
    }

    /// Decides in which pages the new ones of a run's blocks come, before their owner touches them.
    pub(super) fn price_new(&self, zone: &PoolZone, blocks: Range<usize>) {
        // Without system calls no time can be taken.
        if zone.kind != ZoneKind::Ready || self.is_quiet() {
            return;
        }
        let is_new = |block: &usize| {
            let word = zone.ledger().block(*block);
            let has_pages = word.ready() || !word.zeroed() || word.trimmed();
            !has_pages && !word.tainted() && !word.hints().sampled()
        };
        let (mut may_try, mut witness) = (None, None);
        let mut next = blocks.start;
        'run: while let Some(start) = (next..blocks.end).find(is_new) {
            let end = (start..blocks.end).find(|block| !is_new(block)).unwrap_or(blocks.end);
            next = start;
            while next < end {
                let turn = self.price.turn(end - next);
                if !matches!(turn, Turn::Small { .. }) {
                    let may_try = may_try.get_or_insert_with(|| self.is_witness_touched());
                    if !*may_try {
                        self.price.untried(turn);
                        if self.price.go_on() {
                            continue;
                        }
                        witness = Some(next);
                        break 'run;
                    }
                }
                match turn {
                    Turn::TryHuge => {
                        let took_ns = timed(|| zone.touch(Pfn::of_block(next)));
                        next += 1;
                        if !self.price.tried_huge(took_ns) {
                            witness = (next < end).then_some(next);
                            break 'run;
                        }
                    }
                    Turn::TrySmall { huge_ns } => {
                        let block = next..next + 1;
                        let mut is_small = false;
                        let took_ns =
                            timed(|| is_small = fault_in_small(zone, block, BLOCK_FRAMES));
                        if !is_small {
                            break 'run;
                        }
                        self.price.tried_small(took_ns, huge_ns);
                        next += 1;
                    }
                    Turn::Small { blocks } => {
                        if !fault_in_small(zone, next..next + blocks, TOUCHED_AHEAD) {
                            break 'run;
                        }
                        next += blocks;
                        witness = Some(next - 1);
                    }
                }
            }
        }
        if let Some(block) = witness {
            let at = zone.block_address(block) as usize;
            self.price.witness.store(at, Ordering::Relaxed);
        }
    }
}

/// Faults the first frames of new blocks in, so many of each, as small pages: pages that are faulted in beside a small
/// one are small, in spite of the advice. `false`: the kernel has no room for another mapping, or no huge pages.
pub(super) fn fault_in_small(zone: &PoolZone, blocks: Range<usize>, frames: usize) -> bool {
    let (at, len) = (zone.block_address(blocks.start), blocks.len() * BLOCK_SIZE);
    // SAFETY: advice on committed memory of the caller's, which changes no content.
    let advise = |huge| unsafe { zone.memory().set_huge(at, len, huge) }.is_ok();
    let is_small = advise(Huge::No);
    if is_small {
        for block in blocks {
            let first = Pfn::of_block(block).0;
            (first..first + frames).for_each(|frame| zone.touch(Pfn(frame)));
        }
    }
    // Of several mappings the first may have been advised, and another refused.
    advise(Huge::Yes);
    is_small
}

/// The calling thread's processor time for it, in nanoseconds: others may have the processor meanwhile.
fn timed(work: impl FnOnce()) -> u64 {
    #[cfg(test)]
    if let Some(next) = super::tests::next_time_ns() {
        work();
        return next;
    }
    let before_ns = thread::cpu_time_ns();
    work();
    thread::cpu_time_ns().saturating_sub(before_ns)
}
