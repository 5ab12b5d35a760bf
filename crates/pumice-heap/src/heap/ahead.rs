//! Memory that `--ready` asks for, populated ahead of requests.
//!
//! The tree of processes says how much, and the first to make a request has it. The process that
//! `pumice run` started begins to populate before it makes one:
//! ```text
//! UNASKED --populate_ahead--> EARLY --first request--> SETTLED: it is this heap's,
//!    |                          +---------------------------->  or another's: it decays
//!    +----------------------------------first request--> SETTLED: the same
//! ```
//! Memory that is handed out while it is being populated counts as well: its owner faults it in.

use super::held::MOST_GUESSED;
use super::{Heap, ZoneKind};
use pumice_frames::addr::{BLOCK_FRAMES, BLOCK_SIZE};
use pumice_frames::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

const UNASKED: u32 = 0;
const EARLY: u32 = 1;
const SETTLED: u32 = 2;

/// The memory that is to be populated. All of it is relaxed: amounts that order nothing.
#[derive(Debug)]
pub(super) struct Ahead {
    state: AtomicU32,
    /// The node whose ready zone it is: the one that asked.
    node: AtomicUsize,
    /// Blocks still to populate.
    left: AtomicUsize,
    /// Free blocks that decay leaves alone.
    keep: AtomicUsize,
}

impl Ahead {
    pub(super) fn new() -> Ahead {
        Ahead {
            state: AtomicU32::new(UNASKED),
            node: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            keep: AtomicUsize::new(0),
        }
    }

    /// Blocks still to populate.
    pub(super) fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    /// The node whose ready zone they are of.
    pub(super) fn node(&self) -> usize {
        self.node.load(Ordering::Relaxed)
    }

    /// Blocks still to populate in a node's zone.
    pub(super) fn left_on(&self, node: usize) -> usize {
        match self.left() {
            left if left > 0 && self.node() == node => left,
            _ => 0,
        }
    }

    /// Free blocks that decay leaves alone.
    pub(super) fn keep(&self) -> usize {
        self.keep.load(Ordering::Relaxed)
    }

    /// Free blocks of a node's zone that decay leaves alone.
    pub(super) fn keep_on(&self, node: usize) -> usize {
        match self.keep() {
            keep if self.node() == node => keep,
            _ => 0,
        }
    }

    /// `blocks` fewer are to be populated.
    #[inline]
    pub(super) fn done(&self, blocks: usize) {
        if blocks == 0 || self.left() == 0 {
            return;
        }
        let less = |left: usize| Some(left.saturating_sub(blocks));
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Nothing more can be populated.
    pub(super) fn stop(&self) {
        self.left.store(0, Ordering::Relaxed);
    }

    /// In a fork's child, whose parent's memory is not its own.
    pub(super) fn after_fork(&self) {
        self.stop();
        // Memory that an early parent has populated is not this heap's yet, and may never be.
        if self.state.load(Ordering::Relaxed) == EARLY {
            self.state.store(UNASKED, Ordering::Relaxed);
            self.keep.store(0, Ordering::Relaxed);
        }
    }

    fn begin(&self, node: usize, bytes: usize) {
        self.node.store(node, Ordering::Relaxed);
        self.keep.store(bytes.div_ceil(BLOCK_SIZE), Ordering::Relaxed);
        self.left.store(bytes.div_ceil(BLOCK_SIZE), Ordering::Relaxed);
    }

    /// The memory that is there is another's to have.
    fn abandon(&self) {
        self.state.store(SETTLED, Ordering::Relaxed);
        self.stop();
        self.keep.store(0, Ordering::Relaxed);
    }
}

impl Heap {
    /// Begins to populate as much as the tree says, before there is a request: for the process that the tree starts
    /// with.
    pub fn populate_ahead(&'static self) {
        let relaxed = Ordering::Relaxed;
        if self.ahead.state.compare_exchange(UNASKED, EARLY, relaxed, relaxed).is_ok() {
            self.begin(self.tree().ready_bytes() as usize);
        }
    }

    /// At each request: the first one makes the memory of which the tree says so this heap's.
    #[inline]
    pub(super) fn settle_ahead(&'static self) {
        if self.ahead.state.load(Ordering::Relaxed) != SETTLED {
            self.take_ahead();
        }
    }

    #[cold]
    fn take_ahead(&'static self) {
        let before = self.ahead.state.swap(SETTLED, Ordering::Relaxed);
        if before == SETTLED {
            return;
        }
        let taken = self.tree().take_ready_bytes() as usize;
        if before == UNASKED {
            self.begin(taken);
        } else if taken == 0 {
            self.ahead.abandon();
        }
    }

    fn begin(&'static self, bytes: usize) {
        if bytes > 0 {
            self.ahead.begin(self.zones.here(), bytes);
            self.scrubber.keep(self);
        }
    }

    /// Whether memory that is populated early may still turn out to be another's; gives it up if it has.
    pub(super) fn is_ahead_open(&self) -> bool {
        let is_early = self.ahead.state.load(Ordering::Relaxed) == EARLY;
        let is_left = is_early && self.tree().ready_bytes() > 0;
        if is_early && !is_left {
            self.ahead.abandon();
        }
        is_left
    }

    /// Whether a request on a node of which nothing is known is to be served from memory that is ready, or will be:
    /// all of it but an eighth, which may be new. Where nobody has asked for it in advance, a request for much may be
    /// for memory that is hardly touched.
    pub(super) fn has_ready_for(&self, node: usize, frames: usize) -> bool {
        let is_guess = self.ahead.keep() == 0;
        if is_guess && (frames > MOST_GUESSED || self.is_too_much_held()) {
            return false;
        }
        let zone = self.zones.local(node, ZoneKind::Ready);
        let blocks = zone.ready_blocks() + self.ahead.left_on(node);
        frames <= blocks * BLOCK_FRAMES + blocks * BLOCK_FRAMES / 8
    }
}
