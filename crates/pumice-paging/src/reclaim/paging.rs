//! Requests and reports of a space's faults to reclaim: reading is the backing's, the rest the zone's.

use std::sync::Arc;

use crate::backing::{Backing, ToBacking};
use crate::page_table::pager::{
    Arrived, Evicted, Incoming, LruPage, Page, Pager, ReadFailed, ReadResult, SpaceId,
};
use crate::page_table::{FrameSource, Rights, TableOps};
use crate::space::{Result, VmError, VmSpace};
use crate::swap::backing::SwapBacking;
use crate::swap::{Swap, SwapError};
use pumice_frames::frame::Reclaim;
use pumice_io::{AnyEngine, Engines};

use super::arrivals::came_in_all;
use super::counts::Counts;
use super::policy::Policy;
use super::settings::Settings;
use super::zone::ZoneReclaim;

/// Frames of a zone, by the pages that a thread gathers before it reports them: reclaim does not know of these
/// meanwhile, and would evict others in their place.
const REPORTED_SHARE: usize = 512;

/// Pages that a thread gathers, of any of these zones.
pub(super) fn report_batch<'z, P: Policy + 'z>(
    zones: impl IntoIterator<Item = &'z ZoneReclaim<P>>,
) -> usize {
    let frames = zones.into_iter().map(ZoneReclaim::frames).min();
    frames.map_or(usize::MAX, |frames| frames / REPORTED_SHARE)
}

/// The pager of spaces whose pages go to one backing, on a zone that others may be on as well.
#[derive(Debug)]
pub struct Paging<P, B> {
    zone: Arc<ZoneReclaim<P>>,
    backing: B,
}

/// The pager of anonymous spaces.
pub type SwapPager<P> = Paging<P, Box<SwapBacking>>;

impl<P: Policy + Send, B: ToBacking> Paging<P, B> {
    /// On a zone that has reclaim.
    pub fn on(zone: Arc<ZoneReclaim<P>>, backing: B) -> Paging<P, B> {
        Paging { zone, backing }
    }

    /// Reclaim of the zone.
    pub fn zone(&self) -> &Arc<ZoneReclaim<P>> {
        &self.zone
    }

    /// The backing that pages go to.
    #[doc(hidden)]
    pub fn backing(&self) -> &B {
        &self.backing
    }

    /// Has reclaim evict pages of a space while `work` is done. The space's pager is this one.
    ///
    /// # Errors
    /// [`VmError::OtherPager`] where it is another, [`VmError::OtherZone`] where spaces on another zone are attached;
    /// else as [`VmSpace::enter`].
    pub fn attach<F: FrameSource<List: Send>, T: TableOps, R>(
        &self,
        space: &VmSpace<F, T>,
        work: impl FnOnce() -> R,
    ) -> Result<R> {
        check_pager(self, space)?;
        self.zone.attach(space, &*self.backing, work)
    }

    /// Takes pages of `space`, and of others that are attached, out as it is needed, until [`Paging::stop`]. One thread
    /// does this for a zone.
    ///
    /// # Errors
    /// As [`Paging::attach`].
    pub fn kswapd(
        &self,
        space: &VmSpace<impl FrameSource<List: Send>, impl TableOps>,
    ) -> Result<()> {
        self.attach(space, || self.zone.kswapd())
    }

    /// Ends [`Paging::kswapd`], and has those who wait for frames fail.
    pub fn stop(&self) {
        self.zone.stop();
    }

    /// The zone's counts so far.
    pub fn counts(&self) -> Counts {
        self.zone.counts()
    }
}

/// Looks whether pages of a space go by this pager and come back by it.
pub(super) fn check_pager<G: Pager, F: FrameSource, T: TableOps>(
    pager: &G,
    space: &VmSpace<F, T>,
) -> Result<()> {
    let frames = space.frames();
    let is_its = frames.pager().is_some_and(|its| core::ptr::addr_eq(its, pager));
    is_its.then_some(()).ok_or(VmError::OtherPager)
}

impl<P: Policy + Send> SwapPager<P> {
    /// With a policy for the `frames` frames of a zone.
    pub fn new(swap: Swap, policy: P, frames: usize, settings: Settings) -> SwapPager<P> {
        let zone = Arc::new(ZoneReclaim::new(policy, frames, settings));
        Paging::on(zone, Box::new(SwapBacking::new(swap, &Engines::default())))
    }

    /// With engines of one's own, made for so many requests at a time.
    #[must_use]
    pub fn with_engines(
        self,
        make: impl Fn(u32) -> AnyEngine + Send + Sync + 'static,
    ) -> SwapPager<P> {
        let engines = Engines::new(make);
        self.zone.set_engines(&engines);
        Paging { zone: self.zone, backing: Box::new(self.backing.with_engines(&engines)) }
    }

    /// The swap area.
    pub fn swap(&self) -> &Swap {
        self.backing.swap()
    }

    /// The last error of the device, or that swap is full; once.
    pub fn take_error(&self) -> Option<SwapError> {
        self.backing.take_error()
    }
}

// SAFETY: it knows of no task but those of reclaim's own, and nor does the backing.
unsafe impl<P: Policy + Send, B: ToBacking> Pager for Paging<P, B> {
    fn lru_add(&self, space: SpaceId, pages: &[LruPage]) {
        self.zone.lru_add(space, pages);
    }

    fn batch(&self) -> usize {
        report_batch([&*self.zone])
    }

    fn swap_in(&self, space: SpaceId, page: usize, from: Evicted, into: &mut Page) -> ReadResult {
        let read = self.backing.read(space, page, from, into);
        read.inspect_err(|ReadFailed| self.zone.note_read_error())
    }

    unsafe fn swap_in_all(&self, space: SpaceId, pages: &mut [Incoming]) {
        // SAFETY: the caller's promise.
        unsafe { self.backing.read_all(space, pages) };
        if pages.first().is_some_and(|first| first.result.is_err()) {
            self.zone.note_read_error();
        }
    }

    fn swapped_in(&self, space: SpaceId, page: LruPage, from: Evicted, used: Rights) {
        self.swapped_in_all(space, &[Arrived { page, from, used }]);
    }

    fn swapped_in_all(&self, space: SpaceId, pages: &[Arrived]) {
        came_in_all(&self.zone, &*self.backing, space, pages);
    }

    fn share(&self, _space: SpaceId, from: Evicted) -> bool {
        self.backing.share(from)
    }

    fn free(&self, space: SpaceId, from: Evicted) {
        self.backing.free(space, from);
    }

    fn zone(&self) -> Option<&dyn Reclaim> {
        Some(&*self.zone)
    }
}
