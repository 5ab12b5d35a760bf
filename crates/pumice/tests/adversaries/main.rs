//! Programs of safe code that misuse spaces and caches: none breaks memory, reads what is another's, or hangs.
//!
//! The examples of `src/misuse.rs` hold the programs that must not compile.

#![forbid(unsafe_code)]

mod caches;
mod engines;
mod pagers;
mod policies;
mod spaces;
