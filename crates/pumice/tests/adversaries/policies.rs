//! Policies of the program's, called while pages come in and go, that do what a policy must not.

use std::cell::Cell;
use std::panic::{catch_unwind, AssertUnwindSafe};

use pumice::addr::FRAME_SIZE;
use pumice::clear::Clearer;
use pumice::frame::Zone;
use pumice::page_table::{Atomic, Rights};
use pumice::reclaim::policy::table;
use pumice::reclaim::{
    Arrival, Policy, Settings, Shadow, SwapPager, Tunables, TwoList, ZoneReclaim,
};
use pumice::space::{Frames, MemMap, Task, VmSpace};
use pumice::sys::mem::Huge;

use crate::swap;

const FRAMES: usize = 1024;
const REGION: usize = 512 * FRAME_SIZE;

type AnyTask = Task<'static, Frames<'static>, Atomic>;

thread_local! {
    /// The task of the thread that makes pages come in, and how often a policy went back to it.
    static TASK: Cell<Option<&'static AnyTask>> = const { Cell::new(None) };
    static TURNS: Cell<usize> = const { Cell::new(0) };
}

/// Two lists; each call that changes them is told first.
struct Watched<W> {
    lists: TwoList<'static>,
    watch: W,
    /// The answer of [`Policy::evict`] instead.
    names: Option<u32>,
}

impl<W: FnMut(&'static str)> Policy for Watched<W> {
    const NAME: &'static str = "watched";

    fn tune(&mut self, tunables: Tunables) {
        self.lists.tune(tunables);
    }
    fn table_len(pages: usize) -> usize {
        TwoList::table_len(pages)
    }
    fn batch(pages: usize) -> usize {
        TwoList::batch(pages)
    }
    fn add(&mut self, page: u32, name: u64, arrival: Arrival) {
        (self.watch)("add");
        self.lists.add(page, name, arrival);
    }
    fn accessed(&mut self, page: u32, name: u64) {
        (self.watch)("accessed");
        self.lists.accessed(page, name);
    }
    fn forget(&mut self, page: u32) {
        (self.watch)("forget");
        self.lists.forget(page);
    }
    fn evict(&mut self) -> Option<(u32, Shadow)> {
        (self.watch)("evict");
        let evicted = self.lists.evict();
        self.names.map_or(evicted, |page| Some((page, Shadow::from_bits(0))))
    }
    fn evict_page(&mut self, page: u32) -> Shadow {
        (self.watch)("evict_page");
        self.lists.evict_page(page)
    }
    fn put_back(&mut self, page: u32, shadow: Shadow) {
        (self.watch)("put_back");
        self.lists.put_back(page, shadow);
    }
    fn refill(&mut self, batch: usize) {
        (self.watch)("refill");
        self.lists.refill(batch);
    }
    fn roll_over(&mut self) -> Option<u32> {
        (self.watch)("roll_over");
        self.lists.roll_over()
    }
    fn len(&self) -> usize {
        self.lists.len()
    }
    fn contains(&self, page: u32) -> bool {
        self.lists.contains(page)
    }
}

fn leak<T>(what: T) -> &'static T {
    Box::leak(Box::new(what))
}

/// Has a thread use a space under such a policy.
fn with_policy<W>(
    watch: W,
    names: Option<u32>,
    settings: Settings,
    work: impl FnOnce(&'static AnyTask),
) where
    W: FnMut(&'static str) + Send + 'static,
{
    let swap = swap(16 * FRAMES);
    let entries = Box::leak(table::<TwoList<'_>>(FRAMES).into_boxed_slice());
    let policy = Watched { lists: TwoList::new(entries), watch, names };
    let pager = leak(SwapPager::new(swap, policy, FRAMES, settings));
    let zone = leak(Zone::new(FRAMES * FRAME_SIZE, 2, Huge::No).expect("a zone"));
    let map = leak(MemMap::new(zone, Clearer::detect()).expect("tables"));
    let space = leak(VmSpace::new(map.frames_of(pager), Atomic).expect("frames"));
    let attached = pager.attach(space, || work(leak(space.enter().expect("frames"))));
    attached.expect("room");
}

#[test]
fn a_policy_that_goes_back_to_its_task_finds_it_as_it_should_be() {
    let goes_back = |what| {
        let task = TASK.get().filter(|_| what == "add" && TURNS.get() < 100);
        if let Some(task) = task {
            TURNS.set(TURNS.get() + 1);
            task.lru_drain();
            let _ = task.mapped(usize::MAX / FRAME_SIZE);
        }
    };
    with_policy(goes_back, None, Settings::of(FRAMES), |task| {
        TASK.set(Some(task));
        let at = task.map(300 * FRAME_SIZE, Rights::READ_WRITE).expect("room");
        let region = task.region(at).expect("mapped");
        for page in 0..300 {
            region.write(page).expect("room").fill(page as u8);
        }
        task.lru_drain();
        TASK.set(None);
        assert!((0..300).all(|page| *region.read(page).expect("there") == [page as u8; FRAME_SIZE]));
    });
    assert!(TURNS.get() > 0, "it was about something");
}

/// The action of a policy in the middle of the fault of a thread that writes to `VICTIM`.
fn uses_the_space(how: fn(&AnyTask, usize, usize)) {
    thread_local! {
        static VICTIM: Cell<[usize; 2]> = const { Cell::new([0; 2]) };
    }
    let uses = move |what| {
        if let Some(task) = TASK.get().filter(|_| what == "add") {
            TASK.set(None);
            TURNS.set(TURNS.get() + 1);
            let [victim, other] = VICTIM.get();
            how(task, victim, other);
        }
    };
    TURNS.set(0);
    with_policy(uses, None, Settings::of(FRAMES), |task| {
        let other = task.map(60 * FRAME_SIZE, Rights::READ_WRITE).expect("room");
        for page in 0..60 {
            task.write_at(other + page * FRAME_SIZE, &[0x44]).expect("room");
        }
        let child = task.fork().expect("frames");
        let victim = task.map(REGION, Rights::READ_WRITE).expect("room");
        VICTIM.set([victim, other]);
        task.lru_drain();
        TASK.set(Some(task));
        for page in 0..200 {
            let written = catch_unwind(AssertUnwindSafe(|| {
                task.write_at(victim + page * FRAME_SIZE, &[1; 8])
            }));
            if !matches!(written, Ok(Ok(_))) {
                break;
            }
        }
        TASK.set(None);
        let mut bytes = [0; FRAME_SIZE];
        for page in 0..60 {
            task.read_at(other + page * FRAME_SIZE, &mut bytes).expect("there");
            assert!(bytes[0] == 0x44 || bytes[0] == 0x55, "page {page}");
            assert!(bytes[1..].iter().all(|&byte| byte == 0), "page {page}");
        }
        drop(child);
        // Free memory reads as zeros, and nothing is held for ever.
        let fresh = task.map(REGION, Rights::READ_WRITE).expect("room");
        let region = task.region(fresh).expect("mapped");
        for page in 0..300 {
            let Ok(guard) = region.write(page) else { break };
            assert!(guard.iter().all(|&byte| byte == 0), "fresh page {page}");
        }
    });
    assert!(TURNS.get() > 0, "it was about something");
}

#[test]
fn a_policy_that_unmaps_what_faults_is_refused() {
    uses_the_space(|task, victim, other| {
        let unmapped = catch_unwind(AssertUnwindSafe(|| task.unmap(victim, REGION)));
        assert!(unmapped.is_err());
        task.give_frames_back();
        for page in 0..60 {
            let _ = task.write_at(other + page * FRAME_SIZE, &[0x55]);
        }
    });
}

#[test]
fn a_policy_that_makes_more_pages_come_in_is_refused() {
    uses_the_space(|task, _, other| {
        let _ = task.map(REGION, Rights::READ_WRITE);
        for page in 0..60 {
            let _ = task.write_at(other + page * FRAME_SIZE, &[0x55]);
        }
        task.lru_drain();
    });
}

/// Uses three times the memory: no page may be wrong, errors are as they come, and all of it ends.
fn use_up(task: &AnyTask) {
    let at = task.map(3 * FRAMES * FRAME_SIZE, Rights::READ_WRITE).expect("room");
    let mut written = vec![false; 3 * FRAMES];
    let own = |page: usize| [page as u8 | 1; FRAME_SIZE];
    let mut errors = 0;
    for (page, written) in written.iter_mut().enumerate() {
        *written = task.write_at(at + page * FRAME_SIZE, &own(page)).is_ok();
        errors += usize::from(!*written);
        if errors == 30 {
            // There will be no more.
            break;
        }
    }
    for (page, _) in written.iter().enumerate().filter(|(_, &written)| written) {
        let mut bytes = [0; FRAME_SIZE];
        match task.read_at(at + page * FRAME_SIZE, &mut bytes) {
            Ok(()) => assert!(bytes == own(page), "page {page}"),
            Err(_) => errors += 1,
        }
        if errors >= 60 {
            break;
        }
    }
    assert!(written.iter().filter(|&&written| written).count() > FRAMES / 4);
    task.unmap(at, 3 * FRAMES * FRAME_SIZE).expect("mapped");
}

#[test]
fn a_policy_that_panics_has_failed_and_nothing_hangs() {
    for ratio in [0, 1] {
        let settings = Settings { vm_mapped_ratio: Some(ratio), ..Settings::of(FRAMES) };
        for what in
            ["add", "accessed", "forget", "evict", "evict_page", "put_back", "refill", "roll_over"]
        {
            let mut calls = 0;
            let panics = move |call| {
                calls += usize::from(call == what);
                assert!(call != what || calls != 100, "a policy's panic in {what}");
            };
            with_policy(panics, None, settings, use_up);
        }
    }
}

#[test]
fn a_policy_that_names_one_page_for_ever_or_none_that_is_there_hangs_nothing() {
    for name in [0, FRAMES as u32 - 1, FRAMES as u32, u32::MAX] {
        with_policy(|_| {}, Some(name), Settings::of(FRAMES), use_up);
    }
}

#[test]
fn a_policy_whose_table_is_too_short_has_failed() {
    let swap = swap(4 * FRAMES);
    let mut entries = table::<TwoList<'_>>(FRAMES / 4);
    let pager = SwapPager::new(swap, TwoList::new(&mut entries), FRAMES, Settings::of(FRAMES));
    let zone = Zone::new(FRAMES * FRAME_SIZE, 2, Huge::No).expect("a zone");
    let map = MemMap::new(&zone, Clearer::detect()).expect("tables");
    let space = VmSpace::new(map.frames_of(&pager), Atomic).expect("frames");
    let attached = pager.attach(&space, || {
        let task = space.enter().expect("frames");
        let at = task.map(2 * FRAMES * FRAME_SIZE, Rights::READ_WRITE).expect("room");
        let written = (0..2 * FRAMES)
            .filter(|page| task.write_at(at + page * FRAME_SIZE, &[1]).is_ok())
            .count();
        assert!(written > FRAMES / 2, "{written}");
    });
    attached.expect("room");
}

/// Ends, or the test does.
fn within_a_minute(work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    match is_done.recv_timeout(std::time::Duration::from_secs(60)) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        _ => thread.join().expect("no panic"),
    }
}

/// Has a policy do something, once, in the middle of a fault; `victim` has pages that nobody has touched.
fn once_in_a_fault(how: fn(&AnyTask, usize)) {
    within_a_minute(move || {
        thread_local! {
            static FRESH: Cell<usize> = const { Cell::new(0) };
        }
        TURNS.set(0);
        let does = move |what| {
            if let Some(task) = TASK.get().filter(|_| what == "add") {
                TASK.set(None);
                TURNS.set(TURNS.get() + 1);
                how(task, FRESH.get());
            }
        };
        with_policy(does, None, Settings::of(FRAMES), |task| {
            let at = task.map(100 * FRAME_SIZE, Rights::READ_WRITE).expect("room");
            FRESH.set(task.map(100 * FRAME_SIZE, Rights::READ_WRITE).expect("room"));
            TASK.set(Some(task));
            for page in 0..100 {
                let _ = task.write_at(at + page * FRAME_SIZE, &[1]);
            }
            // Nobody has a guard of any page.
            for page in 0..100 {
                for region in [at, FRESH.get()] {
                    let _ = task.write_at(region + page * FRAME_SIZE, &[2]);
                }
            }
        });
        assert!(TURNS.get() > 0, "it was about something");
    });
}

#[test]
fn a_policy_that_makes_another_zones_reclaim_is_refused_still() {
    once_in_a_fault(|task, fresh| {
        let mut entries = table::<TwoList<'_>>(16);
        drop(ZoneReclaim::new(TwoList::new(&mut entries), 16, Settings::of(16)));
        for page in 0..100 {
            task.write_at(fresh + page * FRAME_SIZE, &[3]).expect("room");
        }
    });
}

#[test]
fn a_policy_that_is_refused_in_a_fault_of_its_own_leaves_no_page_held() {
    once_in_a_fault(|task, fresh| {
        for page in 0..100 {
            task.write_at(fresh + page * FRAME_SIZE, &[3]).expect("room");
        }
    });
}
