//! From which memory nodes the kernel takes pages: the policy of the calling thread.
//!
//! Policies belong to programs; see set_mempolicy(2). Only helper threads ever set one, their own.

use super::raw;

/// The nodes a set can tell of; the kernel's numbers above are as if they were not there.
pub const MAX_NUMBERS: usize = 256;

/// Words in the masks that the kernel reads and writes: it wants room for as many nodes as it may
/// have, 1024 at most.
const MASK_WORDS: usize = 1024 / 64;

/// `include/uapi/linux/mempolicy.h`
const MPOL_DEFAULT: u32 = 0;
const MPOL_PREFERRED: u32 = 1;
const MPOL_LOCAL: u32 = 4;
const MPOL_MODE_FLAGS: u32 = 7 << 13;
const MPOL_F_MEMS_ALLOWED: usize = 1 << 2;

/// A set of nodes, by the kernel's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeSet([u64; MAX_NUMBERS / 64]);

impl NodeSet {
    /// Adds a node, if sets can tell of it.
    pub fn insert(&mut self, number: usize) {
        if let Some(word) = self.0.get_mut(number / 64) {
            *word |= 1 << (number % 64);
        }
    }

    /// Whether a node is one of them.
    pub fn contains(&self, number: usize) -> bool {
        self.0.get(number / 64).is_some_and(|word| word & 1 << (number % 64) != 0)
    }

    /// Those that are in both.
    pub fn intersection(&self, other: &NodeSet) -> NodeSet {
        NodeSet(core::array::from_fn(|index| self.0[index] & other.0[index]))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Their numbers, rising.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..MAX_NUMBERS).filter(|&number| self.contains(number))
    }
}

/// The nodes that the process may have memory of (cpuset(7)). `None` if the kernel does not say.
pub fn allowed_nodes() -> Option<NodeSet> {
    let mut mask = [0u64; MASK_WORDS];
    let args = [0, mask.as_mut_ptr() as usize, MASK_WORDS * 64, 0, MPOL_F_MEMS_ALLOWED, 0];
    // SAFETY: get_mempolicy(2) writes as many bits as it is told that the mask has.
    unsafe { raw::syscall(raw::number::__NR_get_mempolicy, args) }.ok()?;
    let mut nodes = NodeSet::default();
    nodes.0.copy_from_slice(&mask[..MAX_NUMBERS / 64]);
    Some(nodes)
}

/// Whether the calling thread has any policy but to get memory of its own node. It may have inherited that policy.
pub fn is_set() -> bool {
    !matches!(mode(), None | Some(MPOL_DEFAULT | MPOL_LOCAL))
}

/// Has the pages that the calling thread faults in from now on come from this node, and from others where that has no
/// more. Nothing happens in a thread that has a policy of another kind, or where the kernel refuses.
pub fn prefer(number: usize) {
    if !matches!(mode(), Some(MPOL_DEFAULT | MPOL_LOCAL | MPOL_PREFERRED)) {
        return;
    }
    let mut mask = [0u64; MASK_WORDS];
    mask[number / 64 % MASK_WORDS] = 1 << (number % 64);
    let args = [MPOL_PREFERRED as usize, mask.as_ptr() as usize, MASK_WORDS * 64, 0, 0, 0];
    // SAFETY: set_mempolicy(2) reads as many bits as it is told that the mask has.
    let _ = unsafe { raw::syscall(raw::number::__NR_set_mempolicy, args) };
}

/// Undoes [`prefer`].
pub fn prefer_none() {
    if mode() == Some(MPOL_PREFERRED) {
        let args = [MPOL_DEFAULT as usize, 0, 0, 0, 0, 0];
        // SAFETY: set_mempolicy(2) reads no mask for this mode.
        let _ = unsafe { raw::syscall(raw::number::__NR_set_mempolicy, args) };
    }
}

/// The mode of the calling thread's policy.
fn mode() -> Option<u32> {
    let mut mode = 0u32;
    let args = [(&raw mut mode) as usize, 0, 0, 0, 0, 0];
    // SAFETY: get_mempolicy(2) writes the mode, an int, and nothing else.
    unsafe { raw::syscall(raw::number::__NR_get_mempolicy, args) }.ok()?;
    Some(mode & !MPOL_MODE_FLAGS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_was_put_in() {
        let mut nodes = NodeSet::default();
        assert!(nodes.is_empty());
        for number in [0, 63, 64, 255, 256, 100_000] {
            nodes.insert(number);
        }
        assert_eq!(nodes.iter().collect::<Vec<_>>(), [0, 63, 64, 255]);
        assert!(!nodes.contains(100_000));
        let mut other = NodeSet::default();
        other.insert(64);
        other.insert(1);
        assert_eq!(nodes.intersection(&other).iter().collect::<Vec<_>>(), [64]);
    }

    #[test]
    fn a_thread_prefers_what_it_is_told() {
        std::thread::spawn(|| {
            let Some(allowed) = allowed_nodes() else { return };
            if is_set() {
                return;
            }
            let number = allowed.iter().next().expect("memory comes from somewhere");
            prefer(number);
            // Where the kernel let us.
            assert!(matches!(mode(), Some(MPOL_DEFAULT | MPOL_PREFERRED)));
        })
        .join()
        .expect("no panic");
    }
}
