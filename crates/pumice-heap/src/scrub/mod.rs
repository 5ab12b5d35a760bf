//! scrubd: the choice of memory to zero next, when to stop, how not to be noticed.
//!
//! Free memory that is not zero is worth zeroing ahead of its next use when it is large, cold and nobody else wants
//! the machine. The heap holds a [`Scrubber`], which runs three helper threads, each started when there is first
//! something for it to do:
//!
//! * *scrubd* claims, clears and hands back memory. It may be held off in the middle of a block, so
//!   it never owns memory that anybody waits for: it makes no call that takes the address space's lock (but
//!   with the engine `kernel`, which is used only where the user names it).
//! * the *keeper* populates memory ahead and gives back memory that has decayed. Those calls do take that lock, so it
//!   does little at a time.
//! * the *assistant* does a part of a clearing that a request waits for, if it is a large one (`assist`): it takes half
//!   as long where a processor is idle.
//!
//! All have the program's own priority. Under `SCHED_IDLE` scrubd would be the last of a program's threads to end on a
//! busy machine, and the last one takes the whole address space down: seconds in which the program is a zombie, and no
//! call of its own could prevent it (`kill -9`). The governor keeps it out of everybody's way: it looks before each
//! burst.
//!
//! No thread is woken for nothing (`bell`), and background work is not done where another program would notice it
//! (`governor`).
//!
//! Where the user names an engine beside the processor, scrubd keeps batches of claims in flight there
//! (`by_engine`, `flight`), and does the rest itself.
//!
//! `scrubd` decides when a freed block is zeroed (`Scrubd::work`), the governor whether that may be now, and the heap
//! which block is old enough (`heap/source.rs`): [`Source`] is where the first two find their work.
//! `Heap::notice_freed` wakes scrubd. Blocks that it has not come to are cleared when zeros are asked for
//! (`heap/serve.rs`). The layers are kept this way round so that policy (here) and the ledger (below) can be tested
//! apart.

#[cfg_attr(loom, allow(dead_code, reason = "the threads themselves are not modelled"))]
mod assist;
#[cfg(not(any(loom, shuttle)))]
mod assistant;
mod bell;
#[cfg(not(any(loom, shuttle)))]
mod by_engine;
#[cfg(not(any(loom, shuttle)))]
mod claims;
#[cfg(not(any(loom, shuttle)))]
mod engines;
#[cfg(not(any(loom, shuttle)))]
pub(crate) mod flight;
#[cfg(not(any(loom, shuttle)))]
mod governor;
#[cfg(not(any(loom, shuttle)))]
mod helper;
#[cfg(not(any(loom, shuttle)))]
mod keeper;
#[cfg(not(any(loom, shuttle)))]
mod pacer;
#[cfg(not(any(loom, shuttle)))]
mod scrubber;
#[cfg(not(any(loom, shuttle)))]
mod scrubd;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
#[cfg(not(any(loom, shuttle)))]
mod waiting;

#[cfg(not(any(loom, shuttle)))]
pub use pacer::{PaceLimits, Pacer};
#[cfg(not(any(loom, shuttle)))]
pub use scrubber::Scrubber;
#[cfg(not(any(loom, shuttle)))]
pub use waiting::{FOR_POPULATING, FOR_SCRUBBING};

use pumice_frames::addr::Order;

/// A piece of free memory that scrubd owns while it clears it: one block (2 MiB) at most.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// First byte, on a frame's boundary.
    pub at: *mut u8,
    /// Bytes, a multiple of a frame.
    pub len: usize,
    /// The memory node whose memory it is.
    pub node: usize,
    /// For the source's own use.
    pub token: u64,
}

/// The outcome of a [`Claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of it reads as zeros now.
    Zeroed,
    /// Given up; it may be partly cleared.
    Dirty,
}

/// Whether a pass over free memory left anything to come back for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing: the helper may sleep until the next free.
    Nothing,
    /// Something: the helper comes back when it is due.
    More,
}

/// The use of zeroing ahead just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The program asks for zeros, and fewer are there than it asked for lately.
    Wanted,
    /// Nobody asks: worth the time of a machine that has nothing else to do.
    Spare,
}

/// Passes of [`Source::decay`] in the time that free memory is kept at most.
pub const DECAY_PASSES: u32 = 7;

/// Where the helper threads find their work.
///
/// Any thread may free or allocate meanwhile; nobody may ever wait for a claim. No method may
/// panic, allocate, or use thread-local storage: they run on threads that libc does not know of. As
/// those touch others' memory, [`Source::claim`] and [`Source::populate`] say from which memory node
/// the kernel is to take the pages that the calling thread then faults in.
///
/// # Safety
/// The memory that [`Source::claim`] returns is nobody else's, and may be written, until [`Source::finish`] has it
/// back.
pub unsafe trait Source: Sync {
    /// A pass of the clock hand: marks every free, unzeroed area of order `stop` and higher as seen, and tells whether
    /// there is any. Freeing clears the mark. scrubd calls this, waits `scrub_delay_ms`, then claims: memory that
    /// still carries the mark is cold, memory that was allocated again or freed anew in between is not.
    fn age(&self, stop: Order) -> Left;

    /// Takes one marked area of order `stop` or higher out of the free memory, largest and
    /// longest-free first; `None` when there is none left.
    fn claim(&self, stop: Order) -> Option<Claim>;

    /// Sets the memory node of the pages that the calling thread faults in from now on, where there are several.
    fn prefer(&self, _node: usize) {}

    /// Returns a claim to the free memory.
    fn finish(&self, claim: Claim, outcome: Outcome);

    /// Counts the free memory, for observers of the process from outside.
    fn publish(&self) {}

    /// Whether the calling process is the one that helpers are threads of, and not one that has its memory for a while.
    fn is_at_home(&self) -> bool {
        true
    }

    /// No helper can be started: the helpers' work is to be done at once, or not at all.
    fn unhelped(&self) {}

    /// Looks for signs that others may hold the process's pages. The keeper asks, with a table of descriptors of its
    /// own.
    fn look_for_pins(&self) {}

    /// Whether zeros are asked for faster than they are made.
    fn need(&self) -> Need;

    /// Whether anything is still to be populated ahead (`--ready`).
    fn left_to_populate(&self) -> Left;

    /// Populates one more block ahead. [`Left::Nothing`] when enough are there or there is no memory for more.
    fn populate(&self) -> Left;

    /// A pass of the keeper's hand: free memory that it meets the second time is offered to the
    /// kernel, which takes it if it is short of memory. [`Left::Nothing`] when all has been.
    fn offer(&self) -> Left;

    /// A pass of the keeper's hand, [`DECAY_PASSES`] times in `decay_ms`: gives back memory that was free in all of
    /// them. [`Left::Nothing`] when no free memory is left that could decay.
    fn decay(&self) -> Left;
}
