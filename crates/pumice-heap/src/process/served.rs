//! The heap that serves a process, with all that it was started with.
//!
//! The shim and the Rust allocator each keep one, publish it in their own way, and follow it through `fork` by its
//! [`ProcessWord`].

use core::ptr::from_ref;

use super::trees::tree;
use super::{clearer, take_slot, take_slot_of_child, topology, ProcessWord, Variables};
use crate::config;
use crate::heap::{Discard, Heap, HeapConfig};
use crate::stats::{CounterSlot, Event, Reason, Tree};
use pumice_frames::sync::atomic::{AtomicPtr, Ordering};
use pumice_frames::sys::sched::Affinity;

/// The part of a heap's start that the variables do not decide.
#[derive(Debug)]
pub struct Host {
    /// The processors that helper threads run on.
    pub home: Affinity,
    /// See [`HeapConfig::discard`].
    pub discard: Option<Discard>,
    /// The part that checks zeros under `PUMICE_VERIFY=1`.
    pub zero_check: ZeroCheck,
}

/// The part that checks that memory said to be zero is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroCheck {
    /// The heap, which panics.
    ByHeap,
    /// The caller, by [`Served::verify`]: an allocator must not panic.
    ByCaller,
}

/// See the module's top. It stays where it is for the rest of the process.
#[derive(Debug)]
pub struct Served {
    heap: Heap,
    tree: &'static Tree,
    /// The slot of this process. Changes in a forked child, before its word says CURRENT.
    slot: AtomicPtr<CounterSlot>,
    word: &'static ProcessWord,
    verify: bool,
}

impl Served {
    /// Starts a heap as the variables say. `name`: the program's ([`super::program_name`]). Nothing is populated and no
    /// thread started.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn start(variables: &impl Variables, name: &[u8], host: Host) -> Result<Served, Reason> {
        let tree = tree(variables).ok_or(Reason::NoMemory)?;
        let slot = take_slot(tree, name, variables).ok_or(Reason::NoSlot)?;
        let verify = variables.get(config::ENV_VERIFY) == Some("1");
        let word = ProcessWord::map().ok_or(Reason::NoMemory)?;
        let heap = Heap::new(HeapConfig {
            tree,
            slot,
            verify: verify && host.zero_check == ZeroCheck::ByHeap,
            clearer: clearer(variables),
            threads: true,
            topology: topology(variables),
            home: host.home,
            discard: host.discard,
        });
        let heap = heap.map_err(|_| Reason::AddressSpace)?;
        let slot = AtomicPtr::new(from_ref(slot).cast_mut());
        Ok(Served { heap, tree, slot, word, verify })
    }

    /// The heap.
    #[inline]
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// The word that a forked child finds wiped.
    #[inline]
    pub fn word(&self) -> &'static ProcessWord {
        self.word
    }

    /// Whether the user asked for messages about errors (`PUMICE_VERIFY=1`).
    #[inline]
    pub fn verify(&self) -> bool {
        self.verify
    }

    /// The slot where this process counts.
    #[inline]
    pub fn slot(&self) -> &'static CounterSlot {
        // Relaxed: set before this was published, and changed by a child with one thread only.
        // SAFETY: never null; slots lie in the tree, which stays mapped.
        unsafe { &*self.slot.load(Ordering::Relaxed) }
    }

    /// In a forked child, while its word says ADOPTING: gives it a slot, with its parent's name and settings, and makes
    /// the heap its own. `false`: there is no slot, and the heap is as it was.
    ///
    /// # Safety
    /// It is such a child, and no other thread of it uses the heap or has used it.
    pub unsafe fn adopt(&self) -> bool {
        let Some(slot) = take_slot_of_child(self.tree, self.slot()) else { return false };
        // Relaxed: see `slot`.
        self.slot.store(from_ref(slot).cast_mut(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { self.heap.after_fork_in_child(slot) };
        slot.add(Event::Forks, 1);
        true
    }
}
