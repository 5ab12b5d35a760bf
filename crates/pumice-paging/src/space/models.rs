//! Spaces under every interleaving (loom, two operations at a time) and under many random ones
//! (shuttle, whole scenarios). Tables have four entries.
//!
//! The frames are a model's: each knows whose it is, so a frame that is freed twice, used while it is free or
//! lost ends the test.

use std::sync::Mutex;
use std::vec::Vec;

use core::ptr::NonNull;

use super::disk::Disk;
use super::*;
use crate::page_table::pager::{Evicted, Pager};
use crate::page_table::tables::FrameList;
#[cfg(all(test, shuttle))]
use crate::page_table::Emulated;
#[cfg(test)]
use crate::page_table::Rights;
use pumice_frames::addr::{Pfn, FRAME_SIZE};
use pumice_frames::frame::Gfp;
use pumice_io::sync::atomic::{AtomicU32, AtomicU64};

pub const FRAMES: usize = 160;
const BITS: u32 = 2;
pub(crate) const PAGE: usize = FRAME_SIZE;

/// The frames of a model.
pub(crate) struct Owners {
    words: Vec<AtomicU64>,
    bytes: Vec<[u64; FRAME_SIZE / 8]>,
    sharers: Vec<AtomicU32>,
    disk: Option<Disk>,
    /// A pager that is none of these models'.
    pager: Option<&'static dyn Pager>,
    /// For each frame the length of the run it starts, 0 if it is free, `INSIDE` within one. A lock of
    /// the machine's own: nothing of loom or shuttle happens while it is held.
    runs: Mutex<Vec<usize>>,
}

const INSIDE: usize = usize::MAX;

#[derive(Clone, Copy)]
pub struct Model(&'static Owners);

impl Model {
    fn new(disk: Option<Disk>) -> Model {
        Model::with(disk, None)
    }

    /// With a pager of the caller's.
    #[cfg(shuttle)]
    pub fn paged_by(pager: &'static dyn Pager) -> Model {
        Model::with(None, Some(pager))
    }

    fn with(disk: Option<Disk>, pager: Option<&'static dyn Pager>) -> Model {
        let mut runs = vec![0; FRAMES];
        // The zero page.
        runs[0] = 1;
        let owners = Owners {
            words: (0..FRAMES << BITS).map(|_| AtomicU64::new(0)).collect(),
            bytes: vec![[0; FRAME_SIZE / 8]; FRAMES],
            sharers: (0..FRAMES).map(|_| AtomicU32::new(0)).collect(),
            disk,
            pager,
            runs: Mutex::new(runs),
        };
        Model(Box::leak(Box::new(owners)))
    }

    fn take(self, frames: usize) -> Option<Pfn> {
        let mut runs = self.0.runs.lock().expect("no panic");
        let first =
            (1..FRAMES - frames).find(|&at| runs[at..at + frames].iter().all(|&run| run == 0))?;
        runs[first..first + frames].fill(INSIDE);
        runs[first] = frames;
        Some(Pfn(first))
    }

    fn zero(self, first: Pfn, frames: usize) {
        for frame in first.0..first.0 + frames {
            for word in &self.0.words[frame << BITS..(frame + 1) << BITS] {
                word.store(0, Ordering::Relaxed);
            }
            // SAFETY: the frame is the caller's.
            unsafe { self.bytes(Pfn(frame)).write_bytes(0, FRAME_SIZE) };
        }
    }

    fn give(self, first: Pfn) {
        let mut runs = self.0.runs.lock().expect("no panic");
        let frames = runs[first.0];
        assert!(frames != 0 && frames != INSIDE, "{first:?} is freed, and nobody's");
        runs[first.0..first.0 + frames].fill(0);
    }

    /// Has no more than so many frames be free: those that were taken for that.
    #[cfg(shuttle)]
    pub fn keep_all_but(self, room: usize) -> Vec<Pfn> {
        let mut kept: Vec<Pfn> = core::iter::from_fn(|| self.take(1)).collect();
        let free = kept.split_off(kept.len() - room);
        free.into_iter().for_each(|frame| self.give(frame));
        kept
    }

    #[cfg(shuttle)]
    pub fn give_back(self, kept: Vec<Pfn>) {
        kept.into_iter().for_each(|frame| self.give(frame));
    }

    /// Frames that are not free.
    fn taken(self) -> usize {
        self.0.runs.lock().expect("no panic").iter().filter(|&&run| run != 0).count()
    }
}

// SAFETY: a frame is given to one owner at a time, and cleared first.
unsafe impl FrameSource for Model {
    const TABLE_BITS: u32 = BITS;
    type List = Model;

    fn list(self) -> Model {
        self
    }
    fn words(self, frame: Pfn) -> NonNull<AtomicU64> {
        NonNull::from(&self.0.words[frame.0 << BITS])
    }
    fn bytes(self, frame: Pfn) -> NonNull<u8> {
        NonNull::from(&self.0.bytes[frame.0]).cast()
    }
    fn are_side_by_side(self, _: Pfn, _: usize) -> bool {
        true
    }
    fn get_run(self, frames: usize) -> Option<Pfn> {
        let first = self.take(frames)?;
        self.zero(first, frames);
        Some(first)
    }
    fn get_zeroed_block(self, _: Gfp) -> Option<Pfn> {
        let mut runs = self.0.runs.lock().expect("no panic");
        let is_free = |at: &usize| runs[*at..at + Self::ENTRIES].iter().all(|&run| run == 0);
        let first = (Self::ENTRIES..FRAMES - Self::ENTRIES).step_by(Self::ENTRIES).find(is_free)?;
        runs[first..first + Self::ENTRIES].fill(1);
        drop(runs);
        self.zero(Pfn(first), Self::ENTRIES);
        Some(Pfn(first))
    }
    fn put_run(self, first: Pfn) {
        self.give(first);
    }
    fn sharers(&self, frame: Pfn) -> &AtomicU32 {
        &self.0.sharers[frame.0]
    }
    fn zero_page(self) -> Pfn {
        Pfn(0)
    }
    fn pager(&self) -> Option<&dyn Pager> {
        self.0.pager.or_else(|| self.0.disk.as_ref().map(|disk| disk as &dyn Pager))
    }
}

impl FrameList for Model {
    fn get_zeroed(&mut self) -> Option<Pfn> {
        let frame = self.take(1)?;
        self.zero(frame, 1);
        Some(frame)
    }
    fn get_any(&mut self) -> Option<Pfn> {
        self.take(1)
    }
    fn get_any_at_once(&mut self) -> Option<Pfn> {
        self.take(1)
    }
    fn put(&mut self, frame: Pfn) {
        self.give(frame);
    }
    fn put_zeroed(&mut self, frame: Pfn) {
        self.give(frame);
    }
}

/// A space that threads can share, and that is checked when it ends.
pub struct Shared<T: TableOps + 'static> {
    pub space: &'static VmSpace<Model, T>,
    model: Model,
}

impl<T: TableOps + Default> Shared<T> {
    fn new() -> Self {
        Shared::over(Model::new(None))
    }

    /// With a pager.
    fn paged() -> Self {
        Shared::over(Model::new(Some(Disk::default())))
    }

    /// As [`Shared::over`], for regions of files.
    #[cfg(shuttle)]
    pub fn of_files(model: Model) -> Self {
        let space = VmSpace::for_files(model, T::default()).expect("frames");
        space.set_prefault(1);
        Shared { space: Box::leak(Box::new(space)), model }
    }

    pub fn over(model: Model) -> Self {
        let space = VmSpace::new(model, T::default()).expect("frames");
        space.set_prefault(1);
        Shared { space: Box::leak(Box::new(space)), model }
    }

    pub fn enter(&self) -> Task<'static, Model, T> {
        self.space.enter().expect("room")
    }

    /// All threads and other spaces have ended.
    pub fn end(self) {
        let resident = self.space.anon_rss();
        // SAFETY: leaked in `new`; its users have ended.
        drop(unsafe { Box::from_raw(core::ptr::from_ref(self.space).cast_mut()) });
        assert_eq!(self.model.taken(), 1, "frames were lost; {resident} pages were resident");
        assert_eq!(self.model.0.disk.as_ref().map_or(0, Disk::used), 0, "slots were lost");
        // SAFETY: leaked in `Model::with`; the spaces on it have ended.
        drop(unsafe { Box::from_raw(core::ptr::from_ref(self.model.0).cast_mut()) });
    }
}

pub(crate) fn word(task: &Task<'_, Model, impl TableOps>, address: usize) -> Result<u64> {
    let mut bytes = [0; 8];
    task.read_at(address, &mut bytes).map(|()| u64::from_ne_bytes(bytes))
}

#[cfg(shuttle)]
pub(crate) fn set(task: &Task<'_, Model, impl TableOps>, address: usize, value: u64) -> Result<()> {
    task.write_at(address, &value.to_ne_bytes())
}

/// Takes the page at an address out, if it may go.
fn swap_out(task: &Task<'_, Model, impl TableOps>, address: usize) -> bool {
    let disk = task.space().tables.source.0.disk.as_ref().expect("a paged model");
    disk.swap_out(task, address / PAGE, Evicted::Swapped)
}

/// Adds to a word under a guard for writing, which would show a lost update.
pub(crate) fn add(task: &Task<'_, Model, impl TableOps>, address: usize) -> Result<()> {
    let region = task.region(address)?;
    let page = (address - region.start()) / PAGE;
    let mut guard = region.write(page)?;
    let value = u64::from_ne_bytes(guard[..8].try_into().expect("eight bytes"));
    guard[..8].copy_from_slice(&(value + 1).to_ne_bytes());
    Ok(())
}

/// A step of a model: a task, and the address that all steps are about.
#[cfg(loom)]
type Step = fn(&Task<'_, Model, Atomic>, usize);

/// Maps the region that a model is about.
#[cfg(loom)]
type Map = fn(&Task<'_, Model, Atomic>) -> Result<usize>;

/// Two things that threads do to a region, after a step that prepares it; and what must hold afterwards.
#[cfg(loom)]
fn race_on(shared: fn() -> Shared<Atomic>, map: Map, [prepare, one, two, after]: [Step; 4]) {
    loom::model(move || {
        let shared = shared();
        let task = shared.enter();
        let at = map(&task).expect("room");
        prepare(&task, at);
        let other = shared.enter();
        let thread = loom::thread::spawn(move || two(&other, at));
        one(&task, at);
        thread.join().expect("no panic");
        after(&task, at);
        drop(task);
        shared.end();
    });
}

#[cfg(loom)]
fn nothing(_: &Task<'_, Model, Atomic>, _: usize) {}

#[cfg(loom)]
fn unmap_one(task: &Task<'_, Model, Atomic>, at: usize) {
    task.unmap(at, PAGE).expect("aligned");
}

#[cfg(loom)]
fn try_add(task: &Task<'_, Model, Atomic>, at: usize) {
    let _ = add(task, at);
}

#[cfg(loom)]
fn try_write(task: &Task<'_, Model, Atomic>, at: usize) {
    let _ = task.fault(at, Access::Write);
}

#[cfg(test)]
mod crowd;
#[cfg(loom)]
mod lru;
#[cfg(test)]
mod write_back;

#[cfg(loom)]
mod loom_models {
    use super::*;

    /// Two things that threads do to a page of a region of two, and what must hold afterwards.
    fn race(prepare: Step, one: Step, two: Step, after: Step) {
        race_in(Shared::new, prepare, one, two, after);
    }

    fn race_in(shared: fn() -> Shared<Atomic>, prepare: Step, one: Step, two: Step, after: Step) {
        let map: Map = |task| task.map(2 * PAGE, Rights::READ_WRITE);
        race_on(shared, map, [prepare, one, two, after]);
    }

    fn write(task: &Task<'_, Model, Atomic>, at: usize) {
        task.fault(at, Access::Write).expect("mapped");
    }

    fn read(task: &Task<'_, Model, Atomic>, at: usize) {
        task.fault(at, Access::Read).expect("mapped");
    }

    fn one_resident(task: &Task<'_, Model, Atomic>, _: usize) {
        assert_eq!(task.space().anon_rss(), 1);
    }

    /// Both populate the middle level, and one gives its table and its frame back.
    #[test]
    fn loom_two_faults_populate() {
        race(nothing, write, write, one_resident);
    }

    #[test]
    fn loom_a_fault_for_writing_and_one_for_reading() {
        race(nothing, write, read, one_resident);
    }

    #[test]
    fn loom_no_update_is_lost() {
        race(read, add_one, add_one, |task, at| assert_eq!(word(task, at), Ok(2)));
    }

    #[test]
    fn loom_a_guard_and_unmap() {
        race(write, unmap_one, try_add, all_is_unmapped);
    }

    #[test]
    fn loom_a_fault_and_unmap_of_part() {
        race(nothing, unmap_one, try_write, all_is_unmapped);
    }

    #[test]
    fn loom_a_fault_and_protect() {
        let protect = |task: &Task<'_, Model, Atomic>, at: usize| {
            task.protect(at, PAGE, Rights::READ).expect("mapped");
            assert!(task.fault(at, Access::Write).is_err());
        };
        race(nothing, protect, try_write, |task, at| {
            assert!(task.fault(at, Access::Write).is_err());
        });
    }

    fn add_one(task: &Task<'_, Model, Atomic>, at: usize) {
        add(task, at).expect("mapped");
    }

    fn out(task: &Task<'_, Model, Atomic>, at: usize) {
        swap_out(task, at);
    }

    fn add_and_out(task: &Task<'_, Model, Atomic>, at: usize) {
        add_one(task, at);
        assert!(swap_out(task, at));
    }

    fn all_is_unmapped(task: &Task<'_, Model, Atomic>, at: usize) {
        assert!(task.fault(at, Access::Read).is_err());
        assert_eq!((task.space().anon_rss(), task.space().swap_rss()), (0, 0));
    }

    #[test]
    fn loom_swap_out_and_a_guard() {
        race_in(Shared::paged, add_one, out, add_one, |task, at| {
            assert_eq!(word(task, at), Ok(2));
            assert_eq!((task.space().anon_rss(), task.space().swap_rss()), (1, 0));
        });
    }

    #[test]
    fn loom_the_last_guard_of_a_doomed_page_and_who_asks_whether_it_is_young() {
        let unmap = |task: &Task<'_, Model, Atomic>, at: usize| {
            let region = task.region(at).expect("mapped");
            let held = region.read(0).expect("mapped");
            unmap_one(task, at);
            drop(held);
        };
        let young = |task: &Task<'_, Model, Atomic>, at: usize| {
            task.test_and_clear_young(at / PAGE);
        };
        race(write, unmap, young, |task, _| assert_eq!(task.space().anon_rss(), 0));
    }

    #[test]
    fn loom_two_swap_out() {
        race_in(Shared::paged, add_one, out, out, |task, at| {
            assert_eq!(task.space().swap_rss(), 1);
            assert_eq!(word(task, at), Ok(1));
        });
    }

    #[test]
    fn loom_swap_out_and_unmap() {
        race_in(Shared::paged, add_one, out, unmap_one, all_is_unmapped);
    }

    #[test]
    fn loom_two_faults_swap_in() {
        race_in(Shared::paged, add_and_out, add_one, add_one, |task, at| {
            assert_eq!(word(task, at), Ok(3));
            assert_eq!((task.space().anon_rss(), task.space().swap_rss()), (1, 0));
        });
    }

    #[test]
    fn loom_swap_in_and_unmap() {
        let read = |task: &Task<'_, Model, Atomic>, at: usize| {
            let _ = word(task, at);
        };
        race_in(Shared::paged, add_and_out, read, unmap_one, all_is_unmapped);
    }

    /// As [`race`], of a region of one huge page.
    fn race_huge(prepare: Step, one: Step, two: Step, after: Step) {
        let map: Map = |task| task.map_huge(PAGE << BITS, Rights::READ_WRITE);
        race_on(Shared::new, map, [prepare, one, two, after]);
    }

    #[test]
    fn loom_two_faults_install_a_huge_page() {
        race_huge(nothing, write, write, |task, _| {
            assert_eq!(task.space().anon_rss(), 1 << BITS);
        });
    }

    #[test]
    fn loom_two_guards_split_a_huge_page() {
        race_huge(write, add_one, add_one, |task, at| {
            assert_eq!(word(task, at), Ok(2));
            assert_eq!(task.space().anon_rss(), 1 << BITS);
        });
    }

    #[test]
    fn loom_a_huge_fault_and_a_guard() {
        race_huge(nothing, write, add_one, |task, at| assert_eq!(word(task, at), Ok(1)));
    }

    #[test]
    fn loom_a_guard_and_unmap_of_part_of_a_huge_page() {
        race_huge(write, unmap_one, try_add, |task, at| {
            assert!(task.fault(at, Access::Read).is_err());
            assert_eq!(task.space().anon_rss(), (1 << BITS) - 1);
        });
    }

    #[test]
    fn loom_a_huge_fault_and_unmap() {
        let unmap = |task: &Task<'_, Model, Atomic>, at: usize| {
            task.unmap(at, PAGE << BITS).expect("aligned");
        };
        race_huge(nothing, unmap, try_write, all_is_unmapped);
    }

    /// The fence of `hold` against that of `unmap`: nobody walks into a table that was freed.
    #[test]
    fn loom_a_hold_and_unmap_of_all() {
        let unmap = |task: &Task<'_, Model, Atomic>, at: usize| {
            task.unmap(at, 2 * PAGE).expect("aligned");
        };
        let fault = |task: &Task<'_, Model, Atomic>, at: usize| {
            let _ = task.fault(at, Access::Read);
        };
        race(write, unmap, fault, |task, at| {
            assert!(task.fault(at, Access::Read).is_err());
        });
    }
}

#[cfg(all(test, shuttle))]
mod scenarios;
