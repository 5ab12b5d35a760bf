//! Which engine is best for which size: known from CPUID, measured, or read from a variable.
//!
//! As text, a plan is the names of engines for 4 KiB, 64 KiB, 2 MiB and 64 MiB, first where a request waits, then,
//! after a slash, where none does. After another slash stands the kind of engine that zeroes ahead of need:
//!
//! ```text
//! stosb,stosb,avx2-nt,avx2-nt/avx2-nt,avx2-nt,avx2-nt,avx2-nt/cpu
//! ```
//!
//! One name stands for four equal ones, and one side for both, so `stosb` alone is a plan too. `through` and `around`
//! are the engines for these paths. The first side and the kind, or both sides, may be missing, as in `/around` and
//! `dsa`: they stay as they were.

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

    /// This plan with the sides that `text` has, of engines that are `known` by name.
    pub(super) fn with_sides(
        &self,
        text: &str,
        known: impl Fn(&str) -> Option<CpuEngine>,
    ) -> Result<Plan, PlanError> {
        let (hot, cold) = text.split_once('/').unwrap_or((text, text));
        let cold = parse_side(cold, &known)?;
        Ok(Plan { hot: if hot.is_empty() { self.hot } else { parse_side(hot, &known)? }, cold })
    }
}

fn parse_side(
    text: &str,
    known: impl Fn(&str) -> Option<CpuEngine>,
) -> Result<[CpuEngine; SIZES.len()], PlanError> {
    let named = |name: &str| known(name.trim()).ok_or(PlanError::NoSuchEngine);
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::Clearer;
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
            if let Ok(clearer) = Clearer::from_env_str(&text) {
                prop_assert_eq!(Clearer::from_env_str(&clearer.to_string()), Ok(clearer));
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
            let clearer = Clearer::from_env_str(&plan.to_string()).expect("engines of this machine");
            prop_assert_eq!(clearer.plan(), &plan);
        }
    }
}
