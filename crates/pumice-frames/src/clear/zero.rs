//! Checking that memory is zero (`PUMICE_VERIFY=1` does at every allocation).

/// Whether `len` bytes all read as zero. Stops at the first chunk that does not.
///
/// # Safety
/// The range is readable and nobody writes to it meanwhile.
pub unsafe fn is_zero(at: *const u8, len: usize) -> bool {
    // SAFETY: as the caller promises; every byte pattern is a byte.
    let bytes = unsafe { core::slice::from_raw_parts(at, len) };
    // SAFETY: every byte pattern is a word.
    let (head, words, tail) = unsafe { bytes.align_to::<u64>() };

    // Chunks long enough for wide loads without a branch each, short enough to stop early.
    const CHUNK_WORDS: usize = 64;
    let chunks = words.chunks_exact(CHUNK_WORDS);
    let rest = chunks.remainder();
    head.iter().chain(tail).all(|&byte| byte == 0) && rest.iter().all(|&word| word == 0) && {
        chunks
    }
    .all(|chunk| chunk.iter().fold(0, |seen, &word| seen | word) == 0)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finds_the_one_byte_that_is_not(
            offset in 0usize..16, len in 1usize..5000, at in any::<prop::sample::Index>(),
        ) {
            let mut memory = vec![0u8; offset + len + 1];
            memory[offset + len] = 1;
            let is_zero = |memory: &[u8]| {
                let range = &memory[offset..offset + len];
                // SAFETY: the range is borrowed.
                unsafe { is_zero(range.as_ptr(), range.len()) }
            };
            prop_assert!(is_zero(&memory));
            memory[offset + at.index(len)] = 0x80;
            prop_assert!(!is_zero(&memory));
        }
    }
}
