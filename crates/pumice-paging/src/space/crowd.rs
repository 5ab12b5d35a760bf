//! Very many readers of a page: more than its word counts.
//!
//! A guard for reading that finds [`CROWDED`] readers in a page's latch joins the page's *crowd*. That is a word of its
//! own, which counts any number, and all of the crowd have one reader of the page's latch together:
//!
//! ```text
//!   the page's word   ... | latch: those that came before, and 1 for the crowd | Present
//!   the crowd's word  readers                                                  | Doomed
//! ```
//! A guard ends by one addition to the word that it has, whichever that is, and looks whether it was the last reader of
//! a doomed page. A crowd's word says that of itself, so the last of a crowd comes here, and nobody else's way is
//! longer by crowds.
//!
//! # Invariants
//! - Crowds come and go under a lock; joining one is under the lock, too, leaving is not, but for the last.
//! - For as long as a crowd has a page, that page's latch has one reader for it. So the page neither leaves, nor is
//!   written to, nor are its tables freed.
//! - A crowd without readers that has a page has its last reader on the way here: all that have a guard hold the page's
//!   VMA, and that thread still does. Another thread may end the crowd: one may have joined and left meanwhile, or the
//!   crowd may be another page's by then.
//! - A page that is unmapped has no new readers: a thread that joins looks at its word afterwards.
//!
//! Writers wait as they always did, until nobody reads.

use super::error::Trap;
use super::fault::Walked;
use super::task::Task;
use crate::page_table::entry::{CROWDED, MAX_READERS, ONE_READER};
use crate::page_table::tables::{FrameList, Table};
use crate::page_table::{Entry, FrameSource, State, TableOps};
use pumice_frames::addr::Pfn;
use pumice_io::sync::atomic::{AtomicU64, Ordering};

/// Frames of crowds: with the 256 of each, two million guards and more are needed for as many.
const MOST_FRAMES: usize = 64;
/// Words of a crowd.
const CROWD_WORDS: usize = 2;

/// The crowds of a space, behind its lock.
#[derive(Debug)]
pub(super) struct Crowds {
    frames: [Pfn; MOST_FRAMES],
    len: usize,
}

/// A crowd's words. They stay where they are for as long as the space.
#[derive(Clone, Copy, Debug)]
struct Crowd<'s> {
    /// 1 + the page's number; 0 for none. Relaxed: only the lock's holder uses it.
    page: &'s AtomicU64,
    /// How many readers there are, as a word that a guard ends by.
    readers: &'s AtomicU64,
}

impl Crowds {
    pub fn new() -> Crowds {
        Crowds { frames: [Pfn(0); MOST_FRAMES], len: 0 }
    }

    /// The frames they are in.
    #[inline]
    pub fn frames(&self) -> impl Iterator<Item = Pfn> + '_ {
        self.frames[..self.len].iter().copied()
    }

    fn all<'s, F>(&'s self, source: F) -> impl Iterator<Item = Crowd<'s>> + 's
    where
        F: FrameSource + 's,
    {
        self.frames().flat_map(move |frame| {
            // SAFETY: a frame of the space's, of as many words as a table.
            let words: Table<F> = unsafe { Table::at(source, frame) };
            (0..F::ENTRIES / CROWD_WORDS).map(move |index| {
                let [page, readers] = [0, 1].map(|word| words.entry(CROWD_WORDS * index + word));
                Crowd { page, readers }
            })
        })
    }
}

/// How joining a crowd went.
#[derive(Debug)]
pub(super) enum Joined<'s> {
    /// The word that the guard ends by, and the page's.
    Crowd(&'s AtomicU64, Entry),
    /// The latch is as large as it gets, for a moment.
    Full,
    /// The page is another matter now.
    Changed,
}

impl<F: FrameSource, T: TableOps> Task<'_, F, T> {
    /// Joins the crowd of a page, or begins it.
    pub(super) fn join_crowd(&self, walked: &Walked<'_, F>) -> Result<Joined<'_>, Trap> {
        let (source, ops) = (self.space.tables.source, &self.space.tables.ops);
        let name = walked.page as u64 + 1;
        loop {
            let crowds = self.space.crowds.lock();
            let mut free = None;
            let mut own = None;
            for crowd in crowds.all(source) {
                match crowd.page.load(Ordering::Relaxed) {
                    0 => free = free.or(Some(crowd)),
                    page if page == name => own = Some(crowd),
                    _ => {}
                }
            }
            if let Some(crowd) = own {
                ops.ptep_add(crowd.readers, ONE_READER);
                // The latch has had the crowd's reader all the while, so an entry that can be read here is this page's.
                let entry = ops.ptep_get(walked.ptep);
                let readers = self.space.crowd_word(crowd);
                drop(crowds);
                if entry.can_read() {
                    self.mark_crowd_accessed(walked, entry);
                    return Ok(Joined::Crowd(readers, entry));
                }
                self.end_read(readers);
                return Ok(Joined::Changed);
            }
            let entry = ops.ptep_get(walked.ptep);
            if !entry.can_read() || !(CROWDED..=MAX_READERS).contains(&entry.latch()) {
                return Ok(Joined::Changed);
            }
            if entry.latch() == MAX_READERS {
                return Ok(Joined::Full);
            }
            let Some(crowd) = free else {
                drop(crowds);
                self.add_crowds()?;
                continue;
            };
            let held = entry.held_for_reading();
            if ops.ptep_cmpxchg(walked.ptep, entry, held).is_err() {
                return Ok(Joined::Changed);
            }
            // Relaxed: nobody has this crowd, and threads that join it have the lock after this.
            let one = u64::from(Entry::new().with_state(State::Doomed)) + ONE_READER;
            crowd.readers.store(one, Ordering::Relaxed);
            crowd.page.store(name, Ordering::Relaxed);
            return Ok(Joined::Crowd(self.space.crowd_word(crowd), held));
        }
    }

    /// Reclaim is to know that the page is used. Where it changes meanwhile, the next reader says so.
    fn mark_crowd_accessed(&self, walked: &Walked<'_, F>, entry: Entry) {
        if !entry.accessed() {
            let accessed = entry.with_accessed(true);
            let _ = self.space.tables.ops.ptep_cmpxchg(walked.ptep, entry, accessed);
        }
    }

    /// Another frame of crowds. No lock is held: frames may have to be reclaimed for it.
    fn add_crowds(&self) -> Result<(), Trap> {
        let frame = self.get_zeroed().ok_or(Trap::OutOfFrames)?;
        let mut crowds = self.space.crowds.lock();
        let len = crowds.len;
        match crowds.frames.get_mut(len) {
            Some(place) => {
                *place = frame;
                crowds.len += 1;
                Ok(())
            }
            None => {
                drop(crowds);
                self.with_list(|list| list.put_zeroed(frame));
                Err(Trap::OutOfFrames)
            }
        }
    }

    /// Whether a word is a crowd's, and not a page's. If so, and if nobody is left in it, it gives the page's latch
    /// back what it had of it.
    pub(super) fn leave_crowd(&self, readers: &AtomicU64) -> bool {
        let tables = &self.space.tables;
        let crowds = self.space.crowds.lock();
        let mut all = crowds.all(tables.source);
        let Some(crowd) = all.find(|crowd| core::ptr::eq(crowd.readers, readers)) else {
            return false;
        };
        let is_empty = u64::from(tables.ops.ptep_get(crowd.readers)) < ONE_READER;
        let name = crowd.page.load(Ordering::Relaxed);
        if !is_empty || name == 0 {
            return true;
        }
        crowd.page.store(0, Ordering::Relaxed);
        let page = name as usize - 1;
        let pmd =
            tables.middle(page >> F::TABLE_BITS).map(|middle| tables.ops.ptep_get(middle.pmdp));
        let Some(pmd) = pmd.filter(|pmd| matches!(pmd.state(), State::Table | State::Closed))
        else {
            debug_assert!(false, "a page with guards has a table");
            return true;
        };
        // SAFETY: the last of this crowd holds the VMA, and if that is another thread he waits for the lock to leave.
        let ptep = unsafe { tables.leaf(pmd) }.entry(page);
        let before = tables.ops.ptep_add(ptep, ONE_READER.wrapping_neg());
        if before.state() == State::Doomed && before.latch() == 1 {
            self.give_up_doomed(ptep, before.with_latch(0));
        }
        true
    }
}

impl<F: FrameSource, T: TableOps> super::VmSpace<F, T> {
    /// A crowd's word for longer than the lock is held.
    fn crowd_word(&self, crowd: Crowd<'_>) -> &AtomicU64 {
        // SAFETY: frames of crowds stay the space's until it goes.
        unsafe { &*core::ptr::from_ref(crowd.readers) }
    }
}
