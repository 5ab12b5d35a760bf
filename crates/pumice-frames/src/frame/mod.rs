//! Zones of frames, and the ledger that says which are taken and which are zero.
//!
//! Start at [`Zone`]: one reserved range of addresses with a [`Ledger`] over it. The ledger is
//! the whole allocator; it knows numbers only and never touches the memory it speaks of.
//!
//! - [`word`]: 32 frames in 64 bits. A get within them is one compare-and-swap that decides and
//!   claims at once.
//! - [`block`]: 512 frames in 64 bits more: their state together, with hints.
//! - [`ledger`]: single frames, from blocks that a processor has reserved.
//! - [`pcp`]: a thread's lists of single frames, so that most of them cost no locked operation.
//! - [`runs`]: runs of frames, got in `search` (within a block) and `whole` (whole blocks with a
//!   tail).
//! - [`claims`]: memory that scrubd or decay works on, absent to everyone else.
//! - [`tally`]: how much is free, for observers.
//! - [`zone`]: addresses, growing and shrinking, watermarks.
//!
//! # Invariants
//! 1. A free frame marked zeroed reads as zeros, whether or not the kernel has since taken its
//!    page.
//! 2. A frame has one owner: an allocation, a claim, or the free state. Nobody depends on a claim: claimed frames count
//!    as absent.
//! 3. While a block that was once [`BlockState::Parts`] is not, its words say that every frame is
//!    allocated, so a processor that still holds it reserved finds nothing in it.
//!
//! # Transitions of a block
//! ```text
//!            grow               get whole blocks
//!  Absent ---------> Claimed   Free ------------> Whole
//!     ^   <--------- (shrink)   ^ <-------------- (put)
//!     |                  |      |
//!     +------------------+------+   split: Free -> Claimed -> Parts
//!                                   join:  Parts (all words claimed) -> Free
//!                                   scrub, populate, decay: Free -> Claimed -> Free
//! ```

pub mod block;
pub mod claims;
pub mod gfp;
mod hidden;
pub mod ledger;
#[cfg(all(test, loom))]
mod loom_models;
#[cfg(all(test, not(any(loom, shuttle))))]
mod model;
pub mod pcp;
mod reserve;
pub mod runs;
mod search;
mod table;
mod tally;
mod whole;
pub mod word;
mod working;
pub mod zone;

pub use block::{BlockState, BlockWord};
pub use claims::AreaClaim;
pub use gfp::Gfp;
pub use ledger::{Geometry, Ledger, Native};
pub use pcp::Pcp;
pub use runs::{Dirt, Run};
pub use tally::FreeFrames;
pub use zone::{Budget, OwnedZone, Pressure, Reclaim, Watermarks, Zone};
