//! The system calls on files and devices. Those on memory are in `pumice-frames`.

#[cfg(not(loom))]
pub mod block;
#[cfg(not(loom))]
pub mod uring;
