//! When pages were last used, to a 64th of the memory, and with it what plain LRU would have.
//!
//! Time goes by *epochs*: one ends when a 64th as many pages as there are have been used in it. A page's *stamp*
//! says when it was first used in the epoch that it was last used in; further uses in the same epoch cost nothing
//! and say nothing (references that are correlated are one). Stamps are exact, but of a page that is out only the
//! epoch is known. Epochs are counted in *buckets*: how many pages, in memory or not, were last used then. So the
//! sum of the newest buckets tells how many other pages have been used since a stamp, which is its stack
//! distance; where the sum reaches the number of pages there is room for is the *edge*. Pages this side of it
//! plain LRU would have: that costs a comparison to know, and no list of pages that are gone.
//!
//! ```text
//!  oldest                                 edge                                newest
//!  |  12 |   3 |   9 |   1 |  40 |   7  |  16 |   5 |  16 |  11 |  16 |  16 |   4 |
//!     stale pages, if they are in          all together as many as there is room for
//! ```
//! Buckets are limited: when a new one is needed, the two neighbours with the fewest pages become one.

/// Buckets; epochs that a memory's worth of uses makes.
pub(super) const BUCKETS: usize = 128;
const EPOCHS_PER_TURN: usize = 64;

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Its first stamp and epoch; it ends where the next begins.
    start: u64,
    epoch: u32,
    /// Pages last used in it, in memory or not. Behind the edge it is not kept.
    all: u32,
    /// Those that are in memory.
    resident: u32,
    /// The list that is the bucket's own.
    list: u8,
}

/// The list of a bucket that is no more, and the one its pages belong on, being younger than those there; and which
/// bucket has that. Those behind have moved up by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Merged {
    pub from: usize,
    pub into: usize,
    pub bucket: usize,
}

/// See the module's top.
#[derive(Debug)]
pub(super) struct Ages {
    buckets: [Bucket; BUCKETS],
    len: usize,
    /// The first bucket on this side.
    edge: usize,
    /// Pages in buckets from the edge on.
    recent: usize,
    /// Pages in memory beyond the edge.
    stale: usize,
    /// Pages there is room for; none is beyond the edge before that is known.
    room: usize,
    /// The last stamp given.
    last: u64,
}

impl Ages {
    pub fn new(pages: usize) -> Ages {
        Ages {
            buckets: [Bucket::default(); BUCKETS],
            len: 1,
            edge: 0,
            recent: 0,
            stale: 0,
            room: pages,
            last: 0,
        }
    }

    /// A stamp that is younger than all before.
    pub fn stamp(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The epoch that is now.
    pub fn now(&self) -> u32 {
        self.buckets[self.len - 1].epoch
    }

    /// Whether a stamp is of the epoch that is now.
    pub fn is_now(&self, stamp: u64) -> bool {
        stamp >= self.buckets[self.len - 1].start
    }

    /// The epoch of a stamp, or one a little before.
    pub fn epoch(&self, stamp: u64) -> u32 {
        self.buckets[self.index(stamp)].epoch
    }

    fn index(&self, stamp: u64) -> usize {
        self.buckets[..self.len].partition_point(|bucket| bucket.start <= stamp).saturating_sub(1)
    }

    fn index_of_epoch(&self, epoch: u32) -> usize {
        self.buckets[..self.len].partition_point(|bucket| bucket.epoch <= epoch).saturating_sub(1)
    }

    /// The bucket of pages of this stamp, the oldest being 0, and its list.
    pub fn list(&self, stamp: u64) -> (usize, usize) {
        let bucket = self.index(stamp);
        (bucket, usize::from(self.buckets[bucket].list))
    }

    /// The list of a bucket; `None` past the last.
    pub fn list_of(&self, bucket: usize) -> Option<usize> {
        self.buckets[..self.len].get(bucket).map(|bucket| usize::from(bucket.list))
    }

    /// Whether plain LRU would have a page of this stamp. At the edge this is uncertain and
    /// answers yes, so gains over LRU are not overstated.
    pub fn is_recent(&self, stamp: u64) -> bool {
        self.index(stamp) + 1 >= self.edge
    }

    /// Whether plain LRU would have a page that was used last in this epoch.
    pub fn was_recent(&self, epoch: u32) -> bool {
        self.index_of_epoch(epoch) + 1 >= self.edge
    }

    /// Pages in memory that plain LRU would not have: as many as it would have and that are not in memory.
    pub fn stale(&self) -> usize {
        self.stale
    }

    fn leave(&mut self, index: usize, resident: bool) {
        let bucket = &mut self.buckets[index];
        if resident {
            bucket.resident = bucket.resident.saturating_sub(1);
        }
        // Behind the edge, and of a page that was forgotten about, counts may be short.
        if index < self.edge {
            self.stale -= usize::from(resident);
        } else if bucket.all > 0 {
            bucket.all -= 1;
            self.recent -= 1;
        }
    }

    fn enter(&mut self) {
        let newest = &mut self.buckets[self.len - 1];
        newest.all += 1;
        newest.resident += 1;
        self.recent += 1;
    }

    /// A page comes in that was used last in this epoch, or never.
    pub fn come(&mut self, epoch: Option<u32>) {
        if let Some(epoch) = epoch {
            self.leave(self.index_of_epoch(epoch), false);
        }
        self.enter();
    }

    /// A page of this stamp, in memory, is used.
    pub fn used(&mut self, stamp: u64) {
        self.leave(self.index(stamp), true);
        self.enter();
    }

    /// A page of this stamp leaves memory, and may come back.
    pub fn go(&mut self, stamp: u64) {
        let index = self.index(stamp);
        self.buckets[index].resident = self.buckets[index].resident.saturating_sub(1);
        if index < self.edge {
            self.stale -= 1;
        }
    }

    /// As [`Ages::go`], undone.
    pub fn stay(&mut self, stamp: u64) {
        let index = self.index(stamp);
        self.buckets[index].resident += 1;
        if index < self.edge {
            self.stale += 1;
        }
    }

    /// A page of this stamp, in memory, is no more.
    pub fn forget(&mut self, stamp: u64) {
        self.leave(self.index(stamp), true);
    }

    /// Sets for how many pages there is room, and moves the edge to where they are reached.
    pub fn set_room(&mut self, pages: usize) {
        self.room = pages.max(1);
        while self.edge + 1 < self.len {
            let Bucket { all, resident, .. } = self.buckets[self.edge];
            // The bucket that the edge runs through counts as what most of it is.
            if self.recent <= self.room + all as usize / 2 {
                break;
            }
            self.recent -= all as usize;
            self.stale += resident as usize;
            self.edge += 1;
        }
    }

    /// Begins a new epoch if this one is full.
    pub fn turn(&mut self) -> Option<Merged> {
        if (self.buckets[self.len - 1].all as usize) < (self.room / EPOCHS_PER_TURN).max(1) {
            return None;
        }
        let now = self.now() + 1;
        let mut merged = None;
        let list = if self.len < BUCKETS {
            self.len += 1;
            self.len - 1
        } else {
            let one = self.merge();
            merged = Some(one);
            one.from
        };
        self.buckets[self.len - 1] =
            Bucket { start: self.last + 1, epoch: now, list: list as u8, ..Bucket::default() };
        merged
    }

    /// Makes one of the two neighbours with the fewest pages; the last bucket is then free.
    fn merge(&mut self) -> Merged {
        let weight = |index: usize| {
            let Bucket { all, resident, .. } = self.buckets[index];
            if index < self.edge {
                resident
            } else {
                all
            }
        };
        // Not across the edge, nor the bucket beyond it: of what is there the side is known.
        let pairs =
            (0..self.len - 1).filter(|index| !(1..=2).contains(&self.edge.wrapping_sub(*index)));
        let least = pairs.min_by_key(|&index| weight(index) + weight(index + 1)).unwrap_or(0);
        let younger = self.buckets[least + 1];
        let older = &mut self.buckets[least];
        older.all += younger.all;
        older.resident += younger.resident;
        let (from, into) = (usize::from(younger.list), usize::from(older.list));
        let merged = Merged { from, into, bucket: least };
        self.buckets.copy_within(least + 2.., least + 1);
        if self.edge > least {
            self.edge -= 1;
        }
        merged
    }
}
