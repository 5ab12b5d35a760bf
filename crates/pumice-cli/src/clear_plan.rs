//! Which engine zeroes what on this machine: measured once, kept, and handed to children.
//!
//! The plan is kept as text in `$XDG_CACHE_HOME/pumice/clear-KEY` (or `~/.cache/pumice`), where
//! KEY tells processor models apart. The shim never measures: it takes `PUMICE_CLEAR`, or goes by
//! CPUID where that is missing or names what the processor lacks.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use pumice::clear::calibrate::SCRATCH_BYTES;
use pumice::clear::{cpu_key, Clearer};
use pumice::config::ENV_CLEAR;

use crate::bench::region::Region;

/// Changes whenever plans are measured differently or read differently.
const FORMAT: u32 = 1;

/// The value of `PUMICE_CLEAR` for a program to be started: what the user set, what was measured
/// before, or what is measured now, in some milliseconds. `None` leaves the choice to CPUID: there
/// is nowhere to keep a measurement, and one for each start would cost more than it gains.
#[cfg_attr(not(test), allow(dead_code, reason = "pumice run does not set it yet"))]
pub fn for_children() -> Option<String> {
    if let Ok(plan) = env::var(ENV_CLEAR) {
        return Some(plan);
    }
    let file = cache_file()?;
    if let Some(kept) = read(&file) {
        return Some(kept.plan().to_string());
    }
    // Before measuring, so that whoever has no room for the result does not measure every time.
    let draft = Draft::create(file)?;
    let plan = calibrate()?.plan().to_string();
    draft.publish(&plan);
    Some(plan)
}

/// What was measured before on this model of processor.
pub fn kept() -> Option<Clearer> {
    read(&cache_file()?)
}

/// Keeps a plan for later starts. Where that fails they measure again, or go by CPUID.
pub fn keep(clearer: &Clearer) {
    if let Some(draft) = cache_file().and_then(Draft::create) {
        draft.publish(&clearer.plan().to_string());
    }
}

/// Measures now. `None` if there is no memory to do it in.
pub fn calibrate() -> Option<Clearer> {
    let mut scratch = Region::populate(SCRATCH_BYTES).ok()?;
    Some(Clearer::calibrate(scratch.bytes()))
}

fn read(file: &Path) -> Option<Clearer> {
    let text = fs::read_to_string(file).ok()?;
    // Anything may stand in a file: a plan is only believed if this processor can run it.
    Clearer::from_env_str(text.trim()).ok()
}

fn cache_file() -> Option<PathBuf> {
    // A relative path there is to be ignored (XDG Base Directory Specification).
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(folder.join("pumice").join(format!("clear-{:016x}-v{FORMAT}", cpu_key())))
}

/// A file under a name of its own that takes its place in one step, or goes.
struct Draft {
    draft: PathBuf,
    file: PathBuf,
}

impl Draft {
    fn create(file: PathBuf) -> Option<Draft> {
        fs::create_dir_all(file.parent()?).ok()?;
        let draft = file.with_extension(std::process::id().to_string());
        fs::File::create_new(&draft).ok()?;
        Some(Draft { draft, file })
    }

    fn publish(self, plan: &str) {
        if fs::write(&self.draft, format!("{plan}\n")).is_ok() {
            // Failing that the draft goes, and the next start measures again.
            let _ = fs::rename(&self.draft, &self.file);
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Gone already where it was published.
        let _ = fs::remove_file(&self.draft);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_children_are_told_they_can_read() {
        // None where nothing can be kept, as in a read-only home.
        if let Some(plan) = for_children() {
            Clearer::from_env_str(&plan).expect("a plan this processor can run");
        }
    }

    #[test]
    fn a_plan_is_published_in_one_step_and_a_draft_leaves_nothing() {
        let folder = env::temp_dir().join(format!("pumice-clear-plan-{}", std::process::id()));
        let file = folder.join("deep").join("clear-0-v1");
        drop(Draft::create(file.clone()).expect("a draft"));
        assert!(read(&file).is_none());

        let plan = Clearer::detect().plan().to_string();
        Draft::create(file.clone()).expect("a draft").publish(&plan);
        assert_eq!(read(&file).expect("a plan").plan().to_string(), plan);
        let left: Vec<_> = fs::read_dir(file.parent().expect("a folder")).expect("list").collect();
        assert_eq!(left.len(), 1);

        fs::write(&file, "abacus\n").expect("write");
        assert!(read(&file).is_none());
        fs::remove_dir_all(&folder).expect("remove");
    }
}
