//! The owner of a slot.
//!
//! A process id is valid within its PID namespace only: two processes of a tree may have the same id, and the kernel
//! looks ids up in the caller's namespace. So a slot has both the id and the namespace. A process judges owners in its
//! own namespace only; `pumice run` sees all namespaces below its own, and judges the rest.
//!
//! The kernel may reuse a namespace's number when the namespace is empty. Then a dead process may look alive for as
//! long as its id is in use. A live one never looks dead.

use pumice_frames::sys::thread;

/// A process, by its id and its PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The namespace's inode number; 0 where it is not known.
    pub namespace: u32,
    /// The process id; 0 for none.
    pub pid: u32,
}

impl Owner {
    /// No process.
    pub(super) const NOBODY: Owner = Owner { namespace: 0, pid: 0 };

    /// The calling process.
    pub fn here() -> Owner {
        Owner::from(thread::process_id())
    }

    /// No process, for a slot that the caller is about to release: a kill before that leaves it to others.
    pub(super) fn none_of(namespace: u32) -> Owner {
        Owner { namespace, pid: u32::MAX }
    }

    /// Whether it is the calling process. A child of `vfork` is another process, and may have the same id in a
    /// namespace of its own.
    pub fn is_here(self) -> bool {
        if self.pid != thread::process_id() {
            return false;
        }
        let here = if self.namespace == 0 { 0 } else { thread::pid_namespace() };
        here == 0 || here == self.namespace
    }

    /// Whether a process of that namespace knows that this one is gone.
    pub fn is_gone_to(self, namespace: u32) -> bool {
        // No process has an id above `i32::MAX`.
        i32::try_from(self.pid).is_err()
            || (self.namespace == namespace && !thread::process_exists(self.pid))
    }

    pub(crate) fn from_word(word: u64) -> Owner {
        Owner { namespace: (word >> 32) as u32, pid: word as u32 }
    }

    pub(crate) fn into_word(self) -> u64 {
        u64::from(self.namespace) << 32 | u64::from(self.pid)
    }
}

/// A process id in the namespace of the calling process.
impl From<u32> for Owner {
    fn from(pid: u32) -> Owner {
        Owner { namespace: thread::pid_namespace(), pid }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_of_ones_own_namespace_are_judged() {
        let own = Owner::here();
        assert!(own.is_here() && Owner { namespace: 0, ..own }.is_here());
        assert!(!Owner { pid: own.pid + 1, ..own }.is_here());
        let gone = Owner { pid: i32::MAX as u32, ..own };
        assert!(!own.is_gone_to(own.namespace) && gone.is_gone_to(own.namespace));
        let other = Owner { namespace: own.namespace ^ 1, ..gone };
        assert!(own.namespace == 0 || !Owner { pid: own.pid, ..other }.is_here());
        assert!(!other.is_gone_to(own.namespace) && other.is_gone_to(other.namespace));
        assert!(Owner::none_of(other.namespace).is_gone_to(own.namespace), "nobody anywhere");
        assert_eq!(Owner::from_word(other.into_word()), other);
    }
}
