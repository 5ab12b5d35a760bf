//! The state of a helper thread, and how it is woken without ever being woken for nothing.
//!
//! One word, written by the helper and by every thread that frees memory:
//!
//! | state | meaning | next |
//! |---|---|---|
//! | `NONE` | there is no thread | `RUNG` by the first ring, whose caller starts it |
//! | `RUNG` | it runs, and will look for work once more | `AWAKE` by the helper, just before it looks |
//! | `AWAKE` | it runs, and has looked or is looking | `RUNG` by a ring, `ASLEEP` by the helper |
//! | `ASLEEP` | it sleeps on this word | `RUNG` by a ring, whose caller wakes it; `AWAKE` by the helper when its time is up |
//! | `STOPPED` | it must do nothing any more | `NONE` when it has ended and another may be started (a fork's child keeps it) |
//!
//! A ring is one load while the state is `RUNG`, as it is nearly always under load.
//!
//! No work is missed: a freeing thread publishes its frames, *then* reads the state; the helper
//! sets `AWAKE`, *then* looks at the frames. Both put a sequentially consistent fence between the
//! two, so either the helper sees the frames or the freeing thread sees `AWAKE` and changes it to
//! `RUNG`, on which the helper's step to `ASLEEP` fails. Loom runs it in the tests below.

#![cfg_attr(loom, allow(dead_code, reason = "the threads themselves are not modelled"))]

use pumice_frames::sync::atomic::{fence, AtomicU32, Ordering};

const NONE: u32 = 0;
const RUNG: u32 = 1;
const AWAKE: u32 = 2;
const ASLEEP: u32 = 3;
const STOPPED: u32 = 4;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Bell {
    state: AtomicU32,
}

/// The step that is left to the ringer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rung {
    /// Nothing: the helper looks anyway, or must not.
    Already,
    /// Start the thread.
    Start,
    /// Wake the thread, which sleeps on [`Bell::word`].
    Wake,
}

impl Bell {
    pub(super) fn new() -> Bell {
        Bell { state: AtomicU32::new(NONE) }
    }

    /// Tells the helper that there is work, after that work was published.
    pub(super) fn ring(&self) -> Rung {
        // SeqCst: between the caller's publishing and the load below; pairs with `look`.
        fence(Ordering::SeqCst);
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let rung = match state {
                NONE => Rung::Start,
                ASLEEP => Rung::Wake,
                AWAKE => Rung::Already,
                _ => return Rung::Already,
            };
            // Release: the helper that sees RUNG sees everything published before it.
            match self.state.compare_exchange_weak(
                state,
                RUNG,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return rung,
                Err(seen) => state = seen,
            }
        }
    }

    /// The helper is about to look for work.
    pub(super) fn look(&self) {
        // Acquire: pairs with the Release in `ring`. Any other state stays as it is.
        let _ = self.state.compare_exchange(RUNG, AWAKE, Ordering::Acquire, Ordering::Relaxed);
        // SeqCst: between the change above and the caller's look at the work; pairs with `ring`.
        fence(Ordering::SeqCst);
    }

    /// The helper found nothing and wants to sleep. `false` if it has been rung since it looked.
    pub(super) fn fall_asleep(&self) -> bool {
        // Relaxed: it hands nothing over; that no ring was missed rests on the fences.
        self.state.compare_exchange(AWAKE, ASLEEP, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The helper's time is up: it goes to look, rung or not.
    pub(super) fn time_is_up(&self) {
        // Relaxed: it hands nothing over. Rung meanwhile, `look` finds that.
        let _ = self.state.compare_exchange(ASLEEP, AWAKE, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether the helper must go on sleeping.
    pub(super) fn is_asleep(&self) -> bool {
        // Acquire: woken, it sees everything that the ringer published.
        self.state.load(Ordering::Acquire) == ASLEEP
    }

    /// Whether somebody has rung, and nobody has looked or stopped it since.
    pub(super) fn is_rung(&self) -> bool {
        // SeqCst: see `Helper::start`.
        self.state.load(Ordering::SeqCst) == RUNG
    }

    /// Whether the helper must do nothing any more.
    pub(super) fn is_stopped(&self) -> bool {
        // SeqCst: see `Helper::start`.
        self.state.load(Ordering::SeqCst) == STOPPED
    }

    /// Stops the helper, or keeps it from being started.
    pub(super) fn stop(&self) {
        // SeqCst: see `Helper::start`.
        self.state.store(STOPPED, Ordering::SeqCst);
    }

    /// A helper that was stopped has ended, and another may be started.
    pub(super) fn reopen(&self) {
        // Relaxed: it hands nothing over.
        let _ = self.state.compare_exchange(STOPPED, NONE, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Takes back a ring that was to start the thread: the next one is to.
    pub(super) fn take_back(&self) {
        // Relaxed: it hands nothing over. Stopped meanwhile, it stays so.
        let _ = self.state.compare_exchange(RUNG, NONE, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// In a fork's child: the thread stayed with the parent.
    pub(super) fn forget_thread(&self) {
        // Relaxed: the child has one thread.
        if self.state.load(Ordering::Relaxed) != STOPPED {
            self.state.store(NONE, Ordering::Relaxed);
        }
    }

    /// The word that the helper sleeps on while [`Bell::is_asleep`].
    pub(super) fn word(&self) -> (&AtomicU32, u32) {
        (&self.state, ASLEEP)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn one_ring_starts_one_wakes_and_the_rest_cost_a_load() {
        let bell = Bell::new();
        assert_eq!(bell.ring(), Rung::Start);
        assert_eq!(bell.ring(), Rung::Already);
        assert!(!bell.fall_asleep(), "it has not looked yet");
        bell.look();
        assert!(bell.fall_asleep());
        assert_eq!(bell.ring(), Rung::Wake);
        assert!(!bell.is_asleep());
    }

    #[test]
    fn a_helper_that_woke_by_itself_needs_no_wake() {
        let bell = Bell::new();
        bell.ring();
        bell.look();
        assert!(bell.fall_asleep());
        bell.time_is_up();
        assert_eq!(bell.ring(), Rung::Already);
        bell.time_is_up();
        assert!(!bell.fall_asleep(), "the ring is not lost");
    }

    #[test]
    fn a_ring_after_the_look_keeps_it_awake() {
        let bell = Bell::new();
        bell.ring();
        bell.look();
        assert_eq!(bell.ring(), Rung::Already);
        assert!(!bell.fall_asleep());
    }

    #[test]
    fn stopped_is_for_good_and_survives_a_fork() {
        let bell = Bell::new();
        bell.stop();
        bell.forget_thread();
        assert_eq!(bell.ring(), Rung::Already);
        assert!(bell.is_stopped());
    }

    #[test]
    fn what_was_stopped_may_be_started_again() {
        let bell = Bell::new();
        bell.reopen();
        assert_eq!(bell.ring(), Rung::Start);
        bell.reopen();
        assert_eq!(bell.ring(), Rung::Already, "it was not stopped");
        bell.stop();
        bell.reopen();
        assert_eq!(bell.ring(), Rung::Start);
    }

    #[test]
    fn a_forks_child_starts_its_own() {
        let bell = Bell::new();
        bell.ring();
        bell.forget_thread();
        assert_eq!(bell.ring(), Rung::Start);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Frames freed and not yet seen by the helper; relaxed, so that only the bell orders them.
    struct Scene {
        bell: Bell,
        dirty: AtomicU32,
    }

    /// One round of the helper: looks, takes the work that is there, and tells whether it fell asleep.
    fn helper_round(scene: &Scene) -> bool {
        scene.bell.look();
        let found = scene.dirty.load(Ordering::Relaxed);
        scene.dirty.fetch_sub(found, Ordering::Relaxed);
        found == 0 && scene.bell.fall_asleep()
    }

    fn free(scene: &Scene) -> Rung {
        scene.dirty.fetch_add(1, Ordering::Relaxed);
        scene.bell.ring()
    }

    /// A sleeping helper has no work, unless a ringer is about to wake it.
    fn check(frees_each: u32, ringers: usize, wakes_by_itself: bool) {
        let mut model = loom::model::Builder::new();
        // Three preemptions find every reordering of a handful of steps; without a bound two
        // ringers take minutes.
        model.preemption_bound = Some(3);
        model.check(move || {
            let scene = Arc::new(Scene { bell: Bell::new(), dirty: AtomicU32::new(0) });
            assert_eq!(scene.bell.ring(), Rung::Start);
            let threads: Vec<_> = (0..ringers)
                .map(|_| {
                    let scene = scene.clone();
                    thread::spawn(move || {
                        (0..frees_each).filter(|_| free(&scene) == Rung::Wake).count()
                    })
                })
                .collect();
            let mut sleeps = 0;
            for _ in 0..2 {
                sleeps += usize::from(helper_round(&scene));
                if wakes_by_itself {
                    scene.bell.time_is_up();
                } else if sleeps > 0 {
                    break;
                }
            }
            let wakes: usize =
                threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
            assert!(wakes <= sleeps, "one sleep is ended by one wake at most");
            if scene.bell.is_asleep() {
                let dirty = scene.dirty.load(Ordering::Relaxed);
                assert_eq!(dirty, 0, "asleep over dirty frames");
            } else if wakes_by_itself {
                // Rung, or not: the next round finds the work that is there.
                helper_round(&scene);
                assert_eq!(scene.dirty.load(Ordering::Relaxed), 0);
            }
        });
    }

    #[test]
    fn a_free_is_never_slept_over() {
        check(2, 1, false);
    }

    #[test]
    fn nor_when_the_sleep_has_an_end() {
        check(2, 1, true);
    }

    #[test]
    fn two_freeing_threads_wake_once() {
        check(1, 2, false);
    }
}
