//! Signals that end a process, taken so that results are written and files removed first.

use std::ffi::c_int;
use std::mem::zeroed;
use std::sync::atomic::{AtomicI32, Ordering};

use pumice_command::Failure;

const SIGNALS: [c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGALRM];

/// The last signal of those taken; 0 for none. Nothing else is published with it: relaxed.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// While there is one of these, signals that end a process are only noted. They end a wait.
#[derive(Debug)]
pub struct Interrupts(());

impl Interrupts {
    /// Takes them.
    pub fn take() -> Interrupts {
        for signal in SIGNALS {
            // SAFETY: zeros are a valid sigaction; the handler only stores to an atomic. Without
            // SA_RESTART it ends a wait.
            unsafe {
                let mut action: libc::sigaction = zeroed();
                action.sa_sigaction = note as extern "C" fn(c_int) as usize;
                libc::sigaction(signal, &action, std::ptr::null_mut());
            }
        }
        Interrupts(())
    }

    /// Fails if a signal has come.
    pub fn look(&self) -> Result<(), Failure> {
        match self.came() {
            Some(_) => Err(Failure::system("interrupted")),
            None => Ok(()),
        }
    }

    /// The signal that came, if any did.
    pub fn came(&self) -> Option<c_int> {
        Some(SIGNAL.load(Ordering::Relaxed)).filter(|&signal| signal != 0)
    }

    /// Forgets the one that came.
    pub fn forget(&self) {
        SIGNAL.store(0, Ordering::Relaxed);
    }

    /// For tests, where other threads' signals stay as they are.
    #[cfg(test)]
    pub fn none() -> Interrupts {
        Interrupts(())
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        for signal in SIGNALS {
            // SAFETY: a disposition that every signal of these can have.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

extern "C" fn note(signal: c_int) {
    SIGNAL.store(signal, Ordering::Relaxed);
}
