//! The thread that evicts pages between the low and the high watermark.
//!
//! It goes from one [`Round`] to the next, and sleeps where there is nothing to do, or nothing more to try.

use std::sync::atomic::Ordering;

use pumice_frames::frame::Gfp;
use pumice_io::sync::in_policy;

use super::direct::Memalloc;
use super::policy::Policy;
use super::round::Round;
use super::shrinker::Ask;
use super::writes::{Writes, MANY_FAILURES};
use super::zone::ZoneReclaim;

/// Requests of `kswapd` in flight at most.
const DEPTH: u32 = 64;
/// Times that `kswapd` has nothing to do in a row, after which its pauses get no longer.
const MOST_PAUSES: u32 = 6;

impl<P: Policy + Send> ZoneReclaim<P> {
    /// Takes pages of spaces that are attached out as it is needed, until [`ZoneReclaim::stop`]. One thread does this
    /// for a zone.
    pub fn kswapd(&self) {
        /// Says when it ends, however: no thread waits in vain.
        struct Presence<'r, P: Policy>(&'r ZoneReclaim<P>);
        impl<P: Policy> Drop for Presence<'_, P> {
            fn drop(&mut self) {
                self.0.state().kswapd.end();
                self.0.frames_freed.notify_all();
            }
        }
        let _memalloc = Memalloc::begin(self);
        self.state().kswapd.begin();
        let _presence = Presence(self);
        let mut round = Round::new(self, Writes::new(&self.engines(), DEPTH), Gfp::KERNEL);
        round.direct = None;
        while round.wait() {
            if round.shrink_caches(Ask::Owed) {
                continue;
            }
            round.take_out();
        }
        while round.writes.in_flight() > 0 {
            round.reap(true);
        }
        round.end();
    }
}

impl<P: Policy> ZoneReclaim<P> {
    /// Wakes `kswapd` if it sleeps and frames are short.
    pub(super) fn wake_kswapd(&self) {
        if !self.is_kswapd_asleep.load(Ordering::Relaxed) || in_policy::is_calling() {
            return;
        }
        let mut state = self.state();
        if state.kswapd.is_asleep() && state.is_short(self.free()) {
            self.wake.notify_one();
            // Once is enough, however long it takes until it runs.
            self.is_kswapd_asleep.store(false, Ordering::Relaxed);
        }
    }
}

impl<P: Policy + Send> Round<'_, P> {
    /// Waits until there is something to do. `false`: no more.
    fn wait(&mut self) -> bool {
        let zone = self.zone;
        loop {
            let mut state = zone.state();
            if state.is_stopped {
                return false;
            }
            self.settings = state.settings;
            let is_short = state.is_short(zone.free());
            // Where writes fail, one batch at a time: else there are always some of which it is not known yet.
            let is_failing = state.failures >= MANY_FAILURES && self.writes.pages() > 0;
            let has_room = state.leaving < self.settings.most_leaving && !is_failing;
            if is_short && !state.kswapd.is_stuck() && has_room {
                self.progress.begin(state.requests.last());
                drop(state);
                self.meet_spaces();
                return true;
            }
            if self.writes.pages() > 0 {
                drop(state);
                self.reap(true);
                self.meet_spaces();
                continue;
            }
            if !self.has_met_all(&state) {
                drop(state);
                self.meet_spaces();
                continue;
            }
            if !is_short {
                state.kswapd.start_over();
            }
            state.kswapd.fall_asleep();
            zone.is_kswapd_asleep.store(state.kswapd.is_asleep(), Ordering::Relaxed);
            if is_short {
                // Nothing could go, or others are at it: no sooner than in a while, or a swap that is full would take a
                // processor.
                let pause =
                    self.settings.pause * (1 << state.kswapd.times_stuck().min(MOST_PAUSES));
                state = zone.wake.wait_timeout(state, pause).0;
            } else {
                state = zone.wake.wait(state);
            }
            state.kswapd.wake_up();
            zone.is_kswapd_asleep.store(false, Ordering::Relaxed);
            zone.count_free(&mut state);
        }
    }
}
