//! The system calls on files and devices. Those on memory are in `pumice-frames`.

pub mod block;
pub mod uring;
