//! The shim: `malloc` and its family, preloaded in front of the program's allocator.
//!
//! Requests from a threshold on go to [`pumice_heap::heap::Heap`]; all others, and those the heap
//! declines, go to the *next* allocator in line. All decisions are made in `pumice-heap` and `pumice-frames`.
//!
//! | module | contents |
//! |---|---|
//! | [`interpose`] | the functions that programs see, and the rules of C and POSIX for each |
//! | [`next`] | the next allocator in line, found once; [`early`] serves while it is looked for |
//! | [`load`] | the functions that the loader and the C library's `fork` call |
//! | [`start`] | reading the environment and starting the heap |
//! | [`state`] | the heap's states, and retiring it |
//! | [`fork`] | the exclusion between these two and `fork` |
//! | [`environment`] | the variables, the program's name |
//! | [`errno`] | `errno`, and the C library's way of answering |
//! | [`sanitizer`] | programs built with one, which are left alone |
//! | [`symbols`] | the next definition of a function, found without the loader's lock |
//! | [`calls`] | `syscall` and `prctl`: other doors to all that follows |
//! | [`seccomp`] | filters, before which the heap retires |
//! | [`rights`] | `setuid`, `unshare` and such, before which helper threads end |
//! | [`limits`] | `setrlimit`: a program that limits its own addresses |
//! | [`pins`] | calls after which others may hold the process's pages |
//! | [`segments`] | `shmat` and `shmdt` |
//! | [`accounts`] | `mallinfo` and its relations |
//! | [`weak`] | symbols that may be missing |
//! | [`mapping`] | `mmap` and its relations |
//! | [`advice`] | `madvise` and its relations |
//! | [`guards`] | copies of memory that has guard pages |
//! | [`outgrown`] | allocations that have outgrown a retired heap |
//! | [`parts`] | ranges of which some is the heap's, and calls on each part |
//! | [`fatal`] | the two ways this ends a program |
//! | `builtins` | the memory functions that compiled code calls |
//!
//! # Manners
//! The shim is loaded into programs it knows nothing of, with any C library. So it needs no library (no `DT_NEEDED`).
//! All its references are weak symbols that it can do without. It has no thread-local storage. Before the process has
//! asked for enough to be worth a heap it has no thread, memory or file of its own, unless memory is to be populated
//! ahead. `tests/program/shim/elf.rs` of `pumice-cli` holds it to that. Its tables and stacks are far from where the
//! kernel puts mappings by itself, so none of them comes to be where a program has unmapped memory only to map
//! something else there (`place_apart` of `pumice-frames`).

#![cfg_attr(feature = "freestanding", no_std)]
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "all of it is private: it is a program's malloc"
)]

mod accounts;
mod advice;
#[cfg(feature = "freestanding")]
mod builtins;
mod calls;
mod early;
mod environment;
mod errno;
mod fatal;
mod fork;
mod guards;
mod interpose;
mod limits;
mod load;
mod mapping;
mod next;
mod outgrown;
mod parts;
mod pins;
mod rights;
mod sanitizer;
mod seccomp;
mod segments;
mod start;
mod state;
mod symbols;
mod weak;
