//! Records of a few words each, in frames, found by number: a space allocates nothing else.

use core::ptr::NonNull;

use crate::page_table::FrameSource;
use pumice_frames::addr::Pfn;
use pumice_io::sync::atomic::{AtomicU64, Ordering};

/// Records of `WORDS` atomic words. They are added one chunk at a time, at any time, by any thread,
/// and stay where they are as long as the space; words of a new one are 0.
#[derive(Debug)]
pub(super) struct Records<F: FrameSource, const WORDS: usize> {
    source: F,
    /// A frame of words: for each chunk 1 + its first frame, 0 where there is none yet.
    directory: Pfn,
}

impl<F: FrameSource, const WORDS: usize> Records<F, WORDS> {
    /// Records in a chunk, and the frames that take.
    const PER_CHUNK: usize = if F::ENTRIES > WORDS { F::ENTRIES / WORDS } else { 1 };
    const CHUNK_FRAMES: usize = WORDS.div_ceil(F::ENTRIES);

    /// Most there can be.
    pub const CAPACITY: usize = F::ENTRIES * Self::PER_CHUNK;

    pub fn new(source: F) -> Option<Self> {
        Some(Records { source, directory: source.get_run(1)? })
    }

    fn chunk(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < F::ENTRIES);
        // SAFETY: the directory is a frame of this, with that many words.
        unsafe { self.source.words(self.directory).add(index).as_ref() }
    }

    /// The record of this number, if its chunk is there.
    pub fn get(&self, index: usize) -> Option<&[AtomicU64; WORDS]> {
        if index >= Self::CAPACITY {
            return None;
        }
        // Acquire: pairs with the exchange in `get_or_add`.
        let chunk = self.chunk(index / Self::PER_CHUNK).load(Ordering::Acquire).checked_sub(1)?;
        let words = self.source.words(Pfn(chunk as usize));
        let first: NonNull<[AtomicU64; WORDS]> =
            // SAFETY: a chunk has as many words as its records need.
            unsafe { words.add(index % Self::PER_CHUNK * WORDS).cast() };
        // SAFETY: atomics that stay as long as this.
        Some(unsafe { first.as_ref() })
    }

    /// As [`Records::get`], making the chunk if need be. `None` at the capacity and without frames.
    pub fn get_or_add(&self, index: usize) -> Option<&[AtomicU64; WORDS]> {
        if index < Self::CAPACITY && self.get(index).is_none() {
            let frames = self.source.get_run(Self::CHUNK_FRAMES)?;
            let chunk = self.chunk(index / Self::PER_CHUNK);
            let new = frames.0 as u64 + 1;
            // Release: a thread that finds the chunk finds it zeroed.
            if chunk.compare_exchange(0, new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                self.source.put_run(frames);
            }
        }
        self.get(index)
    }

    /// Those whose chunks are there.
    pub fn iter(&self) -> impl Iterator<Item = &[AtomicU64; WORDS]> {
        (0..Self::CAPACITY).map_while(|index| self.get(index))
    }
}

impl<F: FrameSource, const WORDS: usize> Drop for Records<F, WORDS> {
    fn drop(&mut self) {
        for index in 0..F::ENTRIES {
            // Relaxed: nobody else uses it.
            if let Some(first) = self.chunk(index).load(Ordering::Relaxed).checked_sub(1) {
                self.source.put_run(Pfn(first as usize));
            }
        }
        self.source.put_run(self.directory);
    }
}
