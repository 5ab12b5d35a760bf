//! The atomics everything else uses: `core`'s, or loom's under `--cfg loom`.
//!
//! Loom's are neither `const` to make nor valid as zeroed memory, so structures take slices of
//! atomics from whoever owns the storage ([`crate::frame::Ledger`]) and nothing shared sits in a
//! static of this crate, but for the list of heaps that fork handlers need.

#[cfg(not(loom))]
pub use core::sync::atomic;

/// Loom's atomics, which explore every interleaving.
#[cfg(loom)]
pub use loom::sync::atomic;

/// Tells the processor, or loom's scheduler, that this is a spin loop.
pub fn spin_loop() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    core::hint::spin_loop();
}
