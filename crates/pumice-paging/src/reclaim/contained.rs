//! A backing whose panics end in errors.
//!
//! Reclaim does not vouch for a backing. If it panicked through a batch, pages would stay latched, or be known to
//! nobody, and threads would wait for frames in vain. So a call that panics has failed, as one has that the device let
//! down: its pages stay. The panic's own message is the program's panic hook's to show.

use rustix::io::Errno;

use crate::backing::{Backing, Came, Outgoing, Place, Refusal, SwapCaches};
use crate::page_table::pager::{Evicted, Incoming, Page, ReadFailed, ReadResult, SpaceId};
use crate::page_table::Rights;
use pumice_frames::frame::Gfp;
use pumice_io::sync::contain;

/// See the module's top. The methods are those of [`Backing`].
#[derive(Clone, Copy)]
pub(super) struct Contained<'b> {
    backing: &'b dyn Backing,
    /// Its own answers from before anything could go wrong.
    needs: Gfp,
    writes_in_place: bool,
    swap_caches: Option<&'b SwapCaches>,
}

impl<'b> Contained<'b> {
    pub fn new(backing: &'b dyn Backing) -> Contained<'b> {
        let (needs, writes_in_place) = (backing.needs(), backing.writes_in_place());
        Contained { backing, needs, writes_in_place, swap_caches: backing.swap_caches() }
    }

    pub fn needs(&self) -> Gfp {
        self.needs
    }

    pub fn writes_in_place(&self) -> bool {
        self.writes_in_place
    }

    pub fn swap_caches(&self) -> Option<&'b SwapCaches> {
        self.swap_caches
    }

    #[inline]
    pub fn hold(&self, space: SpaceId, page: usize) -> bool {
        contain(|| self.backing.hold(space, page)).unwrap_or(false)
    }

    #[inline]
    pub fn let_go(&self, space: SpaceId, page: usize) {
        contain(|| self.backing.let_go(space, page));
    }

    pub fn dirty_again(&self, space: SpaceId, page: usize) {
        contain(|| self.backing.dirty_again(space, page));
    }

    #[inline]
    pub fn drop_clean(&self, page: &Outgoing) -> Option<Evicted> {
        contain(|| self.backing.drop_clean(page)).flatten()
    }

    /// # Safety
    /// As [`Backing::place`].
    pub unsafe fn place(&self, pages: &[Outgoing]) -> Result<Place, Refusal> {
        // SAFETY: the caller's promise.
        contain(|| unsafe { self.backing.place(pages) }).unwrap_or(Err(Refusal::Failed))
    }

    /// As [`Contained::place`], when the swap caches have been freed.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn place_at_last(&self, pages: &[Outgoing]) -> Result<Place, Refusal> {
        // SAFETY: the caller's promise.
        let place = unsafe { self.place(pages) };
        if place == Err(Refusal::Full) {
            contain(|| self.backing.stays_full());
        }
        place
    }

    #[inline]
    pub fn written(&self, place: &Place, pages: &[Outgoing], result: Result<(), Errno>) {
        contain(|| self.backing.written(place, pages, result));
    }

    /// `None`: nobody knows where it would be.
    #[inline]
    pub fn evicted(&self, place: &Place, nth: usize, page: &Outgoing) -> Option<Evicted> {
        contain(|| self.backing.evicted(place, nth, page))
    }

    #[inline]
    pub fn note_content(&self, place: &Place, nth: usize, bytes: &Page) {
        contain(|| self.backing.note_content(place, nth, bytes));
    }

    #[inline]
    pub fn give_up(&self, place: &Place, nth: usize) {
        contain(|| self.backing.give_up(place, nth));
    }

    #[inline]
    pub fn release(&self, slots: &mut dyn Iterator<Item = u32>) {
        contain(|| self.backing.release(slots));
    }
}

/// As [`Backing::read`].
pub(super) fn read(
    backing: &impl Backing,
    space: SpaceId,
    page: usize,
    from: Evicted,
    into: &mut Page,
) -> ReadResult {
    contain(|| backing.read(space, page, from, into)).unwrap_or(Err(ReadFailed))
}

/// As [`Backing::read_all`].
///
/// # Safety
/// As there.
pub(super) unsafe fn read_all(backing: &impl Backing, space: SpaceId, pages: &mut [Incoming]) {
    // SAFETY: the caller's promise.
    if contain(|| unsafe { backing.read_all(space, pages) }).is_none() {
        pages.iter_mut().for_each(|page| page.result = Err(ReadFailed));
    }
}

/// As [`Backing::came_in`].
pub(super) fn came_in(
    backing: &impl Backing,
    space: SpaceId,
    page: usize,
    from: Evicted,
    used: Rights,
) -> Came {
    contain(|| backing.came_in(space, page, from, used)).unwrap_or_default()
}
