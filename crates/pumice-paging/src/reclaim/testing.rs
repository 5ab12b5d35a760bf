//! Fixtures of the tests of reclaim: swap files, pages that say which they are, and spaces with a pager.

use tempfile::TempPath;

use super::policy::table;
use super::{Adaptive, Policy, Settings, SwapPager, TwoList, ZoneReclaim};
use crate::page_table::pager::Pager as AnyPager;
use crate::page_table::{Atomic, Rights};
use crate::space::{Frames, MemMap, Region, Task, VmSpace};
use crate::swap::Swap;
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::clear::Clearer;
use pumice_frames::frame::Zone;
use pumice_frames::sys::{cpu, mem::Huge};
use pumice_io::Cached;

pub(super) type Pager = SwapPager<Adaptive<'static>>;
pub(super) type Space<'m> = VmSpace<Frames<'m>, Atomic>;
pub(super) type ATask<'t, 'm> = Task<'t, Frames<'m>, Atomic>;
pub(super) type ARegion<'t, 'm> = Region<'t, Frames<'m>, Atomic>;

pub(super) const FRAMES: usize = 2048;

/// A path for a swap file, which is gone with this.
pub(super) struct Scratch(pub TempPath);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let prefix = format!("pumice-reclaim-{name}-");
        let unmade = tempfile::Builder::new().prefix(&prefix).make(|_| Ok(()));
        Scratch(unmade.expect("a path for a temporary file").into_temp_path())
    }

    pub fn swap(&self, pages: usize) -> Swap {
        Swap::create(&self.0, ((pages + 1) * FRAME_SIZE) as u64, Cached::No).expect("a swap area")
    }

    /// A pager by our policy, with swap for so many pages.
    pub fn pager(&self, pages: usize) -> Pager {
        SwapPager::new(self.swap(pages), adaptive(), FRAMES, Settings::of(FRAMES))
    }
}

/// A page whose every word says which page it is, and how often it was written.
pub(super) fn fill(bytes: &mut [u8; FRAME_SIZE], page: usize, version: u32) {
    *bytes = filled(page, version);
}

pub(super) fn is_filled(bytes: &[u8; FRAME_SIZE], page: usize, version: u32) -> bool {
    // A page that was never written is zero.
    *bytes == if version == 0 { [0; FRAME_SIZE] } else { filled(page, version) }
}

fn filled(page: usize, version: u32) -> [u8; FRAME_SIZE] {
    let mut words = [0; FRAME_SIZE / 8];
    // Iterators are slow without optimization, and this is most of what the tests do.
    let mut at = 0;
    while at < words.len() {
        words[at] = (page as u64) << 40 ^ u64::from(version) << 10 ^ at as u64;
        at += 1;
    }
    // SAFETY: bytes are whatever the words are.
    unsafe { std::mem::transmute(words) }
}

/// A policy for [`FRAMES`] frames. Its table is leaked.
pub(super) fn adaptive() -> Adaptive<'static> {
    Adaptive::new(table::<Adaptive<'_>>(FRAMES).leak())
}

/// As [`adaptive`].
pub(super) fn two_list() -> TwoList<'static> {
    TwoList::new(table::<TwoList<'_>>(FRAMES).leak())
}

/// A zone of so many frames.
pub(super) fn zone_of(frames: usize) -> Zone {
    Zone::new(frames * FRAME_SIZE, cpu::count(), Huge::No).expect("a zone")
}

/// A space over a zone of [`FRAMES`] frames, with a pager.
pub(super) fn with_space<R>(pager: &dyn AnyPager, work: impl FnOnce(&Zone, &Space<'_>) -> R) -> R {
    let zone = zone_of(FRAMES);
    let map = MemMap::new(&zone, Clearer::detect()).expect("tables").with_pager(pager);
    let space = VmSpace::new(map.frames(), Atomic).expect("frames");
    work(&zone, &space)
}

/// A task in a space, and a region of so many pages.
pub(super) fn with_region(
    space: &Space<'_>,
    pages: usize,
    work: impl FnOnce(&ATask<'_, '_>, &ARegion<'_, '_>),
) {
    let task = space.enter().expect("a task");
    let at = task.map(pages * FRAME_SIZE, Rights::READ_WRITE).expect("addresses");
    work(&task, &task.region(at).expect("mapped"));
}

/// A space with a region of so many pages, and `kswapd` beside it.
pub(super) fn with_kswapd<P: Policy + Send>(
    pager: &SwapPager<P>,
    pages: usize,
    work: impl FnOnce(&Space<'_>, &ATask<'_, '_>, &ARegion<'_, '_>),
) {
    with_space(pager, |_, space| {
        let kswapd = || pager.kswapd(space).expect("a task");
        beside(pager.zone(), kswapd, || {
            with_region(space, pages, |task, region| work(space, task, region));
        });
    });
}

/// With `kswapd` beside it, or without.
pub(super) fn beside_kswapd<R>(has_kswapd: bool, pager: &Pager, work: impl FnOnce() -> R) -> R {
    let kswapd = || {
        if has_kswapd {
            pager.zone().kswapd();
        }
    };
    beside(pager.zone(), kswapd, work)
}

/// Works beside a thread that does `kswapd` for a zone. The thread ends with the work, also where the work panics.
pub(super) fn beside<P: Policy + Send, R>(
    zone: &ZoneReclaim<P>,
    kswapd: impl FnOnce() + Send,
    work: impl FnOnce() -> R,
) -> R {
    std::thread::scope(|scope| {
        let kswapd = scope.spawn(kswapd);
        let stopping = Stopping(zone);
        let worked = work();
        drop(stopping);
        kswapd.join().expect("no panic");
        worked
    })
}

/// Ends `kswapd` of a zone with it, also in a panic: a scope waits for its threads.
pub(super) struct Stopping<'r, P: Policy + Send>(pub &'r ZoneReclaim<P>);

impl<P: Policy + Send> Drop for Stopping<'_, P> {
    fn drop(&mut self) {
        self.0.stop();
    }
}
