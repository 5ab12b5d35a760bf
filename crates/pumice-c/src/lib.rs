//! pumice as a C library. The interface for C is `include/pumice.h`, made from these files.
//!
//! | module | contents |
//! |---|---|
//! | [`status`] | the errors, in numbers and in words |
//! | [`memory`] | allocations, large ones from the process's heap |
//! | [`zone`] | zones of frames |
//! | [`settings`] | settings and counters by their names |
//!
//! Its neighbours are the facade, `pumice`, which has the process's heap, and `pumice-frames` and `pumice-heap`, whose
//! zones and counters C sees.
//!
//! # The boundary
//! A caller's mistake is answered by a status, not undefined behaviour, as far as it can be detected: null, flags
//! that do not exist, sizes that can't be. Nothing unwinds into C: each function that can fail runs in
//! [`status::guard`], and has no panic that we know of. An unknown one becomes a status in the library that `make`
//! installs, whose profile unwinds that far; under other profiles it aborts.

pub mod memory;
pub mod settings;
pub mod status;
pub mod zone;
