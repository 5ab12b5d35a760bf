//! The program's processes, and the looks at all of them.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{self, IsTerminal};
use std::rc::Rc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use libc::pid_t;
use pumice_command::share::Share;
use pumice_command::Failure;

use super::identity::{threads, Identity};
use super::inject::Tracees;
use super::output::Output;
use super::space::{CanFlush, Space};

/// Processes that are watched at a time.
const MOST_PROCESSES: usize = 256;
/// The part of the mappings that a process may have which watching may use up.
const PART_OF_MAPPINGS: usize = 2;
/// The kernel's default for `vm.max_map_count`.
const MAPPINGS: usize = 65_530;

/// Threads that died while they were traced are asked for so often: their parents wait for them.
const REAP: Duration = Duration::from_millis(1);

/// Refuses where no page can be watched.
///
/// # Errors
/// The reason, and the words to type.
pub fn check_machine() -> Result<(), Failure> {
    if !cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
        return Err(Failure::system("pumice trace runs on x86-64 with glibc only"));
    }
    if !fs::exists("/proc/self/clear_refs").unwrap_or(false) {
        return Err(Failure::system(
            "this kernel does not tell which pages are touched: \
             it needs CONFIG_PROC_PAGE_MONITOR, and /proc mounted",
        ));
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let scope = scope.trim().parse().unwrap_or(0);
    // SAFETY: a plain system call.
    let is_root = unsafe { libc::geteuid() } == 0;
    if scope > 2 || (scope == 2 && !is_root) {
        return Err(Failure::system(format!(
            "no program may be stopped from outside here (kernel.yama.ptrace_scope is {scope}): \
             as root, type: sysctl kernel.yama.ptrace_scope=1{}",
            if scope > 2 { ", after a restart of the machine" } else { "" }
        )));
    }
    Ok(())
}

/// The figures of a trace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// References, and pages that have any: those of the share only.
    pub references: u64,
    pub pages: u64,
    /// Looks: the ends of intervals.
    pub intervals: u64,
    /// Pages touched in the fullest interval.
    pub most_in_interval: u64,
    /// Time of looks, and the part of it for which a thread of the program was stopped.
    pub looking: Duration,
    pub stopped: Duration,
    /// Address spaces: a process has one from one `exec` to the next.
    pub spaces: u64,
    /// Processes that can't be watched.
    pub blind: u64,
    /// Looks at which no thread could be stopped, and which found the limit on mappings.
    pub not_stopped: u64,
    pub full: u64,
    /// Programs that were executed while a thread was traced.
    pub executed: u64,
    /// The last share.
    pub one_in: u32,
    /// Whether the kernel says which processes a process has started.
    pub follows_children: bool,
}

/// See the module's top.
#[derive(Debug)]
pub struct Tree {
    output: Output,
    share: Share,
    most_pages: usize,
    page_bytes: u64,
    most_mappings: usize,
    can_flush: CanFlush,
    tracees: Rc<Tracees>,
    spaces: BTreeMap<pid_t, Space>,
    /// Processes that can't be watched, and pages that are in the trace.
    blind: HashSet<pid_t>,
    seen: HashSet<u64>,
    counts: Counts,
    bar: ProgressBar,
}

impl Tree {
    pub fn new(output: Output, share: Share, most_pages: usize, page_bytes: u64) -> Tree {
        let limit = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
        let most_mappings = limit.trim().parse().unwrap_or(MAPPINGS) / PART_OF_MAPPINGS;
        // On the program's own terminal it would be in the way.
        let bar = match io::stdout().is_terminal() {
            true => ProgressBar::hidden(),
            false => ProgressBar::new_spinner(),
        };
        if let Ok(style) = ProgressStyle::with_template("tracing: {elapsed}, {msg}") {
            bar.set_style(style);
        }
        Tree {
            output,
            share,
            most_pages,
            page_bytes,
            most_mappings,
            can_flush: CanFlush::here(),
            tracees: Rc::default(),
            spaces: BTreeMap::new(),
            blind: HashSet::new(),
            seen: HashSet::new(),
            counts: Counts::default(),
            bar,
        }
    }

    /// Looks at all processes of the program, and begins the next interval.
    pub fn look(&mut self, child: pid_t, since_start: Duration) {
        if !self.output.is_good() {
            return;
        }
        let before = Instant::now();
        self.find(child);
        let share = self.share;
        self.spaces.retain(|_, space| space.read(share).is_some());
        self.fit();
        let mut touched = Vec::new();
        for space in self.spaces.values_mut() {
            let done = space.begin_next(self.most_mappings, self.can_flush);
            self.counts.stopped += done.stopped;
            self.counts.not_stopped += u64::from(done.could_not_stop);
            self.counts.full += u64::from(done.is_full);
            self.counts.executed += u64::from(done.has_executed);
            touched.extend(space.touched());
        }
        // In the same order each time.
        touched.sort_unstable();
        touched.dedup();
        self.output.interval(since_start, &touched);
        self.seen.extend(&touched);
        let counts = &mut self.counts;
        counts.intervals += 1;
        counts.references += touched.len() as u64;
        counts.most_in_interval = counts.most_in_interval.max(touched.len() as u64);
        counts.looking += before.elapsed();
        let (references, pages) = (counts.references, self.seen.len());
        self.bar.set_message(format!("{references} references to {pages} pages"));
        self.bar.tick();
    }

    /// Waits for threads that died while they were traced. Returns the pause until this is to be done again, or the
    /// next look.
    pub fn reap(&self, pause: Duration) -> Duration {
        self.tracees.reap();
        if self.tracees.are_left() {
            pause.min(REAP)
        } else {
            pause
        }
    }

    /// The program could not be run.
    pub fn discard(self) {
        self.bar.finish_and_clear();
        self.output.discard();
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// That it could not be written.
    pub fn finish(self) -> Result<Counts, Failure> {
        self.bar.finish_and_clear();
        self.output.finish()?;
        Ok(Counts {
            pages: self.seen.len() as u64,
            blind: self.blind.len() as u64,
            one_in: self.share.stands_for(),
            follows_children: fs::exists("/proc/thread-self/children").unwrap_or(false),
            ..self.counts
        })
    }

    /// Finds processes that came, and address spaces that were given up by `exec`.
    fn find(&mut self, child: pid_t) {
        let known = self.spaces.keys().copied().chain([child]);
        let mut waiting: Vec<(pid_t, Option<pid_t>)> = known.map(|pid| (pid, None)).collect();
        // Parents come before their children.
        let (mut found, mut order) = (HashSet::new(), Vec::new());
        while let Some((pid, parent)) = waiting.pop() {
            if found.len() < MOST_PROCESSES && found.insert(pid) {
                order.push((pid, parent));
                waiting.extend(children(pid).into_iter().map(|it| (it, Some(pid))));
            }
        }
        self.spaces.retain(|&pid, space| {
            // Of another process with that number, none of ours is the parent.
            let now = Identity::of(pid);
            let is_other = now.is_none_or(|now| !now.is_same_process(space.identity));
            if is_other && pid != child {
                found.remove(&pid);
            }
            space.is_current()
        });
        for (pid, parent) in order {
            if self.spaces.contains_key(&pid) || !found.contains(&pid) {
                continue;
            }
            let parent = parent.and_then(|parent| self.spaces.get(&parent));
            let numbers = (self.counts.spaces, self.page_bytes);
            match Space::of(pid, child, &self.tracees, parent, numbers) {
                Some(space) => {
                    self.counts.spaces += 1;
                    self.blind.remove(&pid);
                    self.spaces.insert(pid, space);
                }
                None if Identity::of(pid).is_some() => {
                    self.blind.insert(pid);
                }
                None => {}
            }
        }
    }

    /// Halves the share until its pages are few enough.
    fn fit(&mut self) {
        while self.spaces.values().map(Space::pages).sum::<usize>() > self.most_pages {
            let Some(share) = self.share.halved() else { break };
            self.share = share;
            self.output.share(share);
            self.spaces.values_mut().for_each(|space| space.keep(share));
            let had = self.seen.len();
            self.seen.retain(|&page| share.has(page));
            // Those that are left have about as many references each.
            let left = self.seen.len() as f64 / had.max(1) as f64;
            let scaled = |count: u64| (count as f64 * left) as u64;
            self.counts.references = scaled(self.counts.references);
            self.counts.most_in_interval = scaled(self.counts.most_in_interval);
        }
    }
}

/// The processes that a process has started.
fn children(pid: pid_t) -> Vec<pid_t> {
    let list = |tid| fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).ok();
    let numbers = threads(pid).filter_map(list).flat_map(|list| {
        let numbers = list.split_whitespace().filter_map(|number| number.parse().ok());
        numbers.collect::<Vec<pid_t>>()
    });
    numbers.collect()
}
