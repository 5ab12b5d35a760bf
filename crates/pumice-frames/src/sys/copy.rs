//! Copies of frames that leave the cache alone.

use crate::addr::FRAME_SIZE;

/// Copies to a frame that nobody has used lately, and that a device reads next: with streaming stores where the
/// processor has them, so that the frame's lines need not come into the cache to be written. Other threads see them as
/// they see other stores of this one.
pub fn copy_to_cold(from: &[u8; FRAME_SIZE], into: &mut [u8; FRAME_SIZE]) {
    #[cfg(target_arch = "x86_64")]
    if into.as_ptr().addr() % 64 == 0 {
        // SAFETY: SSE2 is part of x86-64; both have so many bytes, and those that are written are aligned.
        unsafe { stream(from.as_ptr(), into.as_mut_ptr()) };
        return;
    }
    into.copy_from_slice(from);
}

/// As [`copy_to_cold`], of many, and best of frames beside each other. Each source is a frame long.
pub fn copy_all_to_cold<'f>(frames: impl Iterator<Item = (&'f [u8], &'f mut [u8; FRAME_SIZE])>) {
    for (from, into) in frames {
        debug_assert_eq!(from.len(), FRAME_SIZE);
        #[cfg(target_arch = "x86_64")]
        if into.as_ptr().addr() % 64 == 0 && from.len() == FRAME_SIZE {
            // SAFETY: as in `copy_to_cold`.
            unsafe { stream_unordered(from.as_ptr(), into.as_mut_ptr()) };
            continue;
        }
        into.copy_from_slice(from);
    }
    #[cfg(target_arch = "x86_64")]
    order();
}

/// Streaming stores so far come before other stores of this thread that follow.
#[cfg(target_arch = "x86_64")]
fn order() {
    // SAFETY: SSE is part of x86-64. Streaming stores are ordered by nothing else.
    unsafe { core::arch::x86_64::_mm_sfence() };
}

/// # Safety
/// There are [`FRAME_SIZE`] bytes at both, apart; `into` is aligned to 16.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(from: *const u8, into: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { stream_unordered(from, into) };
    order();
}

/// As [`stream`], of which nothing is ordered before [`order`].
///
/// # Safety
/// As there.
#[cfg(target_arch = "x86_64")]
unsafe fn stream_unordered(from: *const u8, into: *mut u8) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    for line in (0..FRAME_SIZE).step_by(64) {
        // SAFETY: within the bytes, as the caller promises.
        unsafe {
            let from = from.add(line).cast::<__m128i>();
            let into = into.add(line).cast::<__m128i>();
            let (first, second) = (_mm_loadu_si128(from), _mm_loadu_si128(from.add(1)));
            let (third, fourth) = (_mm_loadu_si128(from.add(2)), _mm_loadu_si128(from.add(3)));
            _mm_stream_si128(into, first);
            _mm_stream_si128(into.add(1), second);
            _mm_stream_si128(into.add(2), third);
            _mm_stream_si128(into.add(3), fourth);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_arrives_wherever_it_lies() {
        let mut memory = vec![0u8; 4 * FRAME_SIZE];
        let from: Vec<u8> = (0..2 * FRAME_SIZE).map(|nth| (nth * 7 % 251) as u8).collect();
        for (start, at) in [(0, 0), (1, 3), (64, 4096), (17, 4095)] {
            let aligned =
                memory.as_ptr().addr().next_multiple_of(FRAME_SIZE) - memory.as_ptr().addr();
            memory.fill(0xEE);
            let from: &[u8; FRAME_SIZE] = from[start..][..FRAME_SIZE].try_into().expect("a frame");
            let into = &mut memory[aligned + at..];
            copy_to_cold(from, (&mut into[..FRAME_SIZE]).try_into().expect("a frame"));
            assert!(into[..FRAME_SIZE] == from[..]);
            assert!(into[FRAME_SIZE..].iter().all(|&byte| byte == 0xEE));
            into.fill(0xEE);
            let one: &mut [u8; FRAME_SIZE] = (&mut into[..FRAME_SIZE]).try_into().expect("a frame");
            copy_all_to_cold(std::iter::once((&from[..], one)));
            assert!(into[..FRAME_SIZE] == from[..]);
            assert!(into[FRAME_SIZE..].iter().all(|&byte| byte == 0xEE));
        }
    }
}
