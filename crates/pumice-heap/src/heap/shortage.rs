//! Requests of a dense class for which no memory is there.
//!
//! A class is dense by the pages that were touched before its memory was freed. A program may then keep its memory and
//! touch little of it. In new memory of the ready zone, each touched page would cost a huge page. So after some, a run
//! that goes out where none was there is looked at when it is freed, or when the next one goes out. If it is hardly
//! touched, the next one comes from the demand zone, and costs what it touches. Else the next ones are new: twice as
//! many as before, up to [`MOST_UNSEEN`], before one is looked at again. Memory that is there is served in any case: it
//! costs nothing more.
//!
//! A block that was found to be unused, and is touched when it is freed, was touched late. Then more are new at once,
//! up to [`MOST_LATE`]: programs that allocate all and then fill all would be served from the demand zone each time.
//!
//! A run that is looked at has small pages, in the demand zone, or in one block of the ready zone. A run in the
//! demand zone that is touched and freed moves to the ready zone ([`super::promote`]), and is there for the next.
//!
//! Requests of less than a block are served as before: they lie in blocks with others.

use super::classes::{class_of, CLASSES};
use super::{Heap, PoolZone, ZoneKind};
use pumice_frames::addr::{PageRange, BLOCK_FRAMES, BLOCK_SIZE};
use pumice_frames::frame::{BlockState, Run};
use pumice_frames::sync::atomic::{AtomicUsize, Ordering};

/// So many requests of a class are new before the first one is looked at.
const FIRST_UNSEEN: usize = 7;
/// Requests at most of which none is looked at...
const MOST_UNSEEN: usize = 63;
/// ... and where those that were looked at were touched late.
const MOST_LATE: usize = 1023;
/// No block.
const NONE: usize = 0;
/// The block was freed, and hardly touched. No block is there.
const FREED_UNUSED: usize = BLOCK_SIZE;
/// A block is hardly touched where less than one page in so many is.
const HARDLY: usize = 16;

/// The way to serve a request of a dense class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shortage {
    /// Ready memory is there, or new memory is likely to be touched.
    None,
    /// It is one to look at.
    Sample,
    /// The one before is hardly touched.
    Unused,
}

/// Two words for each class. Relaxed: of two requests at once, one is forgotten.
#[derive(Debug)]
pub(super) struct Shortages {
    /// The address of the block that is to be looked at, 0 for none, and in its low bits the requests that may be new
    /// before the next such, and how many those were the last time.
    seen: [AtomicUsize; CLASSES],
    /// The first block that was found to be unused, while it is in use; 0 for none.
    unused: [AtomicUsize; CLASSES],
}

#[derive(Clone, Copy)]
struct Seen {
    block: usize,
    most: usize,
    left: usize,
}

impl Seen {
    const BITS: u32 = MOST_LATE.ilog2() + 1;

    fn from_word(word: usize) -> Seen {
        let low = |from: u32| word >> from & ((1 << Seen::BITS) - 1);
        Seen { block: word / BLOCK_SIZE * BLOCK_SIZE, most: low(Seen::BITS), left: low(0) }
    }

    fn word(self) -> usize {
        self.block | self.most << Seen::BITS | self.left
    }
}

impl Shortages {
    pub(super) fn new() -> Shortages {
        let first = Seen { block: NONE, most: FIRST_UNSEEN, left: FIRST_UNSEEN }.word();
        Shortages {
            seen: core::array::from_fn(|_| AtomicUsize::new(first)),
            unused: core::array::from_fn(|_| AtomicUsize::new(0)),
        }
    }

    fn get(&self, frames: usize) -> Seen {
        Seen::from_word(self.seen[class_of(frames)].load(Ordering::Relaxed))
    }

    fn unused(&self, frames: usize) -> &AtomicUsize {
        &self.unused[class_of(frames)]
    }

    fn set(&self, frames: usize, seen: Seen) {
        self.seen[class_of(frames)].store(seen.word(), Ordering::Relaxed);
    }
}

impl Heap {
    /// How a request of a dense class is to be served.
    #[inline]
    pub(super) fn shortage(&self, node: usize, frames: usize) -> Shortage {
        let is_there = frames < BLOCK_FRAMES
            || self.ahead.left_on(node) > 0
            || self.holds(node, frames / BLOCK_FRAMES * BLOCK_FRAMES);
        if is_there {
            return Shortage::None;
        }
        self.shortage_of_new(frames)
    }

    #[cold]
    fn shortage_of_new(&self, frames: usize) -> Shortage {
        let seen = self.shortages.get(frames);
        if seen.left > 0 {
            self.shortages.set(frames, Seen { left: seen.left - 1, ..seen });
            return Shortage::None;
        }
        let is_unused = match seen.block {
            NONE => return Shortage::Sample,
            FREED_UNUSED => true,
            block => match self.touched_in_use(block as *mut u8) {
                // It was freed, and nobody saw how much of it was touched.
                None => return Shortage::Sample,
                Some(touched) => touched < BLOCK_FRAMES / HARDLY,
            },
        };
        if is_unused {
            let unused = self.shortages.unused(frames);
            if unused.load(Ordering::Relaxed) == NONE {
                let in_use = if seen.block == FREED_UNUSED { NONE } else { seen.block };
                unused.store(in_use, Ordering::Relaxed);
                self.shortages.set(frames, Seen { most: seen.most * 3 / 4, ..seen });
            }
            return Shortage::Unused;
        }
        self.note_touched(frames, seen);
        self.shortage_of_new(frames)
    }

    /// The block that is looked at was touched: the next ones are new.
    fn note_touched(&self, frames: usize, seen: Seen) {
        let most = (2 * seen.most + 1).min(seen.most.max(MOST_UNSEEN));
        self.shortages.set(frames, Seen { block: NONE, most, left: most });
    }

    /// Whether a block that is about to be freed is looked at: it is to be seen how much of it was touched.
    #[inline]
    pub(super) fn is_looked_at(&self, frames: usize, block: *mut u8) -> bool {
        self.shortages.unused(frames).load(Ordering::Relaxed) == block as usize
            || self.shortages.get(frames).block == block as usize
    }

    /// A run of the demand zone is about to be freed.
    pub(super) fn look_at_freed(&self, zone: &PoolZone, range: PageRange) {
        let first = zone.address(range.start);
        if self.is_looked_at(range.frames, first) {
            if let Some(touched) = self.resident(zone, first, BLOCK_SIZE) {
                self.note_freed(range.frames, first, touched);
            }
        }
    }

    /// A block that is looked at is freed, of which so many frames were touched.
    pub(super) fn note_freed(&self, frames: usize, block: *mut u8, touched: usize) {
        let (seen, is_touched) = (self.shortages.get(frames), touched >= BLOCK_FRAMES / HARDLY);
        let unused = self.shortages.unused(frames);
        let was_unused = unused.load(Ordering::Relaxed) == block as usize;
        if was_unused {
            unused.store(NONE, Ordering::Relaxed);
        }
        match is_touched {
            true if was_unused => {
                let most = (4 * seen.most + 3).clamp(MOST_UNSEEN, MOST_LATE);
                self.shortages.set(frames, Seen { block: NONE, most, left: most });
            }
            true => self.note_touched(frames, seen),
            false if seen.block == block as usize => {
                self.shortages.set(frames, Seen { block: FREED_UNUSED, ..seen });
            }
            false => {}
        }
    }

    /// The frames that were touched of a block that went out, if it is in use. It may be another's by now, and what is
    /// seen then is of that one.
    fn touched_in_use(&self, at: *mut u8) -> Option<usize> {
        let zone = self.zone_of(at)?;
        let word = zone.ledger().block(zone.pfn(at)?.block());
        (word.state() == BlockState::Whole).then(|| self.resident(zone, at, BLOCK_SIZE))?
    }

    /// A run goes out that was a [`Shortage::Sample`], or after one that is [`Shortage::Unused`].
    pub(super) fn remember_shortage(&self, zone: &PoolZone, run: &Run, frames: usize) {
        let block = match zone.kind {
            ZoneKind::Ready => self.begin_sample_in_ready(zone, run),
            ZoneKind::Demand => run.range.start.block(),
        };
        let seen = self.shortages.get(frames);
        let block = zone.block_address(block) as usize;
        self.shortages.set(frames, Seen { block, left: 0, ..seen });
    }
}
