//! `pumice bench`: its experiments, as short as they go. Tests look at what they print, not at how fast anything is.

mod all;
mod alloc;
mod clear;
mod cuda;
mod fault;
mod io;
mod reclaim;
mod replace;
mod slots;
mod ways;
