//! Places of a run that are looked at, and what is in them.

use core::array;

use crate::heap::classes::scattered;
use crate::heap::PoolZone;
use pumice_frames::addr::{Pfn, BLOCK_FRAMES, BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::frame::{Native, Run};
use pumice_frames::sys::mem;
use rustix::io::Errno;

/// Places of a run.
pub(in crate::heap) const PLACES: usize = 8;
/// Bytes of a page that are copied at a time: little, on somebody's stack.
const PIECE: usize = 1024;
/// The mark, but for the place's address: a number like any other.
const MARK: u64 = 0x6d3b_95e1_07c8_f25f;

/// A sum of the bytes of a page that begins with `sum`: zero for zeros, and another one where it was written, but for
/// chances that do not matter here.
pub(in crate::heap) fn sum(sum: u64, bytes: &[u8]) -> u64 {
    bytes.chunks_exact(size_of::<u64>()).fold(sum, |sum, word| {
        let word = u64::from_ne_bytes(array::from_fn(|nth| word[nth]));
        (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

/// [`sum`] of a page that its owner may have unmapped.
pub(in crate::heap) fn sum_of_page(page: usize) -> Result<u64, Errno> {
    (0..FRAME_SIZE).step_by(PIECE).try_fold(0, |so_far, offset| {
        let mut piece = [[0; PIECE]];
        mem::copy_own([page + offset], [true], &mut piece)?;
        Ok(sum(so_far, &piece[0]))
    })
}

/// Another page of a page's block.
pub(in crate::heap) fn in_same_block(page: usize, nth: usize) -> usize {
    let start = page & !(BLOCK_SIZE - 1);
    start + scattered((page + nth) as u64) as usize % BLOCK_FRAMES * FRAME_SIZE
}

pub(in crate::heap) fn mark(place: usize) -> u64 {
    MARK ^ place as u64
}

/// Addresses of pages all over a run's whole blocks, or all over a run within a block.
pub(in crate::heap) fn places(at: usize, frames: usize) -> [usize; PLACES] {
    let frames = if frames < BLOCK_FRAMES { frames } else { frames / BLOCK_FRAMES * BLOCK_FRAMES };
    array::from_fn(|nth| {
        let (start, end) = (nth * frames / PLACES, (nth + 1) * frames / PLACES);
        let within = scattered((at + nth) as u64) as usize % (end - start).max(1);
        at + (start + within) * FRAME_SIZE
    })
}

/// Whether what a new run has at a place is nothing to anybody, and need not be zero.
pub(in crate::heap) fn is_dirty(zone: &PoolZone, run: &Run, place: usize) -> bool {
    let Some(pfn) = zone.pfn(place as *const u8) else { return false };
    if run.range.frames >= BLOCK_FRAMES {
        return !zone.ledger().block(pfn.block()).zeroed();
    }
    let Pfn(frame) = pfn;
    run.dirt.ranges::<Native>().any(|range| range.contains(&(frame % BLOCK_FRAMES)))
}
