//! Why nothing is served in a process.

pumice_frames::table! {
    /// Why nothing is served in a process, in the words of a report, to follow the program's name and a colon. A slot
    /// holds its number; a number this version does not know reads as [`Reason::Unknown`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(u64)]
    pub enum Reason: &'static str {
        /// nothing is served, for a reason this version does not know
        Unknown = 0 => "unknown",
        /// turned off by PUMICE=off in its environment
        Off = 1 => "off",
        /// its name is not in --only
        NotOnly = 2 => "not_only",
        /// its name is in --skip
        Skipped = 3 => "skipped",
        /// it gains privileges, so the shim must not interpose
        SetUserId = 4 => "set_user_id",
        /// a sanitizer or Valgrind serves its memory itself
        Sanitizer = 5 => "sanitizer",
        /// it has a malloc of its own
        OwnAllocator = 6 => "own_allocator",
        /// no allocator was found to pass small requests to
        NoNext = 7 => "no_next_allocator",
        /// no address space is left to reserve; see ulimit -v
        AddressSpace = 8 => "address_space",
        /// no memory was left for a pool
        NoMemory = 9 => "no_memory",
        /// a seccomp filter was in force before its first request
        Seccomp = 10 => "seccomp",
        /// too many processes at once to count one more
        NoSlot = 11 => "no_slot",
        /// its page size is not 4 KiB
        Machine = 12 => "machine",
        /// it locks all of its memory, free memory included
        Locked = 13 => "locked",
        /// free memory counts as promised where vm.overcommit_memory is 2
        Promised = 14 => "overcommit",
        /// MALLOC_PERTURB_ is set, and glibc fills its allocations
        Perturbed = 15 => "perturbed",
    }
}

impl Reason {
    /// The name under which JSON shows it.
    pub const fn name(self) -> &'static str {
        self.row()
    }
}

impl From<u64> for Reason {
    fn from(number: u64) -> Reason {
        Reason::from_number(number).unwrap_or(Reason::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_survive_their_numbers() {
        for (number, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(Reason::from(number as u64), reason);
        }
        assert_eq!(Reason::from(u64::MAX), Reason::Unknown);
    }
}
