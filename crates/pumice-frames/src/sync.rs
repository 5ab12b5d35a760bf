//! The atomics everything else uses: `core`'s, loom's under `--cfg loom`, or shuttle's under
//! `--cfg shuttle`.
//!
//! Loom's are neither `const` to make nor valid as zeroed memory, so structures take slices of atomics from the owner
//! of the storage ([`crate::frame::Ledger`]) and nothing shared sits in a static of this crate, but for words about the
//! process in `sys`: its forks, and the place of its next mapping.

#[cfg(not(any(loom, shuttle)))]
pub use core::sync::atomic;

/// Loom's atomics, which explore every interleaving.
#[cfg(loom)]
pub use loom::sync::atomic;

/// Shuttle's atomics, which try random interleavings of whole scenarios.
#[cfg(shuttle)]
pub use shuttle::sync::atomic;

/// Tells the processor, or the scheduler of loom or shuttle, that this is a spin loop.
#[inline]
pub fn spin_loop() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
    #[cfg(not(any(loom, shuttle)))]
    core::hint::spin_loop();
}
