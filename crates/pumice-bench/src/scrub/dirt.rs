//! A source that never runs out of cold, dirty blocks while it is switched on.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use pumice_frames::addr::{Order, BLOCK_SIZE};
use pumice_heap::scrub::{Claim, Left, Need, Outcome, Source};

use pumice_command::region::Region;

/// Hands out its blocks in turn. Only scrubd touches the memory.
#[derive(Debug)]
pub struct Dirt {
    at: usize,
    blocks: usize,
    next: AtomicUsize,
    on: AtomicBool,
    cleared_bytes: AtomicU64,
}

impl Dirt {
    /// Switched off at first. The memory stays mapped for good: scrubd's threads are never joined.
    pub fn new(region: Region) -> Dirt {
        let bytes = ManuallyDrop::new(region).bytes().as_mut_ptr_range();
        let (at, len) = (bytes.start as usize, bytes.end as usize - bytes.start as usize);
        // Neighbours are forks; sharing this with them would make each first write a copy.
        // SAFETY: the advice changes nothing in this process.
        unsafe { libc::madvise(bytes.start.cast(), len, libc::MADV_DONTFORK) };
        let blocks = len / BLOCK_SIZE;
        Dirt {
            at,
            blocks,
            next: AtomicUsize::new(0),
            on: AtomicBool::new(false),
            cleared_bytes: AtomicU64::new(0),
        }
    }

    /// Whether there is dirt from now on.
    pub fn switch(&self, on: bool) {
        // Relaxed: the thread that switches it on rings scrubd next, which orders the two.
        self.on.store(on, Ordering::Relaxed);
    }

    /// Bytes cleared so far.
    pub fn cleared_bytes(&self) -> u64 {
        self.cleared_bytes.load(Ordering::Relaxed)
    }

    fn left(&self) -> Left {
        if self.on.load(Ordering::Relaxed) {
            Left::More
        } else {
            Left::Nothing
        }
    }
}

// SAFETY: its blocks are mapped for it alone, and each is claimed once at a time.
unsafe impl Source for Dirt {
    fn age(&self, _stop: Order) -> Left {
        self.left()
    }

    fn claim(&self, _stop: Order) -> Option<Claim> {
        if self.left() == Left::Nothing {
            return None;
        }
        let index = self.next.fetch_add(1, Ordering::Relaxed).checked_rem(self.blocks)?;
        let at = (self.at + index * BLOCK_SIZE) as *mut u8;
        Some(Claim { at, len: BLOCK_SIZE, node: 0, token: 0 })
    }

    fn finish(&self, claim: Claim, _outcome: Outcome) {
        self.cleared_bytes.fetch_add(claim.len as u64, Ordering::Relaxed);
    }

    fn need(&self) -> Need {
        Need::Wanted
    }

    fn left_to_populate(&self) -> Left {
        Left::Nothing
    }

    fn populate(&self) -> Left {
        Left::Nothing
    }

    fn offer(&self) -> Left {
        Left::Nothing
    }

    fn decay(&self) -> Left {
        Left::Nothing
    }
}
