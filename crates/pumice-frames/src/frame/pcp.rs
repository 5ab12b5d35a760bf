//! Per-thread frame lists: single frames without a locked operation for each.
//!
//! The kernel keeps per-CPU page lists (`struct per_cpu_pages`) in front of its zones for the
//! same reason: where a compare-and-swap costs 13 ns, taking 32 frames by one is the difference.
//! Here a list is the free frames of one ledger word, claimed together, and frames put back
//! gather until they come from another word. To the ledger, frames in a list are allocated.

use super::ledger::{Backing, Geometry, Ledger, Want};
use super::word;
use crate::addr::Pfn;
use crate::error::{Error, Result};

/// One thread's lists over a ledger. Dropping it gives its frames back.
#[derive(Debug)]
pub struct Pcp<'l, G: Geometry, B: Backing> {
    ledger: &'l Ledger<G, B>,
    cpu: usize,
    want: Want,
    /// Frames to give out: the word's first frame, and a bit for each.
    first: usize,
    frames: u32,
    are_zeroed: bool,
    /// Frames put back, not yet in the ledger.
    put_first: usize,
    put_frames: u32,
}

impl<'l, G: Geometry, B: Backing> Pcp<'l, G, B> {
    /// Empty lists. `cpu` says whose reservations they refill from (any number will do).
    pub fn new(ledger: &'l Ledger<G, B>, cpu: usize, want: Want) -> Pcp<'l, G, B> {
        let (first, frames) = (0, 0);
        let are_zeroed = want == Want::Zeroed;
        Pcp { ledger, cpu, want, first, frames, are_zeroed, put_first: 0, put_frames: 0 }
    }

    /// The processor from whose reservations the next refill comes.
    pub fn refill_from(&mut self, cpu: usize) {
        self.cpu = cpu;
    }

    /// Gets a frame: its number, and whether it is zeroed.
    #[inline]
    pub fn get(&mut self) -> Option<(Pfn, bool)> {
        if self.frames == 0 {
            self.refill()?;
        }
        let bit = self.frames.trailing_zeros();
        self.frames &= self.frames - 1;
        Some((Pfn(self.first + bit as usize), self.are_zeroed))
    }

    /// Gets zeroed frames that lie side by side, `most` at most, without asking the ledger: the first, and
    /// how many.
    #[inline]
    pub fn get_zeroed_run(&mut self, most: usize) -> Option<(Pfn, usize)> {
        if self.frames == 0 || !self.are_zeroed || most == 0 {
            return None;
        }
        let from = self.frames.trailing_zeros();
        let side_by_side = (self.frames >> from).trailing_ones();
        let frames = side_by_side.min(most.try_into().unwrap_or(u32::MAX));
        self.frames &= !word::span(from, frames);
        Some((Pfn(self.first + from as usize), frames as usize))
    }

    /// Takes back the end of a run that [`Pcp::get_zeroed_run`] returned last, not written since.
    /// `false`: it is none of the word that is being given out.
    pub fn unget_zeroed_run(&mut self, first: Pfn, frames: usize) -> bool {
        let per_word = G::FRAMES_PER_WORD as usize;
        let from = first.0.wrapping_sub(self.first);
        if !self.are_zeroed || from >= per_word || frames > per_word - from {
            return false;
        }
        let bits = word::span(from as u32, frames as u32);
        let is_out = self.frames & bits == 0;
        if is_out {
            self.frames |= bits;
        }
        is_out
    }

    /// How many frames there are to give out.
    pub fn len(&self) -> usize {
        self.frames.count_ones() as usize
    }

    /// Whether the next [`Pcp::get`] has to ask the ledger.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Puts a frame back, with unknown content; it need not come from this list, or thread.
    ///
    /// # Errors
    /// [`Error::DoubleFree`] if it, or one put just before it, is not allocated. Those that are
    /// not are left alone.
    #[inline]
    pub fn put(&mut self, pfn: Pfn) -> Result<()> {
        let offset = pfn.0 % G::FRAMES_PER_WORD as usize;
        let (first, bit) = (pfn.0 - offset, 1 << offset);
        if first != self.put_first {
            self.flush()?;
            self.put_first = first;
        }
        if self.put_frames & bit != 0 {
            return Err(Error::DoubleFree);
        }
        self.put_frames |= bit;
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn refill(&mut self) -> Option<()> {
        // The frame that was put back is the warmest there is, and dirty.
        if self.want == Want::Dirty && self.put_frames != 0 {
            (self.first, self.frames) = (self.put_first, core::mem::take(&mut self.put_frames));
            self.are_zeroed = false;
            return Some(());
        }
        let found = self.ledger.get_word(self.cpu, self.want).or_else(|| {
            self.flush().ok()?;
            self.ledger.get_word(self.cpu, self.want)
        })?;
        (self.first, self.frames, self.are_zeroed) = found;
        Some(())
    }

    /// Gives the frames that were put back to the ledger.
    ///
    /// # Errors
    /// [`Error::DoubleFree`] if some of it was not allocated.
    pub fn flush(&mut self) -> Result<()> {
        match core::mem::take(&mut self.put_frames) {
            0 => Ok(()),
            frames => self.ledger.put_word(self.put_first, frames, Want::Dirty),
        }
    }
}

impl<G: Geometry, B: Backing> Drop for Pcp<'_, G, B> {
    fn drop(&mut self) {
        // A double free met here has nobody left to tell; it left the ledger as it was.
        let _ = self.flush();
        if self.frames != 0 {
            let content = if self.are_zeroed { Want::Zeroed } else { Want::Dirty };
            let _ = self.ledger.put_word(self.first, self.frames, content);
        }
    }
}
