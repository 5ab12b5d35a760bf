//! Cutting a range at the granule an engine works in.

/// A range as bytes before the first whole granule, whole granules, and bytes after the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub head: usize,
    pub body: usize,
    pub tail: usize,
}

impl Cut {
    /// `granule` is a power of two.
    #[inline]
    pub fn new(at: *const u8, len: usize, granule: usize) -> Cut {
        let head = (at as usize).wrapping_neg() & (granule - 1);
        if head >= len {
            return Cut { head: len, body: 0, tail: 0 };
        }
        let tail = (len - head) & (granule - 1);
        Cut { head, body: len - head - tail, tail }
    }
}

/// Zeroes a range whose whole granules `body(at, len)` knows how to zero, and its ends by plain
/// stores.
///
/// # Safety
/// The range is writable and nobody else uses it; `granule` is a power of two.
#[inline]
pub(super) unsafe fn clear_granules(
    at: *mut u8,
    len: usize,
    granule: usize,
    body: impl FnOnce(*mut u8, usize),
) {
    let cut = Cut::new(at, len, granule);
    // SAFETY: head and tail lie in the caller's range.
    unsafe {
        at.write_bytes(0, cut.head);
        at.add(cut.head + cut.body).write_bytes(0, cut.tail);
        if cut.body > 0 {
            body(at.add(cut.head), cut.body);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_cut_covers_the_range_and_its_body_is_aligned(
            at in 0usize..1 << 20, len in 0usize..1 << 16, shift in 0u32..12,
        ) {
            let granule = 1 << shift;
            let cut = Cut::new(at as *const u8, len, granule);
            prop_assert_eq!(cut.head + cut.body + cut.tail, len);
            prop_assert!(cut.head < granule && cut.tail < granule);
            prop_assert_eq!(cut.body % granule, 0);
            prop_assert!(cut.body == 0 || (at + cut.head) % granule == 0);
        }
    }
}
