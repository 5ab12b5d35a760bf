//! Frame numbers, orders and ranges: the units everything else is counted in.
//!
//! A *frame* is 4 KiB of memory, a *block* 512 frames (2 MiB, one huge page), an *order* `k` an
//! aligned area of `2^k` frames. Numbers of frames and addresses are never bare integers across a
//! module boundary: a [`Pfn`] counts frames from the start of its zone.

use core::fmt;

/// Bytes in a frame.
pub const FRAME_SIZE: usize = 4096;
/// Bytes in a cache line, as benchmarks and engines count them.
pub const CACHE_LINE: usize = 64;
/// Frames in a block.
pub const BLOCK_FRAMES: usize = 512;
/// Bytes in a block: one huge page of the second level.
pub const BLOCK_SIZE: usize = FRAME_SIZE * BLOCK_FRAMES;

/// Frames needed to hold `bytes`.
pub const fn frames_for(bytes: usize) -> usize {
    bytes.div_ceil(FRAME_SIZE)
}

/// A frame's number within its zone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pfn(pub usize);

impl Pfn {
    /// The block this frame lies in.
    #[doc(hidden)]
    pub const fn block(self) -> usize {
        self.0 / BLOCK_FRAMES
    }

    /// The first frame of block `index`.
    #[doc(hidden)]
    pub const fn of_block(index: usize) -> Pfn {
        Pfn(index * BLOCK_FRAMES)
    }
}

impl fmt::Debug for Pfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fx{:x}", self.0)
    }
}

/// A power of two of frames, 0 (4 KiB) to 18 (1 GiB).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order(u8);

impl Order {
    /// One frame.
    pub const FRAME: Order = Order(0);
    /// One block of 512 frames.
    pub const BLOCK: Order = Order(9);
    /// The largest: 1 GiB.
    pub const MAX: Order = Order(18);

    /// `None` above [`Order::MAX`].
    pub const fn new(order: u8) -> Option<Order> {
        if order <= Order::MAX.0 {
            Some(Order(order))
        } else {
            None
        }
    }

    /// Frames in an area of this order.
    pub const fn frames(self) -> usize {
        1 << self.0
    }

    /// The exponent.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// A run of frames: the first one's number and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// First frame.
    pub start: Pfn,
    /// Number of frames.
    pub frames: usize,
}

impl PageRange {
    /// One past the last frame.
    pub const fn end(self) -> Pfn {
        Pfn(self.start.0 + self.frames)
    }

    /// Length in bytes.
    pub const fn bytes(self) -> usize {
        self.frames * FRAME_SIZE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_up() {
        assert_eq!(frames_for(0), 0);
        assert_eq!(frames_for(1), 1);
        assert_eq!(frames_for(FRAME_SIZE), 1);
        assert_eq!(frames_for(FRAME_SIZE + 1), 2);
        assert_eq!(frames_for(usize::MAX), usize::MAX / FRAME_SIZE + 1);
    }

    #[test]
    fn orders_end_at_one_gibibyte() {
        assert_eq!(Order::MAX.frames() * FRAME_SIZE, 1 << 30);
        assert_eq!(Order::new(19), None);
        assert_eq!(Order::BLOCK.frames(), BLOCK_FRAMES);
    }
}
