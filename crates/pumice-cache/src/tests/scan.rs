//! Reclaim's treatment of a page that it comes to, case by case, where the page is a file's. Only direct reclaim runs,
//! and nobody writes in the background, so nothing happens but the steps of a test.
//!
//! They are the cases that reclaim is held to with anonymous pages (`reclaim/swap_out_tests.rs`, `swap_tests.rs`,
//! `direct_tests.rs`). Those in which the device has its part are in `scan_io`. The others:
//!
//! - Threads and devices at random, and pages that are dirty again as soon as they are written: `tests.rs`, `faults`,
//!   `races`, and the models, which run on shuttle.
//! - No pages of files have these: a swap that is full, slots that are given back or shared by `fork`; page tables that
//!   are walked for mapped pages (`vm_mapped_ratio`), for a cache goes by owners; requests that forbid I/O or calls
//!   into files, for nobody can say so of a cache; other spaces on the same zone.

use super::*;
use pumice_frames::clear::Clearer;
use pumice_frames::frame::Zone;
use pumice_frames::sys::{cpu, mem::Huge};
use pumice_paging::reclaim::{
    policy, Adaptive, Paging, Policy, Settings as Limits, TwoList, ZoneReclaim,
};
use pumice_paging::space::MemMap;

/// Frames of the caches here, tables included.
pub(super) const FRAMES: usize = 512;

/// The parts that a test has.
pub(super) struct Stage<'s, 'c, P> {
    pub cache: &'s Cache<'c>,
    pub reclaim: &'s ZoneReclaim<P>,
}

/// A cache as [`run`] makes it, without background threads.
pub(super) fn on_stage<P: Policy + Send>(
    settings: &Settings,
    policy: P,
    work: impl FnOnce(&Stage<'_, '_, P>),
) {
    let files = Files::new(settings);
    let reclaim = Arc::new(ZoneReclaim::new(policy, FRAMES, Limits::of(FRAMES)));
    reclaim.set_engines(&settings.engines);
    let paging = Paging::on(reclaim.clone(), &files);
    let zone = Zone::new(FRAMES * FRAME_SIZE, cpu::count(), Huge::No).expect("a zone");
    let fills = RwLock::default();
    let map = MemMap::new(&zone, Clearer::detect()).expect("tables");
    let space = VmSpace::for_files(map.frames_of(&paging), Atomic).expect("frames");
    let counts = || reclaim.counts();
    let cache = Cache { space: &space, files: &files, reclaim: &counts, fills: &fills };
    let work = || work(&Stage { cache: &cache, reclaim: &reclaim });
    paging.attach(&space, work).expect("a task");
}

/// The same with the policy that caches have, and nothing dirty that anybody waits for.
pub(super) fn on_plain_stage(work: impl FnOnce(&Stage<'_, '_, Adaptive<'_>>)) {
    let mut entries = policy::table::<Adaptive<'_>>(FRAMES);
    on_stage(&quiet(), Adaptive::new(&mut entries), work);
}

/// The same with two lists, of which the pages that were used longest ago go whatever is used later.
fn on_stage_of_two_lists(work: impl FnOnce(&Stage<'_, '_, TwoList<'_>>)) {
    let mut entries = policy::table::<TwoList<'_>>(FRAMES);
    on_stage(&quiet(), TwoList::new(&mut entries), work);
}

/// All of it may be dirty.
pub(super) fn quiet() -> Settings {
    Settings { dirty_background: FRAMES, dirty_most: FRAMES, ..settings(FRAMES) }
}

/// A file of so many pages, each written once.
pub(super) fn file_of(name: &str, pages: usize) -> Scratch {
    let scratch = Scratch::new(&format!("scan-{name}"));
    let mut bytes = vec![0; pages * FRAME_SIZE];
    for (nth, page) in bytes.chunks_exact_mut(FRAME_SIZE).enumerate() {
        fill(page.try_into().expect("a page"), nth, 1);
    }
    fs::write(&scratch.0, &bytes).expect("room");
    scratch
}

/// The first word of a page that was written once.
fn word_of(page: usize) -> [u8; 8] {
    mix((page as u64) << 20 | 1 << 12).to_le_bytes()
}

impl<P: Policy + Send> Stage<'_, '_, P> {
    pub fn open(&self, scratch: &Scratch) -> File {
        self.cache.open(&scratch.0, &Options::new()).expect("the file")
    }

    /// Reads pages that were written once, one by one, and none ahead. Of each a word is looked at.
    pub fn read(&self, view: &View<'_, '_>, pages: std::ops::Range<usize>) {
        view.advise(0..0, Advice::Random);
        for page in pages {
            let guard = view.read(page).expect("there");
            assert_eq!(guard[..8], word_of(page), "page {page}");
        }
    }
}

pub(super) fn in_memory(view: &View<'_, '_>, pages: std::ops::Range<usize>) -> usize {
    pages.filter(|&page| view.translate(page).is_some()).count()
}

#[test]
fn pages_with_guards_stay_where_they_are() {
    let scratch = file_of("locked", 2048);
    on_stage_of_two_lists(|stage| {
        let file = stage.open(&scratch);
        let task = stage.cache.task().expect("room");
        let view = task.view(&file).expect("room");
        stage.read(&view, 0..100);
        let read = view.read(3).expect("there");
        let mut written = view.write(5).expect("there");
        fill(&mut written, 5, 2);
        let at = [3, 5].map(|page| view.translate(page));
        stage.read(&view, 100..2048);
        assert_eq!((in_memory(&view, 0..100), [3, 5].map(|page| view.translate(page))), (2, at));
        check(&read, 3, 1);
        check(&written, 5, 2);
        assert_eq!((stage.cache.counts().written, file.dirty()), (0, 1), "it is being written to");
        drop((read, written));
        view.sync().expect("the device is there");
        assert_eq!(stage.cache.counts().written, 1);
        check(&plainly(&scratch.0)[5], 5, 2);
    });
}

#[test]
fn clean_pages_go_as_they_are_and_dirty_ones_are_written_once() {
    let scratch = file_of("dirty", 2048);
    on_stage_of_two_lists(|stage| {
        let file = stage.open(&scratch);
        let task = stage.cache.task().expect("room");
        let view = task.view(&file).expect("room");
        stage.read(&view, 0..2048);
        let (counts, zone) = (stage.cache.counts(), stage.reclaim.counts());
        assert_eq!((counts.read, counts.written, zone.pswpout, zone.errors), (2048, 0, 0, 0));
        assert!(zone.clean >= 2048 - FRAMES as u64 && zone.direct == zone.clean, "{zone:?}");
        (0..200).for_each(|page| fill(&mut view.write(page).expect("there"), page, 2));
        assert_eq!(file.dirty(), 200);
        stage.read(&view, 200..2048);
        let counts = stage.cache.counts();
        assert_eq!((in_memory(&view, 0..200), counts.written, file.dirty()), (0, 200, 0));
        assert!(
            counts.write_requests <= 200 / 8,
            "those beside each other go together: {counts:?}"
        );
        for (nth, page) in plainly(&scratch.0).iter().enumerate() {
            check(page, nth, if nth < 200 { 2 } else { 1 });
        }
        (0..200).for_each(|page| check(&view.read(page).expect("there"), page, 2));
        stage.read(&view, 200..2048);
        assert_eq!(stage.cache.counts().written, 200, "what came back is clean");
    });
}

/// Nobody has a view of them, nor the file open, nor a task that once had: they are no less the file's.
#[test]
fn dirty_pages_that_nobody_has_open_are_written_where_they_belong() {
    let (left, used) = (file_of("left", 200), file_of("used", 2048));
    on_stage_of_two_lists(|stage| {
        {
            let file = stage.open(&left);
            let task = stage.cache.task().expect("room");
            let view = task.view(&file).expect("room");
            (0..200).for_each(|page| fill(&mut view.write(page).expect("there"), page, 2));
        }
        assert_eq!(stage.cache.counts().dirty, 200);
        let task = stage.cache.task().expect("room");
        let file = stage.open(&used);
        stage.read(&task.view(&file).expect("room"), 0..2048);
        let counts = stage.cache.counts();
        assert_eq!((counts.dirty, counts.written), (0, 200));
        plainly(&left.0).iter().enumerate().for_each(|(nth, page)| check(page, nth, 2));
        let file = stage.open(&left);
        let view = task.view(&file).expect("room");
        assert_eq!(in_memory(&view, 0..200), 0);
        (0..200).for_each(|page| check(&view.read(page).expect("there"), page, 2));
    });
}

/// By two names, by threads of their own, by several views: one page, with one word.
#[test]
fn a_page_that_several_have_is_one_page() {
    let (scratch, other_name) = (file_of("shared", 2048), Scratch::new("scan-shared-link"));
    fs::hard_link(&scratch.0, &other_name.0).expect("a link");
    on_stage_of_two_lists(|stage| {
        let (one, other) = (stage.open(&scratch), stage.open(&other_name));
        let task = stage.cache.task().expect("room");
        let view = task.view(&one).expect("room");
        std::thread::scope(|scope| {
            let (held, is_held) = std::sync::mpsc::channel();
            let (over, is_over) = std::sync::mpsc::channel::<()>();
            let (other, cache) = (&other, stage.cache);
            scope.spawn(move || {
                let task = cache.task().expect("room");
                let views = [0, 1].map(|_| task.view(other).expect("room"));
                for (nth, view) in views.iter().enumerate() {
                    (0..50).for_each(|page| {
                        fill(&mut view.write(page).expect("there"), page, 2 + nth as u8)
                    });
                }
                let guard = views[1].read(7).expect("there");
                held.send(()).expect("somebody waits");
                is_over.recv().expect("it ends");
                check(&guard, 7, 3);
            });
            is_held.recv().expect("a guard");
            (10..30).for_each(|page| fill(&mut view.write(page).expect("there"), page, 3));
            assert_eq!((one.dirty(), other.dirty()), (50, 50));
            stage.read(&view, 50..2048);
            assert_eq!(in_memory(&view, 0..50), 1, "the other's guard is of that");
            over.send(()).expect("it waits");
        });
        stage.read(&view, 50..2048);
        assert_eq!((one.dirty(), stage.cache.counts().written), (0, 50), "each once");
        plainly(&scratch.0)[..50].iter().enumerate().for_each(|(nth, page)| check(page, nth, 3));
    });
}

/// Pages in the batch of a thread that sleeps are met all the same.
#[test]
fn pages_that_nobody_told_of_go_too() {
    let scratch = file_of("untold", 2048);
    on_plain_stage(|stage| {
        let file = stage.open(&scratch);
        let (asleep, task) = (stage.cache.task(), stage.cache.task());
        let (asleep, task) = (asleep.expect("room"), task.expect("room"));
        let theirs = asleep.view(&file).expect("room");
        stage.read(&theirs, 0..5);
        fill(&mut theirs.write(2).expect("there"), 2, 2);
        let view = task.view(&file).expect("room");
        for _ in 0..8 {
            stage.read(&view, 5..2048);
        }
        assert_eq!((in_memory(&view, 0..5), file.dirty()), (0, 0));
        check(&theirs.read(2).expect("it comes back"), 2, 2);
    });
}

#[test]
fn pages_of_what_is_cut_off_or_closed_are_forgotten() {
    let (gone, scratch) = (file_of("gone", 400), file_of("goes-on", 2048));
    on_plain_stage(|stage| {
        let task = stage.cache.task().expect("room");
        let (file, other) = (stage.open(&gone), stage.open(&scratch));
        let other = task.view(&other).expect("room");
        let view = task.view(&file).expect("room");
        (0..300).for_each(|page| fill(&mut view.write(page).expect("there"), page, 2));
        view.set_len(100 * FRAME_SIZE as u64).expect("shorter");
        assert_eq!((file.dirty(), stage.cache.counts().resident), (100, 100));
        stage.read(&other, 0..250);
        assert_eq!(stage.reclaim.counts().allocstall, 0, "there is room where they were");
        view.sync().expect("the device is there");
        drop(view);
        task.close(file).expect("the device is there");
        assert_eq!(stage.cache.counts().resident, 250);
        let written = stage.cache.counts().written;
        stage.read(&other, 250..2048);
        stage.read(&other, 0..2048);
        assert_eq!(stage.cache.counts().written, written, "of what is no more nothing is written");
        assert_eq!(plainly(&gone.0).len(), 100);
        assert!(stage.cache.counts().resident > FRAMES as u64 / 2, "the memory is used");
    });
}

/// Uses some pages again and again among others that are used once. How many of the some are in memory at the end.
fn after_a_scan<P: Policy + Send>(name: &str, policy: P) -> (usize, usize) {
    let scratch = file_of(name, 4096);
    let mut found = (0, 0);
    on_stage(&quiet(), policy, |stage| {
        let file = stage.open(&scratch);
        let task = stage.cache.task().expect("room");
        let view = task.view(&file).expect("room");
        for round in 0..12 {
            stage.read(&view, 0..64);
            stage.read(&view, 64 + round * 128..64 + (round + 1) * 128);
        }
        found.0 = in_memory(&view, 0..64);
        // Others are used as often from now on, and these no more.
        for round in 0..60 {
            stage.read(&view, 3000..3360);
            let first = 64 + round % 16 * 160;
            stage.read(&view, first..first + 160);
        }
        found.1 = in_memory(&view, 0..64);
        let others = in_memory(&view, 3000..3360);
        // 240 to 330 of them, by the processor that each frame was freed on.
        assert!(others > 180, "{others} of 360 are in memory, {found:?} of 64");
    });
    found
}

#[test]
fn what_is_used_again_is_activated_and_goes_when_it_is_not_used_any_more() {
    let mut entries = policy::table::<Adaptive<'_>>(FRAMES);
    let (used, unused) = after_a_scan("used-adaptive", Adaptive::new(&mut entries));
    assert!(used >= 60 && unused <= 4, "{used}, then {unused} of 64");
    let mut entries = policy::table::<TwoList<'_>>(FRAMES);
    let (used, unused) = after_a_scan("used-two-list", TwoList::new(&mut entries));
    assert!(used >= 60 && unused <= 4, "{used}, then {unused} of 64");
}

/// A page that comes back soon after it went is known by its shadow and stays longer than others that came then. One
/// that was dropped is as new.
#[test]
fn a_page_that_comes_back_is_known_by_its_shadow() {
    let scratch = file_of("shadows", 4096);
    on_plain_stage(|stage| {
        let file = stage.open(&scratch);
        let task = stage.cache.task().expect("room");
        let view = task.view(&file).expect("room");
        // The policy differs from LRU by what it has won against it: here by pages that LRU has only just.
        for round in 0..8 {
            stage.read(&view, 3800..4000);
            stage.read(&view, 1000 + round * 210..1000 + (round + 1) * 210);
        }
        for page in 700..720 {
            stage.read(&view, page..page + 1);
            view.advise(page..page + 1, Advice::DontNeed);
        }
        stage.read(&view, 0..20);
        stage.read(&view, 40..700);
        assert_eq!(in_memory(&view, 0..20), 0, "they went");
        for first in [0, 700, 2700] {
            stage.read(&view, first..first + 20);
        }
        stage.read(&view, 2720..3220);
        let known = [0, 700, 2700].map(|first| in_memory(&view, first..first + 20));
        assert_eq!(known, [20, 0, 0], "came back, was dropped, is new");
    });
}
