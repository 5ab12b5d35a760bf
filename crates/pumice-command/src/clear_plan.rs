//! The plan of engines for this machine: measured once, kept, and passed to children.
//!
//! The plan is kept as text in `$XDG_CACHE_HOME/pumice/clear-KEY` (or `~/.cache/pumice`), where
//! KEY tells processor models apart. The shim never measures: it takes `PUMICE_CLEAR`, or goes by
//! CPUID where that is missing or names what the processor lacks. The plan has the kind of engine that zeroes ahead of
//! need, chosen by [`pumice_frames::clear::measure`]: the processor's, or one beside it.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use pumice_frames::clear::calibrate::SCRATCH_BYTES;
use pumice_frames::clear::measure::{choose, measure, Candidate};
use pumice_frames::clear::{Clearer, EngineKind};
use pumice_heap::config::ENV_CLEAR;

use crate::engines;
use crate::region::Region;
use crate::safe_path;
use crate::Failure;

/// Changes whenever plans are measured differently or read differently.
const FORMAT: u32 = 5;

/// The plan for programs to be started: the one that was measured before, or that is measured now, in some
/// milliseconds, or else CPUID's, changed in what `--engine` says or, where that was not `typed`, `PUMICE_CLEAR`.
pub fn for_children(typed: Option<OsString>) -> Result<Clearer, Failure> {
    let detected = Clearer::detect();
    let measured = cache_file(&detected).and_then(|file| kept_or_measured(file, &detected));
    let measured = measured.unwrap_or(detected);
    let named = typed.or_else(|| env::var_os(ENV_CLEAR));
    match named.filter(|text| !text.is_empty() && text != "auto") {
        Some(text) => changed(&measured, &text.to_string_lossy()),
        None => Ok(measured),
    }
}

fn changed(measured: &Clearer, text: &str) -> Result<Clearer, Failure> {
    let changed = measured.with_plan(text).map_err(|why| {
        let text = text.escape_debug();
        Failure::usage(format!("bad value in {ENV_CLEAR}={text}: {why}"))
    })?;
    // An engine that was measured here and is gone is no mistake of the user's: the processor does its work.
    if changed.ahead() != measured.ahead() {
        engines::check_for_programs(changed.ahead())?;
    }
    Ok(changed)
}

fn kept_or_measured(file: PathBuf, detected: &Clearer) -> Option<Clearer> {
    if let Some(kept) = read(&file, detected) {
        return Some(kept);
    }
    // Before measuring, so that a user without room for the result does not measure every time.
    let draft = Draft::create(file)?;
    let measured = calibrate()?;
    draft.publish(measured);
    Some(measured)
}

/// The plan that was measured before on this model of processor.
pub fn kept() -> Option<Clearer> {
    let detected = Clearer::detect();
    read(&cache_file(&detected)?, &detected)
}

/// Keeps a plan for later starts. Where that fails they measure again, or go by CPUID.
pub fn keep(clearer: &Clearer) {
    if let Some(draft) = cache_file(clearer).and_then(Draft::create) {
        draft.publish(clearer);
    }
}

/// Measures now. `None` if there is no memory to do it in.
pub fn calibrate() -> Option<Clearer> {
    // For good: an engine that is lost may go on writing to it.
    let scratch = Region::populate(SCRATCH_BYTES).ok()?.leak();
    let clearer = Clearer::calibrate(scratch);
    Some(clearer.with_ahead(choose_ahead(&clearer, scratch)))
}

/// The engine that zeroes ahead best here. Never the kernel: it holds the lock of the program's address space
/// while it zeroes, and others' waits for that are not measured.
fn choose_ahead(clearer: &Clearer, scratch: &'static mut [u8]) -> EngineKind {
    // Engines that can't be opened here include the GPU.
    let kinds = EngineKind::ALL.into_iter().filter(|&kind| kind != EngineKind::Kernel);
    let others: Vec<_> =
        kinds.filter_map(|kind| Some((kind, engines::open(kind).ok()??))).collect();
    let mut candidates = vec![Candidate::new(clearer)];
    candidates.extend(others.iter().map(|(_, engine)| Candidate::new(engine.as_ref())));
    // One that does not come back keeps the memory.
    let Some(scratch) = measure(&mut candidates, scratch) else { return EngineKind::Cpu };
    // SAFETY: all engines are done with it.
    drop(unsafe { Region::retake(scratch) });
    let costs: Vec<_> = candidates.iter().map(Candidate::cost).collect();
    let kinds = others.iter().map(|&(kind, _)| kind);
    choose(costs[0], &kinds.zip(costs[1..].iter().copied()).collect::<Vec<_>>())
}

fn read(file: &Path, detected: &Clearer) -> Option<Clearer> {
    let text = fs::read_to_string(file).ok()?;
    // Anything may stand in a file: a plan is only believed if this processor can run it.
    detected.with_plan(text.trim()).ok()
}

fn cache_file(clearer: &Clearer) -> Option<PathBuf> {
    Some(safe_path::user_cache()?.join(format!("clear-{:016x}-v{FORMAT}", clearer.cpu_key())))
}

/// A file under a name of its own that takes its place in one step, or goes.
struct Draft {
    draft: PathBuf,
    file: PathBuf,
}

impl Draft {
    fn create(file: PathBuf) -> Option<Draft> {
        // Where others can put links, the file may end up anywhere.
        let file = safe_path::make(file.parent()?).ok()?.join(file.file_name()?);
        let draft = file.with_extension(std::process::id().to_string());
        fs::File::create_new(&draft).ok()?;
        Some(Draft { draft, file })
    }

    fn publish(self, plan: impl fmt::Display) {
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
    fn bad_input_gets_one_line() {
        let failure = changed(&Clearer::detect(), "abacus").expect_err("no engine");
        assert!(failure.message.contains("PUMICE_CLEAR=abacus"), "{}", failure.message);
        changed(&Clearer::detect(), "portable/cuda").expect_err("no engine for programs");
    }

    /// A folder for one test, gone with this.
    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Option<Folder> {
            safe_path::tests::folder(test).map(Folder)
        }

        fn files(&self) -> usize {
            fs::read_dir(&self.0).expect("a folder").count()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            // Some other test's failure is not to be hidden by this one's.
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_plan_is_measured_once() {
        let Some(folder) = Folder::new("measured-once") else { return };
        let file = folder.0.join("clear-0-v1");
        let measured =
            kept_or_measured(file.clone(), &Clearer::detect()).expect("memory to measure in");
        let text = measured.to_string();
        assert_eq!(Clearer::from_env_str(&text), Ok(measured));
        assert_eq!(fs::read_to_string(&file).expect("kept").trim(), text);

        fs::write(&file, "portable/kernel\n").expect("write");
        let kept = kept_or_measured(file, &Clearer::detect()).expect("the one kept");
        assert!(kept.to_string().starts_with("portable,"), "{kept:?}");
        assert_eq!(kept.ahead(), EngineKind::Kernel);
    }

    #[test]
    fn a_draft_leaves_nothing_and_rubbish_is_not_believed() {
        let Some(folder) = Folder::new("drafts") else { return };
        let file = folder.0.join("clear-0-v1");
        drop(Draft::create(file.clone()).expect("a draft"));
        assert_eq!(folder.files(), 0);
        Draft::create(file.clone()).expect("a draft").publish("abacus");
        assert_eq!(folder.files(), 1);
        assert_eq!(read(&file, &Clearer::detect()), None);
        let open = env::temp_dir().join(format!("pumice-drafts-{}", std::process::id()));
        if safe_path::check(&env::temp_dir()).is_err() {
            assert!(Draft::create(open.join("clear-0-v1")).is_none(), "where others can put links");
        }
    }
}
