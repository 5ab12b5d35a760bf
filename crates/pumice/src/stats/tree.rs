//! The file: a tree's totals, and its slots.

use core::ptr::NonNull;

use super::{Event, FreeBytes, Slot, EVENTS};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sys::{mem, thread};

/// What the file starts with.
pub const MAGIC: u64 = u64::from_le_bytes(*b"pumice\0\x01");
/// Changes whenever the layout does.
pub const VERSION: u32 = 3;
/// Processes that can count at the same time.
pub const SLOTS: usize = 512;
/// Slots that a process which takes one looks back at, for processes that are gone.
const LOOK_BACK: usize = 16;
/// A full pool looks for shares of the gone this seldom, in nanoseconds.
const SWEEP_PAUSE_NS: u64 = 10_000_000;
/// The whole file.
#[repr(C)]
#[derive(Debug)]
pub struct Tree {
    magic: AtomicU64,
    version: AtomicU32,
    slot_count: AtomicU32,
    slot_size: AtomicU32,
    event_count: AtomicU32,
    /// Bytes of pool in the whole tree, the most there ever were, and the most there may be.
    pool_bytes: AtomicU64,
    pool_peak: AtomicU64,
    pool_max: AtomicU64,
    /// Bytes that the first process is to populate ahead; whoever swaps it for 0 does.
    ready_bytes: AtomicU64,
    /// When a full pool last looked for shares of the gone, by the monotonic clock.
    swept_ns: AtomicU64,
    /// Processes that ever took a slot, and the slot where the next search starts.
    processes: AtomicU64,
    next_slot: AtomicU64,
    /// Counters of processes that are gone and whose slots were taken by others.
    retired: [AtomicU64; EVENTS],
    slots: [Slot; SLOTS],
}

/// Bytes of the file.
pub const TREE_SIZE: usize = size_of::<Tree>();

impl Tree {
    /// Makes `memory` a tree. `pool_max` and `ready_bytes` are in bytes.
    ///
    /// # Safety
    /// `memory` is [`TREE_SIZE`] zeroed bytes, mapped for as long as the reference lives.
    pub unsafe fn create<'t>(memory: NonNull<u8>, pool_max: u64, ready_bytes: u64) -> &'t Tree {
        // SAFETY: zeroed memory is a valid Tree: all of it is atomics.
        let tree: &Tree = unsafe { memory.cast().as_ref() };
        tree.version.store(VERSION, Ordering::Relaxed);
        tree.slot_count.store(SLOTS as u32, Ordering::Relaxed);
        tree.slot_size.store(size_of::<Slot>() as u32, Ordering::Relaxed);
        tree.event_count.store(EVENTS as u32, Ordering::Relaxed);
        tree.pool_max.store(pool_max, Ordering::Relaxed);
        tree.ready_bytes.store(ready_bytes, Ordering::Relaxed);
        // Release: who finds the magic finds the rest (pairs with the Acquire in `open`).
        tree.magic.store(MAGIC, Ordering::Release);
        tree
    }

    /// Takes mapped memory for a tree, if it is one of this version and layout.
    ///
    /// # Safety
    /// `memory` is [`TREE_SIZE`] bytes, mapped for as long as the reference lives; what is in it
    /// does not matter.
    pub unsafe fn open<'t>(memory: NonNull<u8>) -> Option<&'t Tree> {
        // SAFETY: any bytes are a valid Tree: all of it is atomics.
        let tree: &Tree = unsafe { memory.cast().as_ref() };
        let fits = tree.magic.load(Ordering::Acquire) == MAGIC
            && tree.version.load(Ordering::Relaxed) == VERSION
            && tree.slot_count.load(Ordering::Relaxed) as usize == SLOTS
            && tree.slot_size.load(Ordering::Relaxed) as usize == size_of::<Slot>()
            && tree.event_count.load(Ordering::Relaxed) as usize == EVENTS;
        fits.then_some(tree)
    }

    /// A tree of one process, in private memory, for when nobody made one. Its pool is limited
    /// by `pool_max` bytes.
    pub fn private<'t>(pool_max: u64, ready_bytes: u64) -> crate::error::Result<&'t Tree> {
        let memory = mem::map_table(TREE_SIZE)?;
        // SAFETY: fresh, zeroed and never unmapped.
        Ok(unsafe { Tree::create(memory, pool_max, ready_bytes) })
    }

    /// Takes a slot for process `pid`, folding the counters of a process that is gone into the
    /// totals if need be. `None` when [`SLOTS`] processes are alive.
    pub fn attach(&self, pid: u32) -> Option<&Slot> {
        let start = self.next_slot.load(Ordering::Relaxed) as usize;
        let at = |offset: usize| &self.slots[(start + offset) % SLOTS];
        let free = (0..SLOTS).find(|&offset| self.claim(at(offset), 0, pid));
        let offset = free.or_else(|| {
            (0..SLOTS).find(|&offset| {
                let owner = at(offset).pid();
                // The same pid is this process's life before an exec.
                let gone = owner == pid || !thread::process_exists(owner);
                gone && self.claim(at(offset), owner, pid)
            })
        })?;
        self.next_slot.store(((start + offset + 1) % SLOTS) as u64, Ordering::Relaxed);
        self.processes.fetch_add(1, Ordering::Relaxed);
        // Those that came just before are the most likely to be gone. Each is looked at again as
        // often, so that short processes don't add up.
        for back in 1..=LOOK_BACK {
            self.release_gone(&self.slots[(start + offset + SLOTS - back) % SLOTS], Some(pid));
        }
        // This process's life before an exec may be any: who reads would find two of it.
        let own = at(offset);
        let others = self.slots().iter().filter(|slot| !core::ptr::eq(*slot, own));
        others.filter(|slot| slot.pid() == pid).for_each(|slot| {
            self.release_gone(slot, Some(pid));
        });
        Some(own)
    }

    /// Frees the slot of a process that is gone, and its share of the pool; its counters stay.
    /// `successor`: the process that has this pid now, if it is known to be another.
    fn release_gone(&self, slot: &Slot, successor: Option<u32>) -> bool {
        let owner = slot.pid();
        let is_gone = || successor == Some(owner) || !thread::process_exists(owner);
        let has_nothing = slot.pool_bytes() == 0 && successor != Some(owner);
        if owner == 0 || has_nothing || !is_gone() {
            return false;
        }
        // Acquire: the former owner's share is seen. Whoever gets this far and is killed leaves a
        // pid that nobody has.
        let claimed = slot.owner.compare_exchange(
            u64::from(owner),
            u64::from(u32::MAX),
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        if claimed.is_ok() {
            self.shrink_pool(slot, slot.pool_bytes());
            // Release: pairs with the Acquire of the next owner's claim.
            slot.owner.store(0, Ordering::Release);
        }
        claimed.is_ok()
    }

    fn claim(&self, slot: &Slot, owner: u32, pid: u32) -> bool {
        // Acquire: the former owner's counts are seen before they are folded.
        let claimed = slot.owner.compare_exchange(
            u64::from(owner),
            u64::from(pid),
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        if claimed.is_err() {
            return false;
        }
        for (total, event) in self.retired.iter().zip(&slot.events) {
            total.fetch_add(event.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
        self.shrink_pool(slot, slot.pool_bytes());
        slot.set_free(FreeBytes::default());
        slot.reason.store(0, Ordering::Relaxed);
        for setting in &slot.settings {
            setting.store(0, Ordering::Relaxed);
        }
        true
    }

    /// Adds `bytes` to the slot's share of the pool, unless the tree's limit forbids it.
    pub fn grow_pool(&self, slot: &Slot, bytes: u64) -> bool {
        if self.try_grow_pool(slot, bytes) {
            return true;
        }
        // A system call for each slot: not for what can never fit, and not too often.
        let (now_ns, last_ns) = (thread::now_ns(), self.swept_ns.load(Ordering::Relaxed));
        if bytes > self.pool_max() || now_ns.saturating_sub(last_ns) < SWEEP_PAUSE_NS {
            return false;
        }
        self.swept_ns.store(now_ns, Ordering::Relaxed);
        let released = self.slots().iter().filter(|slot| self.release_gone(slot, None)).count();
        released > 0 && self.try_grow_pool(slot, bytes)
    }

    fn try_grow_pool(&self, slot: &Slot, bytes: u64) -> bool {
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
    pub fn shrink_pool(&self, slot: &Slot, bytes: u64) {
        // A share that was given up for gone may still be given back: it must not wrap.
        let less = |now: u64| Some(now.saturating_sub(bytes));
        for counter in [&slot.pool_bytes, &self.pool_bytes] {
            let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    /// What the first process to ask is to have populated ahead; 0 once one has asked.
    pub fn ready_bytes(&self) -> u64 {
        self.ready_bytes.load(Ordering::Relaxed)
    }

    /// What the first process is to populate ahead; every later caller gets 0.
    pub fn take_ready_bytes(&self) -> u64 {
        self.ready_bytes.swap(0, Ordering::Relaxed)
    }

    /// Sums a counter over all processes, gone and alive.
    pub fn total(&self, event: Event) -> u64 {
        let retired = self.retired[event as usize].load(Ordering::Relaxed);
        // What programs wrote may be too much for a sum.
        self.slots().iter().fold(retired, |sum, slot| sum.wrapping_add(slot.get(event)))
    }

    /// Processes that ever took a slot.
    pub fn processes(&self) -> u64 {
        self.processes.load(Ordering::Relaxed)
    }

    /// Bytes of pool in the whole tree now.
    pub fn pool_bytes(&self) -> u64 {
        self.pool_bytes.load(Ordering::Relaxed)
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
    pub fn slots(&self) -> &[Slot] {
        &self.slots[..SLOTS.min(self.processes() as usize)]
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
            assert_eq!(tree.slots().iter().filter(|slot| slot.pid() == pid).count(), 1);
        }
        assert_eq!((tree.pool_bytes(), tree.total(Event::Requests)), (0, 2));
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
