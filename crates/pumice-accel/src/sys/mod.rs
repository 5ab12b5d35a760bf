//! Instructions that hand work to an accelerator, and libraries that are loaded while the program runs.

#[cfg(all(feature = "cuda", not(any(loom, shuttle))))]
pub mod dynamic;
#[cfg(target_arch = "x86_64")]
pub mod enqueue;
