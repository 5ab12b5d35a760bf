//! Several spaces on one zone, under one reclaim: some come and go, others have children meanwhile.
//!
//! Each thread knows what is in its own space, so nobody's page may turn up in another's.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Instant;

use fastrand::Rng;

use pumice_frames::addr::{BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::clear::Clearer;
use pumice_frames::frame::Zone;
use pumice_frames::sys::{cpu, mem::Huge};
use pumice_io::{Cached, Engines};
use pumice_paging::page_table::{Atomic, Rights};
use pumice_paging::reclaim::policy::table;
use pumice_paging::reclaim::{Adaptive, Paging, Policy, Settings, SwapPager, TwoList, ZoneReclaim};
use pumice_paging::space::{Frames, MemMap, Task, VmError, VmSpace};
use pumice_paging::swap::backing::SwapBacking;
use pumice_paging::swap::Swap;

use super::pattern::{describe, fill, seed, version, Scratch};
use super::scenario::soak;

const FRAMES: usize = 4096;
/// Pages that may be in memory, so that a child has room for what it shares.
const USED: usize = 1024;
const SWAP_PAGES: usize = 4 * FRAMES;
/// Spaces that a thread makes, one after the other, where nobody says how long it is to last.
const ROUNDS: usize = 4;

type Space<'m> = VmSpace<Frames<'m>, Atomic>;

#[test]
fn spaces_come_and_go_while_others_fork() {
    let mut entries = table::<Adaptive<'_>>(FRAMES);
    run("several", Adaptive::new(&mut entries));
}

#[test]
fn spaces_come_and_go_while_others_fork_by_two_lists() {
    let mut entries = table::<TwoList<'_>>(FRAMES);
    run("several-two-list", TwoList::new(&mut entries));
}

/// The parts that all threads of a run share.
struct Run<'r, P> {
    /// By turns, so that spaces of one backing have others between them.
    pagers: &'r [SwapPager<P>],
    map: &'r MemMap<'r>,
    seed: u64,
    begun: Instant,
    errors: AtomicUsize,
    is_over: AtomicBool,
}

fn run<P: Policy + Send>(name: &str, policy: P) {
    let seed = seed(name);
    let settings = Settings::of(FRAMES).with_most_pages(USED);
    let reclaim = Arc::new(ZoneReclaim::new(policy, FRAMES, settings));
    let scratch = [0, 1].map(|nth| Scratch::new(&format!("{name}-{nth}")));
    let pagers = scratch.each_ref().map(|scratch| {
        let bytes = ((SWAP_PAGES + 1) * FRAME_SIZE) as u64;
        let swap = Swap::create(&scratch.0, bytes, Cached::No).expect("a swap area");
        let backing = Box::new(SwapBacking::new(swap, &Engines::default()));
        Paging::on(Arc::clone(&reclaim), backing)
    });
    let bytes = (FRAMES * FRAME_SIZE).next_multiple_of(BLOCK_SIZE);
    let zone = Zone::new(bytes, cpu::count(), Huge::No).expect("a zone");
    let map = MemMap::new(&zone, Clearer::detect()).expect("tables");
    let run = Run {
        pagers: &pagers,
        map: &map,
        seed,
        begun: Instant::now(),
        errors: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let kswapd = scope.spawn(|| reclaim.kswapd());
        let ended = std::thread::scope(|scope| {
            let run = &run;
            let forks: Vec<_> = (0..2).map(|nth| scope.spawn(move || run.fork(nth))).collect();
            let goes: Vec<_> =
                (2..5).map(|nth| scope.spawn(move || run.come_and_go(nth))).collect();
            let mut ended: Vec<_> = goes.into_iter().map(|thread| thread.join()).collect();
            run.is_over.store(true, Ordering::Relaxed);
            ended.extend(forks.into_iter().map(|thread| thread.join()));
            ended
        });
        reclaim.stop();
        kswapd.join().expect("no panic");
        ended.into_iter().for_each(|ended| ended.expect("pages are as they were left"));
    });
    let counts = reclaim.counts();
    eprintln!("{name}: {} errors, {counts:?}", run.errors.load(Ordering::Relaxed));
    assert!(counts.pswpout > 0 && counts.pswpin > 0 && counts.errors == 0, "{counts:?}");
    for pager in &pagers {
        assert_eq!(pager.swap().usage().1, 0, "slots are lost");
        assert!(pager.take_error().is_none(), "nothing is wrong with the device");
    }
    drop(map);
    assert_eq!(zone.free_frames(), bytes / FRAME_SIZE, "frames are lost");
}

/// A region and how often each of its pages was written.
struct Pages {
    at: usize,
    versions: Vec<u32>,
    /// Makes pages differ from those of other spaces.
    of: usize,
}

impl Pages {
    fn map(task: &Task<'_, Frames<'_>, Atomic>, pages: usize, of: usize) -> Result<Pages, VmError> {
        let at = task.map(pages * FRAME_SIZE, Rights::READ_WRITE)?;
        Ok(Pages { at, versions: vec![0; pages], of: of << 32 })
    }

    /// Reads or writes a page, having looked whether it is as it was left.
    fn touch(
        &mut self,
        task: &Task<'_, Frames<'_>, Atomic>,
        random: &mut Rng,
    ) -> Result<(), VmError> {
        let page = random.usize(..self.versions.len());
        let region = task.region(self.at)?;
        let (old, name) = (self.versions[page], self.of | page);
        let check = |bytes: &[u8; FRAME_SIZE]| {
            assert!(version(bytes, name) == Some(old), "{}", describe(bytes, name, old));
        };
        if random.usize(..3) == 0 {
            return region.read(page).map(|guard| check(&guard));
        }
        let mut guard = region.write(page)?;
        check(&guard);
        fill(&mut guard, name, old + 1);
        self.versions[page] = old + 1;
        Ok(())
    }
}

impl<P: Policy + Send> Run<'_, P> {
    fn note(&self, error: &VmError) {
        // A child's frames can't go, so there may be too few.
        let is_short = matches!(error, VmError::OutOfFrames(_) | VmError::OutOfRecords(_));
        assert!(is_short, "{error}");
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Does something in a new space that reclaim works on.
    fn in_a_space(&self, turn: usize, work: impl FnOnce(&Space<'_>)) {
        let pager = &self.pagers[turn % self.pagers.len()];
        let space = match VmSpace::new(self.map.frames_of(pager), Atomic) {
            Ok(space) => space,
            Err(error) => return self.note(&error),
        };
        match pager.attach(&space, || work(&space)) {
            Ok(()) => {}
            Err(error) => self.note(&error),
        }
    }

    /// One space after the other, each with pages of its own.
    fn come_and_go(&self, nth: usize) {
        let mut random = Rng::with_seed(self.seed ^ (nth as u64) << 48);
        for round in 0.. {
            let is_long_enough =
                soak().map_or(round >= ROUNDS, |long| self.begun.elapsed() >= long);
            if is_long_enough {
                return;
            }
            self.in_a_space(nth + round, |space| {
                let pages = 1 + random.usize(..USED);
                let touched = space.enter().and_then(|task| {
                    let mut own = Pages::map(&task, pages, nth << 8 | round & 255)?;
                    for _ in 0..3 * pages {
                        if let Err(error) = own.touch(&task, &mut random) {
                            self.note(&error);
                        }
                    }
                    // Some leave their pages to the space's end.
                    if round % 2 == 0 {
                        task.unmap(own.at, pages * FRAME_SIZE)?;
                    }
                    Ok(())
                });
                touched.unwrap_or_else(|error| self.note(&error));
            });
        }
    }

    /// A space that stays, and its children, of which some are attached as well.
    fn fork(&self, nth: usize) {
        let mut random = Rng::with_seed(self.seed ^ (nth as u64) << 40);
        self.in_a_space(nth, |space| {
            let task = space.enter().expect("a task");
            let mut own = Pages::map(&task, USED / 2, nth + 1).expect("addresses");
            while !self.is_over.load(Ordering::Relaxed) {
                for _ in 0..own.versions.len() {
                    if let Err(error) = own.touch(&task, &mut random) {
                        self.note(&error);
                    }
                }
                let child = match task.fork() {
                    Ok(child) => child,
                    Err(error) => {
                        self.note(&error);
                        continue;
                    }
                };
                let (versions, of, at) = (own.versions.clone(), own.of, own.at);
                let use_child = || {
                    let kid = child.enter()?;
                    let mut inherited = Pages { at, versions, of };
                    for _ in 0..USED / 2 {
                        if let Err(error) = inherited.touch(&kid, &mut random) {
                            self.note(&error);
                        }
                    }
                    Ok(())
                };
                let used = if of >> 32 & 1 == 0 {
                    use_child()
                } else {
                    self.pagers[nth % self.pagers.len()]
                        .attach(&child, use_child)
                        .and_then(|used| used)
                };
                used.unwrap_or_else(|error| self.note(&error));
            }
        });
    }
}
