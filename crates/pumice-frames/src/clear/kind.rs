//! Which kind of engine zeroes memory that no request waits for, by name.

crate::table! {
    /// The kind of engine that zeroes ahead of need. Requests that wait for zeros get them from the processor.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum EngineKind: &'static str {
        /// The processor, by its plan.
        Cpu => "cpu",
        /// The kernel: pages handed back and new ones populated.
        Kernel => "kernel",
        /// Intel's Data Streaming Accelerator.
        Dsa => "dsa",
        /// The copy engine of an NVIDIA GPU: only where it is named, and not for programs under the shim.
        Cuda => "cuda",
    }
}

impl EngineKind {
    /// Its name for `--engine` and `PUMICE_CLEAR`.
    pub const fn name(self) -> &'static str {
        self.row()
    }

    /// The one of that name.
    pub fn parse(text: &str) -> Option<EngineKind> {
        EngineKind::ALL.into_iter().find(|kind| kind.name() == text)
    }
}
