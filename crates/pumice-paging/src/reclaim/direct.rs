//! Direct reclaim: below min, the allocating thread reclaims for itself.
//!
//! Under the min watermark nobody gets a frame but reclaim. The thread reclaims as its flags allow: with [`Gfp::NOIO`]
//! pages that are clean, with [`Gfp::NOFS`] also those that go to swap. It waits for its own writes. Where enough is
//! being written already, it waits for that: pages on their way out (`PG_launder`) are the throttle. If it can do no
//! more and `kswapd` may do what it must not, it waits a little for that. It waits without end only if it may do
//! everything itself: else `kswapd` could be waiting for a lock or a guard of the caller.
//!
//! Requests of reclaim itself, and of the code that it calls, are served from the frames below min, and never reclaim.

use std::time::Duration;

use pumice_frames::addr::Pfn;
use pumice_frames::frame::{Gfp, Pressure, Reclaim};
use pumice_io::sync::{current_thread, in_policy, ThreadId};

use super::policy::Policy;
use super::requests::Answer;
use super::round::Round;
use super::shrinker::Ask;
use super::writes::{Writes, MANY_FAILURES};
use super::zone::ZoneReclaim;

/// Writes in flight at most, of a thread that reclaims for itself: a batch is one, or some.
const DEPTH: u32 = 16;

/// How long a request waits for the reclaim of others before it looks for itself again, and for work that its flags
/// don't let it do itself at most. A thread that frees frames wakes it before.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often a request waits that long for a space to be attached, where there is none.
const WAITS_FOR_SPACES: u32 = 20;

/// `PF_MEMALLOC`: while it is there, the thread is reclaiming.
pub(super) struct Memalloc<'r, P: Policy> {
    zone: &'r ZoneReclaim<P>,
    thread: ThreadId,
}

impl<'r, P: Policy> Memalloc<'r, P> {
    pub fn begin(zone: &'r ZoneReclaim<P>) -> Memalloc<'r, P> {
        let thread = current_thread().id();
        zone.state().reclaimers.push(thread);
        Memalloc { zone, thread }
    }
}

impl<P: Policy> Drop for Memalloc<'_, P> {
    fn drop(&mut self) {
        let reclaimers = &mut self.zone.state().reclaimers;
        if let Some(at) = reclaimers.iter().position(|&thread| thread == self.thread) {
            reclaimers.swap_remove(at);
        }
    }
}

// SAFETY: it has tasks of its own, and none of the caller's.
unsafe impl<P: Policy + Send> Reclaim for ZoneReclaim<P> {
    fn first(&self) -> Pfn {
        self.frame(0)
    }

    fn pressure(&self) -> Pressure {
        self.pressure_now()
    }

    fn passed_over(&self, requests: usize) {
        self.count_passed_over(requests);
    }

    fn wake(&self) {
        self.wake_kswapd();
    }

    fn reclaim(&self, gfp: Gfp, _frames: usize) -> usize {
        if gfp.contains(Gfp::MEMALLOC) || in_policy::is_calling() || self.is_reclaiming_here() {
            return 0;
        }
        if gfp.contains(Gfp::DIRECT_RECLAIM) {
            return self.direct_reclaim(gfp);
        }
        if gfp.contains(Gfp::KSWAPD_RECLAIM) {
            self.state().kswapd.get_unstuck();
            self.wake.notify_one();
        }
        0
    }

    fn admits(&self, gfp: Gfp, frames: usize) -> bool {
        if self.takes(frames) {
            return true;
        }
        let pressure = self.count_taken(frames);
        if gfp.contains(Gfp::KSWAPD_RECLAIM) {
            self.wake();
        }
        let limit = if gfp.contains(Gfp::ABOVE_LOW) { Pressure::Low } else { Pressure::Min };
        let may = pressure < limit
            || limit == Pressure::Min && (gfp.contains(Gfp::MEMALLOC) || self.is_reclaiming_here());
        if !may {
            Reclaim::give_back(self, frames);
        }
        may
    }

    fn give_back(&self, frames: usize) {
        self.gives_back(frames);
        self.set_pressure();
    }
}

impl<P: Policy + Send> ZoneReclaim<P> {
    /// Whether the calling thread reclaims in this zone.
    pub(super) fn is_reclaiming_here(&self) -> bool {
        !in_policy::is_calling() && self.state().is_reclaiming(current_thread().id())
    }

    /// Frees frames, or waits until others have. Returns how many there may be; with none, there will be none.
    fn direct_reclaim(&self, gfp: Gfp) -> usize {
        let mut state = self.state();
        // A thread that attaches a space may not have begun yet.
        let mut waits = 0;
        while state.members.is_empty() && waits < WAITS_FOR_SPACES && !state.is_stopped {
            state = self.frames_freed.wait_timeout(state, PATIENCE).0;
            waits += 1;
        }
        let was_min = self.pressure_now() == Pressure::Min;
        self.count_free(&mut state);
        if was_min && self.free() > state.settings.watermarks.min {
            // There were more than was known.
            return 1;
        }
        let may_all = gfp.contains(Gfp::IO | Gfp::FS);
        state.counts.allocstall += 1;
        let request = state.requests.begin();
        state.kswapd.start_over();
        if state.kswapd.is_waiting() && gfp.contains(Gfp::KSWAPD_RECLAIM) {
            self.wake.notify_one();
        }
        // Where all writes fail, one thread that tries is enough.
        let is_failing = state.kswapd.is_there() && may_all && state.failures >= MANY_FAILURES;
        let (mut may_try, mut is_late) = (!is_failing, false);
        loop {
            match state.requests.answer(request) {
                Answer::Served => return 1,
                Answer::Open if !state.is_stopped => {}
                Answer::Open | Answer::Refused => return 0,
            }
            // Where `kswapd` writes, a batch of one's own comes no sooner, unless it does not get to it.
            let most = state.settings.most_leaving;
            let most = if state.kswapd.is_there() && may_all { most / 2 } else { most };
            if may_try && state.leaving < most {
                drop(state);
                may_try = self.shrink(gfp);
                state = self.state();
                continue;
            }
            let others_may_help = state.leaving > 0 || state.kswapd.is_there();
            let is_patient = may_all && state.kswapd.is_there() || !is_late;
            let may_wait = may_try || others_may_help && is_patient;
            if !may_wait {
                return 0;
            }
            state.requests.begin_wait();
            if state.kswapd.is_waiting() {
                self.wake.notify_one();
            }
            let (now, is_timed_out) = self.frames_freed.wait_timeout(state, PATIENCE);
            state = now;
            state.requests.end_wait();
            is_late |= is_timed_out;
        }
    }

    /// Evicts batches, and waits for its writes, until some frames are free. `false`: there is no more to try.
    fn shrink(&self, gfp: Gfp) -> bool {
        let _memalloc = Memalloc::begin(self);
        let writes = self.idle_writes.lock().pop();
        let writes = writes.unwrap_or_else(|| Writes::new(&self.engines(), DEPTH));
        let mut round = Round::new(self, writes, gfp);
        round.meet_spaces();
        let is_worth_it = round.reclaim_directly();
        let writes = round.end();
        self.idle_writes.lock().push(writes);
        is_worth_it
    }
}

impl<P: Policy + Send> Round<'_, P> {
    /// Takes batches out, each written when the next begins, until frames are free. `false`: there is no more to try.
    pub fn reclaim_directly(&mut self) -> bool {
        let pages = self.zone.state().policy.len();
        let most = pages.max(self.settings.swap_cluster_max);
        while self.freed() == 0 && !self.progress.is_at_end() && self.chosen <= most {
            if self.shrink_caches(Ask::Owed) {
                break;
            }
            self.take_out();
            while self.writes.in_flight() > 0 {
                self.reap(true);
            }
        }
        if self.freed() == 0 && !self.progress.is_at_end() {
            self.shrink_caches(Ask::LastResort);
        }
        self.freed() > 0
    }
}
