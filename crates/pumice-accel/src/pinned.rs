//! Host memory for devices: from huge pages that are there, registered once, and kept so across uses.
//!
//! Pinning memory for a device is slow because of the work before it: every page is faulted in and zeroed, small page
//! by small page, while the program waits. A [`Pool`] does that ahead, in huge pages, and has the memory registered
//! when it is made; a [`Buffer`] is then a matter of microseconds. A buffer is zeroed when it comes back, by the engine
//! that its owner names ([`Pool::zero_free`]), or by the processor when zeros are asked for and there are too few.
//!
//! The memory is locked for as long as the pool lives: nobody else has it. That is the price.
//!
//! A child made by `fork` does not have it (`MADV_DONTFORK`), and gets SIGSEGV where it touches a buffer: pinned pages
//! would have to be copied for it at once, or the device would go on with pages that the parent no longer has. The
//! memory at those addresses in a child is not the pool's, so a pool that is dropped there leaves it alone.

use core::fmt;
use core::ops::{Deref, DerefMut, Range};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::mm::{madvise, Advice};

use crate::cuda::{Cuda, CudaError};
use pumice_frames::addr::BLOCK_SIZE;
use pumice_frames::clear::Content;
use pumice_frames::clear::{Clearer, Engine, Piece, PieceState, Waiting, Warmth};
use pumice_frames::sys::mem::{Huge, Memory, Os};
use pumice_frames::sys::thread::Maker;

/// A driver that pins memory, and is told where the memory is.
pub trait Registrar {
    /// Why it was refused.
    type Error: fmt::Debug + fmt::Display;

    /// Pins it.
    ///
    /// # Errors
    /// Nothing is pinned then.
    ///
    /// # Safety
    /// The memory stays mapped until [`Registrar::unregister`].
    unsafe fn register(&self, at: *mut u8, len: usize) -> Result<(), Self::Error>;

    /// Lets it go.
    ///
    /// # Safety
    /// [`Registrar::register`] pinned all of it, and nobody relies on that any more.
    unsafe fn unregister(&self, at: *mut u8, len: usize);
}

impl Registrar for Cuda {
    type Error = CudaError;

    unsafe fn register(&self, at: *mut u8, len: usize) -> Result<(), CudaError> {
        // SAFETY: as the caller promises.
        unsafe { Cuda::register(self, at, len) }
    }

    unsafe fn unregister(&self, at: *mut u8, _len: usize) {
        // Memory that the driver can't let go stays registered until the program ends.
        // SAFETY: as the caller promises.
        let _ = unsafe { Cuda::unregister(self, at) };
    }
}

/// `mlock`: pinned, and registered with nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Locked;

impl Registrar for Locked {
    type Error = Errno;

    unsafe fn register(&self, at: *mut u8, len: usize) -> Result<(), Errno> {
        // SAFETY: locking changes no content.
        unsafe { rustix::mm::mlock(at.cast(), len) }
    }

    unsafe fn unregister(&self, at: *mut u8, len: usize) {
        // SAFETY: as above. A pool's memory is unmapped next, which unlocks it.
        let _ = unsafe { rustix::mm::munlock(at.cast(), len) };
    }
}

/// Why there is no pool.
#[derive(Debug, thiserror::Error)]
pub enum PoolError<E: fmt::Debug + fmt::Display> {
    /// There is no memory for it.
    #[error("no memory for it: {0}")]
    Memory(Errno),
    /// It is there, but can't be pinned.
    #[error("it can't be pinned: {0}")]
    Pinning(E),
}

/// A block's content and holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Zeroed,
    Dirty,
    /// A buffer's, or an engine's.
    Taken,
}

/// See the module's top.
#[derive(Debug)]
pub struct Pool<R: Registrar> {
    registrar: R,
    at: *mut u8,
    maker: Maker,
    clearer: Clearer,
    blocks: Mutex<Vec<Block>>,
}

// SAFETY: the memory is handed out block by block, under the lock.
unsafe impl<R: Registrar + Send> Send for Pool<R> {}
// SAFETY: as above.
unsafe impl<R: Registrar + Sync> Sync for Pool<R> {}

/// Blocks that are zeroed at a time.
const BATCH: usize = 64;
/// An engine that does not answer for so long has the blocks for good.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 5000 });

impl<R: Registrar> Pool<R> {
    /// Maps, populates and registers `bytes`, rounded up to whole blocks of 2 MiB. This is what takes
    /// the time: do it ahead.
    ///
    /// # Errors
    /// See [`PoolError`].
    pub fn new(bytes: usize, registrar: R) -> Result<Pool<R>, PoolError<R::Error>> {
        Pool::in_memory(&Os, bytes, registrar)
    }

    fn in_memory(
        memory: &impl Memory,
        bytes: usize,
        registrar: R,
    ) -> Result<Pool<R>, PoolError<R::Error>> {
        let len = bytes.max(1).checked_next_multiple_of(BLOCK_SIZE);
        let len = len.ok_or(PoolError::Memory(Errno::NOMEM))?;
        let at = memory.reserve(len, BLOCK_SIZE).map_err(PoolError::Memory)?.as_ptr();
        // SAFETY: the range was reserved a moment ago for this pool alone; dropping it unmaps it.
        let populated = unsafe {
            memory.commit(at, len).and_then(|()| {
                // A kernel without huge pages refuses; small ones do.
                let _ = memory.set_huge(at, len, Huge::Yes);
                memory.populate(at, len)?;
                madvise(at.cast(), len, Advice::LinuxDontFork)
            })
        };
        let registered = populated.map_err(PoolError::Memory).and_then(|()| {
            // SAFETY: mapped until the pool goes, which unregisters first.
            unsafe { registrar.register(at, len) }.map_err(PoolError::Pinning)
        });
        if let Err(error) = registered {
            // SAFETY: nothing of it is registered, and nobody has any of it.
            let _ = unsafe { rustix::mm::munmap(at.cast(), len) };
            return Err(error);
        }
        let blocks = Mutex::new(vec![Block::Zeroed; len / BLOCK_SIZE]);
        let (maker, clearer) = (Maker::here(), Clearer::detect());
        Ok(Pool { registrar, at, maker, clearer, blocks })
    }

    /// The registrar of this memory; it may be an engine at the same time.
    pub fn registrar(&self) -> &R {
        &self.registrar
    }

    /// Bytes that no buffer has.
    pub fn free_bytes(&self) -> usize {
        self.blocks().iter().filter(|&&block| block != Block::Taken).count() * BLOCK_SIZE
    }

    /// A buffer of `bytes`, rounded up to whole blocks, pinned and registered. With
    /// [`Content::Zero`] it is all zeros; the processor clears the parts that no engine has cleared.
    /// `None` if no run of blocks is as long.
    pub fn take(&self, bytes: usize, content: Content) -> Option<Buffer<'_, R>> {
        let count = bytes.max(1).div_ceil(BLOCK_SIZE);
        let mut blocks = self.blocks();
        let from = find_run(&blocks, count, content)?;
        let run = from..from + count;
        let dirty: Vec<_> = run.clone().filter(|&block| blocks[block] == Block::Dirty).collect();
        blocks[run.clone()].fill(Block::Taken);
        drop(blocks);
        if content == Content::Zero {
            for block in dirty {
                // SAFETY: the block is this buffer's.
                unsafe { self.clearer.clear(self.block(block), BLOCK_SIZE, Warmth::Hot) };
            }
        }
        Some(Buffer { pool: self, run })
    }

    /// Zeroes free blocks that are not, in batches, by `engine`; the processor does the rest. Returns how many bytes
    /// were zeroed. To be called when nobody is in a hurry.
    ///
    /// An engine that does not answer within seconds is asked no more by this call, and keeps the
    /// blocks that it has, for good: it may still write to them.
    pub fn zero_free(&self, engine: &dyn Engine) -> usize {
        let mut zeroed = 0;
        let mut is_lost = false;
        loop {
            let batch = self.take_dirty();
            if batch.is_empty() {
                return zeroed;
            }
            let piece = |&block: &usize| Piece::new(self.block(block), BLOCK_SIZE, Warmth::Cold);
            let mut pieces: Vec<_> = batch.iter().map(piece).collect();
            if !is_lost {
                // SAFETY: the blocks are taken, and stay mapped: a pool of which an engine has blocks
                // is not unmapped.
                is_lost = unsafe {
                    let submitted = engine.submit(&mut pieces);
                    submitted.and(engine.wait(&mut pieces, PATIENCE, Waiting::Asleep)).is_err()
                };
                is_lost |= pieces.iter().any(|piece| piece.state() == PieceState::InFlight);
            }
            for (block, piece) in batch.into_iter().zip(pieces) {
                if piece.state() == PieceState::InFlight {
                    continue;
                }
                let (at, len) = piece.remaining();
                // SAFETY: the engine is done with the block.
                unsafe { self.clearer.clear(at, len, Warmth::Cold) };
                self.blocks()[block] = Block::Zeroed;
                zeroed += BLOCK_SIZE;
            }
        }
    }

    fn take_dirty(&self) -> Vec<usize> {
        let mut blocks = self.blocks();
        let dirty = (0..blocks.len()).filter(|&block| blocks[block] == Block::Dirty);
        let batch: Vec<_> = dirty.take(BATCH).collect();
        batch.iter().for_each(|&block| blocks[block] = Block::Taken);
        batch
    }

    fn blocks(&self) -> MutexGuard<'_, Vec<Block>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn block(&self, block: usize) -> *mut u8 {
        self.at.wrapping_add(block * BLOCK_SIZE)
    }

    fn bytes(&self) -> usize {
        self.blocks().len() * BLOCK_SIZE
    }
}

/// The first run of so many free blocks: of zeroed ones if zeros are wanted, and else of any; of dirty
/// ones first if they are not.
fn find_run(blocks: &[Block], count: usize, content: Content) -> Option<usize> {
    let first = |fits: &dyn Fn(&Block) -> bool| {
        let mut from = 0;
        blocks.iter().enumerate().find_map(|(index, block)| {
            if !fits(block) {
                from = index + 1;
            }
            (index + 1 - from == count).then_some(from)
        })
    };
    let preferred = match content {
        Content::Zero => Block::Zeroed,
        Content::Any => Block::Dirty,
    };
    first(&|block| *block == preferred).or_else(|| first(&|block| *block != Block::Taken))
}

impl<R: Registrar> Drop for Pool<R> {
    fn drop(&mut self) {
        // Buffers borrow the pool, so only an engine that never came back can still have a block.
        if !self.maker.is_here() || self.blocks().contains(&Block::Taken) {
            return;
        }
        let len = self.bytes();
        // SAFETY: registered by `new`, and nobody has any of it.
        unsafe {
            self.registrar.unregister(self.at, len);
            let _ = rustix::mm::munmap(self.at.cast(), len);
        }
    }
}

/// Memory of a [`Pool`], which has it back when this is dropped: after a device was waited for that
/// reads or writes it.
///
/// A copy of the GPU's must not cross a multiple of [`MOST_REGISTERED`](crate::cuda::MOST_REGISTERED) of the pool: the
/// driver refuses memory that is in two registrations.
#[derive(Debug)]
pub struct Buffer<'p, R: Registrar> {
    pool: &'p Pool<R>,
    run: Range<usize>,
}

impl<R: Registrar> Deref for Buffer<'_, R> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let len = self.run.len() * BLOCK_SIZE;
        // SAFETY: the blocks are this buffer's, populated and readable.
        unsafe { core::slice::from_raw_parts(self.pool.block(self.run.start), len) }
    }
}

impl<R: Registrar> DerefMut for Buffer<'_, R> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.run.len() * BLOCK_SIZE;
        // SAFETY: as above, and borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.pool.block(self.run.start), len) }
    }
}

impl<R: Registrar> Drop for Buffer<'_, R> {
    fn drop(&mut self) {
        self.pool.blocks()[self.run.clone()].fill(Block::Dirty);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
