//! Processes that do something else meanwhile, and count how far they get.

use std::hint::black_box;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use pumice_command::region::Region;

/// The memory that a streaming neighbour goes through: more than it gets of any cache.
const STREAM_BYTES: usize = 512 << 20;
/// The work between two counts.
const PIECE_BYTES: usize = 1 << 20;
/// Steps that a computing neighbour does between two counts.
const STEPS: u64 = 10_000;

/// The work of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Nothing but arithmetic.
    Compute,
    /// Reads through memory.
    Read,
    /// Copies one half of its memory to the other.
    Copy,
}

/// The session of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Session {
    /// This process's.
    Same,
    /// One of its own.
    Own,
}

/// A process, killed on drop.
#[derive(Debug)]
pub struct Neighbour {
    pid: libc::pid_t,
    count: &'static AtomicU64,
}

impl Neighbour {
    /// Forks; the child works until it is killed. To be called while this process has one thread.
    pub fn start(work: Work, session: Session) -> io::Result<Neighbour> {
        let count = shared_counter()?;
        // SAFETY: the child only calls what is sound in the child of a process with one thread.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // SAFETY: plain system calls; the child dies with its parent, however that ends.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    if session == Session::Own {
                        libc::setsid();
                    }
                }
                toil(work, count)
            }
            pid => Ok(Neighbour { pid, count }),
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    /// How far it has got, in units of its own.
    pub fn work_done(&self) -> u64 {
        // Relaxed: a statistic.
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // SAFETY: the child is ours and has not been waited for.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, ptr::null_mut(), 0);
        }
    }
}

/// A counter that a child shares; it stays mapped, one page a neighbour.
fn shared_counter() -> io::Result<&'static AtomicU64> {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(ptr::null_mut(), 4096, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: mapped for good, zeroed, aligned to a page.
    Ok(unsafe { &*at.cast::<AtomicU64>() })
}

fn toil(work: Work, count: &AtomicU64) -> ! {
    let done = || count.fetch_add(1, Ordering::Relaxed);
    if work == Work::Compute {
        let mut value = 1u64;
        loop {
            for _ in 0..STEPS {
                value = black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
            }
            done();
        }
    }
    let Ok(mut region) = Region::populate(STREAM_BYTES) else { std::process::exit(1) };
    let (from, to) = region.bytes().split_at_mut(STREAM_BYTES / 2);
    loop {
        for (from, to) in from.chunks_exact(PIECE_BYTES).zip(to.chunks_exact_mut(PIECE_BYTES)) {
            if work == Work::Read {
                black_box(sum(from));
                black_box(sum(to));
            } else {
                to.copy_from_slice(from);
                black_box(&to);
            }
            done();
        }
    }
}

/// Reads all of a piece, as fast as plain loads go.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8).filter_map(|word| word.try_into().ok());
    words.fold(0, |sum, word| sum.wrapping_add(u64::from_ne_bytes(word)))
}
