//! The owner of a slot.
//!
//! A number means a process only in the namespace that it is of: two processes of a tree may have the same one, and a
//! process that asks the kernel whether a number exists is told of its own namespace. So a slot says both, and only a
//! process that knows the number in the other namespace judges whether a process there is gone: `pumice run`, which
//! sees all namespaces within its own.
//!
//! A namespace's number may be another's later, when nothing lives in the first. Then a process that is gone may seem
//! to live for as long as its number is in use; none that lives ever seems to be gone.

use pumice_frames::sys::thread;

/// A process, by its number and the namespace that this is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// As the kernel numbers namespaces; 0 where that is not known.
    pub namespace: u32,
    /// The process; 0 for none.
    pub pid: u32,
}

impl Owner {
    /// No process.
    pub(super) const NOBODY: Owner = Owner { namespace: 0, pid: 0 };

    /// The calling process.
    pub fn here() -> Owner {
        Owner::from(thread::process_id())
    }

    /// Nobody: a process that is about to release a slot, and may be killed before it has.
    pub(super) fn none_of(namespace: u32) -> Owner {
        Owner { namespace, pid: u32::MAX }
    }

    /// Whether it is the calling process. One that shares its memory until it starts a program (`vfork`) is another,
    /// and may have the same number in a namespace of its own.
    pub fn is_here(self) -> bool {
        if self.pid != thread::process_id() {
            return false;
        }
        let here = if self.namespace == 0 { 0 } else { thread::pid_namespace() };
        here == 0 || here == self.namespace
    }

    /// Whether this is known, to a process of such a namespace, to be gone.
    pub fn is_gone_to(self, namespace: u32) -> bool {
        // Numbers that no process can have are nobody's anywhere.
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

/// A number in the namespace of the calling process.
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
