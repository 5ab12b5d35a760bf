//! `pumice run`: a program on memory that is already there and already zero.
//!
//! It becomes the program, unless there is something to do beside it: then the program is its child. See [`lead`].
//!
//! | module | contents |
//! |---|---|
//! | [`options`] | the options, and the environment that they become |
//! | [`shim_file`] | the embedded shim as a file that the loader can open |
//! | [`spawn`] | the program's start, signals, stops and end |
//! | [`profile`] | the memory that a program used in its first second, for the next run |
//! | [`report`] | the requests that were served, their cost, and why none was |
//! | [`elf`] | the kind of program that a file is |
//! | [`variables`] | `pumice env`: the same environment, for others to set |
//!
//! The order matters: mistakes in the input are found before anything is written.

mod elf;
mod options;
mod profile;
mod report;
mod shim_file;
pub mod spawn;
mod variables;

use std::cell::LazyCell;
use std::env;
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::mem;
use std::path::Path;
use std::time::{Duration, Instant};

use pumice_heap::config::{
    parse_size, DEFAULT_THRESHOLD, ENV_CLEAR, ENV_FIRST, ENV_READY, ENV_STATS, ENV_THRESHOLD,
    ENV_TREE,
};
use pumice_heap::stats::{CounterSlot, Owner, Tree, TreeName};

pub use options::RunArgs;
pub use variables::{print_variables, EnvArgs};

use crate::counters::{self, Counters};
use crate::numbers::Numbers;
use options::Plan;
use profile::Profile;
use pumice_command::clear_plan;
use pumice_command::small::ENV_TUNABLES;
use pumice_command::Failure;
use spawn::End;

/// The exit statuses of shells where a program is not found, and where it can't be executed.
const STATUS_NOT_FOUND: u8 = 127;
const STATUS_NOT_EXECUTABLE: u8 = 126;

/// How often to look for processes of other namespaces that are gone.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);

/// Runs the program and returns its exit status; does not return where a signal killed it.
pub fn run(arguments: RunArgs) -> Result<u8, Failure> {
    let plan = arguments.plan()?;
    let typed = plan.variables.iter().find(|(name, _)| *name == ENV_CLEAR);
    let clearer = clear_plan::for_children(typed.map(|(_, value)| value.clone()))?;
    let first = shim_file::find_or_write(plan.small.clone())?;

    let preload = shim_file::preload_list(&first, env::var_os("LD_PRELOAD"));
    env::set_var("LD_PRELOAD", preload);
    env::set_var("ASAN_OPTIONS", asan_options(env::var_os("ASAN_OPTIONS")));
    for (name, value) in &plan.variables {
        let own = env::var_os(name).filter(|own| *name == ENV_TUNABLES && !own.is_empty());
        // Of a setting that is there twice, the last one counts.
        let all = own.map(|own| [value.as_os_str(), &own].join(OsStr::new(":")));
        env::set_var(name, all.as_ref().unwrap_or(value));
    }
    // Instead of the typed one: it is chosen once, for all.
    env::set_var(ENV_CLEAR, clearer.to_string());
    for name in [ENV_STATS, ENV_TREE, ENV_READY, ENV_FIRST] {
        env::remove_var(name);
    }
    if plan.needs_parent() {
        return lead(plan);
    }
    env::set_var(ENV_TREE, tree_name().to_string());
    counters::remove_abandoned();
    let error = spawn::exec(&plan.program);
    Err(not_run(&plan.program[0], &error))
}

/// The name of the tree that the programs make when the first of them has something to count.
fn tree_name() -> TreeName {
    // The standard library's only source of chance.
    let key = RandomState::new().build_hasher().finish() as u32;
    TreeName::new(key.max(1))
}

/// Runs the program as a child: memory is to be ready in it at its start, or it is to be looked at while it runs.
fn lead(plan: Plan) -> Result<u8, Failure> {
    let tree = share_tree(plan.pool_max_bytes, plan.ready_bytes)?;
    if plan.ready_bytes > 0 {
        env::set_var(ENV_FIRST, std::process::id().to_string());
    }

    let started = Instant::now();
    let mut profile = plan.profile;
    let file = LazyCell::new(|| elf::look_up(&plan.program[0]));
    // A report may tell of the file, and while the program starts there is time to look at it.
    let mut is_file_next = plan.report.is_some();
    let first_look = profile.as_ref().map_or(SWEEP_PAUSE, Profile::first_look);
    let first_pause = if is_file_next { Duration::ZERO } else { first_look };
    let ended = spawn::run_and_look(&plan.program, first_pause, &mut |_| {
        if mem::take(&mut is_file_next) {
            LazyCell::force(&file);
            return first_look;
        }
        let early = profile.as_mut().and_then(|profile| profile.look(tree));
        early.unwrap_or_else(|| sweep(tree))
    });
    let wall = started.elapsed();
    if let (Some(profile), Ok((_, usage))) = (profile, &ended) {
        profile.keep(tree, usage.peak_resident_bytes);
    }
    let result = match ended {
        Err(error) => Err(not_run(&plan.program[0], &error)),
        Ok((end, usage)) => match &plan.report {
            None => Ok(end),
            Some(to) => {
                let program = &plan.program[0];
                let file = file.as_ref();
                report::report(program, file, tree, threshold_bytes(), wall, end, &usage)
                    .write(to)
                    .map(|()| end)
            }
        },
    };
    match result? {
        End::Exited(status) => Ok(status),
        End::Killed(signal) => spawn::end_like(signal),
    }
}

/// Makes the tree that the programs count in, and tells them its number. Where there is no memory to share, each
/// counts for itself, and this says so.
fn share_tree(pool_max_bytes: usize, ready_bytes: usize) -> Result<&'static Tree, Failure> {
    let (pool_max, ready) = (pool_max_bytes as u64, ready_bytes as u64);
    match Counters::create(pool_max, ready) {
        Ok(counters) => {
            env::set_var(ENV_STATS, counters.id.to_string());
            Ok(counters.tree)
        }
        Err(error) => {
            eprintln!(
                "pumice: each program has a pool of its own and is in no report, for no memory can be shared \
                 ({error}); see ipcs -lm"
            );
            let tree = Tree::private(pool_max, ready);
            tree.map_err(|error| Failure::system(format!("no memory for counters: {error}")))
        }
    }
}

/// Has the tree release the slots of dead processes in other namespaces, which no process of the tree can judge.
/// Returns when to look again.
fn sweep(tree: &Tree) -> Duration {
    let started = Instant::now();
    let numbers = Numbers::now();
    // Before the processes are looked up: later ones are not among them.
    let is_others = |owner: &Owner| owner.pid != 0 && !numbers.is_own(*owner);
    let others: Vec<_> = tree.slots().iter().map(CounterSlot::owner).filter(is_others).collect();
    let gone: Vec<_> = others.into_iter().filter(|&owner| numbers.is_gone(owner)).collect();
    if !gone.is_empty() {
        tree.sweep(|owner| gone.contains(&owner));
    }
    // A fiftieth of a processor at most, however many processes there are.
    SWEEP_PAUSE.max(50 * started.elapsed())
}

/// An AddressSanitizer program exits when a library precedes its runtime, unless it is told not to
/// look. The shim stays out of its way.
fn asan_options(before: Option<OsString>) -> OsString {
    const OPTION: &str = "verify_asan_link_order=0";
    match before {
        Some(mut options) if !options.is_empty() => {
            options.push(":");
            options.push(OPTION);
            options
        }
        _ => OPTION.into(),
    }
}

fn threshold_bytes() -> usize {
    let set = env::var(ENV_THRESHOLD).ok().and_then(|text| parse_size(&text));
    set.unwrap_or(DEFAULT_THRESHOLD)
}

/// Why a program could not be started, with the status that shells give.
pub fn not_run(program: &OsStr, error: &io::Error) -> Failure {
    let name = program.to_string_lossy();
    let name = name.escape_debug();
    let has_folder = program.as_encoded_bytes().contains(&b'/');
    match error.kind() {
        io::ErrorKind::NotFound if has_folder => Failure {
            message: format!("no program {name}, or its interpreter is missing"),
            status: STATUS_NOT_FOUND,
        },
        io::ErrorKind::NotFound => {
            Failure { message: format!("no program '{name}' in PATH"), status: STATUS_NOT_FOUND }
        }
        io::ErrorKind::PermissionDenied if Path::new(program).is_dir() => Failure {
            message: format!("{name} is a directory, not a program"),
            status: STATUS_NOT_EXECUTABLE,
        },
        io::ErrorKind::PermissionDenied => Failure {
            message: format!("{name} is not executable; see chmod +x"),
            status: STATUS_NOT_EXECUTABLE,
        },
        _ => Failure {
            message: format!("{name} can't be executed: {error}"),
            status: STATUS_NOT_EXECUTABLE,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sanitizer_options_are_kept() {
        assert_eq!(asan_options(None), "verify_asan_link_order=0");
        let both = asan_options(Some("detect_leaks=0".into()));
        assert_eq!(both, "detect_leaks=0:verify_asan_link_order=0");
    }
}
