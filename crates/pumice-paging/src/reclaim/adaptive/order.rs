//! When pages were last used.
//!
//! Time goes by *epochs*: one ends when a 64th as many pages as there are, rounded down but one at least, have been
//! used in it for the first time or have come. A page's *stamp* is its epoch and its number among those of the epoch.
//! Of a page that is out the epoch is known, by its shadow. The lists of active pages are the epochs', in *buckets*:
//! when a new one is needed, two neighbours become one that are closest to each other for their age. So the order
//! of pages that were used lately is exact, and that of others nearly so.

/// Lists that there are at most; epochs that a memory's worth of uses makes.
pub(super) const BUCKETS: usize = 128;
pub(super) const EPOCHS_PER_TURN: usize = 64;
/// Pairs of buckets that are looked for at a time: each time costs a look at all.
const PLANNED: usize = 16;
/// Bits of a stamp that are the number within the epoch. 40 are the epoch: no memory turns over so often.
const NUMBER_BITS: u32 = 16;
const NUMBERS: u64 = (1 << NUMBER_BITS) - 1;

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Its first epoch; it ends where the next begins.
    start: u64,
    /// The list that is the bucket's own.
    list: u8,
}

/// The list of a bucket that is no more, and the list that takes its pages, which are younger than those there; and
/// which bucket has that. Those behind have moved up by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Merged {
    pub from: usize,
    pub into: usize,
    pub bucket: usize,
}

/// See the module's top.
#[derive(Debug)]
pub(super) struct Order {
    buckets: [Bucket; BUCKETS],
    len: usize,
    /// Pages that came, or were used for the first time, in this epoch; and how many end it.
    entered: usize,
    most_entered: usize,
    /// The last stamp given.
    last: u64,
    /// The first epochs of buckets that will each take the pages of the next one, so many; the last one is first.
    plan: [u64; PLANNED],
    planned: usize,
}

impl Order {
    pub fn new(pages: usize) -> Order {
        let most_entered = (pages / EPOCHS_PER_TURN).max(1);
        Order {
            buckets: [Bucket::default(); BUCKETS],
            len: 1,
            entered: 0,
            most_entered,
            last: 0,
            plan: [0; PLANNED],
            planned: 0,
        }
    }

    /// A stamp that is younger than those before, unless the epoch has very many.
    pub fn stamp(&mut self) -> u64 {
        self.last += u64::from(self.last & NUMBERS < NUMBERS);
        self.last
    }

    /// The epoch that is now.
    pub fn now(&self) -> u64 {
        self.epoch(self.last)
    }

    pub fn epoch(&self, stamp: u64) -> u64 {
        stamp >> NUMBER_BITS
    }

    /// The bucket of pages of this stamp, the oldest being 0, and its list.
    pub fn list(&self, stamp: u64) -> (usize, usize) {
        let epoch = self.epoch(stamp);
        let after = self.buckets[..self.len].partition_point(|bucket| bucket.start <= epoch);
        let bucket = after.saturating_sub(1);
        (bucket, usize::from(self.buckets[bucket].list))
    }

    /// The list of a bucket; `None` past the last.
    pub fn list_of(&self, bucket: usize) -> Option<usize> {
        self.buckets[..self.len].get(bucket).map(|bucket| usize::from(bucket.list))
    }

    /// A page has come, or is used for the first time in this epoch. Begins a new one if this one is full.
    pub fn enter(&mut self) -> Option<Merged> {
        self.entered += 1;
        if self.entered < self.most_entered {
            return None;
        }
        self.entered = 0;
        let now = self.now() + 1;
        self.last = now << NUMBER_BITS;
        let merged = (self.len == BUCKETS).then(|| self.merge(now));
        let list = merged.map_or(self.len, |merged| merged.from);
        self.len += usize::from(merged.is_none());
        self.buckets[self.len - 1] = Bucket { start: now, list: list as u8 };
        merged
    }

    /// Makes one of two neighbours; the last bucket is then free.
    fn merge(&mut self, now: u64) -> Merged {
        if self.planned == 0 {
            self.plan(now);
        }
        self.planned -= 1;
        let start = self.plan[self.planned];
        let at = self.buckets[..self.len].partition_point(|bucket| bucket.start < start);
        let (older, younger) = (self.buckets[at], self.buckets[at + 1]);
        self.buckets.copy_within(at + 2.., at + 1);
        Merged { from: younger.list.into(), into: older.list.into(), bucket: at }
    }

    /// Finds the neighbours that are closest to each other for their age. No bucket is of two pairs.
    fn plan(&mut self, now: u64) {
        let mut closest = [(f64::INFINITY, 0); 2 * PLANNED];
        for at in 0..self.len - 1 {
            let start = self.buckets[at].start;
            let end = self.buckets[..self.len].get(at + 2).map_or(now, |next| next.start);
            let closeness = (end - start) as f64 / (now - start) as f64;
            let rank = closest.partition_point(|&(closer, _)| closer <= closeness);
            if rank < closest.len() {
                closest.copy_within(rank..2 * PLANNED - 1, rank + 1);
                closest[rank] = (closeness, at);
            }
        }
        let mut chosen: [usize; PLANNED] = [0; PLANNED];
        for (_, at) in closest.into_iter().filter(|&(closeness, _)| closeness.is_finite()) {
            let is_apart = chosen[..self.planned].iter().all(|&other| at.abs_diff(other) > 1);
            if is_apart && self.planned < PLANNED {
                chosen[self.planned] = at;
                self.planned += 1;
            }
        }
        // The closest goes first.
        for (planned, &at) in self.plan.iter_mut().zip(chosen[..self.planned].iter().rev()) {
            *planned = self.buckets[at].start;
        }
    }
}
