//! Page frames, the ledger that says which are free and which are zero, and engines that clear them: the foundation of
//! pumice. Programs use the facade, `pumice`; this is its inside.
//!
//! | module | contents |
//! |---|---|
//! | `table` | enums with a table behind them: [`table!`](crate::table!) |
//! | `flags` | sets of flags: [`flags!`](crate::flags!) |
//! | [`addr`] | frame numbers, orders, ranges: no bare integers for pages |
//! | [`error`] | typed errors |
//! | [`sync`] | the atomics: `core`'s, or those of loom or shuttle |
//! | [`sys`] | system calls and intrinsics, and a fake of the kernel for tests |
//! | [`clear`] | engines that zero memory, behind one submit-and-poll trait |
//! | [`frame`] | zones, blocks, the ledger, per-CPU reservations, [`frame::Gfp`] |
//!
//! Each module uses those above it and never those below. Neighbours: `pumice-accel` has engines beside the processor,
//! `pumice-heap` serves allocations from frames, `pumice-paging` maps them into address spaces.
//!
//! The crate needs neither `std` nor `alloc`: the preload shim is built from it and never allocates through itself.
//! Every `pub` item is sound to call from safe code, or `unsafe`. Those with `#[doc(hidden)]` are for pumice's crates.

#![cfg_attr(not(any(test, loom, shuttle, feature = "fake")), no_std)]

pub mod addr;
pub mod clear;
pub mod error;
mod flags;
pub mod frame;
pub mod sync;
pub mod sys;
mod table;
