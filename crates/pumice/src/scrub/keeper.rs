//! The thread that populates ahead and gives back.
//!
//! It is apart from scrubd because both works are system calls that hold the address space's lock
//! for a while. A `SCHED_IDLE` thread that is held off then holds the program off, and a thread
//! that once entered `SCHED_IDLE` can't leave it without privileges. So it keeps the program's
//! priority, and the governor's rules hold for populating; giving back is never put off.

use core::ffi::c_void;
use core::time::Duration;

use super::governor::{Governor, Limits, Procfs, Verdict};
use super::helper::{begin, Descriptors, Helper, Job};
use super::Left;
use crate::addr::BLOCK_SIZE;
use crate::config::Setting;
use crate::stats::{Event, Slot};
use crate::sys::thread;

pub(super) const ENTRY: thread::Entry = run;

/// Passes are no further apart than this, so that a shorter `decay_ms` is noticed.
const LONGEST_NAP: Duration = Duration::from_secs(5);
/// And no closer together.
const SHORTEST_NAP: Duration = Duration::from_millis(5);

extern "C" fn run(argument: *mut c_void) -> ! {
    // SAFETY: `Helper::ring` passed it.
    let (job, descriptors) = unsafe { begin(argument, c"pumice-keeper") };
    let mut keeper = Keeper { job, slot: job.scrubber.slot(), descriptors, counted_ns: 0 };
    loop {
        keeper.helper().look();
        keeper.populate();
        let left = keeper.decay();
        keeper.count_cpu_time();
        match left {
            Left::More => keeper.nap(),
            Left::Nothing if keeper.helper().sleep() => {}
            // Rung meanwhile. That makes no pass due sooner: a pass ages all free memory.
            Left::Nothing => keeper.nap(),
        }
    }
}

/// The thread's own state.
struct Keeper {
    job: Job,
    slot: &'static Slot,
    descriptors: Descriptors,
    /// Processor time already counted in the slot.
    counted_ns: u64,
}

impl Keeper {
    fn helper(&self) -> &'static Helper {
        self.job.scrubber.keeper()
    }

    /// Populates until enough is ready, a block at a time.
    fn populate(&mut self) {
        if self.job.source.populate() == Left::Nothing {
            return;
        }
        let limits = Limits::default();
        let mut governor = Governor::new(Procfs::new(self.descriptors));
        loop {
            if let Verdict::Rest(rest_ns) = governor.ask(&limits) {
                self.helper().nap(Duration::from_nanos(rest_ns));
                continue;
            }
            let started_ns = thread::now_ns();
            if self.job.source.populate() == Left::Nothing {
                return;
            }
            let took_ns = thread::now_ns().saturating_sub(started_ns);
            // Now, not at the end: the program may end first.
            self.count_cpu_time();
            match governor.pause_after(BLOCK_SIZE, took_ns, &limits) {
                0 => {}
                pause_ns => self.helper().nap(Duration::from_nanos(pause_ns)),
            }
        }
    }

    fn decay(&self) -> Left {
        self.job.source.decay()
    }

    /// Until the next pass is due.
    fn nap(&self) {
        let decay = Duration::from_millis(Setting::DecayMs.get(self.slot));
        self.helper().nap((decay / 2).clamp(SHORTEST_NAP, LONGEST_NAP));
    }

    fn count_cpu_time(&mut self) {
        let used_ns = thread::cpu_time_ns();
        self.slot.add(Event::ScrubberNs, used_ns - self.counted_ns);
        self.counted_ns = used_ns;
    }
}
