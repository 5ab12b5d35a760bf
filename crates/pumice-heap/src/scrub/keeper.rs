//! The thread that populates ahead and gives back.
//!
//! It is apart from scrubd because both works are system calls that hold the address space's lock
//! for a while. The governor's rules hold for populating; giving back is never put off.

use core::convert::Infallible;
use core::ffi::c_void;
use core::time::Duration;

use super::governor::{Governor, Limits, Manner, Procfs, Verdict};
use super::helper::{begin, Descriptors, Helper, Job, Stopped};
use super::waiting::STAY_AWAY;
use super::{Left, Need, DECAY_PASSES};
use crate::config::Setting;
use crate::stats::{CounterSlot, Event};
use pumice_frames::addr::BLOCK_SIZE;
use pumice_frames::sys::thread;

pub(super) const ENTRY: thread::Entry = run;

/// Freed memory is offered to the kernel when it has lain for this long, and twice as long at most: it costs 25 µs a
/// block where other threads run, too much for memory that is used again at once.
const OFFER_NAP: Duration = Duration::from_millis(100);
/// Naps are no longer than this, so that a shorter `decay_ms` is noticed.
const LONGEST_NAP: Duration = Duration::from_secs(2);
/// And no shorter.
const SHORTEST_NAP: Duration = Duration::from_millis(5);

extern "C" fn run(argument: *mut c_void) -> ! {
    // SAFETY: `Helper::ring` passed it.
    let (job, descriptors) = unsafe { begin(argument, c"pumice-keeper") };
    let slot = job.scrubber.slot();
    let mut keeper =
        Keeper { job, slot, descriptors, governor: None, decayed_ns: 0, counted_ns: 0 };
    let Err(Stopped) = keeper.serve();
    // SAFETY: a helper's own thread, whose stack nobody else knows.
    unsafe { thread::exit() }
}

/// The thread's own state.
struct Keeper {
    job: Job,
    slot: &'static CounterSlot,
    descriptors: Descriptors,
    /// While there is something to populate.
    governor: Option<Governor<Procfs>>,
    /// When the last pass of decay was.
    decayed_ns: u64,
    /// Processor time already counted in the slot.
    counted_ns: u64,
}

impl Keeper {
    fn serve(&mut self) -> Result<Infallible, Stopped> {
        loop {
            self.helper().look()?;
            if self.descriptors == Descriptors::Own {
                self.job.source.look_for_pins();
            }
            let populated = self.populate()?;
            let offered = self.job.source.offer();
            let decayed = self.decay_if_due();
            self.job.source.publish();
            self.count_cpu_time();
            let helper = self.helper();
            let pass = self.decay_pass();
            let slept = match (offered, decayed) {
                _ if populated == Left::More => continue,
                (Left::More, _) => false,
                (_, Left::More) => helper.sleep_for(pass.min(LONGEST_NAP))?,
                _ => helper.sleep()?,
            };
            if !slept {
                // Rung meanwhile, perhaps: freed memory is offered when it has lain for a while.
                helper.nap(pass.min(OFFER_NAP))?;
            }
        }
    }

    fn helper(&self) -> &'static Helper {
        self.job.scrubber.keeper()
    }

    /// Populates a block at a time until enough is ready, or the next pass is due.
    fn populate(&mut self) -> Result<Left, Stopped> {
        let due_ns = thread::now_ns() + OFFER_NAP.as_nanos() as u64;
        let limits = Limits::default();
        while self.job.source.left_to_populate() == Left::More {
            let descriptors = self.descriptors;
            let new = || Governor::new(Procfs::new(descriptors), Manner::Scrub);
            let governor = self.governor.get_or_insert_with(new);
            let pause_ns = match governor.ask(&limits, Need::Wanted) {
                Verdict::Go if self.job.scrubber.is_waited_for() => STAY_AWAY.as_nanos() as u64,
                Verdict::Rest(rest_ns) => rest_ns,
                Verdict::Go => {
                    let started_ns = thread::now_ns();
                    self.job.source.populate();
                    let took_ns = thread::now_ns().saturating_sub(started_ns);
                    governor.pause_after(BLOCK_SIZE, took_ns, &limits)
                }
            };
            // Now, not at the end: the program may end first.
            self.count_cpu_time();
            if pause_ns > 0 {
                self.helper().nap(Duration::from_nanos(pause_ns))?;
            }
            if thread::now_ns() > due_ns {
                return Ok(Left::More);
            }
        }
        self.governor = None;
        Ok(Left::Nothing)
    }

    /// A pass ages all free memory, so it is made on time however often the bell rings meanwhile.
    fn decay_if_due(&mut self) -> Left {
        let now_ns = thread::now_ns();
        if now_ns.saturating_sub(self.decayed_ns) < self.decay_pass().as_nanos() as u64 {
            return Left::More;
        }
        self.decayed_ns = now_ns;
        self.job.source.decay()
    }

    fn decay_pass(&self) -> Duration {
        let decay = Duration::from_millis(Setting::DecayMs.get(self.slot));
        (decay / DECAY_PASSES).max(SHORTEST_NAP)
    }

    fn count_cpu_time(&mut self) {
        let used_ns = thread::cpu_time_ns();
        self.slot.add(Event::ScrubberNs, used_ns.saturating_sub(self.counted_ns));
        self.counted_ns = used_ns;
    }
}
