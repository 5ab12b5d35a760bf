//! Which kind of engine zeroes memory that nobody waits for, by name.

/// The kind of engine that zeroes ahead of need. Requests that wait for zeros get them from the processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineKind {
    /// The processor, by its plan.
    #[default]
    Cpu,
    /// The kernel: pages handed back and new ones populated.
    Kernel,
    /// Intel's Data Streaming Accelerator.
    Dsa,
    /// The copy engine of an NVIDIA GPU: only where it is named, and not for programs under the shim.
    Cuda,
}

impl EngineKind {
    /// All of them.
    pub const ALL: [EngineKind; 4] =
        [EngineKind::Cpu, EngineKind::Kernel, EngineKind::Dsa, EngineKind::Cuda];

    /// Its name for `--engine` and `PUMICE_ENGINE`.
    pub const fn name(self) -> &'static str {
        match self {
            EngineKind::Cpu => "cpu",
            EngineKind::Kernel => "kernel",
            EngineKind::Dsa => "dsa",
            EngineKind::Cuda => "cuda",
        }
    }

    /// The one of that name.
    pub fn parse(text: &str) -> Option<EngineKind> {
        EngineKind::ALL.into_iter().find(|kind| kind.name() == text)
    }
}
