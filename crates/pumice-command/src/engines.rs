//! Engines by name, as `--engine` has them, and whether they are here.

use std::fmt;

use pumice_accel::cuda::Cuda;
use pumice_accel::dsa::Dsa;
use pumice_frames::clear::{CpuEngine, Engine, EngineKind, Kernel};

use crate::Failure;

/// The choice of `--engine`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The engine that was measured to be best.
    Auto,
    /// A kind, which zeroes ahead of need.
    Kind(EngineKind),
    /// One of the processor's engines, for everything.
    Processor(CpuEngine),
}

/// Reads the value of `--engine`.
pub fn parse(text: &str) -> Result<Choice, String> {
    if text == "auto" {
        return Ok(Choice::Auto);
    }
    let processor = || CpuEngine::available().find(|engine| engine.name() == text);
    let kind = EngineKind::parse(text).map(Choice::Kind);
    kind.or_else(|| processor().map(Choice::Processor)).ok_or_else(|| {
        let kinds = EngineKind::ALL.map(EngineKind::name);
        let own: Vec<_> = CpuEngine::available().map(CpuEngine::name).collect();
        format!("engines here are auto, {} and {}", kinds.join(", "), own.join(", "))
    })
}

/// The value of `PUMICE_CLEAR` that says the same.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Auto => f.write_str("auto"),
            Choice::Kind(kind) => f.write_str(kind.name()),
            Choice::Processor(engine) => write!(f, "{}/cpu", engine.name()),
        }
    }
}

/// Opens an engine; `None` for the processor, which needs no opening. An error names the missing part.
pub fn open(kind: EngineKind) -> Result<Option<Box<dyn Engine>>, String> {
    match kind {
        EngineKind::Cpu => Ok(None),
        // SAFETY: this program has only private anonymous memory zeroed.
        EngineKind::Kernel => Ok(Some(Box::new(unsafe { Kernel::new() }))),
        EngineKind::Dsa => match Dsa::open() {
            Ok(dsa) => Ok(Some(Box::new(dsa))),
            Err(missing) => Err(missing.to_string()),
        },
        EngineKind::Cuda => Err(NOT_FOR_PROGRAMS.into()),
    }
}

/// Why programs under `pumice run` have no GPU, on any machine.
const NOT_FOR_PROGRAMS: &str =
    "it needs threads that libc knows of, and scrubd is none; it is for \
    'pumice bench clear --engine cuda', 'pumice bench pin --cuda' and pumice_accel::pinned";

/// As [`open`], for memory of this program's own, which a GPU has registered with it: so a GPU is only
/// ever touched where it is named.
///
/// # Safety
/// The memory stays mapped for as long as the engine is there.
pub unsafe fn open_for(
    kind: EngineKind,
    memory: &mut [u8],
) -> Result<Option<Box<dyn Engine>>, String> {
    if kind != EngineKind::Cuda {
        return open(kind);
    }
    let cuda = Cuda::open().map_err(|missing| missing.to_string())?;
    // SAFETY: as the caller promises.
    let registered = unsafe { cuda.register(memory.as_mut_ptr(), memory.len()) };
    registered.map_err(|error| error.to_string())?;
    Ok(Some(Box::new(cuda)))
}

/// Whether programs under `pumice run` can have an engine of this kind here.
pub fn check_for_programs(kind: EngineKind) -> Result<(), Failure> {
    open(kind).map(drop).map_err(|missing| not_here(kind, &missing))
}

/// Whether they can have it anywhere: where they will run nothing can be opened from here.
pub fn check_for_any_machine(kind: EngineKind) -> Result<(), Failure> {
    match kind {
        EngineKind::Cuda => Err(not_here(kind, NOT_FOR_PROGRAMS)),
        EngineKind::Cpu | EngineKind::Kernel | EngineKind::Dsa => Ok(()),
    }
}

/// The failure for an engine that was named and is not here.
pub fn not_here(kind: EngineKind, missing: &str) -> Failure {
    let kind = kind.name();
    Failure::usage(format!(
        "--engine {kind} is not here: {missing}; type --engine cpu, or leave it out"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read() {
        assert_eq!(parse("auto"), Ok(Choice::Auto));
        for kind in EngineKind::ALL {
            assert_eq!(parse(kind.name()), Ok(Choice::Kind(kind)));
        }
        assert_eq!(parse("portable"), Ok(Choice::Processor(CpuEngine::PORTABLE)));
        let why = parse("abacus").expect_err("none");
        assert!(why.contains("auto, cpu, kernel") && why.contains("portable"), "{why}");
    }
}
