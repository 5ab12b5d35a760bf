//! The two ways the shim ends a program: a program's error, and one of its own.

use core::fmt::{self, Write};
use rustix::process::Signal;

/// Ends the program as glibc does when it finds the heap misused. Says why only if told to: standard error may be
/// another program's input.
#[cold]
pub(crate) fn misuse(what: &str, verbose: Verbosity) -> ! {
    if verbose == Verbosity::Explain {
        // Nothing to be done if it can't be written.
        let _ = writeln!(StandardError, "pumice: {what}");
    }
    abort()
}

/// Whether to say anything before the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verbosity {
    /// Nothing.
    Silent,
    /// One line.
    Explain,
}

#[cfg(feature = "freestanding")]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let _ = match info.location() {
        Some(at) => writeln!(StandardError, "pumice: error in {}:{}", at.file(), at.line()),
        None => writeln!(StandardError, "pumice: error"),
    };
    abort()
}

/// `SIGABRT`, so that a handler runs and a core is written; a trap if even that returns.
fn abort() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::ABORT);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: raises SIGILL and does not come back.
    unsafe {
        core::arch::asm!("ud2", options(noreturn))
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: raises SIGTRAP and does not come back.
    unsafe {
        core::arch::asm!("brk #1", options(noreturn))
    }
}

pub(crate) struct StandardError;

impl Write for StandardError {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: descriptor 2 is used for this one call; if it is closed, the call fails.
        let stderr = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
        match rustix::io::write(stderr, text.as_bytes()) {
            Ok(_) => Ok(()),
            Err(_) => Err(fmt::Error),
        }
    }
}
