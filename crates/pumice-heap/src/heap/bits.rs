//! Bitmaps over a zone, in memory made when the first bit is set, and whose end can be given back.

use core::ops::{Index, Range};
use core::ptr::{self, NonNull};

use pumice_frames::addr::FRAME_SIZE;

use pumice_frames::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use pumice_frames::sys::mem;

/// A bit for each frame or block of a zone.
#[derive(Debug)]
pub(super) struct Bits {
    words: AtomicPtr<AtomicU64>,
    count: usize,
}

impl Bits {
    /// `count` bits, none set.
    pub(super) fn new(count: usize) -> Bits {
        Bits { words: AtomicPtr::new(ptr::null_mut()), count }
    }

    /// The words, if any bit was ever set.
    #[inline]
    fn words(&self) -> Option<Words<'_>> {
        // Acquire: pairs with the Release in `make`.
        let at = NonNull::new(self.words.load(Ordering::Acquire))?;
        Some(Words { at, bits: self })
    }

    fn bytes(&self) -> usize {
        self.count.div_ceil(64) * 8
    }

    /// Makes the words, unless another thread does. `None` without memory for them.
    fn make(&self) -> Option<Words<'_>> {
        if self.words.load(Ordering::Relaxed).is_null() {
            let len = self.bytes();
            let memory = mem::map_table(len).ok()?;
            // Release: a thread that finds the words finds them zeroed.
            let made = self.words.compare_exchange(
                ptr::null_mut(),
                memory.cast().as_ptr(),
                Ordering::Release,
                Ordering::Relaxed,
            );
            if made.is_err() {
                // SAFETY: mapped a moment ago, and nobody else knows of it.
                let _ = unsafe { mem::unmap(memory, len) };
            }
        }
        self.words()
    }

    #[inline]
    pub(super) fn get(&self, bit: usize) -> bool {
        // Relaxed, here and below: the caller owns the memory of the bit, or asks about memory that others change
        // meanwhile.
        self.words()
            .is_some_and(|words| words[bit / 64].load(Ordering::Relaxed) & 1 << (bit % 64) != 0)
    }

    /// Whether any of these bits is set.
    pub(super) fn any(&self, bits: Range<usize>) -> bool {
        self.words().is_some_and(|words| {
            masks(bits).any(|(index, mask)| words[index].load(Ordering::Relaxed) & mask != 0)
        })
    }

    /// Whether all of them are.
    pub(super) fn all(&self, bits: Range<usize>) -> bool {
        self.words().is_some_and(|words| {
            masks(bits).all(|(index, mask)| words[index].load(Ordering::Relaxed) & mask == mask)
        })
    }

    /// Sets bits; `false` without memory for them.
    pub(super) fn set(&self, bits: Range<usize>) -> bool {
        let Some(words) = self.make() else { return false };
        for (index, mask) in masks(bits) {
            words[index].fetch_or(mask, Ordering::Relaxed);
        }
        true
    }

    /// Clears a bit; whether it was set.
    pub(super) fn take(&self, bit: usize) -> bool {
        let mask = 1 << (bit % 64);
        self.words()
            .is_some_and(|words| words[bit / 64].fetch_and(!mask, Ordering::Relaxed) & mask != 0)
    }

    /// Gives back the memory of the bits from `kept` on.
    ///
    /// # Safety
    /// Nobody asks for them any more, and nobody else calls this.
    pub(super) unsafe fn cut(&self, kept: usize) {
        let from = (kept.div_ceil(64) * 8).next_multiple_of(FRAME_SIZE);
        let until = self.bytes().next_multiple_of(FRAME_SIZE);
        if let Some(Words { at, .. }) = self.words().filter(|_| from < until) {
            // SAFETY: `make` mapped them, and nobody asks for them. Words that the kernel refuses to unmap stay where
            // they are.
            let _ = unsafe { mem::unmap(at.cast::<u8>().add(from), until - from) };
        }
    }

    pub(super) fn clear(&self, bits: Range<usize>) {
        let Some(words) = self.words() else { return };
        for (index, mask) in masks(bits) {
            words[index].fetch_and(!mask, Ordering::Relaxed);
        }
    }
}

/// Words that are there.
struct Words<'bits> {
    at: NonNull<AtomicU64>,
    bits: &'bits Bits,
}

impl Index<usize> for Words<'_> {
    type Output = AtomicU64;

    #[inline]
    fn index(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.bits.count.div_ceil(64));
        // SAFETY: `make` mapped that many, and `cut` was promised that nobody asks for words that are gone.
        unsafe { self.at.add(index).as_ref() }
    }
}

/// The words that bits lie in, and which bits of each.
fn masks(bits: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let end = if bits.is_empty() { bits.start / 64 } else { bits.end.div_ceil(64) };
    (bits.start / 64..end).map(move |index| {
        let from = bits.start.max(index * 64) % 64;
        let count = bits.end.min((index + 1) * 64) - (index * 64 + from);
        (index, (u64::MAX >> (64 - count)) << from)
    })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_looking_at_each() {
        let bits = Bits::new(300);
        assert!(!bits.get(7) && !bits.any(0..300) && !bits.all(0..1));
        bits.clear(0..300);
        for (from, to) in [(0, 1), (63, 65), (64, 128), (130, 130), (190, 300), (5, 299)] {
            assert!(bits.set(from..to));
            for bit in 0..300 {
                assert_eq!(bits.get(bit), (from..to).contains(&bit), "{bit} of {from}..{to}");
            }
            assert!(bits.all(from..to) || from == to);
            assert!(!bits.any(0..from) && !bits.any(to..300));
            bits.clear(from..to);
            assert!(!bits.any(0..300));
        }
    }
}
