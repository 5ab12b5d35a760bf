//! The memory that the device reads descriptors from and writes completions to, and their holders.
//!
//! A *group* is a list of descriptors, a record for each, and one for the batch of all. A submitter takes a free
//! group, and holds it until each of its descriptors has come to an end *and* the batch's own record is written: the
//! device writes that last, and would write into the group's next use. So the last piece is held back until then, and
//! a group whose device never answers is never free again.
//!
//! ```text
//!          take                  release, each piece        the last, once the batch is over
//!   free ---------> count + BATCH --------------> 1 + BATCH -------------------> free
//! ```
//! Of a piece's descriptor and note only the holder of the piece makes use.

use core::cell::UnsafeCell;

use super::descriptor::{BatchCompletion, Descriptor, Record};
use pumice_frames::sync::atomic::{AtomicU32, Ordering};

/// Descriptors in a group.
#[cfg(not(loom))]
pub(super) const PIECES: usize = 64;
/// Small enough to be explored.
#[cfg(loom)]
pub(super) const PIECES: usize = 2;
/// Groups of an engine.
#[cfg(not(loom))]
pub(super) const GROUPS: usize = 8;

/// In a group's count: the batch's record is not written yet.
const BATCH: u32 = 1 << 16;

/// The holder's notes on a piece. Relaxed throughout: one holder, and no memory hangs on it.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Note(AtomicU32);

impl Note {
    const CANCELLED: u32 = 1 << 31;
    const SINGLE: u32 = 1 << 30;
    const ENTRY: u32 = 1 << 29;

    fn start(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Counts that the piece was handed over again; how often that was before.
    pub(super) fn count_resume(&self) -> u32 {
        self.0.fetch_add(1, Ordering::Relaxed) & (Note::ENTRY - 1)
    }

    pub(super) fn cancel(&self) {
        self.0.fetch_or(Note::CANCELLED, Ordering::Relaxed);
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Note::CANCELLED != 0
    }

    /// It is on its own from now on, in no batch.
    pub(super) fn set_single(&self) {
        self.0.fetch_or(Note::SINGLE, Ordering::Relaxed);
    }

    /// It has an entry of its own in the device's queue.
    pub(super) fn set_entry(&self) {
        self.0.fetch_or(Note::ENTRY, Ordering::Relaxed);
    }

    /// Whether it had one, which it has no more.
    pub(super) fn take_entry(&self) -> bool {
        self.0.fetch_and(!Note::ENTRY, Ordering::Relaxed) & Note::ENTRY != 0
    }

    pub(super) fn is_single(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Note::SINGLE != 0
    }
}

/// See the module's top. Zeroed memory is one that is not in use.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Group {
    list: UnsafeCell<[Descriptor; PIECES]>,
    pub(super) records: [Record; PIECES],
    pub(super) batch: Record,
    pub(super) notes: [Note; PIECES],
    /// Pieces that have not come to an end, and [`BATCH`].
    left: AtomicU32,
}

// SAFETY: an element of the list is written by the holder of its piece only.
unsafe impl Sync for Group {}

impl Group {
    #[cfg(loom)]
    fn new() -> Group {
        Group {
            list: UnsafeCell::new([Descriptor::NONE; PIECES]),
            records: core::array::from_fn(|_| Record::new()),
            batch: Record::new(),
            notes: core::array::from_fn(|_| Note(AtomicU32::new(0))),
            left: AtomicU32::new(0),
        }
    }

    /// Where the device finds the list.
    pub(super) fn list_at(&self) -> u64 {
        self.list.get() as u64
    }

    /// # Safety
    /// The caller holds the piece (or, before it is handed over, the group), and the device is not at
    /// work on it.
    pub(super) unsafe fn write(&self, index: usize, descriptor: Descriptor) -> &Descriptor {
        let list = self.list.get().cast::<Descriptor>();
        // SAFETY: within the list, which nobody else writes or reads at this index.
        unsafe {
            list.add(index).write(descriptor);
            &*list.add(index)
        }
    }

    /// # Safety
    /// The caller holds the piece.
    pub(super) unsafe fn read_one(&self, index: usize) -> Descriptor {
        let list = self.list.get().cast::<Descriptor>();
        assert!(index < PIECES);
        // SAFETY: within the list; only the holder writes at this index, and the others may at theirs.
        unsafe { list.add(index).read() }
    }

    /// # Safety
    /// The caller holds the group: nothing of it is handed over yet.
    pub(super) unsafe fn read(&self, count: usize) -> &[Descriptor] {
        // SAFETY: nobody writes them while the caller holds them.
        unsafe { core::slice::from_raw_parts(self.list.get().cast(), count) }
    }
}

/// All groups of an engine.
#[derive(Debug)]
pub(super) struct Groups<'m> {
    groups: &'m [Group],
    /// A bit for each that is free.
    free: AtomicU32,
    /// Entries of the device's queue that are taken.
    queued: AtomicU32,
}

impl<'m> Groups<'m> {
    /// None of them may be in use.
    pub(super) fn new(groups: &'m [Group]) -> Groups<'m> {
        let all = u32::MAX.checked_shr(32 - groups.len().min(32) as u32).unwrap_or(0);
        Groups { groups, free: AtomicU32::new(all), queued: AtomicU32::new(0) }
    }

    pub(super) fn get(&self, number: usize) -> &'m Group {
        &self.groups[number]
    }

    /// Whether no group is in use.
    pub(super) fn are_all_free(&self) -> bool {
        // Acquire: pairs with the Release in `set_free`.
        self.free.load(Ordering::Acquire).count_ones() as usize == self.groups.len()
    }

    /// Takes a free group, for one holder.
    pub(super) fn take(&self) -> Option<usize> {
        let others = |free: u32| (free != 0).then(|| free & (free - 1));
        // Acquire: pairs with the Release in `set_free`: the last holders' actions come before.
        let before = self.free.fetch_update(Ordering::Acquire, Ordering::Relaxed, others).ok()?;
        Some(before.trailing_zeros() as usize)
    }

    /// Gives a group back of which nothing was handed over.
    pub(super) fn give_back(&self, number: usize) {
        self.set_free(number);
    }

    /// To be called before `count` pieces are handed over.
    pub(super) fn begin(&self, number: usize, count: usize, how: Handed) {
        let group = self.get(number);
        group.batch.reset();
        for (record, note) in group.records.iter().zip(&group.notes).take(count) {
            record.reset();
            note.start();
            if how == Handed::OneByOne {
                note.set_single();
                note.set_entry();
            }
        }
        let batch = if how == Handed::AsBatch { BATCH } else { 0 };
        // Relaxed: the pieces are handed on, if at all, by way of something that orders.
        group.left.store(count as u32 | batch, Ordering::Relaxed);
    }

    /// The end of a batch.
    pub(super) fn batch(&self, number: usize) -> BatchCompletion {
        BatchCompletion::of(self.get(number).batch.read(), PIECES as u32)
    }

    /// A piece's descriptor has come to an end, and so may the piece. `false`: not yet, it is the last
    /// one, and the device has still to write the batch's record.
    pub(super) fn release(&self, number: usize) -> bool {
        let group = self.get(number);
        // Acquire, here and below: the actions of the others' holders come before the group is free again.
        let mut left = group.left.load(Ordering::Acquire);
        loop {
            let is_last = left & !BATCH == 1;
            if is_last && left & BATCH != 0 && !self.batch(number).is_over() {
                return false;
            }
            let next = if is_last { 0 } else { left - 1 };
            // Release: this holder's actions come before, for the holder that is the last.
            let swapped =
                group.left.compare_exchange(left, next, Ordering::AcqRel, Ordering::Acquire);
            match swapped {
                Err(now) => left = now,
                Ok(_) => {
                    if is_last {
                        if left & BATCH != 0 {
                            self.leave_queue();
                        }
                        self.set_free(number);
                    }
                    return true;
                }
            }
        }
    }

    /// Makes room in a queue that takes so many entries at a time; `false` where there is none. A
    /// device drops what its queue has no room for, and says nothing.
    pub(super) fn enter_queue(&self, entries: u32) -> bool {
        let enter = |queued: u32| (queued < entries).then_some(queued + 1);
        // Relaxed: a count. A leaving submitter has read the record that the device wrote when the entry was out of
        // the queue.
        self.queued.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enter).is_ok()
    }

    /// An entry has come to an end, or was not taken.
    pub(super) fn leave_queue(&self) {
        // Relaxed: see `enter_queue`.
        self.queued.fetch_sub(1, Ordering::Relaxed);
    }

    fn set_free(&self, number: usize) {
        // Release: pairs with the Acquire in `take`.
        self.free.fetch_or(1 << number, Ordering::Release);
    }
}

/// How pieces are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handed {
    /// A descriptor each.
    OneByOne,
    /// By one descriptor that names the list.
    AsBatch,
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::super::descriptor::{Completion, Towards};
    use super::*;
    use loom::cell::UnsafeCell as Cell;
    use loom::sync::Arc;
    use loom::thread;

    const LEN: u32 = 4096;
    const FILL_AT: u64 = 0x1000;

    /// Memory of two pieces, which loom watches; groups; and the descriptors that the device was handed.
    struct Scene {
        memory: [Cell<u32>; PIECES],
        groups: Groups<'static>,
        /// Times that a batch was handed over.
        doorbell: AtomicU32,
    }

    fn scene() -> Arc<Scene> {
        let groups: &'static [Group] = Box::leak(Box::new([Group::new()]));
        Arc::new(Scene {
            memory: Default::default(),
            groups: Groups::new(groups),
            doorbell: AtomicU32::new(0),
        })
    }

    impl Scene {
        fn submit(&self) -> Option<usize> {
            let number = self.groups.take()?;
            self.groups.begin(number, PIECES, Handed::AsBatch);
            // Release: as the fence and the store to the portal.
            self.doorbell.fetch_add(1, Ordering::Release);
            Some(number)
        }

        /// The device: writes the memory, then the records, then the batch's.
        fn serve(&self, faults: bool) {
            if self.doorbell.load(Ordering::Acquire) == 0 {
                return;
            }
            let group = self.groups.get(0);
            for (index, memory) in self.memory.iter().enumerate() {
                memory.with_mut(|memory| unsafe { *memory = 0 });
                match faults && index == 0 {
                    true => group.records[index].complete(0x83, 100, FILL_AT),
                    false => group.records[index].complete(0x01, LEN, 0),
                }
            }
            group.batch.complete(0x01, PIECES as u32, 0);
        }

        /// The holder of a piece: whether it has come to its end.
        fn poll(&self, number: usize, index: usize) -> bool {
            let group = self.groups.get(number);
            let fill = Descriptor::zero(FILL_AT, LEN, Towards::Memory, 0);
            let ended = match Completion::of(group.records[index].read(), &fill) {
                Completion::None | Completion::Nonsense => return false,
                Completion::Fault { .. } => {
                    // The mark of a cancelled piece: the engine does not go on with it.
                    group.notes[index].is_cancelled()
                }
                Completion::Done | Completion::Refused => true,
            };
            // The memory is the holder's again, before and after the group is.
            ended && self.groups.release(number) && {
                self.memory[index].with_mut(|memory| unsafe { *memory += 1 });
                true
            }
        }
    }

    #[test]
    fn a_piece_is_its_holders_only_once_the_device_is_done_with_it() {
        loom::model(|| {
            let scene = scene();
            let number = scene.submit().expect("a free group");
            assert!(scene.groups.take().is_none(), "it is taken");
            let device = {
                let scene = scene.clone();
                thread::spawn(move || scene.serve(true))
            };
            let other = {
                let scene = scene.clone();
                thread::spawn(move || scene.poll(number, 1))
            };
            scene.groups.get(number).notes[0].cancel();
            let first = scene.poll(number, 0);
            let second = other.join().expect("no panic");
            device.join().expect("no panic");
            // Late, but the same.
            assert!(first || scene.poll(number, 0));
            assert!(second || scene.poll(number, 1));
            assert!(scene.groups.are_all_free());
        });
    }

    #[test]
    fn a_group_whose_batch_is_not_over_is_not_taken_again() {
        loom::model(|| {
            let scene = scene();
            let number = scene.submit().expect("a free group");
            let device = {
                let scene = scene.clone();
                thread::spawn(move || scene.serve(false))
            };
            let mut ended = [false; PIECES];
            for (index, ended) in ended.iter_mut().enumerate() {
                *ended = scene.poll(number, index);
            }
            if let Some(again) = scene.groups.take() {
                // Reused: the device must be through with it, the batch's record included.
                assert!(ended.iter().all(|&ended| ended));
                let word = scene.groups.get(again).batch.read()[0];
                assert_ne!(word, 0, "written before it could be taken");
            }
            device.join().expect("no panic");
        });
    }

    #[test]
    fn a_queue_takes_no_more_than_it_has_room_for() {
        loom::model(|| {
            let scene = scene();
            let other = {
                let scene = scene.clone();
                thread::spawn(move || scene.groups.enter_queue(1))
            };
            let entered = scene.groups.enter_queue(1);
            let both = [entered, other.join().expect("no panic")];
            assert_eq!(both.iter().filter(|&&entered| entered).count(), 1);
            scene.groups.leave_queue();
            assert!(scene.groups.enter_queue(1));
        });
    }
}
