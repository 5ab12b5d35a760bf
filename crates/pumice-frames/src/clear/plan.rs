//! Which engine is best for which size: known from CPUID, measured, or read from a variable.
//!
//! As text, a plan is the names of engines for 4 KiB, 64 KiB, 2 MiB and 64 MiB, first where
//! somebody waits, then, after a slash, where nobody does:
//!
//! ```text
//! stosb,stosb,avx2-nt,avx2-nt/avx2-nt,avx2-nt,avx2-nt,avx2-nt
//! ```
//!
//! One name stands for four equal ones, and one side for both, so `stosb` alone is a plan too.

use core::fmt;

use super::cpu::{CpuEngine, Path};
use super::Warmth;

/// The sizes in bytes that plans are made for.
pub const SIZES: [usize; 4] = [4 << 10, 64 << 10, 2 << 20, 64 << 20];

/// The least length that counts as the second, third and fourth of [`SIZES`]. The first two lie
/// halfway between neighbours on a logarithmic scale; the last is where memory has outgrown the
/// near cache of today's processors (1 MiB to 2 MiB), which decides hot clearing.
const BOUNDS: [usize; 3] = [16 << 10, 512 << 10, 4 << 20];

/// The index in [`SIZES`] of the size that `len` bytes are most like.
#[inline]
pub(super) fn size_class(len: usize) -> usize {
    BOUNDS.iter().filter(|&&bound| len >= bound).count()
}

/// An engine for each of [`SIZES`] and each [`Warmth`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub(super) hot: [CpuEngine; SIZES.len()],
    pub(super) cold: [CpuEngine; SIZES.len()],
}

/// Why a text is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A name that no engine of this machine has.
    #[error("no engine of this machine has that name")]
    NoSuchEngine,
    /// Neither one name nor one for each size.
    #[error("a plan names one engine, or four, on each side of a slash")]
    Count,
}

impl Plan {
    /// The engine for `len` bytes.
    #[inline]
    pub fn engine(&self, len: usize, warmth: Warmth) -> CpuEngine {
        match warmth {
            Warmth::Hot => self.hot[size_class(len)],
            Warmth::Cold => self.cold[size_class(len)],
        }
    }

    /// Reads a plan, admitting only engines that are `available`.
    ///
    /// # Errors
    /// See [`PlanError`].
    pub fn parse(
        text: &str,
        available: impl Iterator<Item = CpuEngine> + Clone,
    ) -> Result<Plan, PlanError> {
        let (hot, cold) = text.split_once('/').unwrap_or((text, text));
        Ok(Plan { hot: parse_side(hot, available.clone())?, cold: parse_side(cold, available)? })
    }
}

fn parse_side(
    text: &str,
    available: impl Iterator<Item = CpuEngine> + Clone,
) -> Result<[CpuEngine; SIZES.len()], PlanError> {
    let named = |name: &str| {
        available.clone().find(|engine| engine.name() == name.trim()).ok_or(PlanError::NoSuchEngine)
    };
    if !text.contains(',') {
        return Ok([named(text)?; SIZES.len()]);
    }
    let mut side = [CpuEngine::PORTABLE; SIZES.len()];
    let mut names = text.split(',');
    for engine in &mut side {
        *engine = named(names.next().ok_or(PlanError::Count)?)?;
    }
    match names.next() {
        None => Ok(side),
        Some(_) => Err(PlanError::Count),
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (separator, side) in [("", self.hot), ("/", self.cold)] {
            f.write_str(separator)?;
            for (index, engine) in side.iter().enumerate() {
                f.write_str(if index == 0 { "" } else { "," })?;
                f.write_str(engine.name())?;
            }
        }
        Ok(())
    }
}

/// The first engine that takes this path, or may.
pub(super) fn first_on_path(
    path: Path,
    mut engines: impl Iterator<Item = CpuEngine>,
) -> Option<CpuEngine> {
    engines.find(|engine| engine.path() == path || engine.path() == Path::Either)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_size_is_its_own_class_and_longer_is_never_a_smaller_one() {
        for (class, size) in SIZES.into_iter().enumerate() {
            assert_eq!(size_class(size), class);
        }
        assert_eq!(size_class(0), 0);
        assert_eq!(size_class(usize::MAX), SIZES.len() - 1);
        assert!(BOUNDS.is_sorted());
    }

    proptest! {
        #[test]
        fn whatever_is_read_is_printed_so_that_it_reads_the_same(text in "[a-z0-9,/ -]{0,60}") {
            if let Ok(plan) = Plan::parse(&text, CpuEngine::available()) {
                let again = Plan::parse(&plan.to_string(), CpuEngine::available());
                prop_assert_eq!(again, Ok(plan));
            }
        }

        #[test]
        fn every_plan_of_this_machine_survives_its_text(
            picks in prop::array::uniform8(any::<prop::sample::Index>()),
        ) {
            let engines: Vec<_> = CpuEngine::available().collect();
            let engine = |pick: &prop::sample::Index| engines[pick.index(engines.len())];
            let (mut hot, mut cold) = ([CpuEngine::PORTABLE; 4], [CpuEngine::PORTABLE; 4]);
            for (slot, pick) in hot.iter_mut().chain(&mut cold).zip(&picks) {
                *slot = engine(pick);
            }
            let plan = Plan { hot, cold };
            prop_assert_eq!(Plan::parse(&plan.to_string(), CpuEngine::available()), Ok(plan));
        }
    }
}
