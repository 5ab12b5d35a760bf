//! A heap's zones: a pair for each memory node, in one reservation.
//!
//! ```text
//!   base                   1 << shift
//!    |  node 0: ready | demand   |  node 1: ready | demand   |  ...
//! ```
//! Each zone is as large as the others, and a power of two, so the zone of an address is a shift.
//!
//! # Placement of a node's zones
//! They hold memory that processors of the node touch first: those of the callers that are served from them. No range
//! has a memory policy of its own. So where a program spreads an allocation by having many threads touch it, sets
//! policies, or leaves it to the kernel to move pages to their users, that works as it does without the heap. Helpers
//! touch memory that is not theirs; they say for each piece which node it belongs to ([`Topology::prefer`]).
//!
//! Freed memory goes back to the zone it came from, from any node. A request that its node's zone
//! cannot serve (the pool's limit, addresses) tries the others, the nearest first.

use core::ops::{Deref, Range};
use core::ptr::NonNull;

use super::marks::Marks;
use super::pool::Pool;
use super::serve::Keeps;
use crate::stats::{CounterSlot, Tree};
use pumice_frames::addr::Pfn;
use pumice_frames::error::Result;
use pumice_frames::frame::zone::ZONE_ALIGN;
use pumice_frames::frame::{OwnedZone, Zone};
use pumice_frames::sync::atomic::{AtomicUsize, Ordering};
use pumice_frames::sys::cpu;
use pumice_frames::sys::mem::{self, Huge, Memory, Os};
use pumice_frames::sys::topology::Topology;

/// Addresses reserved for all zones of a kind: as many times the machine's memory...
const RESERVE_FACTOR: usize = 2;
/// ... but at least this for each zone.
const RESERVE_MIN: usize = 64 << 30;

/// The purpose of a zone: see the top of [`super`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ZoneKind {
    Ready = 0,
    Demand = 1,
}

const KINDS: usize = 2;

impl ZoneKind {
    /// The part of their blocks that runs of such a zone keep, where nothing else is said.
    pub(super) fn keeps(self) -> Keeps {
        match self {
            ZoneKind::Ready => Keeps::Pages,
            ZoneKind::Demand => Keeps::Nothing,
        }
    }

    /// The advice that such a zone's memory carries.
    pub(super) fn huge(self) -> Huge {
        match self {
            ZoneKind::Ready => Huge::Yes,
            ZoneKind::Demand => Huge::No,
        }
    }
}

/// A zone within the tree's pool.
#[derive(Debug)]
pub(super) struct PoolZone {
    zone: OwnedZone<Os, Pool>,
    pub(super) kind: ZoneKind,
    pub(super) node: usize,
    /// Marks on its mappings.
    pub(super) marks: Marks,
    /// Blocks of a ready zone that are ready, zeroed and free: a hint for unknown classes.
    ready_blocks: AtomicUsize,
    refused: Refused,
}

impl Deref for PoolZone {
    type Target = OwnedZone<Os, Pool>;

    #[inline]
    fn deref(&self) -> &OwnedZone<Os, Pool> {
        &self.zone
    }
}

/// The whole blocks that a request did not find, so that no request searches in vain until something changes. Relaxed:
/// each part is a hint, and parts that do not fit together cost a search, or send a request elsewhere.
#[derive(Debug, Default)]
struct Refused {
    /// 1 + the changes of the ledger there had been.
    changes: AtomicUsize,
    /// Blocks there was room for in the pool.
    room: AtomicUsize,
    /// The fewest blocks that were not found since.
    blocks: AtomicUsize,
}

impl PoolZone {
    /// Gives the pages of blocks that the caller owns back, and takes attributes off. `false`: the kernel refused.
    pub(super) fn empty(&self, blocks: Range<usize>) -> bool {
        // Small pages leave a page table behind, and while it is there no huge page comes. A new mapping has none.
        let needs_mapping = |block| {
            let word = self.ledger().block(block);
            word.tainted() || word.trimmed()
        };
        match blocks.clone().any(needs_mapping) {
            true => self.reset(blocks),
            false => self.discard(blocks),
        }
    }

    /// Faults in the page of a frame of a new run. The frame is the caller's and holds nothing it needs; a zeroed frame
    /// stays zeroed.
    pub(super) fn touch(&self, frame: Pfn) {
        // SAFETY: it is committed, and nobody else's.
        unsafe { self.address(frame).write_volatile(0) };
    }

    /// Whether a request for so many blocks need not search.
    pub(super) fn is_refused(&self, blocks: usize) -> bool {
        let relaxed = Ordering::Relaxed;
        self.refused.changes.load(relaxed) == self.ledger().changes() + 1
            && blocks >= self.refused.blocks.load(relaxed)
            && self.room() <= self.refused.room.load(relaxed)
    }

    /// Notes that so many were not found by a search before which there had been so many changes.
    pub(super) fn refuse(&self, blocks: usize, changes: usize) {
        let (relaxed, now) = (Ordering::Relaxed, changes + 1);
        let is_same = self.refused.changes.swap(now, relaxed) == now;
        let fewest = if is_same { self.refused.blocks.load(relaxed).min(blocks) } else { blocks };
        self.refused.blocks.store(fewest, relaxed);
        self.refused.room.store(self.room(), relaxed);
    }

    /// Blocks that are ready, zeroed and free: a guess.
    #[inline]
    pub(super) fn ready_blocks(&self) -> usize {
        // Relaxed, here and below: a guess.
        self.ready_blocks.load(Ordering::Relaxed)
    }

    pub(super) fn set_ready_blocks(&self, blocks: usize) {
        self.ready_blocks.store(blocks, Ordering::Relaxed);
    }

    /// Adds to the hint, modulo two to the 64; it is put right at every decay.
    pub(super) fn add_ready_blocks(&self, change: usize) {
        let add = |blocks: usize| {
            let sum = blocks.wrapping_add(change);
            Some(if sum > isize::MAX as usize { 0 } else { sum })
        };
        let _ = self.ready_blocks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

/// See the module's top.
#[derive(Debug)]
pub(super) struct Zones {
    base: usize,
    len: usize,
    /// Of a zone's size.
    shift: u32,
    /// Node 0's, where they are found soonest: on most machines there are no others.
    first: [PoolZone; KINDS],
    others: &'static [PoolZone],
    topology: Topology,
}

impl Zones {
    /// Reserves them; nothing is populated.
    ///
    /// # Errors
    /// [`pumice_frames::error::Error::Os`] if there is no address space for them.
    pub(super) fn new(
        topology: Topology,
        tree: &'static Tree,
        slot: &'static CounterSlot,
    ) -> Result<Zones> {
        let zone_len = zone_len(topology.count());
        let count = topology.count() * KINDS;
        let base = Os.reserve(zone_len * count, ZONE_ALIGN)?;
        let cpus = cpu::count();
        let zone = |index: usize| -> Result<PoolZone> {
            let (node, kind) = match index % KINDS {
                0 => (index / KINDS, ZoneKind::Ready),
                _ => (index / KINDS, ZoneKind::Demand),
            };
            let pool = Pool::new(tree, slot);
            // SAFETY: each zone has its part of the addresses that were reserved a moment ago.
            let zone = unsafe {
                let at = base.add(index * zone_len);
                Zone::within(Os, pool, at, zone_len, cpus, kind.huge())?
            };
            // SAFETY: nobody but this crate has the heap's zones.
            let zone = unsafe { OwnedZone::new(zone) };
            let marks = Marks::new(zone.ledger().capacity());
            Ok(PoolZone {
                zone,
                kind,
                node,
                marks,
                ready_blocks: AtomicUsize::new(0),
                refused: Refused::default(),
            })
        };
        Ok(Zones {
            base: base.as_ptr() as usize,
            len: zone_len * count,
            shift: zone_len.trailing_zeros(),
            first: [zone(0)?, zone(1)?],
            others: table(count - KINDS, |index| zone(index + KINDS))?,
            topology,
        })
    }

    /// Whether an address lies in a zone.
    #[inline]
    pub(super) fn has(&self, at: usize) -> bool {
        at.wrapping_sub(self.base) < self.len
    }

    /// The zone that an address lies in.
    #[inline]
    pub(super) fn of(&self, at: usize) -> Option<&PoolZone> {
        let offset = at.wrapping_sub(self.base);
        (offset < self.len).then(|| self.by_index(offset >> self.shift))
    }

    /// All their addresses.
    pub(super) fn addresses(&self) -> Range<usize> {
        self.base..self.base + self.len
    }

    /// Whether one zone ends at an address and the next one begins.
    pub(super) fn is_border(&self, at: usize) -> bool {
        self.has(at) && (at - self.base) % (1 << self.shift) == 0
    }

    #[inline]
    fn by_index(&self, index: usize) -> &PoolZone {
        self.first.get(index).unwrap_or_else(|| &self.others[index - KINDS])
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = &PoolZone> + Clone {
        self.first.iter().chain(self.others)
    }

    /// All of a kind.
    pub(super) fn all_of(&self, kind: ZoneKind) -> impl Iterator<Item = &PoolZone> + Clone {
        self.all().filter(move |zone| zone.kind == kind)
    }

    /// A node's zone.
    #[inline]
    pub(super) fn local(&self, node: usize, kind: ZoneKind) -> &PoolZone {
        self.by_index(node * KINDS + kind as usize)
    }

    /// All of a kind, the node's own first, then the nearest.
    #[inline]
    pub(super) fn by_distance(
        &self,
        node: usize,
        kind: ZoneKind,
    ) -> impl DoubleEndedIterator<Item = &PoolZone> {
        self.topology.by_distance(node).map(move |node| self.local(node, kind))
    }

    /// The node that the caller runs on, or did a moment ago.
    #[inline]
    pub(super) fn here(&self) -> usize {
        self.topology.here()
    }

    /// Has the pages that the calling helper faults in from now on come from a node.
    pub(super) fn prefer(&self, node: usize) {
        self.topology.prefer(node);
    }

    pub(super) fn tree(&self) -> &'static Tree {
        self.first[0].budget().tree()
    }

    pub(super) fn slot(&self) -> &'static CounterSlot {
        self.first[0].budget().slot()
    }
}

/// How large each zone is: a power of two.
fn zone_len(nodes: usize) -> usize {
    let memory = rustix::system::sysinfo();
    let physical = memory.totalram as usize * memory.mem_unit as usize;
    (physical / nodes * RESERVE_FACTOR).max(RESERVE_MIN).next_power_of_two()
}

/// Zones that live as long as the process, in memory of their own if there are any.
fn table(count: usize, make: impl Fn(usize) -> Result<PoolZone>) -> Result<&'static [PoolZone]> {
    if count == 0 {
        return Ok(&[]);
    }
    let memory: NonNull<PoolZone> = mem::map_table(count * size_of::<PoolZone>())?.cast();
    for index in 0..count {
        // SAFETY: mapped a moment ago for so many, at a page's start.
        unsafe { memory.add(index).write(make(index)?) };
    }
    // SAFETY: all are written, and the memory is never unmapped.
    Ok(unsafe { core::slice::from_raw_parts(memory.as_ptr(), count) })
}
