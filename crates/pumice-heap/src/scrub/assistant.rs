//! The thread that helps with a clearing that somebody waits for: see [`super::assist`].

use core::convert::Infallible;
use core::ffi::c_void;

use super::helper::{begin, Helper, Job, Stopped};
use crate::stats::Event;
use pumice_frames::clear::Warmth;
use pumice_frames::sys::thread;

pub(super) const ENTRY: thread::Entry = run;

extern "C" fn run(argument: *mut c_void) -> ! {
    // SAFETY: `Helper::ring` passed it.
    let (job, _) = unsafe { begin(argument, c"pumice-assist") };
    let Err(Stopped) = serve(job);
    // SAFETY: a helper's own thread, whose stack nobody else knows.
    unsafe { thread::exit() }
}

fn serve(job: Job) -> Result<Infallible, Stopped> {
    let mut counted_ns = 0;
    loop {
        helper(job).look()?;
        help(job);
        let used_ns = thread::cpu_time_ns();
        job.scrubber.slot().add(Event::ScrubberNs, used_ns - counted_ns);
        counted_ns = used_ns;
        helper(job).sleep()?;
    }
}

fn helper(job: Job) -> &'static Helper {
    job.scrubber.assistant()
}

fn help(job: Job) {
    let (assist, clearer) = (job.scrubber.assist(), job.scrubber.clearer());
    while let Some(piece) = assist.take() {
        // The kernel may have taken pages of it, which come back as they are written.
        job.source.prefer(piece.node);
        let engine = clearer.plan().engine(piece.whole, Warmth::Hot);
        // SAFETY: the piece is part of memory that a request was just given, and only the thread that took it touches
        // it until it is finished.
        unsafe { engine.clear(piece.at as *mut u8, piece.len) };
        assist.finish();
    }
}
