//! Pages that a reclaimer evicts: those chosen, those being written, and the notes on them.
//!
//! [`super::writeout`] says how they go. A reclaimer has one [`Writes`], and the zone keeps those that are idle.

use std::ptr::NonNull;

use crate::backing::{Outgoing, Place};
use crate::page_table::pager::SpaceId;
use crate::space::write_back::WriteBack;
use crate::space::Transit;
use pumice_io::engine::Piece;
use pumice_io::{AnyEngine, Engines, Queue};

use super::members::{CachedSlot, Owner};
use super::policy::Shadow;

/// Writes in flight at most, of any reclaimer.
const MOST_WRITES: usize = 64;

/// Writes that fail in a row, of any thread, after which the next failure is told to the threads that wait: a single
/// one says nothing of other pages.
pub(super) const MOST_FAILURES: usize = 16;
/// How many are left of these when that was said.
pub(super) const MANY_FAILURES: usize = MOST_FAILURES - 4;

/// A page that the policy chose.
#[derive(Clone, Copy)]
pub(super) struct Victim {
    pub frame: u32,
    pub shadow: Shadow,
    pub owner: Owner,
    pub slot: u32,
    pub is_new: bool,
}

/// How a page is kept while it is written.
pub(super) enum Way {
    /// A thread that wants the page takes it back.
    Transit(Transit),
    /// A thread that wants to write the page waits: it is written in place.
    Held(WriteBack),
}

/// A page on its way out.
pub(super) struct Leaving {
    pub victim: Victim,
    pub way: Way,
}

/// Pages that are being written: one space's.
#[derive(Default)]
pub(super) struct Write {
    pub pages: Vec<Leaving>,
    pub outgoing: Vec<Outgoing>,
    pub pieces: Vec<Piece>,
}

/// Writes in flight.
pub(super) struct Writes {
    pub queue: Queue<AnyEngine, (Place, Write)>,
    /// Requests that it takes at a time.
    pub depth: usize,
    /// Lists of writes to come.
    pub spare: Vec<Write>,
    pub pages: usize,
    /// Those asked about at the moment.
    pub outgoing: Vec<Outgoing>,
    /// For another queue when this one fails.
    pub engines: Engines,
}

// SAFETY: the frames that it names are used by its owner, while the frames' pages are on their way out.
unsafe impl Send for Writes {}

impl Writes {
    pub fn new(engines: &Engines, depth: u32) -> Writes {
        let queue = Queue::new(engines.make(depth), (depth as usize).min(MOST_WRITES));
        Writes {
            depth: queue.room(),
            queue,
            spare: Vec::new(),
            pages: 0,
            outgoing: Vec::new(),
            engines: engines.clone(),
        }
    }

    /// Pages in flight.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// A list is over, and its room is for another.
    pub fn keep(&mut self, write: Write) {
        self.spare.push(write);
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }
}

/// A batch's results that are noted under one lock.
#[derive(Default)]
pub(super) struct Notes {
    /// They stay, and whether they were used.
    pub stay: Vec<(Victim, bool)>,
    /// Slots of pages that are in the swap cache no more.
    pub slots: Vec<CachedSlot>,
    pub pswpout: u64,
    pub writes: u64,
    pub clean: u64,
    pub rescued: u64,
    pub errors: u64,
}

impl Notes {
    /// A page stays, and was not used.
    pub fn stays(&mut self, victim: Victim) {
        self.stay.push((victim, false));
    }

    /// A page stays, and was used.
    pub fn stays_used(&mut self, victim: Victim) {
        self.stay.push((victim, true));
    }

    pub fn give_up_slot(&mut self, victim: Victim) {
        self.slots.extend({ victim }.take_slot());
    }
}

impl Victim {
    pub fn outgoing(&self, space: SpaceId, at: NonNull<u8>) -> Outgoing {
        let Victim { owner, slot, shadow, .. } = *self;
        Outgoing { space, page: owner.page(), at, slot, note: shadow.to_bits() }
    }

    pub fn take_slot(&mut self) -> Option<CachedSlot> {
        let slot = std::mem::take(&mut self.slot);
        (slot != 0).then(|| (self.owner.member(), slot))
    }

    pub fn without_slot(self) -> Victim {
        Victim { slot: 0, ..self }
    }
}

impl Leaving {
    pub fn member(&self) -> usize {
        self.victim.owner.member()
    }
}
