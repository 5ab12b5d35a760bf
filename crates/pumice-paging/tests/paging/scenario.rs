//! Threads, their operations on one region, and the conditions that must hold.
//!
//! All pages are everybody's. A thread that writes a page has looked at it before, under the same guard, and counts its
//! versions beside it: a page that comes back as it was before its last write is seen as well as one with wrong
//! bytes.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;

use pumice_frames::addr::{BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::clear::Clearer;
use pumice_frames::frame::Zone;
use pumice_frames::sys::{cpu, mem::Huge};
use pumice_io::fake::{FakeEngine, Faults};
use pumice_io::{engine, Cached};
use pumice_paging::page_table::{Atomic, Rights};
use pumice_paging::reclaim::policy::table;
use pumice_paging::reclaim::{Adaptive, Policy, TwoList};
use pumice_paging::reclaim::{Settings, SwapPager};
use pumice_paging::space::{Frames, MemMap, Region, Task, VmError, VmSpace};
use pumice_paging::swap::Swap;

use super::pattern::{describe, fill, seed, version, Ending, Scratch};

/// The policy that chooses.
#[derive(Clone, Copy, Debug)]
pub enum Which {
    Adaptive,
    TwoList,
}

/// The work beside accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    Accesses,
    /// Regions are mapped, written, looked at and unmapped.
    Maps,
    /// Children are made, looked at, written to.
    Forks,
}

/// See the module's top.
#[derive(Clone, Copy)]
pub struct Scenario {
    pub name: &'static str,
    pub frames: usize,
    pub pages: usize,
    /// Pages that may be in memory, where that is less than the frames there are.
    pub used: Option<usize>,
    pub swap_pages: usize,
    pub threads: usize,
    pub which: Which,
    pub faults: Option<Faults>,
    pub doing: Doing,
}

type Space<'m> = VmSpace<Frames<'m>, Atomic>;

impl Scenario {
    /// Runs it; panics where anything is wrong.
    pub fn run(self) {
        match self.which {
            Which::Adaptive => {
                let mut entries = table::<Adaptive<'_>>(self.frames);
                self.run_with(Adaptive::new(&mut entries));
            }
            Which::TwoList => {
                let mut entries = table::<TwoList<'_>>(self.frames);
                self.run_with(TwoList::new(&mut entries));
            }
        }
    }

    fn run_with<P: Policy + Send>(self, policy: P) {
        let seed = seed(self.name);
        let scratch = Scratch::new(self.name);
        let bytes = ((self.swap_pages + 1) * FRAME_SIZE) as u64;
        let swap = Swap::create(&scratch.0, bytes, Cached::No).expect("a swap area");
        let limits = self.used.map_or(Settings::of(self.frames), |used| {
            Settings::of(self.frames).with_most_pages(used)
        });
        let mut pager = SwapPager::new(swap, policy, self.frames, limits);
        if let Some(faults) = self.faults {
            let made = AtomicUsize::new(0);
            pager = pager.with_engines(move |depth| {
                let engine = engine::best(depth);
                let nth = made.fetch_add(1, Ordering::Relaxed) as u64;
                Box::new(FakeEngine::new(engine, faults, seed.wrapping_add(nth << 32)))
            });
        }
        let bytes = (self.frames * FRAME_SIZE).next_multiple_of(BLOCK_SIZE);
        let zone = Zone::new(bytes, cpu::count(), Huge::No).expect("a zone");
        let map = MemMap::new(&zone, Clearer::detect()).expect("tables").with_pager(&pager);
        let space = VmSpace::new(map.frames(), Atomic).expect("frames");
        let at = {
            let task = space.enter().expect("a task");
            task.map(self.pages * FRAME_SIZE, Rights::READ_WRITE).expect("addresses")
        };
        let run = Run {
            scenario: self,
            seed,
            at,
            versions: (0..self.pages).map(|_| AtomicU32::new(0)).collect(),
            errors: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        };
        std::thread::scope(|scope| {
            let kswapd = scope.spawn(|| pager.kswapd(&space));
            let ending = Ending(&pager);
            std::thread::scope(|scope| {
                let (space, run) = (&space, &run);
                let accesses: Vec<_> = (0..self.threads)
                    .map(|thread| scope.spawn(move || run.access(space, thread)))
                    .collect();
                let others: Vec<_> = (0..2)
                    .map(|thread| {
                        scope.spawn(move || match self.doing {
                            Doing::Accesses => {}
                            Doing::Maps => run.map_and_unmap(space, thread),
                            Doing::Forks => run.fork(space, thread),
                        })
                    })
                    .collect();
                let ended: Vec<_> = accesses.into_iter().map(|thread| thread.join()).collect();
                run.is_over.store(true, Ordering::Relaxed);
                for ended in ended.into_iter().chain(others.into_iter().map(|thread| thread.join()))
                {
                    ended.expect("pages are as they were left");
                }
            });
            run.look_at_all(&space);
            let task = space.enter().expect("a task");
            task.unmap(at, self.pages * FRAME_SIZE).expect("mapped");
            drop(task);
            drop(ending);
            kswapd.join().expect("no panic").expect("a task");
            // Not before: kswapd counts an evicted page after the page has gone.
            assert_eq!((space.anon_rss(), space.swap_rss()), (0, 0), "all is unmapped");
        });
        drop(space);
        let counts = pager.counts();
        let errors = run.errors.into_inner();
        eprintln!("{}: {errors} errors, {counts:?}, swap {:?}", self.name, pager.swap().usage());
        assert!(counts.pswpout > 0 && counts.pswpin > 0, "{counts:?}");
        let may_fail = self.faults.is_some_and(|faults| faults.error + faults.no_space > 0);
        // Forks share what then can't go, and may find no frame.
        assert!(may_fail || errors == 0 || self.doing == Doing::Forks, "{errors} errors");
    }
}

struct Run {
    scenario: Scenario,
    seed: u64,
    at: usize,
    /// How often each page was written; written and read under its guards.
    versions: Vec<AtomicU32>,
    errors: AtomicUsize,
    is_over: AtomicBool,
}

/// How long it lasts, where that is asked for.
pub fn soak() -> Option<Duration> {
    let text = std::env::var("PUMICE_SOAK_SECONDS").ok()?;
    Some(Duration::from_secs_f64(text.parse().expect("PUMICE_SOAK_SECONDS is a number")))
}

impl Run {
    fn note(&self, error: &VmError) {
        let is_typed = matches!(
            error,
            VmError::ReadFailed(_) | VmError::OutOfFrames(_) | VmError::OutOfRecords(_)
        );
        assert!(is_typed, "{error}");
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Reads and writes pages until it is over.
    fn access(&self, space: &Space<'_>, thread: usize) {
        let begun = Instant::now();
        // Pages that a child shares can't go: there is to be time without one.
        let is_forking = self.scenario.doing == Doing::Forks;
        let least = self.scenario.pages * if is_forking { 24 } else { 1 };
        let mut random = Rng::with_seed(self.seed ^ (thread as u64) << 56);
        let mut step = 0;
        loop {
            // Now and then another task, whose batch and frames go.
            let task = space.enter().expect("a task");
            let region = task.region(self.at).expect("mapped");
            for _ in 0..1000 {
                self.touch(&task, &region, &mut random, step);
                step += 1;
            }
            let is_long_enough = soak().map_or(step >= least, |long| begun.elapsed() >= long);
            if is_long_enough {
                return;
            }
        }
    }

    fn touch(
        &self,
        task: &Task<'_, Frames<'_>, Atomic>,
        region: &Region<'_, Frames<'_>, Atomic>,
        random: &mut Rng,
        step: usize,
    ) {
        let pages = self.scenario.pages;
        let page = match step / 500 % 3 {
            0 => random.usize(..pages),
            1 => step % pages,
            // Few pages, often.
            _ => {
                let end = 1 + random.usize(..pages);
                random.usize(..end)
            }
        };
        let result = match random.usize(..8) {
            0..=2 => region.write(page).map(|mut guard| {
                let old = self.versions[page].load(Ordering::Relaxed);
                self.check(&guard, page, old);
                fill(&mut guard, page, old + 1);
                self.versions[page].store(old + 1, Ordering::Relaxed);
            }),
            3..=5 => region.read(page).map(|guard| {
                self.check(&guard, page, self.versions[page].load(Ordering::Relaxed));
            }),
            // Without a guard a writer may come before or after; but not within.
            6 => {
                let before = self.versions[page].load(Ordering::Relaxed);
                let read = region.read_optimistic(page, |words| (words.load(0), words.load(1)));
                read.map(|(number, version)| {
                    let after = self.versions[page].load(Ordering::Relaxed) + 1;
                    let is_good = (u64::from(before)..=u64::from(after)).contains(&version)
                        && (version == 0 || number == page as u64);
                    assert!(is_good, "page {page}: {number} {version}, {before}..={after}");
                })
            }
            _ => {
                let mut word = [0; 8];
                let address = self.at + page * FRAME_SIZE;
                task.read_at(address, &mut word).map(|()| {
                    let number = u64::from_le_bytes(word);
                    assert!(number == page as u64 || number == 0, "page {page} says {number}");
                })
            }
        };
        if let Err(error) = result {
            self.note(&error);
        }
    }

    fn check(&self, bytes: &[u8; FRAME_SIZE], page: usize, wanted: u32) {
        assert!(version(bytes, page) == Some(wanted), "{}", describe(bytes, page, wanted));
    }

    /// Regions of this thread's own.
    fn map_and_unmap(&self, space: &Space<'_>, thread: usize) {
        let mut random = Rng::with_seed(self.seed ^ 0x6d61_7073 ^ (thread as u64) << 48);
        while !self.is_over.load(Ordering::Relaxed) {
            let task = space.enter().expect("a task");
            let pages = 1 + random.usize(..self.scenario.frames / 8);
            let at = match task.map(pages * FRAME_SIZE, Rights::READ_WRITE) {
                Ok(at) => at,
                Err(error) => {
                    self.note(&error);
                    continue;
                }
            };
            let mut written = vec![0; pages];
            for step in 0..2 * pages {
                let region = task.region(at).expect("mapped");
                let page = if step < pages { step } else { random.usize(..pages) };
                match region.write(page) {
                    Ok(mut guard) => {
                        self.check(&guard, page, written[page]);
                        written[page] += 1;
                        fill(&mut guard, page, written[page]);
                    }
                    Err(error) => self.note(&error),
                };
            }
            // In parts, which fall on pages in memory, in swap and on their way.
            let mut first = 0;
            while first < pages {
                let many = (1 + random.usize(..64)).min(pages - first);
                let (start, bytes) = (at + first * FRAME_SIZE, many * FRAME_SIZE);
                let mut tries = 0;
                while let Err(error) = task.unmap(start, bytes) {
                    self.note(&error);
                    tries += 1;
                    assert!(tries < 1000, "{start:#x} can't be unmapped: {error}");
                }
                first += many;
            }
            assert!(task.region(at).is_err(), "it is unmapped");
        }
    }

    /// Children, each looked at twice with a write in between.
    fn fork(&self, space: &Space<'_>, thread: usize) {
        let mut random = Rng::with_seed(self.seed ^ 0x666f_726b ^ (thread as u64) << 48);
        while !self.is_over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(random.u64(..8)));
            let task = space.enter().expect("a task");
            let before: Vec<u32> =
                self.versions.iter().map(|version| version.load(Ordering::Relaxed)).collect();
            let child = match task.fork() {
                Ok(child) => child,
                Err(error) => {
                    self.note(&error);
                    continue;
                }
            };
            let kid = child.enter().expect("a task");
            let region = kid.region(self.at).expect("mapped");
            let mut seen = vec![None; self.scenario.pages];
            for _ in 0..2 * self.scenario.pages {
                let page = random.usize(..self.scenario.pages);
                let is_writing = random.usize(..4) == 0;
                let looked_at = if is_writing {
                    region.write(page).map(|mut guard| {
                        let was = self.look(&guard, page, before[page], seen[page]);
                        fill(&mut guard, page, was + 1);
                        was + 1
                    })
                } else {
                    region.read(page).map(|guard| self.look(&guard, page, before[page], seen[page]))
                };
                match looked_at {
                    Ok(version) => seen[page] = Some(version),
                    Err(error) => self.note(&error),
                }
            }
        }
    }

    /// A page of a child: no older than when the child was made, no younger than now, and as it was last seen.
    fn look(&self, bytes: &[u8; FRAME_SIZE], page: usize, before: u32, seen: Option<u32>) -> u32 {
        let is = version(bytes, page);
        let now = self.versions[page].load(Ordering::Relaxed) + 1;
        let is_good = is.is_some_and(|is| match seen {
            Some(seen) => is == seen,
            None => (before..=now).contains(&is),
        });
        let wanted = seen.unwrap_or(before);
        assert!(is_good, "a child's {}, or to {now}", describe(bytes, page, wanted));
        is.unwrap_or(0)
    }

    fn look_at_all(&self, space: &Space<'_>) {
        let task = space.enter().expect("a task");
        for (page, wanted) in self.versions.iter().enumerate() {
            let mut tries = 0;
            loop {
                match task.region(self.at).expect("mapped").read(page) {
                    Ok(guard) => break self.check(&guard, page, wanted.load(Ordering::Relaxed)),
                    Err(error) => self.note(&error),
                }
                tries += 1;
                assert!(tries < 1000, "page {page} can't be read");
            }
        }
    }
}
