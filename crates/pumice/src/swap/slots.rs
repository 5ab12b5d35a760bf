//! Which slots are taken: a bit each, got in the order of their numbers so that pages which go together lie together.
//!
//! The search goes on where it ended last, and prefers *clusters*, 64 slots of which none is taken, to what is left of
//! others (`swap_map` and its clusters in `mm/swapfile.c`): a device that seeks or erases likes long writes.

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
    /// Clusters of which no slot is taken, about: it never says too few.
    empty: u32,
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
        SlotMap { words, len, taken: 0, cluster: 0, empty: clusters as u32 }
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

    /// A free slot.
    pub fn get(&mut self) -> Option<u32> {
        if self.taken == self.len {
            return None;
        }
        if self.words[self.cluster] == u64::MAX {
            self.cluster = self.next_cluster();
        }
        let word = &mut self.words[self.cluster];
        let bit = word.trailing_ones();
        *word |= 1 << bit;
        self.taken += 1;
        Some(self.cluster as u32 * CLUSTER + bit)
    }

    /// The next cluster that is empty, or else that has a free slot. There is one.
    fn next_cluster(&mut self) -> usize {
        let (before, after) = self.words.split_at(self.cluster);
        let order = || (self.cluster..self.words.len()).zip(after).chain((0..).zip(before));
        let find =
            |is_good: fn(u64) -> bool| order().find(|(_, &word)| is_good(word)).map(|(at, _)| at);
        let empty = (self.empty > 0).then(|| find(|word| word == 0)).flatten();
        match empty {
            Some(at) => {
                self.empty -= 1;
                at
            }
            None => {
                let partly = find(|word| word != u64::MAX).unwrap_or(self.cluster);
                self.empty = 0;
                partly
            }
        }
    }

    /// Gives a slot back. `false`: it was not taken.
    pub fn put(&mut self, slot: u32) -> bool {
        let (at, bit) = ((slot / CLUSTER) as usize, 1 << (slot % CLUSTER));
        if slot == 0 || slot > self.len || self.words[at] & bit == 0 {
            return false;
        }
        self.words[at] &= !bit;
        self.taken -= 1;
        self.empty += u32::from(self.words[at] == 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn slots_are_given_once(len in 1u32..400, steps in prop::collection::vec((0u8..5, 0u32..420), 0..1500)) {
            let mut map = SlotMap::new(len);
            let mut taken = BTreeSet::new();
            for (step, slot) in steps {
                if step < 3 {
                    match map.get() {
                        Some(slot) => prop_assert!((1..=len).contains(&slot) && taken.insert(slot)),
                        None => prop_assert_eq!(taken.len(), len as usize),
                    }
                } else {
                    prop_assert_eq!(map.put(slot), taken.remove(&slot));
                }
                prop_assert_eq!(map.taken() as usize, taken.len());
            }
        }
    }

    #[test]
    fn slots_lie_beside_each_other() {
        let mut map = SlotMap::new(1000);
        let slots: Vec<u32> = (0..500).filter_map(|_| map.get()).collect();
        assert_eq!(slots, (1..=500).collect::<Vec<_>>());
        for slot in (100..200).step_by(2) {
            assert!(map.put(slot));
        }
        // Whole clusters come before what was given back here and there.
        let slots: Vec<u32> = (0..400).filter_map(|_| map.get()).collect();
        assert_eq!(slots, (501..=900).collect::<Vec<_>>());
    }
}
