//! SPEC E4, case by case: the fate of pages that are met at the inactive tail, and in page tables.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::direct::Memalloc;
use super::direct_tests::Gate;
use super::progress::Progress;
use super::round::Round;
use super::testing::{fill, is_filled, two_list, with_space, Scratch, FRAMES};
use super::writes::Writes;
use super::{Settings, SwapPager, TwoList, ZoneReclaim};
use crate::page_table::pager::LruPage;
use crate::page_table::{Atomic, Rights};
use crate::space::{Frames, Region, Task, VmSpace};
use pumice_frames::addr::{Pfn, FRAME_SIZE};
use pumice_frames::frame::Gfp;
use pumice_io::engine::Direction;
use pumice_io::Engines;

type Pager<'e> = SwapPager<TwoList<'e>>;

/// Four pages at a time, two mapped ones passed over for each.
const SETTINGS: Settings =
    Settings { swap_cluster_max: 4, vm_mapped_ratio: Some(2), ..Settings::of(FRAMES) };
const PAGES: usize = 100;

/// The parts that a test has.
struct World<'w, 'e, 'f> {
    pager: &'w Pager<'e>,
    space: &'w VmSpace<Frames<'f>>,
    task: &'w Task<'w, Frames<'f>, Atomic>,
    region: &'w Region<'w, Frames<'f>, Atomic>,
    /// The region's first page.
    first: usize,
}

/// A region of which [`PAGES`] pages are in memory, written from the last to the first, so that the last is the oldest;
/// only direct reclaim runs.
fn with_pages(name: &str, engines: Option<Engines>, work: impl FnOnce(World<'_, '_, '_>)) {
    let scratch = Scratch::new(name);
    let pager = SwapPager::new(scratch.swap(4 * FRAMES), two_list(), FRAMES, SETTINGS);
    if let Some(engines) = engines {
        pager.zone().set_engines(&engines);
    }
    let attached = with_space(&pager, |_, space| {
        pager.attach(space, || {
            let task = space.enter().expect("a task");
            let at = task.map(2 * FRAMES * FRAME_SIZE, Rights::READ_WRITE).expect("addresses");
            let region = task.region(at).expect("mapped");
            for page in (0..PAGES).rev() {
                fill(&mut region.write(page).expect("room"), page, 1);
            }
            task.lru_drain();
            let (pager, space, task, region) = (&pager, space, &task, &region);
            work(World { pager, space, task, region, first: at / FRAME_SIZE });
        })
    });
    attached.expect("a task");
}

impl<'e> World<'_, 'e, '_> {
    fn zone(&self) -> &ZoneReclaim<TwoList<'e>> {
        self.pager.zone()
    }

    /// Takes from all pages that they have been accessed, and that they have just come.
    fn age(&self) {
        for page in 0..PAGES {
            let _ = self.task.test_and_clear_young(self.first + page);
        }
        self.zone().state().frames.iter_mut().for_each(super::zone::Frame::note_seen);
    }

    fn frame(&self, page: usize) -> u32 {
        self.task.mapped(self.first + page).expect("mapped").0 as u32
    }

    fn is_active(&self, page: usize) -> bool {
        self.zone().state().policy.is_active(self.frame(page))
    }

    /// A round that begins where the last one ended.
    fn with_round<R>(&self, work: impl FnOnce(&mut Round<'_, TwoList<'e>>) -> R) -> R {
        let _memalloc = Memalloc::begin(self.zone());
        let mut round =
            Round::new(self.zone(), Writes::new(&self.zone().engines(), 4), Gfp::KERNEL);
        round.meet_spaces();
        let result = work(&mut round);
        round.end();
        result
    }

    /// The pages of the next batch, which stay where they are.
    fn choose(&self, round: &mut Round<'_, TwoList<'e>>) -> Vec<usize> {
        round.choose_by_tables(2);
        let mut state = self.zone().state();
        let victims = std::mem::take(&mut round.victims);
        for victim in &victims {
            let lost = state.stays(victim.owner, victim.frame, victim.slot, victim.shadow);
            assert!(lost.is_none());
        }
        victims.iter().map(|victim| victim.owner.page() - self.first).collect()
    }
}

#[test]
fn mapped_pages_are_passed_over_until_the_ratio_and_then_tables_are_walked() {
    with_pages("mapped", None, |world| {
        world.age();
        // In 2.4 it would be the oldest, the last ones.
        let frames: Vec<u32> = (0..PAGES).map(|page| world.frame(page)).collect();
        let oldest = |zone: &ZoneReclaim<TwoList<'_>>| zone.state().policy.roll_over();
        assert_eq!(oldest(world.zone()), Some(frames[PAGES - 1]));
        world.with_round(|round| {
            assert_eq!(world.choose(round), [0, 1, 2, 3], "in the order of the tables");
            assert_eq!(world.pager.counts().passed_over, 2 * 4);
            assert_eq!(oldest(world.zone()), Some(frames[PAGES - 1 - 1 - 8]), "rolled over");
            assert_eq!(world.choose(round), [4, 5, 6, 7], "round robin");
        });
        assert_eq!(world.pager.counts().pswpout, 0);
    });
}

#[test]
fn spaces_are_walked_one_after_the_other() {
    with_pages("round-robin", None, |world| {
        let other = VmSpace::new(world.space.frames(), Atomic).expect("frames");
        let work = || {
            let task = other.enter().expect("a task");
            let at = task.map(16 * FRAME_SIZE, Rights::READ_WRITE).expect("addresses");
            (0..16).for_each(|page| task.write_at(at + page * FRAME_SIZE, &[1]).expect("room"));
            task.lru_drain();
            (0..16).for_each(|page| {
                let _ = task.test_and_clear_young(at / FRAME_SIZE + page);
            });
            world.age();
            let mut members = Vec::new();
            world.with_round(|round| {
                for _ in 0..(PAGES + 16) / 4 + 1 {
                    round.choose_by_tables(2);
                    let victims = std::mem::take(&mut round.victims);
                    members.extend(victims.iter().map(|victim| victim.owner.member()));
                }
            });
            members.dedup();
            assert_eq!(members, [0, 1], "each has had its turn");
        };
        world.pager.attach(&other, work).expect("a task");
    });
}

#[test]
fn what_was_accessed_is_activated_and_what_is_active_passed_over() {
    with_pages("accessed", None, |world| {
        world.with_round(|round| {
            assert!(world.choose(round).is_empty(), "all came to be used a moment ago");
            round.progress = Progress::default();
            assert!(!world.is_active(0), "that is one use");
            (0..10).for_each(|page| drop(world.region.read(page).expect("there")));
            assert_eq!(world.choose(round), [10, 11, 12, 13]);
            assert!((0..10).all(|page| world.is_active(page)));
            world.zone().state().swap_out_from = (0, 0);
            assert_eq!(world.choose(round)[0], 10, "nobody has touched the others since");
        });
    });
}

#[test]
fn a_locked_page_is_rolled_over() {
    with_pages("locked", None, |world| {
        world.age();
        let held = world.region.read(1).expect("there");
        let oldest = world.region.read(PAGES - 1).expect("there");
        world.with_round(|round| assert_eq!(world.choose(round), [0, 2, 3, 4]));
        // Any other page may go.
        (PAGES..2 * FRAMES).for_each(|page| drop(world.region.write(page).expect("room")));
        assert!(is_filled(&held, 1, 1) && is_filled(&oldest, PAGES - 1, 1));
        assert!(world.task.mapped(world.first + 1).is_some());
        assert!(world.pager.counts().pswpout > 0);
    });
}

#[test]
fn dirty_pages_are_written_and_clean_ones_are_not() {
    with_pages("dirty", None, |world| {
        world.age();
        let freed = world.with_round(|round| {
            assert!(round.reclaim_directly());
            round.freed()
        });
        let counts = world.pager.counts();
        assert_eq!((freed, counts.pswpout, counts.clean), (4, 4, 0));
        let page = (0..4).map(|page| world.region.read(page).expect("it comes back"));
        assert!(page.enumerate().all(|(page, guard)| is_filled(&guard, page, 1)));
        world.task.lru_drain();
        world.age();
        world.zone().state().swap_out_from = (0, 0);
        assert!(world.with_round(|round| round.reclaim_directly()));
        let counts = world.pager.counts();
        assert_eq!((counts.pswpout, counts.clean), (4, 4), "their slots are good");
    });
}

/// `PG_launder`: where as much is being written as may be, requests wait for that.
#[test]
fn pages_under_io_are_waited_for() {
    let (gates, keeper) = Gate::engines(Direction::Write);
    with_pages("launder", Some(Engines::new(gates)), |world| {
        world.zone().set_settings(Settings { most_leaving: 1, ..SETTINGS });
        keeper.is_armed.store(true, Ordering::Relaxed);
        let (space, at) = (world.space, world.first * FRAME_SIZE);
        std::thread::scope(|scope| {
            let asks = |from: usize, pages: usize| {
                scope.spawn(move || {
                    let task = space.enter().expect("a task");
                    let region = task.region(at).expect("mapped");
                    for page in from..from + pages {
                        fill(&mut region.write(page).expect("it waits"), page, 1);
                    }
                })
            };
            // More than there are frames; so when it writes, there is none for the other.
            let first = asks(PAGES, FRAMES);
            keeper.has_begun.recv().expect("it writes");
            let second = asks(PAGES + FRAMES, FRAMES / 4);
            while world.zone().state().requests.waiting() == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let counts = world.pager.counts();
            assert_eq!(counts.pswpout, 0);
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(world.pager.counts(), counts, "nothing else is begun meanwhile");
            keeper.go_on.send(()).expect("it waits");
            for asks in [first, second] {
                asks.join().expect("no panic");
            }
        });
        assert_eq!(world.pager.counts().errors, 0);
    });
}

#[test]
fn where_all_is_mapped_and_accessed_some_goes_and_it_ends() {
    with_pages("progress", None, |world| {
        let touch = || (0..PAGES).for_each(|page| drop(world.region.read(page).expect("there")));
        world.age();
        let turns = world.with_round(|round| {
            (1..10).find(|_| {
                touch();
                !world.choose(round).is_empty()
            })
        });
        assert_eq!(turns, Some(2));
        assert!(world.pager.counts().walked <= 2 * PAGES as u64);
        touch();
        assert!(world.with_round(|round| round.reclaim_directly()));
        // Nothing can go: it says so, and has not tried for ever.
        let _held: Vec<_> = (0..PAGES)
            .filter(|&page| world.task.mapped(world.first + page).is_some())
            .map(|page| world.region.read(page).expect("there"))
            .collect();
        let before = world.pager.counts();
        assert!(!world.with_round(|round| round.reclaim_directly()));
        let walked = world.pager.counts().walked - before.walked;
        assert!(walked < 100 * PAGES as u64, "{walked}");
    });
}

#[test]
fn pages_that_were_unmapped_are_forgotten_at_the_tail() {
    with_pages("unmapped-tail", None, |world| {
        world.age();
        let known = || world.zone().state().policy.len();
        assert_eq!(known(), PAGES);
        let last = (world.first + PAGES - 3) * FRAME_SIZE;
        world.task.unmap(last, 3 * FRAME_SIZE).expect("mapped");
        world.with_round(|round| drop(world.choose(round)));
        assert_eq!(known(), PAGES - 3);
    });
}

/// A walk meets pages that were never reported.
#[test]
fn pages_that_nobody_told_of_are_met() {
    with_pages("untold", None, |world| {
        world.age();
        let page = PAGES + 7;
        drop(world.region.write(page).expect("room"));
        let frame = Pfn(world.frame(page) as usize);
        let told = LruPage { page: world.first + page, frame };
        assert!(!world.zone().state().knows(0, told));
        world.with_round(|round| {
            (0..=PAGES / 4).for_each(|_| drop(world.choose(round)));
        });
        assert!(world.zone().state().knows(0, told));
    });
}
