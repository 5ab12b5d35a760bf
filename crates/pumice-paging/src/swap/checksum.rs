//! A checksum of a slot's bytes, in 32 bits.
//!
//! Two words at a time, by a multiplication of 64 by 64 bits whose halves are put together, as Wang Yi's wyhash does,
//! in lanes that do not wait for each other. It does not resist collisions made on purpose. It costs as much as loading
//! the words; xxh3 built for any x86-64 took longer, and wants a reference to the bytes.
//!
//! It is made of a page that has gone, and that nobody can write any more: while it was written out a fault could have
//! taken it back.

use pumice_frames::addr::FRAME_SIZE;

const LANES: usize = 4;
const WORD: usize = size_of::<u64>();
/// wyhash's.
const SECRET: [u64; LANES] =
    [0xA076_1D64_78BD_642F, 0xE703_7ED1_A0B4_28DB, 0x8EBC_6AF0_9C88_C6E3, 0x5899_65CC_7537_4CC3];

/// The sum of a page that is in `slot`: of the same bytes it is another in another slot, so that a write that went
/// astray is found.
pub fn of_page(page: &[u8; FRAME_SIZE], slot: u32) -> u32 {
    // Not small: a factor of 1 mixes nothing.
    let mut lanes = SECRET.map(|secret| fold(secret ^ u64::from(slot), SECRET[3]));
    for row in page.chunks_exact(2 * WORD * LANES) {
        for ((lane, secret), pair) in lanes.iter_mut().zip(SECRET).zip(row.chunks_exact(2 * WORD)) {
            let word = |at: usize| pair[at..at + WORD].try_into().map_or(0, u64::from_ne_bytes);
            let (one, other) = (word(0), word(WORD));
            *lane = fold(one ^ secret, other ^ *lane);
        }
    }
    let sum = lanes.iter().fold(SECRET[0], |sum, lane| fold(sum ^ lane, SECRET[1]));
    (sum >> 32) as u32
}

fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(4096))]
    struct Frame([u8; FRAME_SIZE]);

    fn sum(frame: &mut Frame, slot: u32) -> u32 {
        of_page(&frame.0, slot)
    }

    #[test]
    fn any_bit_changes_the_sum() {
        let mut frame = Frame([0; FRAME_SIZE]);
        let mut seen = std::collections::HashSet::from([sum(&mut frame, 1), sum(&mut frame, 2)]);
        for bit in 0..FRAME_SIZE * 8 {
            frame.0[bit / 8] ^= 1 << (bit % 8);
            seen.insert(sum(&mut frame, 1));
            frame.0[bit / 8] ^= 1 << (bit % 8);
        }
        // Of 32,770 sums of 32 bits, chance makes none or one the same.
        assert!(seen.len() >= FRAME_SIZE * 8, "{}", seen.len());
        assert_eq!(sum(&mut frame, 1), sum(&mut frame, 1));
    }

    #[test]
    fn words_may_not_change_places() {
        let mut frame = Frame([0; FRAME_SIZE]);
        for (at, word) in frame.0.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(at as u64).to_le_bytes());
        }
        let before = sum(&mut frame, 7);
        for (one, other) in [(0, 1), (0, 8), (3, 511), (100, 108)] {
            let mut swapped = Frame(frame.0);
            swapped.0.copy_within(one * 8..one * 8 + 8, other * 8);
            swapped.0[one * 8..one * 8 + 8].copy_from_slice(&frame.0[other * 8..other * 8 + 8]);
            assert_ne!(sum(&mut swapped, 7), before, "{one} and {other}");
        }
    }
}
