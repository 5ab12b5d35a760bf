//! The shared memory: a tree's totals, and its slots.

use core::mem::offset_of;
use core::ops::Range;
use core::ptr::NonNull;

use super::{CounterSlot, Event, FreeBytes, Owner, TreeName, EVENTS};
use pumice_frames::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
use pumice_frames::sys::{mem, thread};

/// The number that it starts with.
pub const MAGIC: u64 = u64::from_le_bytes(*b"pumice\0\x01");
/// Changes whenever the layout does.
pub const VERSION: u32 = 7;
/// Processes that can count at the same time.
pub const SLOTS: usize = 512;
/// Slots that a process which takes one looks back at, for processes that are gone.
const LOOK_BACK: usize = 16;
/// Numbers of processes that are remembered with their slots, for the next life of each after an `exec`.
const LIVES: usize = 2048;
/// A full pool looks for shares of the gone this seldom, in nanoseconds.
const SWEEP_PAUSE_NS: u64 = 10_000_000;
/// All of it.
#[repr(C)]
#[derive(Debug)]
pub struct Tree {
    magic: AtomicU64,
    version: AtomicU32,
    slot_count: AtomicU32,
    slot_size: AtomicU32,
    event_count: AtomicU32,
    /// See [`Tree::name`].
    leader: AtomicU64,
    key: AtomicU32,
    namespace: AtomicU32,
    /// Bytes of pool in the whole tree, the most there ever were, and the most there may be.
    pool_bytes: AtomicU64,
    pool_peak: AtomicU64,
    pool_max: AtomicU64,
    /// Bytes that the first process is to populate ahead; the process that swaps it for 0 does.
    ready_bytes: AtomicU64,
    /// When a full pool last looked for shares of the gone, by the monotonic clock.
    swept_ns: AtomicU64,
    /// Processes that ever took a slot, and the slot where the next search starts.
    processes: AtomicU64,
    next_slot: AtomicU64,
    /// How often counters of a slot were begun to be added to `retired`, and how often that was finished: in
    /// between they are in neither.
    folds_begun: AtomicU64,
    folds_ended: AtomicU64,
    /// Counters of processes that are gone and whose slots were taken by others.
    retired: [AtomicU64; EVENTS],
    /// The slot that a process took last, by process number modulo [`LIVES`]; see [`Life`].
    lives: [AtomicU64; LIVES],
    slots: [CounterSlot; SLOTS],
}

/// Where it says how often counters were moved: see [`Tree::is_settled`].
pub const FOLDS: Range<usize> = offset_of!(Tree, folds_begun)..offset_of!(Tree, retired);

/// Its bytes.
pub const TREE_SIZE: usize = size_of::<Tree>();

/// The first bytes of a tree: a copy of them says whether it is the one that is looked for.
pub type Head = [u8; offset_of!(Tree, pool_bytes)];

/// Whether they are those of a tree of this name and version.
pub fn is_head_of(head: &Head, name: TreeName) -> bool {
    let has = |at: usize, bytes: &[u8]| head[at..at + bytes.len()] == *bytes;
    has(offset_of!(Tree, magic), &MAGIC.to_le_bytes())
        && has(offset_of!(Tree, version), &VERSION.to_le_bytes())
        && has(offset_of!(Tree, leader), &name.leader.into_word().to_le_bytes())
        && has(offset_of!(Tree, key), &name.key.to_le_bytes())
        && has(offset_of!(Tree, namespace), &name.namespace.to_le_bytes())
}

impl Tree {
    /// Makes `memory` a tree. `pool_max` and `ready_bytes` are in bytes.
    ///
    /// # Safety
    /// `memory` is [`TREE_SIZE`] zeroed bytes, mapped for as long as the reference lives.
    pub unsafe fn create<'t>(
        memory: NonNull<u8>,
        name: TreeName,
        pool_max: u64,
        ready_bytes: u64,
    ) -> &'t Tree {
        // SAFETY: zeroed memory is a valid Tree: all of it is atomics.
        let tree: &Tree = unsafe { memory.cast().as_ref() };
        tree.leader.store(name.leader.into_word(), Ordering::Relaxed);
        tree.key.store(name.key, Ordering::Relaxed);
        tree.namespace.store(name.namespace, Ordering::Relaxed);
        tree.version.store(VERSION, Ordering::Relaxed);
        tree.slot_count.store(SLOTS as u32, Ordering::Relaxed);
        tree.slot_size.store(size_of::<CounterSlot>() as u32, Ordering::Relaxed);
        tree.event_count.store(EVENTS as u32, Ordering::Relaxed);
        tree.pool_max.store(pool_max, Ordering::Relaxed);
        tree.ready_bytes.store(ready_bytes, Ordering::Relaxed);
        // Release: a reader that finds the magic finds the rest (pairs with the Acquire in `open`).
        tree.magic.store(MAGIC, Ordering::Release);
        tree
    }

    /// Takes mapped memory for a tree, if it is one of this version and layout.
    ///
    /// # Safety
    /// `memory` is [`TREE_SIZE`] bytes, mapped for as long as the reference lives; its content does not matter.
    pub unsafe fn open<'t>(memory: NonNull<u8>) -> Option<&'t Tree> {
        // SAFETY: any bytes are a valid Tree: all of it is atomics.
        let tree: &Tree = unsafe { memory.cast().as_ref() };
        let fits = tree.magic.load(Ordering::Acquire) == MAGIC
            && tree.version.load(Ordering::Relaxed) == VERSION
            && tree.slot_count.load(Ordering::Relaxed) as usize == SLOTS
            && tree.slot_size.load(Ordering::Relaxed) as usize == size_of::<CounterSlot>()
            && tree.event_count.load(Ordering::Relaxed) as usize == EVENTS;
        fits.then_some(tree)
    }

    /// A tree of one process, in private memory, for when nobody made one. Its pool is limited
    /// by `pool_max` bytes.
    pub fn private<'t>(pool_max: u64, ready_bytes: u64) -> pumice_frames::error::Result<&'t Tree> {
        let memory = mem::map_table(TREE_SIZE)?;
        // SAFETY: fresh, zeroed and never unmapped.
        Ok(unsafe { Tree::create(memory, TreeName::of_own(), pool_max, ready_bytes) })
    }

    /// The process that leads it, and the key by which others find it; the key is 0 where they know the segment.
    pub fn name(&self) -> TreeName {
        let leader = Owner::from_word(self.leader.load(Ordering::Relaxed));
        let key = self.key.load(Ordering::Relaxed);
        TreeName { leader, key, namespace: self.namespace.load(Ordering::Relaxed) }
    }

    /// Takes a slot for a process, folding the counters of one that is gone into the totals if need be. `None` when
    /// [`SLOTS`] processes are alive, or may be.
    pub fn attach(&self, owner: impl Into<Owner>) -> Option<&CounterSlot> {
        let owner = owner.into();
        let start = self.next_slot.load(Ordering::Relaxed) as usize;
        let at = |offset: usize| &self.slots[(start + offset) % SLOTS];
        let offset = (0..SLOTS).find(|&offset| {
            let former = at(offset).owner();
            // The same process is this one's life before an exec.
            let is_free = former.pid == 0 || former == owner || former.is_gone_to(owner.namespace);
            is_free && self.claim(at(offset), former, owner)
        })?;
        self.next_slot.store(((start + offset + 1) % SLOTS) as u64, Ordering::Relaxed);
        self.processes.fetch_add(1, Ordering::Relaxed);
        // Those that came just before are the most likely to be gone. Each is looked at again as
        // often, so that short processes don't add up.
        for back in 1..=LOOK_BACK {
            let slot = &self.slots[(start + offset + SLOTS - back) % SLOTS];
            self.release_gone(slot, |former| former == owner || former.is_gone_to(owner.namespace));
        }
        let index = (start + offset) % SLOTS;
        self.end_life_before(owner, index);
        Some(&self.slots[index])
    }

    /// Frees the slot of this process's life before an exec, since a reader would find two of it, and remembers the
    /// one of this life, at `index`.
    fn end_life_before(&self, owner: Owner, index: usize) {
        let own = &self.slots[index];
        let release = |slot: &CounterSlot| {
            if !core::ptr::eq(slot, own) && slot.owner() == owner {
                self.release(slot, owner);
            }
        };
        let tag = Life::tag(owner);
        let life = &self.lives[owner.pid as usize % LIVES];
        // Relaxed, here and below: a hint; the slot itself names its owner.
        let mut word = life.load(Ordering::Relaxed);
        let before = loop {
            let before = Life::from_word(word);
            let is_another = before.pid != 0 && (before.pid, before.tag) != (owner.pid, tag);
            // One of another namespace may always be alive.
            let is_shared = before.is_shared
                || (is_another && (before.tag != tag || thread::process_exists(before.pid)));
            let now = Life { pid: owner.pid, tag, slot: index, is_shared }.into_word();
            match life.compare_exchange(word, now, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break before,
                Err(changed) => word = changed,
            }
        };
        if (before.pid, before.tag) == (owner.pid, tag) {
            release(&self.slots[before.slot]);
        } else if before.is_shared {
            self.slots().iter().for_each(release);
        }
    }

    /// Frees the slot of a process that is gone, and its share of the pool, if it has any; its counters stay.
    fn release_gone(&self, slot: &CounterSlot, is_gone: impl Fn(Owner) -> bool) -> bool {
        let owner = slot.owner();
        owner.pid != 0 && slot.pool_bytes() > 0 && is_gone(owner) && self.release(slot, owner)
    }

    fn release(&self, slot: &CounterSlot, owner: Owner) -> bool {
        // Acquire: the former owner's share is seen. A process that is killed here leaves an owner that nobody is.
        let claimed = slot.owner.compare_exchange(
            owner.into_word(),
            Owner::none_of(owner.namespace).into_word(),
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        if claimed.is_ok() {
            self.shrink_pool(slot, slot.pool_bytes());
            // Release: pairs with the Acquire of the next owner's claim.
            slot.owner.store(Owner::NOBODY.into_word(), Ordering::Release);
        }
        claimed.is_ok()
    }

    fn claim(&self, slot: &CounterSlot, former: Owner, owner: Owner) -> bool {
        // Acquire: the former owner's counts are seen before they are folded.
        let claimed = slot.owner.compare_exchange(
            former.into_word(),
            owner.into_word(),
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        if claimed.is_err() {
            return false;
        }
        self.folds_begun.fetch_add(1, Ordering::Relaxed);
        // Release: a reader that sees any of the following writes sees that they have begun (pairs with nothing here:
        // trees are copied by the kernel).
        fence(Ordering::Release);
        for (total, event) in self.retired.iter().zip(&slot.events) {
            total.fetch_add(event.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
        // Release: a reader that sees the end sees all of them (as above).
        self.folds_ended.fetch_add(1, Ordering::Release);
        self.shrink_pool(slot, slot.pool_bytes());
        slot.set_free(FreeBytes::default());
        slot.reason.store(0, Ordering::Relaxed);
        for setting in &slot.settings {
            setting.store(0, Ordering::Relaxed);
        }
        true
    }

    /// Adds `bytes` to the slot's share of the pool, unless the tree's limit forbids it.
    pub fn grow_pool(&self, slot: &CounterSlot, bytes: u64) -> bool {
        if self.try_grow_pool(slot, bytes) {
            return true;
        }
        bytes <= self.pool_max() && self.sweep_if_due(slot) > 0 && self.try_grow_pool(slot, bytes)
    }

    /// Gives up the shares of processes that are gone, as far as the process that counts in `judge` can tell, and says
    /// how many there were. A system call for each slot: not too often.
    pub fn sweep_if_due(&self, judge: &CounterSlot) -> usize {
        let (now_ns, last_ns) = (thread::now_ns(), self.swept_ns.load(Ordering::Relaxed));
        if now_ns.saturating_sub(last_ns) < SWEEP_PAUSE_NS {
            return 0;
        }
        self.swept_ns.store(now_ns, Ordering::Relaxed);
        let namespace = judge.owner().namespace;
        let is_gone = |owner: Owner| owner.is_gone_to(namespace);
        self.slots().iter().filter(|slot| self.release_gone(slot, is_gone)).count()
    }

    /// Frees the slots of processes that are gone, and their shares, by the caller's knowledge of them.
    pub fn sweep(&self, is_gone: impl Fn(Owner) -> bool) {
        for slot in self.slots() {
            let owner = slot.owner();
            if owner.pid != 0 && is_gone(owner) {
                self.release(slot, owner);
            }
        }
    }

    fn try_grow_pool(&self, slot: &CounterSlot, bytes: u64) -> bool {
        let max = self.pool_max.load(Ordering::Relaxed);
        let add = |total: u64| total.checked_add(bytes).filter(|&total| total <= max);
        // Relaxed: a counter that orders nothing else.
        match self.pool_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(before) => {
                self.pool_peak.fetch_max(before + bytes, Ordering::Relaxed);
                slot.pool_bytes.fetch_add(bytes, Ordering::Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    /// Takes `bytes` off the slot's share of the pool.
    pub fn shrink_pool(&self, slot: &CounterSlot, bytes: u64) {
        // A share that was given up for gone may still be given back: it must not wrap.
        let less = |now: u64| Some(now.saturating_sub(bytes));
        for counter in [&slot.pool_bytes, &self.pool_bytes] {
            let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    /// The bytes that the first process to ask is to have populated ahead; 0 once one has asked.
    pub fn ready_bytes(&self) -> u64 {
        self.ready_bytes.load(Ordering::Relaxed)
    }

    /// The bytes that the first process is to populate ahead; every later caller gets 0.
    pub fn take_ready_bytes(&self) -> u64 {
        self.ready_bytes.swap(0, Ordering::Relaxed)
    }

    /// Sums a counter over all processes, gone and alive.
    pub fn total(&self, event: Event) -> u64 {
        let retired = self.retired[event as usize].load(Ordering::Relaxed);
        // The numbers that programs wrote may be too much for a sum.
        self.slots().iter().fold(retired, |sum, slot| sum.wrapping_add(slot.get(event)))
    }

    /// Whether the counters of no slot are being moved into the totals of those that are gone. If so, and if
    /// the bytes at [`FOLDS`] are the same before and after all others were copied, the copy misses nothing.
    pub fn is_settled(&self) -> bool {
        // Relaxed: of a copy.
        self.folds_begun.load(Ordering::Relaxed) == self.folds_ended.load(Ordering::Relaxed)
    }

    /// Processes that ever took a slot.
    pub fn processes(&self) -> u64 {
        self.processes.load(Ordering::Relaxed)
    }

    /// Bytes of pool in the whole tree now.
    pub fn pool_bytes(&self) -> u64 {
        self.pool_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that the pool may still grow by.
    pub fn pool_room(&self) -> u64 {
        self.pool_max().saturating_sub(self.pool_bytes())
    }

    /// The most bytes of pool there ever were in the whole tree.
    pub fn pool_peak(&self) -> u64 {
        self.pool_peak.load(Ordering::Relaxed)
    }

    /// The most bytes of pool there may be in the whole tree.
    pub fn pool_max(&self) -> u64 {
        self.pool_max.load(Ordering::Relaxed)
    }

    /// The slots that were ever taken. They are the first ones, since a search begins behind the
    /// last one taken: a reader touches no page that nobody wrote.
    pub fn slots(&self) -> &[CounterSlot] {
        &self.slots[..SLOTS.min(self.processes() as usize)]
    }
}

/// Which slot a process took last. Numbers that are the same modulo [`LIVES`] share a word: where two of
/// them were alive, the word is *shared* from then on, and says of one only where its slot is.
///
/// In the word: the number in bits 0 to 31, the slot in 32 to 47, shared in 48, and in the rest the lowest bits of the
/// namespace: of two that have the same, one is the other's life before, at worst, whose slot says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Life {
    pid: u32,
    tag: u16,
    slot: usize,
    is_shared: bool,
}

impl Life {
    /// The part of a process's namespace that the word has room for.
    fn tag(owner: Owner) -> u16 {
        (owner.namespace & 0x7fff) as u16
    }

    /// A slot that exists, for any number that a program wrote there.
    fn from_word(word: u64) -> Life {
        let slot = (word >> 32) as usize & 0xffff;
        Life {
            pid: word as u32,
            tag: (word >> 49) as u16,
            slot: slot % SLOTS,
            is_shared: word >> 48 & 1 == 1,
        }
    }

    fn into_word(self) -> u64 {
        u64::from(self.pid)
            | (self.slot as u64) << 32
            | u64::from(self.is_shared) << 48
            | u64::from(self.tag) << 49
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_survive_the_process_that_made_them() {
        let tree = Tree::private(1 << 30, 0).expect("memory");
        let pid = std::process::id();
        for _ in 0..2 * SLOTS {
            let slot = tree.attach(pid).expect("a slot");
            slot.add(Event::Requests, 1);
            assert!(tree.grow_pool(slot, 4096));
        }
        assert_eq!(tree.total(Event::Requests), 2 * SLOTS as u64);
        assert_eq!(tree.processes(), 2 * SLOTS as u64);
        assert_eq!(tree.pool_bytes(), 4096, "shares of the gone are given up");
    }

    #[test]
    fn the_limit_holds_for_the_whole_tree() {
        let tree = Tree::private(8192, 0).expect("memory");
        let one = tree.attach(std::process::id()).expect("a slot");
        let two = tree.attach(std::process::id()).expect("a slot");
        assert!(tree.grow_pool(one, 8192));
        assert!(!tree.grow_pool(two, 4096));
        tree.shrink_pool(one, 4096);
        assert!(tree.grow_pool(two, 4096));
        assert_eq!(tree.pool_peak(), 8192);
    }

    #[test]
    fn a_full_pool_takes_what_the_gone_have_left() {
        let tree = Tree::private(8192, 0).expect("memory");
        // No process has such a number.
        let gone = tree.attach(u32::MAX - 1).expect("a slot");
        assert!(tree.grow_pool(gone, 8192));
        gone.add(Event::Requests, 3);
        let own = tree.attach(1).expect("a slot");
        assert!(tree.grow_pool(own, 4096));
        assert!(tree.grow_pool(own, 4096));
        assert!(!tree.grow_pool(own, 4096), "and its own is no longer free");
        assert_eq!(tree.total(Event::Requests), 3);
    }

    #[test]
    fn a_life_before_an_exec_is_over() {
        let tree = Tree::private(1 << 30, 0).expect("memory");
        for (pid, bytes) in [(1, 4096), (2, 0)] {
            let before = tree.attach(pid).expect("a slot");
            before.add(Event::Requests, 1);
            assert!(tree.grow_pool(before, bytes));
        }
        for _ in 0..2 * LOOK_BACK {
            tree.attach(u32::MAX - 1).expect("a slot");
        }
        for pid in [1, 2] {
            tree.attach(pid).expect("a slot");
            assert_eq!(tree.slots().iter().filter(|slot| slot.owner().pid == pid).count(), 1);
        }
        assert_eq!((tree.pool_bytes(), tree.total(Event::Requests)), (0, 2));
    }

    #[test]
    fn lives_that_share_a_word_are_found() {
        let tree = Tree::private(0, 0).expect("memory");
        // This process lives, and so does the first there is.
        let (one, other) = (std::process::id(), 1);
        let of = |pid: u32| tree.slots().iter().filter(|slot| slot.owner().pid == pid).count();
        let word = &tree.lives[one as usize % LIVES];
        tree.attach(one).expect("a slot");
        let first = Life::from_word(word.load(Ordering::Relaxed));
        let tag = Life::tag(Owner::here());
        assert_eq!(first, Life { pid: one, tag, slot: 0, is_shared: false });
        // As if the two numbers were the same modulo LIVES, and the other came later.
        for _ in 0..2 * LOOK_BACK {
            tree.attach(u32::MAX - 1).expect("a slot");
        }
        let later = Life { pid: other, tag, slot: 7, is_shared: true };
        word.store(later.into_word(), Ordering::Relaxed);
        tree.attach(one).expect("a slot");
        assert_eq!(of(one), 1);
        assert!(Life::from_word(word.load(Ordering::Relaxed)).is_shared);
        // The word's slot need not be the process's.
        word.store(u64::MAX, Ordering::Relaxed);
        tree.attach(one).expect("a slot");
        let nowhere = Life { pid: one, tag, slot: 0xffff, is_shared: false };
        word.store(nowhere.into_word(), Ordering::Relaxed);
        tree.attach(one).expect("a slot");
    }

    #[test]
    fn a_process_where_another_lives_marks_the_word() {
        let tree = Tree::private(0, 0).expect("memory");
        let (one, other) = (std::process::id(), std::process::id() + LIVES as u32);
        tree.attach(one).expect("a slot");
        tree.attach(other).expect("a slot");
        let word = &tree.lives[one as usize % LIVES];
        let life = Life::from_word(word.load(Ordering::Relaxed));
        let tag = Life::tag(Owner::here());
        assert_eq!(life, Life { pid: other, tag, slot: 1, is_shared: true });
        assert!(tree.is_settled());
        tree.folds_begun.fetch_add(1, Ordering::Relaxed);
        assert!(!tree.is_settled());
    }

    /// As another process of a namespace of its own would have it, where this process's number may mean another.
    fn elsewhere(pid: u32) -> Owner {
        Owner { namespace: Owner::here().namespace ^ 1, pid }
    }

    #[test]
    fn processes_of_the_same_number_keep_their_shares() {
        let tree = Tree::private(4 * 4096, 0).expect("memory");
        let (here, there) = (Owner::here(), elsewhere(std::process::id()));
        for round in 0..3 {
            // Each in turn is another life of the one of its own namespace, and of no other.
            for owner in [here, there] {
                let slot = tree.attach(owner).expect("a slot");
                assert!(tree.grow_pool(slot, 2 * 4096), "round {round}");
            }
            let of = |owner| tree.slots().iter().filter(|slot| slot.owner() == owner).count();
            assert_eq!((of(here), of(there), tree.pool_bytes()), (1, 1, 4 * 4096), "round {round}");
        }
    }

    #[test]
    fn the_share_of_one_elsewhere_is_given_up_by_who_knows() {
        let tree = Tree::private(8192, 0).expect("memory");
        // No process of this namespace has such a number.
        let there = elsewhere(i32::MAX as u32);
        assert!(tree.grow_pool(tree.attach(there).expect("a slot"), 8192));
        let own = tree.attach(1).expect("a slot");
        assert!(!tree.grow_pool(own, 4096), "it may be alive");
        tree.sweep(|owner| owner == there);
        assert!(tree.grow_pool(own, 8192));
        let again = tree.attach(elsewhere(1)).expect("a slot");
        tree.swept_ns.store(0, Ordering::Relaxed);
        assert!(!tree.grow_pool(again, 4096), "nor do they give up ours");
    }

    #[test]
    fn slots_of_those_elsewhere_are_left_until_somebody_knows() {
        let tree = Tree::private(0, 0).expect("memory");
        for pid in 1..=SLOTS as u32 {
            tree.attach(elsewhere(i32::MAX as u32 - pid)).expect("a slot");
        }
        assert!(tree.attach(1).is_none());
        tree.sweep(|owner| owner.pid == i32::MAX as u32 - 7);
        assert!(tree.attach(1).is_some());
    }

    #[test]
    fn a_stranger_is_no_tree() {
        let memory = mem::map_table(TREE_SIZE).expect("memory");
        // SAFETY: mapped, and never unmapped.
        assert!(unsafe { Tree::open(memory) }.is_none());
    }

    #[test]
    fn names_are_cut_and_padded() {
        let tree = Tree::private(0, 0).expect("memory");
        let slot = tree.attach(1).expect("a slot");
        slot.set_name(b"a-very-long-program-name");
        assert_eq!(&slot.name(), b"a-very-long-pro\0");
    }

    #[test]
    fn too_much_for_a_sum_is_no_reason_to_panic() {
        let tree = Tree::private(0, 0).expect("memory");
        for pid in 1..=2 {
            tree.attach(pid).expect("a slot").add(Event::Requests, u64::MAX);
        }
        assert_eq!(tree.total(Event::Requests), u64::MAX - 1);
    }

    #[test]
    fn ready_bytes_go_to_one_process() {
        let tree = Tree::private(1 << 30, 1 << 20).expect("memory");
        assert_eq!(tree.take_ready_bytes(), 1 << 20);
        assert_eq!(tree.take_ready_bytes(), 0);
    }
}
