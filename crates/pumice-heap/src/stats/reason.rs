//! Why nothing is served in a process.

/// Why nothing is served in a process. A slot holds its number; a number this version does not
/// know reads as [`Reason::Unknown`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Reason {
    /// a reason this version does not know
    Unknown = 0,
    /// PUMICE=off is in its environment
    Off = 1,
    /// its name is not in --only
    NotOnly = 2,
    /// its name is in --skip
    Skipped = 3,
    /// it gains privileges (set-user-ID, set-group-ID or capabilities)
    SetUserId = 4,
    /// AddressSanitizer or a relative, or Valgrind, serves its memory itself
    Sanitizer = 5,
    /// the program's own malloc comes before the shim's
    OwnAllocator = 6,
    /// no next allocator was found
    NoNext = 7,
    /// no address space is left to reserve (ulimit -v)
    AddressSpace = 8,
    /// no memory is left to keep ready
    NoMemory = 9,
    /// a seccomp filter was installed before the first request
    Seccomp = 10,
    /// more processes than the counters have slots for
    NoSlot = 11,
    /// the shim does not know the machine (its page size is not 4 KiB)
    Machine = 12,
    /// it locks all of its memory (mlockall)
    Locked = 13,
    /// memory is promised strictly (vm.overcommit_memory=2)
    Promised = 14,
    /// glibc's malloc was told to fill what it gives (MALLOC_PERTURB_)
    Perturbed = 15,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 16] = [
        Reason::Unknown,
        Reason::Off,
        Reason::NotOnly,
        Reason::Skipped,
        Reason::SetUserId,
        Reason::Sanitizer,
        Reason::OwnAllocator,
        Reason::NoNext,
        Reason::AddressSpace,
        Reason::NoMemory,
        Reason::Seccomp,
        Reason::NoSlot,
        Reason::Machine,
        Reason::Locked,
        Reason::Promised,
        Reason::Perturbed,
    ];

    /// The name under which JSON shows it.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Unknown => "unknown",
            Reason::Off => "off",
            Reason::NotOnly => "not_only",
            Reason::Skipped => "skipped",
            Reason::SetUserId => "set_user_id",
            Reason::Sanitizer => "sanitizer",
            Reason::OwnAllocator => "own_allocator",
            Reason::NoNext => "no_next_allocator",
            Reason::AddressSpace => "address_space",
            Reason::NoMemory => "no_memory",
            Reason::Seccomp => "seccomp",
            Reason::NoSlot => "no_slot",
            Reason::Machine => "machine",
            Reason::Locked => "locked",
            Reason::Promised => "overcommit",
            Reason::Perturbed => "perturbed",
        }
    }

    /// The words of a report, to follow the program's name and a colon.
    pub const fn explain(self) -> &'static str {
        match self {
            Reason::Unknown => "nothing is served, for a reason this version does not know",
            Reason::Off => "turned off by PUMICE=off in its environment",
            Reason::NotOnly => "its name is not in --only",
            Reason::Skipped => "its name is in --skip",
            Reason::SetUserId => "it gains privileges, so nothing may come between",
            Reason::Sanitizer => "a sanitizer or Valgrind serves its memory itself",
            Reason::OwnAllocator => "it has a malloc of its own",
            Reason::NoNext => "no allocator was found to pass small requests to",
            Reason::AddressSpace => "no address space is left to reserve; see ulimit -v",
            Reason::NoMemory => "no memory was left for a pool",
            Reason::Seccomp => "a seccomp filter was in force before its first request",
            Reason::NoSlot => "too many processes at once to count one more",
            Reason::Machine => "its page size is not 4 KiB",
            Reason::Locked => "it locks all of its memory, free memory included",
            Reason::Promised => "free memory counts as promised where vm.overcommit_memory is 2",
            Reason::Perturbed => "MALLOC_PERTURB_ has allocations filled, which glibc does",
        }
    }
}

impl From<u64> for Reason {
    fn from(number: u64) -> Reason {
        Reason::ALL.into_iter().find(|&known| known as u64 == number).unwrap_or(Reason::Unknown)
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
