//! A space whose zone has so many frames for pages, and a trace that is replayed in it.
//!
//! The zone's frames are numbered. Those up to the number of pages, and the reserve, are for the pages; the rest are
//! for the space's own tables, which are all made before, and what is left of these is held. So the tables take no
//! frame from the pages, and a zone of a few hundred frames is what reclaim sees.

use std::ptr::NonNull;
use std::sync::Arc;

use pumice_frames::addr::{Order, BLOCK_FRAMES, FRAME_SIZE};
use pumice_frames::clear::Clearer;
use pumice_frames::frame::{Gfp, Watermarks, Zone};
use pumice_frames::sys::cpu;
use pumice_frames::sys::mem::Huge;
use pumice_paging::page_table::pager::Evicted;
use pumice_paging::page_table::{Atomic, Rights};
use pumice_paging::reclaim::{Paging, Policy, Settings, ZoneReclaim};
use pumice_paging::space::file_ops::FileOps;
use pumice_paging::space::{Frames, MemMap, VmSpace};

use super::backing::{number, Numbers};
use super::Reclaimer;

/// Frames below min: nobody's but reclaim's, which needs none here.
const RESERVE: usize = 4;
/// `kswapd` begins when a page in so many could still come, and ends when twice as many could.
const AHEAD: usize = 128;
/// Frames for a space's own tables, beside one for each 512 pages.
const OWN_FRAMES: usize = 2 * BLOCK_FRAMES;
/// References between two looks at how many pages are in memory.
const LOOK_EVERY: usize = 64;
/// References between two reports.
const STRIDE: usize = 1 << 12;

/// The frames of a policy's table, for so many pages in memory.
pub fn table_frames(frames: usize) -> usize {
    frames + RESERVE
}

/// The outcome of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Replayed {
    /// References that brought their page in.
    pub misses: u64,
    /// Pages in memory, since they were most for the first time: on average, and at most.
    pub mean_pages: f64,
    pub most_pages: usize,
}

type Space<'m> = VmSpace<Frames<'m>, Atomic>;

/// Replays references to pages below `pages` with `frames` frames for pages. Reports how many have been replayed.
pub fn replay<P: Policy + Send>(
    policy: P,
    (frames, pages): (usize, usize),
    reclaimer: Reclaimer,
    references: &[u32],
    report: &mut dyn FnMut(u64),
) -> Result<Replayed, String> {
    let explain = |error: &dyn std::fmt::Display| error.to_string();
    let table = table_frames(frames);
    let capacity = table + pages.div_ceil(BLOCK_FRAMES) + OWN_FRAMES;
    let zone = Zone::new(capacity * FRAME_SIZE, cpu::count(), Huge::No);
    let zone = zone.map_err(|error| explain(&error))?;
    let mut of_pages = Held::all(&zone);
    let mut others = of_pages.split_off(table);
    others.clear();
    let reclaim = ZoneReclaim::new(policy, table, settings(frames, reclaimer));
    let pager = Paging::on(Arc::new(reclaim), Box::new(Numbers::default()));
    let map = MemMap::new(&zone, Clearer::detect()).map_err(|error| explain(&error))?;
    let map = map.with_pager(&pager);
    let space = VmSpace::for_files(map.frames(), Atomic).map_err(|error| explain(&error))?;
    // One page at a time.
    space.set_page_cluster(0);
    let region_at = map_with_tables(&space, pages)?;
    let before = pager.backing().reads();
    let others = Held::all(&zone);
    of_pages.clear();
    let work = || {
        let mut run = || Replay { space: &space, region_at, references }.run(report);
        match reclaimer {
            Reclaimer::Direct => run(),
            Reclaimer::Kswapd => std::thread::scope(|scope| {
                let stop = Stop(&pager);
                scope.spawn(|| pager.zone().kswapd());
                let replayed = run();
                drop(stop);
                replayed
            }),
        }
    };
    let replayed = pager.attach(&space, work).map_err(|error| explain(&error))??;
    drop(others);
    Ok(Replayed { misses: pager.backing().reads() - before, ..replayed })
}

/// Ends `kswapd`, however the replay ends.
struct Stop<'p, P: Policy + Send>(&'p Paging<P, Box<Numbers>>);

impl<P: Policy + Send> Drop for Stop<'_, P> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn settings(frames: usize, reclaimer: Reclaimer) -> Settings {
    let ahead = match reclaimer {
        Reclaimer::Direct => 0,
        Reclaimer::Kswapd => frames.div_ceil(AHEAD),
    };
    let (min, low) = (RESERVE, RESERVE + ahead);
    Settings { watermarks: Watermarks { min, low, high: low + ahead }, ..Settings::of(frames) }
}

/// Maps a region of so many pages, and makes its tables. None of its pages is in memory then, or known to reclaim.
fn map_with_tables(space: &Space<'_>, pages: usize) -> Result<usize, String> {
    let task = space.enter().map_err(|error| error.to_string())?;
    let at = task.map_file(pages * FRAME_SIZE, Rights::READ).map_err(|error| error.to_string())?;
    let region = task.region(at).map_err(|error| error.to_string())?;
    for page in (0..pages).step_by(BLOCK_FRAMES) {
        drop(region.read(page).map_err(|error| error.to_string())?);
        if !task.evict_clean(at / FRAME_SIZE + page, Evicted::Shadow(0)) {
            return Err(format!("page {page} does not leave"));
        }
    }
    // Reclaim heeds no space that is not attached.
    task.lru_drain();
    Ok(at)
}

struct Replay<'r> {
    space: &'r Space<'r>,
    region_at: usize,
    references: &'r [u32],
}

impl Replay<'_> {
    fn run(&self, report: &mut dyn FnMut(u64)) -> Result<Replayed, String> {
        let task = self.space.enter().map_err(|error| error.to_string())?;
        let region = task.region(self.region_at).map_err(|error| error.to_string())?;
        let first = self.region_at / FRAME_SIZE;
        let (mut sum, mut looks, mut most) = (0, 0_u32, 0);
        for stretch in self.references.chunks(STRIDE) {
            for some in stretch.chunks(LOOK_EVERY) {
                for &page in some {
                    let guard = region.read(page as usize).map_err(|error| error.to_string())?;
                    if number(&guard) != (first + page as usize) as u64 {
                        return Err(format!("page {page} has another page's content"));
                    }
                }
                let now = self.space.rss();
                if now > most {
                    (most, sum, looks) = (now, 0, 0);
                }
                (sum, looks) = (sum + now, looks + 1);
            }
            report(stretch.len() as u64);
        }
        let mean_pages = sum as f64 / f64::from(looks.max(1));
        Ok(Replayed { misses: 0, mean_pages, most_pages: most })
    }
}

/// Frames of a zone that this has, in the order of their numbers.
struct Held<'z> {
    zone: &'z Zone,
    frames: Vec<NonNull<u8>>,
}

impl<'z> Held<'z> {
    /// All that are free.
    fn all(zone: &'z Zone) -> Held<'z> {
        let clearer = Clearer::detect();
        let get = || zone.get(0, Gfp::KERNEL, Order::FRAME, &clearer);
        let mut frames: Vec<_> = std::iter::from_fn(get).collect();
        frames.sort_unstable();
        Held { zone, frames }
    }

    /// Those from this one on.
    fn split_off(&mut self, at: usize) -> Held<'z> {
        Held { zone: self.zone, frames: self.frames.split_off(at) }
    }

    /// Gives them back.
    fn clear(&mut self) {
        for frame in self.frames.drain(..) {
            // SAFETY: got in `all`, and nobody uses it.
            let put = unsafe { self.zone.put(frame.as_ptr()) };
            debug_assert_eq!(put, Ok(()), "{frame:?}");
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}
