//! The entrance for the rest of the crate: a plan, applied.

use core::fmt;

use super::cpu::{CpuEngine, Path};
use super::detect::Features;
use super::engine::{Engine, Lost, Piece, PieceState};
use super::kind::EngineKind;
use super::plan::{first_on_path, Plan, PlanError, SIZES};
use super::Warmth;

/// The processor's engines, and which of them is best for which size.
///
/// Small and `Copy`: it may be passed around by value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Clearer {
    plan: Plan,
    features: Features,
    ahead: EngineKind,
}

impl Clearer {
    /// Chooses by CPUID alone: 5 µs to 40 µs in a virtual machine, where CPUID is trapped.
    pub fn detect() -> Clearer {
        let features = Features::detect();
        Clearer::new(Plan::known_good(features), features)
    }

    /// Takes the choice that [`Clearer::calibrate`] made, as it is printed; engines that this processor lacks are
    /// refused, from any source of the text.
    ///
    /// # Errors
    /// See [`PlanError`]; [`Clearer::detect`] is then the way to go on.
    #[doc(hidden)]
    pub fn from_env_str(text: &str) -> Result<Clearer, PlanError> {
        Clearer::detect().with_plan(text)
    }

    /// This one, with the parts that `text` names changed.
    ///
    /// # Errors
    /// See [`PlanError`].
    #[doc(hidden)]
    pub fn with_plan(&self, text: &str) -> Result<Clearer, PlanError> {
        let (before, last) = text.rsplit_once('/').unwrap_or(("", text));
        let (sides, ahead) = match EngineKind::parse(last) {
            Some(kind) if before.is_empty() => return Ok(self.with_ahead(kind)),
            Some(kind) => (before, kind),
            None => (text, self.ahead),
        };
        let engines = || CpuEngine::supported_by(self.features);
        let plan = self.plan.with_sides(sides, |name| match name {
            "through" => Some(self.on_path(Path::Through)),
            "around" => Some(self.on_path(Path::Around)),
            _ => engines().find(|engine| engine.name() == name),
        })?;
        Ok(Clearer { plan, ahead, ..*self })
    }

    /// The engine that the plan uses on that path was measured; without one, the first that takes the path.
    fn on_path(&self, path: Path) -> CpuEngine {
        let measured = self.plan.cold.into_iter().rev().find(|engine| engine.path() == path);
        let first = || first_on_path(path, CpuEngine::supported_by(self.features));
        measured.or_else(first).unwrap_or(CpuEngine::PORTABLE)
    }

    /// The same, but that memory which nobody waits for is for an engine of this kind.
    #[doc(hidden)]
    pub fn with_ahead(self, ahead: EngineKind) -> Clearer {
        Clearer { ahead, ..self }
    }

    /// The engine for memory that nobody waits for; the processor does what that engine can't.
    #[doc(hidden)]
    pub fn ahead(&self) -> EngineKind {
        self.ahead
    }

    /// A number that differs between models of processor, for naming measurements on one.
    #[doc(hidden)]
    pub fn cpu_key(&self) -> u64 {
        self.features.cpu_key
    }

    pub(super) fn new(plan: Plan, features: Features) -> Clearer {
        Clearer { plan, features, ahead: EngineKind::Cpu }
    }

    /// The processor's engines.
    #[doc(hidden)]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Zeroes `len` bytes, at any alignment, with the engine that is best for that many. Threads that are told of it
    /// afterwards (a release store is enough) read zeros.
    ///
    /// A request that is cleared in pieces is best served by the engine for its whole length:
    /// `clearer.plan().engine(whole, warmth)`. Many small pieces are best submitted as a batch
    /// ([`Engine::submit`]): streaming stores to 4 KiB with a fence each cost twice as much.
    ///
    /// # Safety
    /// The range is writable and nobody else uses it.
    #[inline]
    pub unsafe fn clear(&self, at: *mut u8, len: usize, warmth: Warmth) {
        // SAFETY: as the caller promises.
        unsafe { self.plan.engine(len, warmth).clear(at, len) }
    }
}

/// As `Clearer::from_env_str` reads it.
impl fmt::Display for Clearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.plan, self.ahead.name())
    }
}

impl fmt::Debug for Clearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clearer({self})")
    }
}

// SAFETY: the engines of the processor zero and settle each piece before they return.
unsafe impl Engine for Clearer {
    fn name(&self) -> &'static str {
        "cpu"
    }

    unsafe fn submit(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
        let choice = |piece: &Piece| self.plan.engine(piece.remaining().1, piece.warmth());
        let alike = |left: &Piece, right: &Piece| choice(left) == choice(right);
        for run in pieces.chunk_by_mut(alike) {
            // SAFETY: as the caller promises.
            unsafe { choice(&run[0]).submit(run)? };
        }
        debug_assert!(pieces.iter().all(|piece| piece.state() != PieceState::Waiting));
        Ok(())
    }

    unsafe fn poll(&self, _pieces: &mut [Piece]) -> Result<(), Lost> {
        Ok(())
    }
}

impl Plan {
    /// The plan that measurements on several machines suggest for these features. Memory that nobody waits for is
    /// cleared around the cache. Where somebody does wait, a block and less is cleared through it: freed a moment ago,
    /// it is likely still in there, and going around costs 2 to 4 times more. Larger memory has left the cache, and
    /// going around costs half.
    pub(super) fn known_good(features: Features) -> Plan {
        let engines = || CpuEngine::supported_by(features);
        let around = first_on_path(Path::Around, engines()).unwrap_or(CpuEngine::PORTABLE);
        let through = through_by_default(features);
        let hot = [through, through, through, around];
        Plan { hot, cold: [around; SIZES.len()] }
    }
}

#[cfg(target_arch = "x86_64")]
fn through_by_default(features: Features) -> CpuEngine {
    // Without ERMS `rep stosb` moves a byte or a few at a time.
    let through = first_on_path(Path::Through, CpuEngine::supported_by(features));
    through.filter(|_| features.fast_stosb).unwrap_or(CpuEngine::PORTABLE)
}

#[cfg(target_arch = "aarch64")]
fn through_by_default(features: Features) -> CpuEngine {
    first_on_path(Path::Through, CpuEngine::supported_by(features)).unwrap_or(CpuEngine::PORTABLE)
}
