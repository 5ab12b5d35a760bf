//! The name of a tree of programs that no process outlives.
//!
//! `pumice run` becomes the program, and nobody may need a tree yet. So it gives the tree a name, and the first program
//! that has to count makes the tree under it.

use core::fmt;

use pumice_frames::sys::segment::Common;
use rustix::process::geteuid;

use super::{Owner, TREE_SIZE};

/// Lengths that a segment of a tree may have: the length tells trees of different keys apart without a look inside.
const LENGTHS: usize = 4096;

/// The name of a tree. As text, three numbers with a point between: the leader's process id, its namespace, the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeName {
    /// The process that was `pumice run`.
    pub leader: Owner,
    /// Chosen at random; 0 for a tree that nobody has to find by it.
    pub key: u32,
}

impl TreeName {
    /// Of a tree that this process makes and leads.
    pub fn of_own() -> TreeName {
        TreeName { leader: Owner::here(), key: 0 }
    }

    /// Reads its text; `None` if it is none.
    pub fn parse(text: &str) -> Option<TreeName> {
        let mut numbers = text.split('.').map(str::parse);
        let mut next = || numbers.next()?.ok();
        let (pid, namespace, key) = (next()?, next()?, next()?);
        let name = TreeName { leader: Owner { namespace, pid }, key };
        (numbers.next().is_none() && key != 0).then_some(name)
    }

    /// The segment that a process of this namespace shares with others. Those of another namespace have one of their
    /// own: neither could tell whether processes of the other's are gone.
    pub fn segment_of(self, namespace: u32) -> Common {
        let key = (self.key ^ namespace).max(1);
        let len = TREE_SIZE + key as usize % LENGTHS;
        Common { key, len, user: geteuid().as_raw() }
    }
}

/// Whether a segment of so many bytes may be a tree's.
pub fn is_tree_len(len: usize) -> bool {
    (TREE_SIZE..TREE_SIZE + LENGTHS).contains(&len)
}

impl fmt::Display for TreeName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Owner { namespace, pid } = self.leader;
        write!(out, "{pid}.{namespace}.{}", self.key)
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn names_are_read_as_written() {
        let name = TreeName { leader: Owner { namespace: u32::MAX, pid: 7 }, key: 1 << 31 };
        assert_eq!(name.to_string(), "7.4294967295.2147483648");
        assert_eq!(TreeName::parse(&name.to_string()), Some(name));
        for bad in ["", "1.2", "1.2.0", "1.2.3.4", "1.2.x", "-1.2.3", "1.2.4294967296", "1..3"] {
            assert_eq!(TreeName::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn namespaces_have_segments_of_their_own() {
        let name = TreeName { leader: Owner { namespace: 0, pid: 1 }, key: 77 };
        let (one, other) = (name.segment_of(77), name.segment_of(78));
        assert!(one.key != other.key && one.key != 0);
        assert!([one, other].iter().all(|it| is_tree_len(it.len)));
    }
}
