//! Page tables: 512 entries of eight bytes, in frames, changed by single atomic operations.
//!
//! - [`entry`]: the word, its meaning, and every transition it may make.
//! - [`ops`]: how a word is changed: [`Atomic`], or [`Emulated`] under a lock held for a moment.
//! - [`pager`]: the interface to swap and files.
//! - [`tables`]: four levels of them, and the walk that installs missing ones.
//!
//! A table is zeroed memory, and zero is a meaning: nobody writes a table before it is used. Its frame
//! comes from a [`FrameSource`], so that models can do with tables of two entries.

pub mod entry;
pub mod ops;
pub mod pager;
pub(crate) mod tables;

pub use entry::{Entry, Rights, State};
pub use ops::{Atomic, Emulated, TableOps};
pub(crate) use tables::{FrameSource, Middle, Tables};
