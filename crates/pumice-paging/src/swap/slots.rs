//! Which slots are taken: a bit each, got in the order of their numbers so that pages which go together lie together.
//!
//! Pages that go out together get *runs* of slots, so that they are written by one request. The search goes round by
//! *clusters*, of 64 slots, as a log does: by when it comes round, pages have come back and freed what they had there.
//! (Where slots are twice the pages in swap, of a cluster 80 % are free again; where they are a third more, half.)

use std::collections::BTreeMap;

/// Slots of a cluster: a word's bits.
const CLUSTER: u32 = u64::BITS;

/// See the module's top. Slots are numbered from 1.
#[derive(Debug)]
pub struct SlotMap {
    words: Vec<u64>,
    /// Slots, and those taken.
    len: u32,
    taken: u32,
    /// The cluster that is being filled.
    cluster: usize,
    /// Of slots that several have: how many beside the first.
    sharers: BTreeMap<u32, u32>,
}

impl SlotMap {
    /// With all slots free.
    pub fn new(len: u32) -> SlotMap {
        let clusters = (len + 1).div_ceil(CLUSTER) as usize;
        let mut words = vec![0; clusters];
        // The header's, and those past the end.
        words[0] = 1;
        let used = (len + 1) % CLUSTER;
        if used != 0 {
            words[clusters - 1] |= u64::MAX << used;
        }
        SlotMap { words, len, taken: 0, cluster: 0, sharers: BTreeMap::new() }
    }

    /// Slots there are.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Slots taken.
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// Free slots that lie beside each other, `most` at most: the first, and how many.
    pub fn get_run(&mut self, most: u32) -> Option<(u32, u32)> {
        if self.taken == self.len || most == 0 {
            return None;
        }
        if self.words[self.cluster] == u64::MAX {
            self.cluster = self.next_cluster();
        }
        let word = &mut self.words[self.cluster];
        let bit = word.trailing_ones();
        let run = (!*word >> bit).trailing_ones().min(most);
        *word |= (u64::MAX >> (CLUSTER - run)) << bit;
        self.taken += run;
        Some((self.cluster as u32 * CLUSTER + bit, run))
    }

    /// The next cluster with as many free slots as there are in one on average, or more. Going round, that is
    /// most often the next one, which was filled longest ago; those filled lately are left to get emptier.
    fn next_cluster(&self) -> usize {
        let average = (self.len - self.taken) as usize / self.words.len();
        let after = self.cluster + 1..self.words.len();
        let is_good = |at: &usize| self.words[*at].count_zeros() as usize >= average.max(1);
        after.chain(0..=self.cluster).find(is_good).unwrap_or(self.cluster)
    }

    /// Whether a slot is taken.
    fn is_taken(&self, slot: u32) -> bool {
        let (at, bit) = ((slot / CLUSTER) as usize, 1 << (slot % CLUSTER));
        (1..=self.len).contains(&slot) && self.words[at] & bit != 0
    }

    /// One more has a slot, and will give it back. `false`: it was not taken.
    pub fn share(&mut self, slot: u32) -> bool {
        let is_taken = self.is_taken(slot);
        if is_taken {
            *self.sharers.entry(slot).or_insert(0) += 1;
        }
        is_taken
    }

    /// Drops one reference to a slot; the last one frees it. `false`: it was not taken.
    pub fn put(&mut self, slot: u32) -> bool {
        if !self.is_taken(slot) {
            return false;
        }
        if let Some(more) = self.sharers.get_mut(&slot) {
            *more -= 1;
            if *more == 0 {
                self.sharers.remove(&slot);
            }
            return true;
        }
        let (at, bit) = ((slot / CLUSTER) as usize, 1 << (slot % CLUSTER));
        self.words[at] &= !bit;
        self.taken -= 1;
        true
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn slots_are_given_once(len in 1u32..400, steps in prop::collection::vec((0u8..6, 0u32..420), 0..1500)) {
            let mut map = SlotMap::new(len);
            // Each as often as somebody has it.
            let mut taken = BTreeMap::new();
            for (step, slot) in steps {
                if step == 5 {
                    if let Some(many) = taken.get_mut(&slot) {
                        *many += 1;
                    }
                    prop_assert_eq!(map.share(slot), taken.contains_key(&slot));
                } else if step < 3 {
                    match map.get_run(slot % 9 + 1) {
                        Some((first, run)) => {
                            prop_assert!((1..=slot % 9 + 1).contains(&run));
                            for slot in first..first + run {
                                prop_assert!((1..=len).contains(&slot) && taken.insert(slot, 1).is_none());
                            }
                        }
                        None => prop_assert_eq!(taken.len(), len as usize),
                    }
                } else {
                    let many = taken.get_mut(&slot);
                    prop_assert_eq!(map.put(slot), many.is_some());
                    let is_free = many.is_some_and(|many| {
                        *many -= 1;
                        *many == 0
                    });
                    if is_free {
                        taken.remove(&slot);
                    }
                }
                prop_assert_eq!(map.taken() as usize, taken.len());
            }
        }
    }

    #[test]
    fn slots_lie_beside_each_other() {
        let mut map = SlotMap::new(1000);
        assert_eq!(map.get_run(200), Some((1, 63)));
        let runs: Vec<_> = (0..6).filter_map(|_| map.get_run(64)).collect();
        assert_eq!(runs, (1..7).map(|cluster| (cluster * 64, 64)).collect::<Vec<_>>());
        for slot in (64..192).step_by(16) {
            assert!(map.put(slot));
        }
        // Clusters that are emptier come before what was given back here and there.
        let runs: Vec<_> = (0..8).filter_map(|_| map.get_run(64)).collect();
        assert_eq!(runs[..4], [(448, 64), (512, 64), (576, 64), (640, 64)]);
        while map.taken() < map.len() {
            assert!(map.get_run(64).is_some());
        }
    }
}
