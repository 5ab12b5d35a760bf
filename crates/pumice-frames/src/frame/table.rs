//! A ledger's tables, whose ends can be given back.

use core::ops::{Index, Range};
use core::ptr::NonNull;
use core::slice;

use crate::addr::FRAME_SIZE;

/// Entries side by side that live as long as their zone, but for the end if it is [cut off](Table::cut).
#[derive(Debug)]
pub(super) struct Table<T: 'static> {
    at: NonNull<T>,
    len: usize,
}

// SAFETY: it is used as the shared slice that it was made of.
unsafe impl<T: Sync> Send for Table<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Table<T> {}

impl<T: Sync> Table<T> {
    pub(super) fn new(entries: &'static [T]) -> Table<T> {
        Table { at: NonNull::from(entries).cast(), len: entries.len() }
    }

    /// How many there were made.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Where it lies, and its bytes.
    pub(super) fn place(&self) -> (NonNull<u8>, usize) {
        (self.at.cast(), (self.len * size_of::<T>()).max(1))
    }

    pub(super) fn get(&self, index: usize) -> Option<&T> {
        (index < self.len).then(|| &self[index])
    }

    /// The pages that have no entry below `kept`: where they lie, and their bytes.
    ///
    /// # Safety
    /// The caller may unmap them. Nobody asks for an entry from `kept` on any more.
    pub(super) unsafe fn cut(&self, kept: usize) -> Option<(NonNull<u8>, usize)> {
        let (at, bytes) = self.place();
        let from = (kept * size_of::<T>()).next_multiple_of(FRAME_SIZE);
        let until = bytes.next_multiple_of(FRAME_SIZE);
        // SAFETY: within the table's mapping, which is whole pages.
        (from < until).then(|| (unsafe { at.add(from) }, until - from))
    }
}

impl<T: Sync> Index<usize> for Table<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: usize) -> &T {
        assert!(index < self.len);
        // SAFETY: as for a range, below.
        unsafe { self.at.add(index).as_ref() }
    }
}

impl<T: Sync> Index<Range<usize>> for Table<T> {
    type Output = [T];

    #[inline]
    fn index(&self, range: Range<usize>) -> &[T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: within the slice that it was made of, and `cut` was promised that nobody asks for entries that are
        // gone.
        unsafe { slice::from_raw_parts(self.at.add(range.start).as_ptr(), range.len()) }
    }
}
