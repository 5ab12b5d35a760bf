//! Engines beside the processor that clear memory, and memory that stays pinned for them: an inside of pumice, whose
//! facade is `pumice`.
//!
//! | module | contents |
//! |---|---|
//! | [`sys`] | instructions and libraries that reach devices |
//! | [`dsa`] | Intel's Data Streaming Accelerator |
//! | `cuda` | the copy engine of an NVIDIA GPU (feature `cuda`) |
//! | `pinned` | memory that stays registered with a device (feature `cuda`) |
//!
//! Each is an [`Engine`](pumice_frames::clear::Engine) of `pumice-frames`. The scrubber of `pumice-heap` uses them.
//! Without its features the crate needs neither `std` nor `alloc`: the shim is built from it.
//!
//! Every `pub` item is sound to call from safe code, or `unsafe`. Those with `#[doc(hidden)]` are for pumice's crates.

#![cfg_attr(not(any(test, loom, shuttle, feature = "cuda", feature = "soft")), no_std)]

#[cfg(all(feature = "cuda", not(any(loom, shuttle))))]
pub mod cuda;
pub mod dsa;
#[cfg(all(feature = "cuda", not(any(loom, shuttle))))]
pub mod pinned;
pub mod sys;
