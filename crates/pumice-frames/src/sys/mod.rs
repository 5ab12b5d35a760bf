//! Every system call and every intrinsic of the crate, but for those that clear memory ([`crate::clear`]).
//!
//! The rest of the crate calls nothing outside itself. rustix makes the calls it knows (none of
//! them goes through libc, so the shim can't recurse into itself); [`raw`] makes the few it lacks.
//! [`mem::Memory`] has the operations that a zone needs of its address space; `fake::FakeMemory` stands in for the
//! kernel in tests and fails on demand.

pub mod copy;
pub mod cpu;
#[cfg(target_arch = "x86_64")]
pub mod cpuid;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod file;
pub mod lines;
pub mod lock;
pub mod mem;
pub mod mempolicy;
pub mod pair;
pub mod prefetch;
pub mod privilege;
pub mod raw;
pub mod sched;
pub mod segment;
pub mod stack;
pub mod thread;
pub mod topology;
