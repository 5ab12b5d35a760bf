//! A helper thread's life: started by the first ring, asleep between works, stopped by a filter.
//!
//! The thread is a bare `clone` (see [`pumice_frames::sys::thread`]). Before its work it makes itself harmless. It gets
//! an empty table of descriptors of its own, because a descriptor opened in the program's table could take the number
//! that the program is about to rely on. It drops every capability, leaves the scheduling class and the processors of
//! the thread that happened to start it, and sets its name.
//!
//! # Rights
//! A thread has the user, the groups, the namespaces and so on of the thread that starts it, and keeps them. libc has
//! all threads change theirs that it knows of, and it does not know of these. So before the program changes its
//! rights the helpers end ([`Helper::stop`]), and start again, if at all, when it has ([`Helper::reopen`]).

use core::cell::UnsafeCell;
use core::ffi::{c_void, CStr};
use core::mem::MaybeUninit;
use core::time::Duration;

use super::bell::{Bell, Rung};
use super::{Scrubber, Source};
use pumice_frames::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use pumice_frames::sys::{privilege, sched, thread};

/// The work of a helper thread.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub(super) scrubber: &'static Scrubber,
    pub(super) source: &'static dyn Source,
}

/// Whether the thread can open files of its own: sensors are files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Descriptors {
    /// An empty table that it shares with nobody.
    Own,
    /// The program's: it must not open anything.
    Shared,
}

/// The helper is to end, for good: its open files go with its state, and the thread after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stopped;

/// One helper thread, running or not.
pub(super) struct Helper {
    bell: Bell,
    /// 1 once stopped: naps sleep on this word, so that stopping ends them.
    stopped: AtomicU32,
    /// 1 from before the thread is started until the kernel says that it has ended.
    alive: AtomicU32,
    /// The thread's number, once it is known.
    thread: AtomicU32,
    /// Its stack, for all threads that it is one after the other.
    stack: AtomicUsize,
    job: UnsafeCell<MaybeUninit<Job>>,
}

// SAFETY: `job` is written only by the thread whose ring is to start the helper, and read only by
// the helper, which is started after.
unsafe impl Sync for Helper {}

impl core::fmt::Debug for Helper {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Helper").field("bell", &self.bell).finish_non_exhaustive()
    }
}

impl Helper {
    pub(super) fn new() -> Helper {
        Helper {
            bell: Bell::new(),
            stopped: AtomicU32::new(0),
            alive: AtomicU32::new(0),
            thread: AtomicU32::new(0),
            stack: AtomicUsize::new(0),
            job: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// Tells the helper that there is work; starts it with `entry` if there is none yet. One that
    /// can't be started is not tried again. `false` when that is found out.
    pub(super) fn ring(&'static self, entry: thread::Entry, job: impl FnOnce() -> Job) -> bool {
        match self.bell.ring() {
            Rung::Already => {}
            Rung::Wake => thread::wake_one(self.bell.word().0),
            Rung::Start => return self.start(entry, job()),
        }
        true
    }

    #[cold]
    fn start(&'static self, entry: thread::Entry, job: Job) -> bool {
        if !job.source.is_at_home() {
            // The next ring may be the owner's.
            self.bell.take_back();
            return true;
        }
        // A handler of the program's may change rights, and waits for a thread whose number is not known yet.
        let _all_signals = thread::BlockedSignals::block();
        let cell = self.job.get().cast::<Job>();
        // Since the ring a handler, or another thread, may have stopped the helper, let it be started again, and even
        // started it.
        loop {
            // SeqCst: either `stop` sees this and waits, or the code below sees that it has been called.
            if self.alive.compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed).is_err() {
                return true;
            }
            if self.bell.is_rung() {
                break;
            }
            self.not_alive();
            // Rung while it seemed to be alive.
            if !self.bell.is_rung() {
                return true;
            }
        }
        // A debugger shows every thread there is.
        if thread::is_traced() {
            self.bell.stop();
            self.not_alive();
            return false;
        }
        // SAFETY: only the ring that is to start the helper comes here, and the last one has ended.
        unsafe { cell.write(job) };
        let argument = cell.cast::<c_void>();
        // SAFETY: the job and the entry are 'static, and the helper uses nothing of libc.
        match unsafe { thread::spawn(entry, argument, &self.thread, &self.alive, &self.stack) } {
            Ok(()) => true,
            Err(_) => {
                self.not_alive();
                self.bell.stop();
                false
            }
        }
    }

    /// There is no thread after all.
    fn not_alive(&self) {
        // Release: pairs with the Acquire in `stop`.
        self.alive.store(0, Ordering::Release);
        thread::wake_for_end(&self.alive);
    }

    /// The helper is about to look for work.
    pub(super) fn look(&self) -> Result<(), Stopped> {
        self.check()?;
        self.bell.look();
        Ok(())
    }

    /// Sleeps until rung. `false`, and no sleep, if that has happened since the last look.
    pub(super) fn sleep(&self) -> Result<bool, Stopped> {
        let slept = self.bell.fall_asleep();
        if slept {
            let (word, asleep) = self.bell.word();
            while self.bell.is_asleep() {
                thread::sleep_on(word, asleep, None);
            }
        }
        self.check()?;
        Ok(slept)
    }

    /// As [`Helper::sleep`], for `time` at most.
    pub(super) fn sleep_for(&self, time: Duration) -> Result<bool, Stopped> {
        let slept = self.bell.fall_asleep();
        if slept {
            let (word, asleep) = self.bell.word();
            // Waking early for no reason makes the next pass an early one.
            thread::sleep_on(word, asleep, Some(time));
            self.bell.time_is_up();
        }
        self.check()?;
        Ok(slept)
    }

    /// Sleeps for `time`; rings do not end it, stopping does.
    pub(super) fn nap(&self, time: Duration) -> Result<(), Stopped> {
        thread::sleep_on(&self.stopped, 0, Some(time));
        self.check()
    }

    /// Ends the helper and lets none be started. Returns when it is gone, for a seccomp filter may be installed for all
    /// threads next, and would find it on its way into a system call; or the program gives up rights that
    /// the helper has. Whether there was one.
    pub(super) fn stop(&self) -> bool {
        const STEP: Duration = Duration::from_millis(1);
        self.bell.stop();
        // Relaxed: it hands nothing over.
        self.stopped.store(1, Ordering::Relaxed);
        let mut was_alive = false;
        // SeqCst: pairs with `start`; it includes the Acquire that pairs with the kernel's 0 at the end.
        while self.alive.load(Ordering::SeqCst) != 0 {
            was_alive = true;
            sched::lend_class(self.thread.load(Ordering::Relaxed));
            thread::wake_one(&self.stopped);
            thread::wake_one(self.bell.word().0);
            thread::sleep_until_end(&self.alive, STEP);
            // A thread that was killed, or stayed with the parent of a fork, writes no 0.
            let number = self.thread.load(Ordering::Relaxed);
            if number != 0 && !thread::thread_exists(number) {
                self.alive.store(0, Ordering::Relaxed);
            }
        }
        if was_alive {
            self.see_off();
        }
        was_alive
    }

    /// Waits until the kernel counts the thread no more, which is a moment after it has ended; longer only where a
    /// debugger holds it.
    fn see_off(&self) {
        const PAUSE: Duration = Duration::from_micros(20);
        const LOOKS: u32 = 5_000;
        let number = self.thread.swap(0, Ordering::Relaxed);
        let mut looks = LOOKS;
        while number != 0 && looks > 0 && thread::thread_exists(number) {
            looks -= 1;
            thread::sleep(PAUSE);
        }
    }

    /// Lets the helper be started again.
    pub(super) fn reopen(&self) {
        // Relaxed: it hands nothing over.
        self.stopped.store(0, Ordering::Relaxed);
        self.bell.reopen();
    }

    /// In a fork's child, where the thread does not exist.
    pub(super) fn forget_thread(&self) {
        self.thread.store(0, Ordering::Relaxed);
        // With the stack that it is on in its own process.
        self.stack.store(0, Ordering::Relaxed);
        self.bell.forget_thread();
        self.alive.store(0, Ordering::Relaxed);
    }

    /// Whether the helper is to end: a work that takes long asks.
    pub(super) fn is_stopped(&self) -> bool {
        self.bell.is_stopped()
    }

    fn check(&self) -> Result<(), Stopped> {
        match self.bell.is_stopped() {
            true => Err(Stopped),
            false => Ok(()),
        }
    }
}

/// Takes over a new thread: reads its job and makes it harmless.
///
/// # Safety
/// `argument` is what [`Helper::ring`] passed to the entry.
pub(super) unsafe fn begin(argument: *mut c_void, name: &CStr) -> (Job, Descriptors) {
    // SAFETY: a job was written there before the thread was started.
    let job = unsafe { *argument.cast::<Job>() };
    privilege::set_thread_name(name);
    sched::leave_class();
    job.scrubber.home().enter();
    // SAFETY: the thread has just begun, and has opened nothing.
    let descriptors = match unsafe { privilege::leave_descriptors() } {
        Ok(()) => Descriptors::Own,
        Err(_) => Descriptors::Shared,
    };
    // Failing leaves the thread as privileged as the program is.
    let _ = privilege::drop_capabilities();
    (job, descriptors)
}
