//! A zone: one reserved range of addresses, the ledger over it, and its calls of the kernel.
//!
//! A zone reserves its addresses once and makes them usable in steps ([`Zone::grow`]). A free
//! block that is not ready costs nothing, so a zone shrinks by giving pages back
//! ([`OwnedZone::discard`]); [`Zone::remove`] also makes the addresses untouchable again.

mod backing;
mod owned;
mod watermarks;

use core::mem::ManuallyDrop;
use core::ops::Range;
use core::ptr::NonNull;
use crossbeam_utils::CachePadded;

pub use backing::{Budget, ZoneMemory};
pub use owned::OwnedZone;
pub use watermarks::{Pressure, Reclaim, Watermarks};

use super::block::BlockWord;
use super::gfp::Gfp;
use super::ledger::{Backing, Ledger, Native, Reservations, Storage, Want};
use super::runs::Run;
use crate::addr::{Order, PageRange, Pfn, BLOCK_FRAMES, BLOCK_SIZE, FRAME_SIZE};
use crate::clear::{Clearer, Warmth};
use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sys::mem::{self, Dump, Huge, Memory, Os};

/// The alignment of a zone's first address: the largest alignment it can give.
pub const ZONE_ALIGN: usize = Order::MAX.frames() * FRAME_SIZE;

/// See the module's top.
#[derive(Debug)]
pub struct Zone<M: Memory = Os, L: Budget = ()> {
    /// Every operation on frames that needs no memory.
    pub(super) ledger: Ledger<Native, ZoneMemory<M, L>>,
    base: NonNull<u8>,
    /// Blocks that were part of the zone once and are absent now.
    removed: AtomicUsize,
    /// Frames that are read by threads that don't own them ([`Zone::hold_readable`]).
    held_readable: AtomicUsize,
}

// SAFETY: `base` is only an address; the ledger says which thread may use the memory there.
unsafe impl<M: Memory + Send, L: Budget + Send> Send for Zone<M, L> {}
// SAFETY: as above; the ledger is made of atomics.
unsafe impl<M: Memory, L: Budget> Sync for Zone<M, L> {}

impl Zone<Os> {
    /// A zone of the kernel's memory. `capacity_bytes` are reserved (rounded up to blocks).
    ///
    /// # Errors
    /// [`Error::OutOfFrames`] for more bytes than there are numbers for; [`Error::Os`] where the kernel has no
    /// addresses for them, or no memory for the zone's tables.
    pub fn new(capacity_bytes: usize, cpus: usize, huge: Huge) -> Result<Zone<Os>> {
        Zone::with_memory(Os, (), capacity_bytes, cpus, huge)
    }
}

impl<M: Memory, L: Budget> Drop for Zone<M, L> {
    fn drop(&mut self) {
        // Mappings that the kernel refuses to unmap stay.
        let _ = self.unmap_all();
    }
}

impl<M: Memory, L: Budget> Zone<M, L> {
    /// As [`Zone::new`], on any [`Memory`] and within a [`Budget`].
    ///
    /// # Errors
    /// As there.
    #[doc(hidden)]
    pub fn with_memory(
        memory: M,
        budget: L,
        capacity_bytes: usize,
        cpus: usize,
        huge: Huge,
    ) -> Result<Zone<M, L>> {
        let capacity_bytes =
            capacity_bytes.checked_next_multiple_of(BLOCK_SIZE).ok_or(Error::OutOfFrames)?;
        let base = memory.reserve(capacity_bytes, ZONE_ALIGN)?;
        // SAFETY: reserved a moment ago, and nobody else knows of it.
        unsafe { Zone::within(memory, budget, base, capacity_bytes, cpus, huge) }
    }

    /// Gives the zone's memory, addresses and tables back to the kernel, as when it is dropped.
    ///
    /// # Errors
    /// [`Error::Os`] where the kernel refuses a part; the rest is given back.
    pub fn unmap(self) -> Result<()> {
        let mut zone = ManuallyDrop::new(self);
        let given_back = zone.unmap_all();
        // SAFETY: they are dropped once: the zone is not any more.
        unsafe {
            core::ptr::drop_in_place(&mut zone.ledger.backing);
        }
        given_back
    }

    /// Nobody uses the zone any more: its users borrow it.
    fn unmap_all(&mut self) -> Result<()> {
        let len = self.ledger.capacity() * BLOCK_SIZE;
        let Ledger { words, blocks, cpus, .. } = &self.ledger;
        let cpus = (NonNull::from(*cpus).cast(), size_of_val(*cpus).max(1));
        let tables = [words.place(), blocks.place(), cpus];
        // SAFETY: reserved for this zone alone.
        let mut given_back = unsafe { self.memory().release(self.base, len) };
        for (at, len) in tables {
            // SAFETY: `within` mapped all three for this zone, which is no more.
            given_back = given_back.and(unsafe { mem::unmap(at, len) });
        }
        Ok(given_back?)
    }

    /// As [`Zone::with_memory`], in addresses that are reserved already, and are the zone's from then on.
    ///
    /// # Errors
    /// [`Error::Os`] if there is no memory for its tables.
    ///
    /// # Safety
    /// `capacity_bytes` (whole blocks) from `base` on, a multiple of [`ZONE_ALIGN`], are reserved in
    /// `memory`, and nobody else uses them.
    #[doc(hidden)]
    pub unsafe fn within(
        memory: M,
        budget: L,
        base: NonNull<u8>,
        capacity_bytes: usize,
        cpus: usize,
        huge: Huge,
    ) -> Result<Zone<M, L>> {
        debug_assert!(base.as_ptr() as usize % ZONE_ALIGN == 0 && capacity_bytes % BLOCK_SIZE == 0);
        let capacity = capacity_bytes / BLOCK_SIZE;
        let cpus = cpus.clamp(1, 255);
        let words = table::<AtomicU64>(capacity * (BLOCK_FRAMES / 32))?;
        let blocks = table::<AtomicU64>(capacity)?;
        let cpus = table::<CachePadded<Reservations>>(cpus)?;
        let hides = AtomicBool::new(false);
        let backing = ZoneMemory { base: base.as_ptr() as usize, huge, hides, memory, budget };
        Ok(Zone {
            ledger: Ledger::new(Storage { words, blocks, cpus }, backing),
            base,
            removed: AtomicUsize::new(0),
            held_readable: AtomicUsize::new(0),
        })
    }

    /// The frames that the zone can have at most.
    pub fn capacity_frames(&self) -> usize {
        self.ledger.capacity() * BLOCK_FRAMES
    }

    /// The zone's addresses.
    pub fn addresses(&self) -> Range<usize> {
        let base = self.base.as_ptr() as usize;
        base..base + self.ledger.capacity() * BLOCK_SIZE
    }

    /// The address of a frame.
    #[doc(hidden)]
    #[inline]
    pub fn address(&self, pfn: Pfn) -> *mut u8 {
        debug_assert!(pfn.0 < self.ledger.capacity() * BLOCK_FRAMES);
        self.base.as_ptr().wrapping_add(pfn.0 * FRAME_SIZE)
    }

    /// The frame at an address of the zone, if a frame starts there.
    #[doc(hidden)]
    #[inline]
    pub fn pfn(&self, at: *const u8) -> Option<Pfn> {
        let offset = (at as usize).wrapping_sub(self.base.as_ptr() as usize);
        let inside = offset < self.ledger.capacity() * BLOCK_SIZE;
        (inside && offset % FRAME_SIZE == 0).then_some(Pfn(offset / FRAME_SIZE))
    }

    /// The address of a block.
    #[doc(hidden)]
    #[inline]
    pub fn block_address(&self, block: usize) -> *mut u8 {
        self.address(Pfn::of_block(block))
    }

    /// The limit on the blocks that the zone may hold.
    #[doc(hidden)]
    pub fn budget(&self) -> &L {
        &self.ledger.backing.budget
    }

    /// How many more blocks that are not pristine the budget allows.
    #[doc(hidden)]
    pub fn room(&self) -> usize {
        self.ledger.backing.room()
    }

    /// The memory behind the zone.
    fn memory(&self) -> &M {
        &self.ledger.backing.memory
    }

    /// Makes `blocks` more blocks usable, side by side. They read as zeros and have no pages yet.
    ///
    /// # Errors
    /// [`Error::OutOfFrames`] at the zone's end; [`Error::Os`] where the kernel refuses.
    #[doc(hidden)]
    pub fn grow(&self, blocks: usize) -> Result<()> {
        if blocks == 0 {
            return Ok(());
        }
        let claimed = match self.claim_removed(blocks) {
            Some(claimed) => claimed,
            None => self.ledger.claim_growth(blocks).ok_or(Error::OutOfFrames)?,
        };
        let (at, len) = (self.ledger.backing.at(claimed.start), claimed.len() * BLOCK_SIZE);
        // SAFETY: the blocks were absent, and are claimed by this call.
        if let Err(errno) = unsafe { self.memory().commit(at, len) } {
            // Counted first: another thread that has claimed one subtracts it.
            self.removed.fetch_add(claimed.len(), Ordering::Relaxed);
            self.give_up_adding(claimed);
            return Err(errno.into());
        }
        self.ledger.backing.set_huge(at, len);
        let is_hidden = self.ledger.backing.set_dumped(claimed.clone(), Dump::No);
        self.ledger.grow(claimed, is_hidden);
        Ok(())
    }

    /// Claims blocks that were removed. One that another thread claims to look at it is passed by.
    fn claim_removed(&self, blocks: usize) -> Option<Range<usize>> {
        if self.removed.load(Ordering::Relaxed) < blocks {
            return None;
        }
        let (mut start, grown) = (0, self.ledger.grown());
        for block in 0..grown {
            if !self.ledger.claim_removed(block) {
                self.give_up_adding(start..block);
                start = block + 1;
            } else if block + 1 - start == blocks && !self.ledger.is_at_its_end() {
                // They may not be counted any more in a child that a signal handler has forked meanwhile.
                let less = |removed: usize| Some(removed.saturating_sub(blocks));
                let _ = self.removed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
                return Some(start..block + 1);
            }
        }
        self.give_up_adding(start..grown);
        None
    }

    fn give_up_adding(&self, blocks: Range<usize>) {
        for block in blocks {
            self.ledger.end_adding(block, BlockWord::REMOVED);
        }
    }

    /// Takes a claimed block out of the zone: its pages go, and its addresses can't be touched. It stays free while a
    /// thread may still read its frames.
    ///
    /// # Safety
    /// The caller has claimed the block, whose word this is ([`Zone::ledger`]).
    #[doc(hidden)]
    pub unsafe fn remove(&self, block: usize, word: BlockWord) {
        // Acquire: pairs with `let_go_readable`, whose caller's reads are over. Holders of a frame of this block began
        // before the frame was freed, so claiming the block has made that visible.
        let is_held = self.held_readable.load(Ordering::Acquire) > 0;
        // SAFETY: the caller has claimed the block, and nobody reads it.
        let is_out = !is_held
            && unsafe { self.memory().decommit(self.ledger.backing.at(block), BLOCK_SIZE) }.is_ok();
        if is_out {
            self.removed.fetch_add(1, Ordering::Relaxed);
            self.ledger.remove_block(block);
            self.ledger.backing.uncharge(1);
        } else {
            self.ledger.release_block(block, word);
        }
    }

    /// The ledger of each frame's owner.
    ///
    /// # Safety
    /// The caller takes out, gives back and changes only memory that it has got or claimed itself: otherwise memory
    /// would be handed out twice, and spaces give references to it.
    #[doc(hidden)]
    pub unsafe fn ledger(&self) -> &Ledger<Native, ZoneMemory<M, L>> {
        &self.ledger
    }

    /// A frame is going to be read that its owner may free meanwhile: as a page on its way out, which a fault takes
    /// back, and that is unmapped then. Its bytes are not used in that case, but its address can be read until
    /// [`Zone::let_go_readable`]. The caller calls this while the frame is allocated.
    #[doc(hidden)]
    pub fn hold_readable(&self) {
        // Relaxed: the step by which the caller finds the frame allocated releases this, and freeing it comes after.
        self.held_readable.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends one [`Zone::hold_readable`].
    ///
    /// # Safety
    /// The caller began it, and reads no such frame any more.
    #[doc(hidden)]
    pub unsafe fn let_go_readable(&self) {
        // Release: the reads are over.
        self.held_readable.fetch_sub(1, Ordering::Release);
    }

    /// Frames that are free, and those that the zone can still grow by; as of one moment or another of the call. It
    /// looks at each block, and at the words of blocks in parts: a microsecond for 256 MiB.
    pub fn free_frames(&self) -> usize {
        let absent = self.ledger.capacity() - self.ledger.grown();
        let removed = self.removed.load(Ordering::Relaxed);
        self.ledger.free_frames() + (absent + removed) * BLOCK_FRAMES
    }

    /// Gets `2^order` frames for processor `cpu`, aligned to their size. With [`Gfp::ZERO`] they read as zeros: zeroed
    /// frames, or frames that are cleared now. The other flags mean nothing to a zone, which never waits.
    pub fn get(
        &self,
        cpu: usize,
        gfp: Gfp,
        order: Order,
        clearer: &Clearer,
    ) -> Option<NonNull<u8>> {
        let want = if gfp.contains(Gfp::ZERO) { Want::Zeroed } else { Want::Dirty };
        if order == Order::FRAME {
            let (pfn, zeroed) = self.get_frame(cpu, want)?;
            if want == Want::Zeroed && !zeroed {
                // SAFETY: the frame is this call's, committed and FRAME_SIZE long.
                unsafe { clearer.clear(self.address(pfn), FRAME_SIZE, Warmth::Hot) };
            }
            return NonNull::new(self.address(pfn));
        }
        let run = self.get_area(cpu, order.frames(), want)?;
        if want == Want::Zeroed {
            // SAFETY: the run was just given to this request.
            self.clear_run(&run, |at, len| unsafe { clearer.clear(at, len, Warmth::Hot) });
        }
        NonNull::new(self.address(run.range.start))
    }

    /// Gets one frame, growing the zone if it must: its number and whether it is zeroed.
    #[doc(hidden)]
    #[inline]
    pub fn get_frame(&self, cpu: usize, want: Want) -> Option<(Pfn, bool)> {
        loop {
            if let Some(found) = self.ledger.get_frame(cpu, want) {
                return Some(found);
            }
            self.grow(1).ok()?;
        }
    }

    fn get_area(&self, cpu: usize, frames: usize, want: Want) -> Option<Run> {
        let blocks = frames / BLOCK_FRAMES;
        loop {
            let found = if blocks == 0 {
                self.ledger.get_run(cpu, frames, frames, want)
            } else {
                let liked = |word: BlockWord| word.zeroed() == (want == Want::Zeroed);
                let get = |fits: &dyn Fn(BlockWord) -> bool| {
                    self.ledger.get_blocks(blocks, 0, blocks, fits)
                };
                get(&liked).or_else(|| get(&|_| true))
            };
            if found.is_some() || (blocks > 0 && self.ledger.join_all()) {
                return found.or_else(|| self.get_area(cpu, frames, want));
            }
            self.grow((2 * blocks).max(1)).or_else(|_| self.grow(blocks.max(1))).ok()?;
        }
    }

    /// Calls `clear` with the dirty parts of a run, the first byte and how many: whole blocks by their words, the rest
    /// by its dirt. Returns the bytes in all.
    fn clear_run(&self, run: &Run, mut clear: impl FnMut(*mut u8, usize)) -> usize {
        let mut cleared = 0;
        let mut clear = |start: Pfn, frames: usize| {
            cleared += frames * FRAME_SIZE;
            clear(self.address(start), frames * FRAME_SIZE);
        };
        let PageRange { start, frames } = run.range;
        let whole = if frames >= BLOCK_FRAMES { frames / BLOCK_FRAMES } else { 0 };
        let mut block = start.block();
        let end = block + whole;
        while block < end {
            let dirty = |block: &usize| !self.ledger.block(*block).zeroed();
            let until = (block..end).find(|block| !dirty(block)).unwrap_or(end);
            if until > block {
                clear(Pfn::of_block(block), (until - block) * BLOCK_FRAMES);
            }
            block = (until..end).find(dirty).unwrap_or(end);
        }
        for dirty in run.dirt.ranges::<Native>() {
            clear(Pfn(Pfn::of_block(end).0 + dirty.start), dirty.len());
        }
        cleared
    }

    /// Puts back frames of [`Zone::get`], with unknown content.
    ///
    /// # Errors
    /// [`Error::NotAllocated`] or [`Error::DoubleFree`] if it is no such allocation.
    ///
    /// # Safety
    /// Nobody uses the memory any more: the next caller gets it.
    pub unsafe fn put(&self, at: *mut u8) -> Result<()> {
        let pfn = self.pfn(at).ok_or(Error::NotAllocated)?;
        self.ledger.put_run(pfn, |_, word| word.with_zeroed(false)).map(drop)
    }
}

/// A zeroed table of `count` entries that lives as long as the zone.
fn table<T>(count: usize) -> Result<&'static [T]>
where
    T: ZeroIsValid,
{
    let memory = mem::map_table((count * size_of::<T>()).max(1))?;
    // SAFETY: mapped memory is page-aligned, zeroed, there until the zone is no more, and zeros are a valid T.
    Ok(unsafe { core::slice::from_raw_parts(memory.cast().as_ptr(), count) })
}

/// Types for which zeroed memory is a value.
///
/// # Safety
/// All-zero bytes are a valid `Self`.
unsafe trait ZeroIsValid {}
// SAFETY: an atomic integer is valid whatever its bytes.
unsafe impl ZeroIsValid for AtomicU64 {}
// SAFETY: three atomic integers and padding.
unsafe impl ZeroIsValid for CachePadded<Reservations> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fake::FakeMemory;
    use rustix::io::Errno;

    fn zone(bytes: usize) -> Zone {
        Zone::new(bytes, 2, Huge::No).expect("address space")
    }

    #[test]
    fn zeroed_frames_are_zero_again_after_use() {
        let zone = zone(64 << 20);
        let clearer = Clearer::detect();
        for order in [0u8, 3, 5, 7, 9, 12] {
            let order = Order::new(order).expect("an order");
            for _ in 0..2 {
                let at = zone.get(0, Gfp::KERNEL | Gfp::ZERO, order, &clearer).expect("frames");
                let len = order.frames() * FRAME_SIZE;
                assert_eq!(at.as_ptr() as usize % FRAME_SIZE, 0);
                // SAFETY: the zone gave `len` bytes.
                let bytes = unsafe { core::slice::from_raw_parts_mut(at.as_ptr(), len) };
                assert!(bytes.iter().all(|&byte| byte == 0), "{order:?}");
                bytes.fill(0xa5);
                // SAFETY: it is not used after this; a put of free memory is only refused.
                let (put, again) = unsafe { (zone.put(at.as_ptr()), zone.put(at.as_ptr())) };
                put.expect("allocated");
                assert!(again.is_err(), "a second put fails");
            }
        }
    }

    #[test]
    fn a_kernel_that_refuses_memory_is_reported_and_asked_again() {
        let memory = FakeMemory::failing_after(1, Errno::NOMEM);
        let zone = Zone::with_memory(memory, (), 8 << 20, 1, Huge::No).expect("address space");
        let clearer = Clearer::detect();
        assert_eq!(zone.grow(2), Err(Error::Os(Errno::NOMEM)));
        assert!(zone.get(0, Gfp::KERNEL, Order::FRAME, &clearer).is_none());
        zone.memory().allow(100);
        assert!(zone.get(0, Gfp::KERNEL, Order::FRAME, &clearer).is_some());
        let blocks = (0..4).filter(|_| zone.get(0, Gfp::KERNEL, Order::BLOCK, &clearer).is_some());
        assert_eq!(blocks.count(), 3, "every block of the zone can still be had");
    }

    #[test]
    fn a_child_can_have_the_blocks_that_its_parent_was_adding() {
        let of_parent = zone(8 << 20);
        of_parent.grow(1).expect("memory");
        // Threads of the parent add two blocks, and one that was there before; another is at work on a block.
        assert_eq!(of_parent.ledger.claim_growth(2), Some(1..3));
        let word = of_parent.ledger.claim_block(1, |_| true);
        assert!(word.is_none(), "it is not there yet");
        of_parent.ledger.claim_block(0, |_| true).expect("free");
        // SAFETY: nobody else has it.
        let zone = unsafe { OwnedZone::new(of_parent) };
        // SAFETY: as in a child: the step that was begun above ends here.
        unsafe { zone.adopt() };
        assert!(!zone.is_growing());
        assert_eq!(zone.ledger().free_blocks(), 1);
        zone.grow(2).expect("memory");
        assert_eq!((zone.ledger().grown(), zone.ledger().free_blocks()), (3, 3));
        let clearer = Clearer::detect();
        let at = zone.get(0, Gfp::KERNEL, Order::BLOCK, &clearer).expect("a block");
        // SAFETY: the zone gave a block.
        unsafe { at.write_bytes(1, BLOCK_SIZE) };
    }

    #[test]
    fn a_zone_at_its_end_gives_up_what_is_no_part_of_it() {
        let memory = FakeMemory::failing_after(1, Errno::NOMEM);
        let zone = Zone::with_memory(memory, (), 8 << 20, 1, Huge::No).expect("address space");
        zone.grow(2).expect_err("no memory");
        zone.memory().allow(100);
        // SAFETY: nobody else has it.
        let zone = unsafe { OwnedZone::new(zone) };
        assert_eq!(zone.ledger().end_growth(), 2..4);
        let mut removed = Vec::new();
        zone.take_out_removed(|block| removed.push(block));
        assert_eq!(removed, [0, 1]);
        assert_eq!(zone.grow(1), Err(Error::OutOfFrames), "they are nobody's now");
    }

    /// Another thread is between its claim and its blocks being there.
    #[test]
    fn blocks_that_are_being_added_are_not_taken_for_removed_ones() {
        let memory = FakeMemory::failing_after(1, Errno::NOMEM);
        let zone = Zone::with_memory(memory, (), 64 << 20, 1, Huge::No).expect("address space");
        zone.grow(3).expect_err("no memory");
        zone.memory().allow(1000);
        let others = zone.ledger.claim_growth(4).expect("room");
        for blocks in [0, 2, 4, 1] {
            zone.grow(blocks).expect("memory");
            assert!(others.clone().all(|block| zone.ledger.is_being_added(block)), "{blocks}");
        }
        zone.ledger.grow(others, false);
        assert_eq!(zone.ledger.free_blocks(), 2 + 4 + 1 + 4);
    }

    #[test]
    fn threads_that_grow_at_once_where_memory_is_refused_now_and_then_get_each_block_once() {
        const BLOCKS: usize = 48;
        for _ in 0..20 {
            let memory = FakeMemory::failing_after(6, Errno::NOMEM);
            let len = BLOCKS * BLOCK_SIZE;
            let zone = Zone::with_memory(memory, (), len, 2, Huge::No).expect("address space");
            let clearer = Clearer::detect();
            let get_all = || {
                let mut all = Vec::new();
                for turn in 0..BLOCKS * 8 {
                    let at = zone.get(0, Gfp::KERNEL, Order::BLOCK, &clearer);
                    all.extend(at.map(|at| at.as_ptr() as usize));
                    let _ = zone.grow(turn % 3);
                    if at.is_none() {
                        zone.memory().allow(5);
                    }
                }
                all
            };
            let mut all = std::thread::scope(|scope| {
                let other = scope.spawn(get_all);
                [get_all(), other.join().expect("no panic")].concat()
            });
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), BLOCKS, "each once, and all of them");
            for at in all {
                // SAFETY: it is not used after this.
                unsafe { zone.put(at as *mut u8) }.expect("allocated");
            }
        }
    }

    #[test]
    fn removed_blocks_come_back() {
        let zone = zone(8 << 20);
        zone.grow(4).expect("memory");
        for block in 1..3 {
            let word = zone.ledger.claim_block(block, |_| true).expect("free");
            // SAFETY: claimed a moment ago.
            unsafe { zone.remove(block, word) };
        }
        assert_eq!(zone.ledger.free_blocks(), 2);
        zone.grow(2).expect("memory");
        assert_eq!(zone.ledger.free_blocks(), 4);
        assert_eq!(zone.grow(1), Err(Error::OutOfFrames));
    }
}
