//! For tests: swap that tells of each request for a place, before it goes on.

use rustix::io::Errno;

use crate::backing::{Backing, Came, Outgoing, Place, Refusal};
use crate::page_table::pager::{Evicted, Page, ReadResult, SpaceId};
use crate::page_table::Rights;
use crate::swap::backing::SwapBacking;
use pumice_frames::frame::Gfp;

/// Swap, and the watcher of its calls: a place can be refused.
pub(super) struct Watched<'s, W> {
    pub swap: &'s SwapBacking,
    pub watch: W,
}

// SAFETY: it knows of no task.
unsafe impl<W: Fn() -> Result<(), Refusal> + Send + Sync> Backing for Watched<'_, W> {
    fn needs(&self) -> Gfp {
        self.swap.needs()
    }
    fn read(&self, space: SpaceId, page: usize, from: Evicted, into: &mut Page) -> ReadResult {
        self.swap.read(space, page, from, into)
    }
    fn came_in(&self, space: SpaceId, page: usize, from: Evicted, used: Rights) -> Came {
        self.swap.came_in(space, page, from, used)
    }
    fn free(&self, space: SpaceId, from: Evicted) {
        self.swap.free(space, from);
    }
    fn drop_clean(&self, page: &Outgoing) -> Option<Evicted> {
        self.swap.drop_clean(page)
    }
    unsafe fn place(&self, pages: &[Outgoing]) -> Result<Place, Refusal> {
        (self.watch)()?;
        // SAFETY: forwarded with the caller's promise.
        unsafe { self.swap.place(pages) }
    }
    fn stays_full(&self) {
        self.swap.stays_full();
    }
    fn written(&self, place: &Place, pages: &[Outgoing], result: Result<(), Errno>) {
        self.swap.written(place, pages, result);
    }
    fn evicted(&self, place: &Place, nth: usize, page: &Outgoing) -> Evicted {
        self.swap.evicted(place, nth, page)
    }
    fn note_content(&self, place: &Place, nth: usize, bytes: &Page) {
        self.swap.note_content(place, nth, bytes);
    }
    fn give_up(&self, place: &Place, nth: usize) {
        self.swap.give_up(place, nth);
    }
    fn release(&self, slots: &mut dyn Iterator<Item = u32>) {
        self.swap.release(slots);
    }
}
