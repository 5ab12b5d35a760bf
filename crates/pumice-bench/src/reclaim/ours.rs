//! A region of a space of ours, on a zone with fewer frames and with swap.

use std::hint::black_box;
use std::path::Path;

use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::clear::Clearer;
use pumice_frames::sys::thread::now_ns;
use pumice_io::Cached;
use pumice_paging::page_table::{Atomic, Rights};
use pumice_paging::reclaim::policy::table;
use pumice_paging::reclaim::{Adaptive, Policy, TwoList};
use pumice_paging::reclaim::{Settings, SwapPager};
use pumice_paging::space::{Frames, MemMap, Region, VmSpace};
use pumice_paging::swap::Swap;

use super::job::{Pattern, Request, Setup};
use super::worker::{Memory, Touch};
use crate::start_line::{together, StartLine};
use crate::team::answer::Answer;
use crate::team::zone::zone;

/// Pages of which guards are taken over and over: a power of two.
const HIT_PAGES: usize = 4096;
/// Guards between two looks at the clock.
const STRIDE: usize = 4096;

type Space = VmSpace<Frames<'static>, Atomic>;

/// All of it stays for the rest of the process.
struct Ours<P: 'static> {
    space: &'static Space,
    pager: &'static SwapPager<P>,
    region_at: usize,
}

/// The memory of a worker.
pub fn memory(setup: &Setup) -> Result<&'static dyn Memory, String> {
    let frames = setup.frames;
    match setup.policy.as_str() {
        "two-list" => {
            let entries = Box::leak(table::<TwoList<'_>>(frames).into_boxed_slice());
            start(setup, TwoList::new(entries))
        }
        _ => {
            let entries = Box::leak(table::<Adaptive<'_>>(frames).into_boxed_slice());
            start(setup, Adaptive::new(entries))
        }
    }
}

fn start<P: Policy + Send + 'static>(
    setup: &Setup,
    policy: P,
) -> Result<&'static dyn Memory, String> {
    let frames = setup.frames;
    let swap = Swap::create(Path::new(&setup.swap), setup.swap_bytes, Cached::No)
        .map_err(|error| error.to_string())?;
    let pager: &'static SwapPager<P> =
        Box::leak(Box::new(SwapPager::new(swap, policy, frames, Settings::of(frames))));
    let zone = zone(frames)?;
    let map = MemMap::new(zone, Clearer::detect()).map_err(|error| error.to_string())?;
    let map: &'static MemMap<'static> = Box::leak(Box::new(map.with_pager(pager)));
    let space: &'static Space =
        Box::leak(Box::new(VmSpace::new(map.frames(), Atomic).map_err(|e| e.to_string())?));
    std::thread::spawn(|| pager.kswapd(space));
    let task = space.enter().map_err(|error| error.to_string())?;
    let region_at = task
        .map(setup.region_pages * FRAME_SIZE, Rights::READ_WRITE)
        .map_err(|error| error.to_string())?;
    Ok(Box::leak(Box::new(Ours { space, pager, region_at })))
}

struct RegionPages<'r>(Region<'r, Frames<'static>, Atomic>);

/// As in the kernel's.
fn byte(page: usize) -> usize {
    page % 64 * 64
}

impl Touch for RegionPages<'_> {
    fn write(&self, page: usize, value: u64) -> Result<(), String> {
        let mut guard = self.0.write(page).map_err(|error| error.to_string())?;
        guard[byte(page)..byte(page) + 8].copy_from_slice(&value.to_ne_bytes());
        Ok(())
    }

    fn read(&self, page: usize) -> Result<u64, String> {
        let guard = self.0.read(page).map_err(|error| error.to_string())?;
        let bytes = guard[byte(page)..byte(page) + 8].try_into().expect("eight bytes");
        Ok(u64::from_ne_bytes(bytes))
    }
}

impl<P: Policy + Send> Memory for Ours<P> {
    fn enter(&self, work: &mut dyn FnMut(&dyn Touch)) -> Result<(), String> {
        let task = self.space.enter().map_err(|error| error.to_string())?;
        let region = task.region(self.region_at).map_err(|error| error.to_string())?;
        work(&RegionPages(region));
        Ok(())
    }

    fn swapped(&self) -> (u64, u64) {
        let counts = self.pager.counts();
        (counts.pswpin, counts.pswpout)
    }

    fn helpers_cpu_s(&self) -> f64 {
        0.0
    }

    fn cached(&self) -> Cached {
        Cached::No
    }

    fn hits(&self, request: &Request) -> Option<Result<Answer, String>> {
        Some(self.time_hits(request))
    }
}

impl<P: Policy + Send> Ours<P> {
    fn time_hits(&self, request: &Request) -> Result<Answer, String> {
        let one = |thread: usize, line: &StartLine| -> Result<(u64, f64, f64), String> {
            let task = self.space.enter().map_err(|error| error.to_string())?;
            let region = task.region(self.region_at).map_err(|error| error.to_string())?;
            let first = if request.pattern == Pattern::Hit { thread * HIT_PAGES } else { 0 };
            let touch = |page: usize| match region.read(first + page) {
                Ok(guard) => u64::from(black_box(&guard)[0]),
                Err(_) => 0,
            };
            // All of them come in.
            for page in first..first + HIT_PAGES {
                region.write(page).map_err(|error| error.to_string())?;
            }
            let from = thread * HIT_PAGES / request.threads;
            let begun = line.wait();
            let until = begun + (request.seconds * 0.8e9) as u64;
            let (guards, guard_ns) = time(until, from, touch);
            let until = now_ns() + (request.seconds * 0.2e9) as u64;
            let (_, loop_ns) = time(until, from, |page| page as u64);
            Ok((guards, guard_ns, loop_ns))
        };
        let (mut guards, mut rate, mut hit_ns) = (0, 0.0, 0.0);
        for (many, guard_ns, loop_ns) in together(request.threads, one)? {
            guards += many;
            rate += 1e9 / guard_ns;
            hit_ns += (guard_ns - loop_ns) / request.threads as f64;
        }
        Ok(Answer { accesses: guards, seconds: guards as f64 / rate, hit_ns, ..Answer::default() })
    }
}

/// Does it to pages in an order that looks random until it is time: how often, and nanoseconds for each.
#[inline(never)]
fn time(until: u64, from: usize, touch: impl Fn(usize) -> u64) -> (u64, f64) {
    let (mut page, mut sum, mut done) = (from, 0_u64, 0_u64);
    let begun = now_ns();
    loop {
        for _ in 0..STRIDE {
            // A linear congruence's whole period.
            page = page.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) & (HIT_PAGES - 1);
            sum = sum.wrapping_add(touch(page));
        }
        done += STRIDE as u64;
        let now = now_ns();
        if now >= until {
            black_box(sum);
            return (done, (now - begun) as f64 / done as f64);
        }
    }
}
