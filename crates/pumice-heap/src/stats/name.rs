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
    /// The namespace of the processes that have the tree. Those of another have one of their own: neither could tell
    /// whether processes of the other's are gone. It is not in the text.
    pub namespace: u32,
}

impl TreeName {
    /// Of a tree that this process makes and leads.
    pub fn of_own() -> TreeName {
        TreeName::new(0)
    }

    /// Of a tree that this process leads.
    pub fn new(key: u32) -> TreeName {
        let leader = Owner::here();
        TreeName { leader, key, namespace: leader.namespace }
    }

    /// Reads its text, for this process; `None` if it is none.
    pub fn parse(text: &str) -> Option<TreeName> {
        let mut numbers = text.split('.').map(str::parse);
        let mut next = || numbers.next()?.ok();
        let (pid, namespace, key) = (next()?, next()?, next()?);
        // Without `/proc` nobody knows it: it is the leader's, as a rule.
        let own = Some(Owner::here().namespace).filter(|&own| own != 0).unwrap_or(namespace);
        let name = TreeName { leader: Owner { namespace, pid }, key, namespace: own };
        (numbers.next().is_none() && key != 0).then_some(name)
    }

    /// The segment of this user's that the processes share.
    pub fn segment(self) -> Common {
        let user = geteuid().as_raw();
        // Each user's keys are others, too.
        let key = (self.key ^ self.namespace ^ user.wrapping_mul(0x9e37_79b9)).max(1);
        Common { key, len: TREE_SIZE + key as usize % LENGTHS, user }
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
        let leader = Owner { namespace: u32::MAX, pid: 7 };
        let name = TreeName { leader, key: 1 << 31, namespace: Owner::here().namespace };
        assert_eq!(name.to_string(), "7.4294967295.2147483648");
        assert_eq!(TreeName::parse(&name.to_string()), Some(name));
        for bad in ["", "1.2", "1.2.0", "1.2.3.4", "1.2.x", "-1.2.3", "1.2.4294967296", "1..3"] {
            assert_eq!(TreeName::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn namespaces_have_segments_of_their_own() {
        let name = TreeName::new(77);
        let next = TreeName { namespace: name.namespace + 1, ..name };
        let (one, other) = (name.segment(), next.segment());
        assert!(one.key != other.key && one.key != 0);
        assert!([one, other].iter().all(|it| is_tree_len(it.len)));
    }
}
