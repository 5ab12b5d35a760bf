//! Engines that zero memory, one file each, behind one submit-and-poll trait.
//!
//! | file | contents |
//! |---|---|
//! | `engine` | the driver interface: [`Engine`], [`Piece`], and the reports that an engine may make of memory |
//! | `chain` | engines in line, with the processor behind them: [`Chain`] |
//! | `cpu` | the processor's engines under one type: [`CpuEngine`] |
//! | `stosb`, `stream_avx2`, `stream_avx512`, `clzero`, `dc_zva`, `portable` | one engine each |
//! | `detect` | the features of the processor and the kernel |
//! | `kernel` | the pages handed back and new ones populated: [`Kernel`] |
//! | `kind` | which kind of engine zeroes ahead: [`EngineKind`] |
//! | `measure` | an engine's costs, and the choice among engines: [`measure::choose`] |
//! | `plan` | which engine for which size: [`Plan`]; and the text of `PUMICE_CLEAR` |
//! | `calibrate` | measuring a plan in a few milliseconds |
//! | `clearer` | the entrance for the rest of the crate: [`Clearer`] |
//! | `zero` | [`is_zero`] |
//!
//! Streaming stores go around the cache: they read nothing, evict nothing, and leave the memory far away. Which way is
//! better depends on the next user of the memory, and on the time until then; [`Warmth`] says that.

pub mod calibrate;
pub mod chain;
mod clearer;
#[cfg(target_arch = "x86_64")]
mod clzero;
#[cfg(all(any(test, feature = "fake"), not(any(loom, shuttle))))]
#[allow(missing_docs, reason = "for tests")]
pub mod contract;
pub mod cpu;
mod cut;
#[cfg(target_arch = "aarch64")]
mod dc_zva;
mod detect;
pub mod engine;
#[cfg(all(any(test, feature = "fake"), not(any(loom, shuttle))))]
#[allow(missing_docs, reason = "for tests")]
pub mod fake;
mod kernel;
mod kind;
pub mod measure;
pub mod plan;
mod portable;
#[cfg(target_arch = "x86_64")]
mod stosb;
#[cfg(target_arch = "x86_64")]
mod stream_avx2;
#[cfg(target_arch = "x86_64")]
mod stream_avx512;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod zero;

pub use chain::Chain;
pub use clearer::Clearer;
pub use cpu::{CpuEngine, Path};
pub use engine::{Engine, Lost, Piece, PieceState, Waiting};
pub use kernel::Kernel;
pub use kind::EngineKind;
pub use plan::{Plan, PlanError, SIZES};
pub use zero::is_zero;

/// Whether the memory is about to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmth {
    /// Somebody waits for it and will touch it now, all of it or a line here and there.
    Hot,
    /// Nobody will touch it soon: around the cache.
    Cold,
}

/// The content that a request wants its memory to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Anything (`malloc`).
    Any,
    /// Zeros (`calloc`).
    Zero,
}
