//! Spaces over several zones: which zone a page's frame is of, and whose pages go for a request (SPEC E6).
//!
//! Each zone has its own [`ZoneReclaim`], with watermarks, lists and `kswapd` of its own. A space is attached to all of
//! them, and a page that comes in is told to the one that has the frame. A request names zones ([`Gfp::within`]); pages
//! go in these only. Where several may serve it, direct reclaim goes to each as often as it has pages, so that pages of
//! a small zone live as long as those of a large one. A zone in which nothing could be evicted is tried only now and
//! then, since finding that out takes a look at all of it.
//!
//! Zones have one thing in common: where they write to. A backing that is full is so for all of them; the slots
//! that pages in memory keep are freed in all zones then, whichever the request names: no page goes by that.
//!
//! ```
//! use std::sync::Arc;
//!
//! use pumice::addr::{Pfn, FRAME_SIZE};
//! use pumice::clear::Clearer;
//! use pumice::frame::{Gfp, Zone};
//! use pumice::io::{Cached, Engines};
//! use pumice::page_table::{Atomic, Rights};
//! use pumice::reclaim::{policy, Settings, TwoList, ZoneReclaim, ZonedPaging};
//! use pumice::space::{MemMap, VmSpace, Zonelist};
//! use pumice::swap::{backing::SwapBacking, Swap};
//! use pumice::sys::mem::Huge;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const FAST: usize = 512;
//! const LARGE: usize = 2048;
//! let fast = Zone::new(FAST * FRAME_SIZE, 1, Huge::No)?;
//! let large = Zone::new(LARGE * FRAME_SIZE, 1, Huge::No)?;
//! let maps = [MemMap::new(&fast, Clearer::detect())?, MemMap::new(&large, Clearer::detect())?];
//!
//! let (mut few, mut many) = (policy::table::<TwoList<'_>>(FAST), policy::table::<TwoList<'_>>(LARGE));
//! let of_fast = ZoneReclaim::new(TwoList::new(&mut few), FAST, Settings::of(FAST));
//! let of_large = ZoneReclaim::new(TwoList::new(&mut many), LARGE, Settings::of(LARGE));
//! let reclaim = [Arc::new(of_fast), Arc::new(of_large.starting_at(Pfn(FAST)))];
//!
//! # let path = std::env::temp_dir().join(format!("pumice-zoned-{}", std::process::id()));
//! let swap = SwapBacking::new(Swap::create(&path, 64 << 20, Cached::No)?, &Engines::default());
//! let pager = ZonedPaging::on(&reclaim, &swap);
//! let zonelist = Zonelist::new(&[(&maps[0], &*reclaim[0]), (&maps[1], &*reclaim[1])], &pager)?;
//! let space = VmSpace::new(zonelist.frames(), Atomic)?;
//! pager.attach(&space, || {
//!     let task = space.enter()?;
//!     let at = task.map(3000 * FRAME_SIZE, Rights::READ_WRITE)?;
//!     // First where it is fast, then where there is room.
//!     (0..2000).try_for_each(|page| task.write_at(at + page * FRAME_SIZE, b"any"))?;
//!     assert_eq!(reclaim[1].counts().pswpout, 0);
//!     // Nothing but what is fast.
//!     let _scope = task.gfp_scope(Gfp::KERNEL.within(0b01));
//!     (2000..3000).try_for_each(|page| task.write_at(at + page * FRAME_SIZE, b"fast"))
//! })??;
//! assert!(reclaim[0].counts().pswpout > 0 && reclaim[1].counts().pswpout == 0);
//! # std::fs::remove_file(path)?;
//! # Ok(())
//! # }
//! ```

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::Arc;

use crate::backing::Backing;
use crate::page_table::pager::{
    Arrived, Evicted, Incoming, LruPage, Page, Pager, ReadFailed, ReadResult, SpaceId,
};
use crate::page_table::{FrameSource, Rights, TableOps};
use crate::space::{Result, VmSpace};
use pumice_frames::frame::{Gfp, Pressure, Reclaim};

use super::arrivals::came_in_all;
use super::paging::{check_pager, report_batch};
use super::policy::Policy;
use super::zone::ZoneReclaim;

/// The pager of spaces over several zones, whose pages go to one backing. See the module's top.
pub struct ZonedPaging<'b, P> {
    zones: Vec<Arc<ZoneReclaim<P>>>,
    backing: &'b dyn Backing,
    /// Requests that have reclaimed. Relaxed: a number to spread them by.
    turns: AtomicUsize,
    /// Zones that had no frames for the last request: a bit for each. Relaxed: a hint.
    barren: AtomicU8,
}

/// Of so many requests, one goes to a zone that had nothing.
const TURNS_PER_RETRY: usize = 16;

impl<'b, P: Policy + Send> ZonedPaging<'b, P> {
    /// Over zones that have reclaim, in the order in which requests go to them, [`Gfp::MOST_ZONES`] at most. Each has
    /// frames with numbers of its own ([`ZoneReclaim::starting_at`]). Errors in reading are counted with the first.
    pub fn on(zones: &[Arc<ZoneReclaim<P>>], backing: &'b dyn Backing) -> ZonedPaging<'b, P> {
        debug_assert!(zones.len() <= Gfp::MOST_ZONES);
        let zones = zones.iter().take(Gfp::MOST_ZONES).cloned().collect();
        ZonedPaging { zones, backing, turns: AtomicUsize::new(0), barren: AtomicU8::new(0) }
    }

    /// Has reclaim of all zones evict pages of a space while `work` is done. The space's pager is this one. Each zone's
    /// `kswapd` is a thread of the caller's ([`ZoneReclaim::kswapd`]).
    ///
    /// # Errors
    /// [`OtherPager`](crate::space::VmError::OtherPager) where it is another; else as [`VmSpace::enter`].
    pub fn attach<F: FrameSource<List: Send>, T: TableOps, R>(
        &self,
        space: &VmSpace<F, T>,
        work: impl FnOnce() -> R,
    ) -> Result<R> {
        check_pager(self, space)?;
        let (mut work, mut result) = (Some(work), None);
        let mut once = || result = work.take().map(|work| work());
        attach_to_all(&self.zones, space, self.backing, &mut once)?;
        // It was done once, or somebody panicked.
        Ok(result.expect("the work was done"))
    }

    fn zone_of(&self, page: LruPage) -> Option<&Arc<ZoneReclaim<P>>> {
        self.zones.iter().find(|zone| zone.has(page.frame))
    }

    fn note_read_error(&self) {
        if let Some(zone) = self.zones.first() {
            zone.note_read_error();
        }
    }

    /// Where a request goes first, of the zones that `may` have it: to each as often as it has frames.
    fn choose(&self, turn: usize, may: impl Fn(usize) -> bool) -> usize {
        let frames = |nth: usize| if may(nth) { self.zones[nth].frames() } else { 0 };
        let total: usize = (0..self.zones.len()).map(frames).sum();
        // Evenly spread, by the golden section.
        let share = (turn as u64).wrapping_mul(GOLDEN);
        let mut place = ((u128::from(share) * total as u128) >> 64) as usize;
        for nth in 0..self.zones.len() {
            match place.checked_sub(frames(nth)) {
                Some(beyond) => place = beyond,
                None => return nth,
            }
        }
        0
    }
}

/// 2^64 by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn attach_to_all<P: Policy + Send, F: FrameSource<List: Send>, T: TableOps>(
    zones: &[Arc<ZoneReclaim<P>>],
    space: &VmSpace<F, T>,
    backing: &dyn Backing,
    work: &mut dyn FnMut(),
) -> Result<()> {
    match zones.split_first() {
        Some((zone, rest)) => {
            zone.attach(space, backing, || attach_to_all(rest, space, backing, work))?
        }
        None => {
            work();
            Ok(())
        }
    }
}

// SAFETY: as that of the zones' own, which it asks.
unsafe impl<P: Policy + Send> Reclaim for ZonedPaging<'_, P> {
    fn pressure(&self) -> Pressure {
        let all = self.zones.iter().map(|zone| zone.pressure());
        all.min().unwrap_or(Pressure::None)
    }

    fn wake(&self) {
        self.zones.iter().for_each(|zone| zone.wake());
    }

    fn reclaim(&self, gfp: Gfp, frames: usize) -> usize {
        // A thread that reclaims in one zone evicts no pages in another.
        if self.zones.iter().any(|zone| zone.is_reclaiming_here()) {
            return 0;
        }
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let passed_over = match turn % TURNS_PER_RETRY {
            0 => 0,
            _ => self.barren.load(Ordering::Relaxed),
        };
        let is_good = |nth: usize| gfp.may_use(nth) && passed_over & 1 << nth == 0;
        let is_last = |nth: usize| gfp.may_use(nth) && !is_good(nth);
        let (many, from) = (self.zones.len(), self.choose(turn, is_good));
        let around = || (from..from + many).map(|nth| nth % many);
        let order =
            around().filter(|&nth| is_good(nth)).chain(around().filter(|&nth| is_last(nth)));
        for nth in order {
            let freed = self.zones[nth].reclaim(gfp, frames);
            if freed > 0 {
                self.barren.fetch_and(!(1 << nth), Ordering::Relaxed);
                return freed;
            }
            if gfp.contains(Gfp::KERNEL) && !gfp.contains(Gfp::MEMALLOC) {
                // The others may not look.
                self.barren.fetch_or(1 << nth, Ordering::Relaxed);
            }
        }
        0
    }
}

// SAFETY: it knows of no task but those of reclaim's own, and nor does the backing.
unsafe impl<P: Policy + Send> Pager for ZonedPaging<'_, P> {
    fn lru_add(&self, space: SpaceId, pages: &[LruPage]) {
        for zone in &self.zones {
            let is_its = |page: &LruPage| zone.has(page.frame);
            for run in pages.chunk_by(|one, next| is_its(one) == is_its(next)) {
                if run.first().is_some_and(is_its) {
                    zone.lru_add(space, run);
                }
            }
        }
    }

    fn batch(&self) -> usize {
        report_batch(self.zones.iter().map(|zone| &**zone))
    }

    fn swap_in(&self, space: SpaceId, page: usize, from: Evicted, into: &mut Page) -> ReadResult {
        let read = self.backing.read(space, page, from, into);
        read.inspect_err(|ReadFailed| self.note_read_error())
    }

    unsafe fn swap_in_all(&self, space: SpaceId, pages: &mut [Incoming]) {
        // SAFETY: the caller's promise.
        unsafe { self.backing.read_all(space, pages) };
        if pages.first().is_some_and(|first| first.result.is_err()) {
            self.note_read_error();
        }
    }

    fn swapped_in(&self, space: SpaceId, page: LruPage, from: Evicted, used: Rights) {
        self.swapped_in_all(space, &[Arrived { page, from, used }]);
    }

    fn swapped_in_all(&self, space: SpaceId, pages: &[Arrived]) {
        let zone_of = |arrived: &Arrived| self.zone_of(arrived.page).or(self.zones.first());
        let is_same = |one: &Arrived, next: &Arrived| match (zone_of(one), zone_of(next)) {
            (Some(one), Some(next)) => Arc::ptr_eq(one, next),
            _ => false,
        };
        for of_zone in pages.chunk_by(is_same) {
            if let Some(zone) = zone_of(&of_zone[0]) {
                came_in_all(zone, self.backing, space, of_zone);
            }
        }
    }

    fn share(&self, _space: SpaceId, from: Evicted) -> bool {
        self.backing.share(from)
    }

    fn free(&self, space: SpaceId, from: Evicted) {
        self.backing.free(space, from);
    }

    fn zone(&self) -> Option<&dyn Reclaim> {
        Some(self)
    }
}
