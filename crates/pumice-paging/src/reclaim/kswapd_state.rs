//! The present activity of a zone's `kswapd`. The zone's lock guards it.
//!
//! # Transitions
//! | from | to | when |
//! |---|---|---|
//! | Absent | Awake | the thread begins |
//! | Awake | Stuck | a round has no more to try, or all pages of a round must not be written yet |
//! | Stuck | Awake | frames became free, a page came back or may be written, or a thread asked for frames |
//! | Awake | Asleep | enough frames are free, or other reclaimers write as much as may be written |
//! | Stuck | Resting | it pauses |
//! | Resting | Asleep | as from Stuck to Awake |
//! | Asleep, Resting | Awake | it was woken, or its pause is over |
//! | any | Absent | the thread ends |
//!
//! An absent thread stays absent, whatever the others report. Requests wake a thread that is Asleep. One that is
//! Resting they leave alone until they reclaim themselves.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Activity {
    #[default]
    Absent,
    Awake,
    /// It works, or is about to pause: there was no more to try, and no thread has asked since.
    Stuck,
    /// It waits to be woken.
    Asleep,
    /// It pauses, since there was no more to try.
    Resting,
}

use Activity::{Absent, Asleep, Awake, Resting, Stuck};

/// See the module's top.
#[derive(Debug, Default)]
pub(super) struct Kswapd {
    activity: Activity,
    /// How often in a row there was no more to try.
    times_stuck: u32,
    /// It was woken since it began to wait, and has not run yet.
    is_called: bool,
}

impl Kswapd {
    /// Whether the zone has the thread.
    pub fn is_there(&self) -> bool {
        self.activity != Absent
    }

    /// Whether it waits to be woken, or for its pause to end.
    pub fn is_waiting(&self) -> bool {
        matches!(self.activity, Asleep | Resting)
    }

    /// Whether it is to be woken: it waits, and nobody has called it since it began to. Now somebody has.
    pub fn call(&mut self) -> bool {
        self.is_waiting() && !std::mem::replace(&mut self.is_called, true)
    }

    /// Whether it waits to be woken by any request.
    pub fn is_asleep(&self) -> bool {
        self.activity == Asleep
    }

    /// Whether there was no more to try.
    pub fn is_stuck(&self) -> bool {
        matches!(self.activity, Stuck | Resting)
    }

    /// How often in a row there was no more to try.
    pub fn times_stuck(&self) -> u32 {
        self.times_stuck
    }

    pub fn begin(&mut self) {
        self.activity = Awake;
    }

    pub fn end(&mut self) {
        self.activity = Absent;
    }

    pub fn fall_asleep(&mut self) {
        self.is_called = false;
        self.step(|activity| if activity == Stuck { Resting } else { Asleep });
    }

    pub fn wake_up(&mut self) {
        self.step(|_| Awake);
    }

    /// There is no more to try for now.
    pub fn get_stuck(&mut self) {
        self.step(|activity| if activity == Awake { Stuck } else { activity });
    }

    /// There may be more to try. Returns whether it was stuck.
    pub fn get_unstuck(&mut self) -> bool {
        let was_stuck = self.is_stuck();
        self.step(|activity| match activity {
            Stuck => Awake,
            Resting => Asleep,
            other => other,
        });
        was_stuck
    }

    /// A request ended without frames: the next pause is longer.
    pub fn note_futile(&mut self) {
        self.times_stuck += 1;
    }

    /// There is more to try: the next pause is short again.
    pub fn start_over(&mut self) {
        self.get_unstuck();
        self.times_stuck = 0;
    }

    fn step(&mut self, next: impl Fn(Activity) -> Activity) {
        if self.is_there() {
            self.activity = next(self.activity);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn only_transitions_of_the_table_happen() {
        const ALL: [Activity; 5] = [Absent, Awake, Stuck, Asleep, Resting];
        /// A method, and what it makes of each of `ALL`.
        type Case = (fn(&mut Kswapd), [Activity; 5]);
        let cases: [Case; 6] = [
            (Kswapd::begin, [Awake; 5]),
            (Kswapd::end, [Absent; 5]),
            (Kswapd::fall_asleep, [Absent, Asleep, Resting, Asleep, Asleep]),
            (Kswapd::wake_up, [Absent, Awake, Awake, Awake, Awake]),
            (Kswapd::get_stuck, [Absent, Stuck, Stuck, Asleep, Resting]),
            (Kswapd::start_over, [Absent, Awake, Awake, Asleep, Asleep]),
        ];
        for (method, expected) in cases {
            for (from, to) in ALL.into_iter().zip(expected) {
                let mut kswapd = Kswapd { activity: from, times_stuck: 1, is_called: true };
                method(&mut kswapd);
                assert_eq!(kswapd.activity, to, "from {from:?}");
            }
        }
    }

    #[test]
    fn one_call_wakes_it_each_time_it_waits() {
        let mut kswapd = Kswapd::default();
        assert!(!kswapd.call(), "absent");
        kswapd.begin();
        for _ in 0..2 {
            assert!(!kswapd.call(), "awake");
            kswapd.fall_asleep();
            assert!(kswapd.call() && !kswapd.call());
            kswapd.wake_up();
        }
    }
}
