//! Programs of safe code that misuse spaces and caches: none breaks memory, reads what is another's, or hangs.
//!
//! What no longer compiles is held by the examples of `src/space/misuse.rs`.

#![forbid(unsafe_code)]

mod caches;
mod engines;
mod pagers;
mod policies;
mod spaces;
