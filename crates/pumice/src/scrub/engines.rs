//! The engine that zeroes for scrubd, where it is not the processor itself.

use super::helper::Descriptors;
use crate::clear::dsa::{Dsa, Hardware};
use crate::clear::{Engine, EngineKind, Kernel};

/// An engine, opened by the thread that uses it.
pub(super) enum Opened {
    /// None: the processor does it.
    Processor,
    Kernel(Kernel),
    Dsa(Dsa<Hardware>),
}

impl Opened {
    /// Opens an engine of this kind; the processor's where there is none, or it would take a
    /// descriptor from the program.
    pub(super) fn open(kind: EngineKind, descriptors: Descriptors) -> Opened {
        match kind {
            EngineKind::Cpu => Opened::Processor,
            EngineKind::Dsa if descriptors == Descriptors::Own => {
                Dsa::open().map_or(Opened::Processor, Opened::Dsa)
            }
            // A GPU needs threads that libc knows of.
            EngineKind::Dsa | EngineKind::Cuda => Opened::Processor,
            // SAFETY: what scrubd claims is a heap's: private anonymous memory.
            EngineKind::Kernel => Opened::Kernel(unsafe { Kernel::new() }),
        }
    }

    pub(super) fn engine(&self) -> Option<&dyn Engine> {
        match self {
            Opened::Processor => None,
            Opened::Kernel(kernel) => Some(kernel),
            Opened::Dsa(dsa) => Some(dsa),
        }
    }
}
