//! Work of a fault for those that come after it: it fetches the lines that they will wait for into the cache, and,
//! in a sequence, populates their pages.
//!
//! Frames that were cleared ahead of need, and new tables, are not in the cache. A locked operation waits until
//! all that was written before is done, so each fault of a sequence would wait for the memory of the last.

use core::ops::Range;
use core::ptr::NonNull;

use super::history::Prefault;
use super::task::Task;
use crate::page_table::tables::{FrameList, Table};
use crate::page_table::{Entry, FrameSource, TableOps};
use pumice_frames::addr::{Pfn, FRAME_SIZE};
use pumice_frames::sys::prefetch::prefetch_write;
use pumice_io::sync::atomic::Ordering;

/// Words of a table in a cache line.
const WORDS_PER_LINE: usize = 8;
/// Frames that lie further apart are no sequence.
const FAR: usize = 4;

impl<F: FrameSource, T: TableOps> Task<'_, F, T> {
    /// Memory that was cleared ahead of need is not in the cache, and the next fault's locked operation
    /// waits until this one's first write is done. So what a sequence of faults will write is fetched
    /// while there is time: as far from here as this is from the last, some times over. (A processor's
    /// own prefetcher does that within a page, but not across.)
    #[inline]
    pub(super) fn fetch_ahead(&self, at: NonNull<u8>) {
        // Relaxed: a setting.
        let faults = self.space.fetch_ahead.load(Ordering::Relaxed);
        let address = at.as_ptr() as usize;
        let last = self.last_data.replace(address);
        // Frames and offsets go on each by itself: where the offset begins anew, so does the guess.
        let frames = (address / FRAME_SIZE).wrapping_sub(last / FRAME_SIZE);
        self.last_step.set(address.wrapping_sub(last));
        if faults != 0 && frames.wrapping_add(FAR) < 2 * FAR {
            let frame = (address / FRAME_SIZE).wrapping_add(faults.wrapping_mul(frames));
            let offsets = address.wrapping_sub(last).wrapping_mul(faults);
            let offset = address.wrapping_add(offsets) % FRAME_SIZE;
            let ahead = frame.wrapping_mul(FRAME_SIZE) + offset;
            prefetch_write(at.as_ptr().wrapping_add(ahead.wrapping_sub(address)));
        }
    }

    /// The same within a batch, whose frames are known: `pages` after the last fault.
    #[inline]
    fn fetch_data(&self, frame: Pfn, pages: usize) {
        let offset = self.last_data.get().wrapping_add(self.last_step.get().wrapping_mul(pages));
        let start = self.space.tables.source.bytes(frame).as_ptr();
        prefetch_write(start.wrapping_add(offset % FRAME_SIZE));
    }

    /// A table is as cold when it is new: its next line, when a line is begun.
    #[inline]
    pub(super) fn fetch_table(&self, leaf: Table<F>, page: usize) {
        if page % WORDS_PER_LINE == 0 {
            prefetch_write(core::ptr::from_ref(leaf.entry(page + WORDS_PER_LINE)).cast());
        }
    }

    /// The lines that the next batch will be written to, while this one is: each would hold its locked
    /// operation up for 100 ns.
    #[inline]
    fn fetch_tables(&self, leaf: Table<F>, pages: Range<usize>) {
        for page in pages.step_by(WORDS_PER_LINE) {
            prefetch_write(core::ptr::from_ref(leaf.entry(page)).cast());
        }
    }

    /// After a fault of a sequence: populates the pages after it, up to the end of the table, as far
    /// as they are as untouched as it was. How many.
    ///
    /// They are marked accessed and dirty, as in V12: a page that will be used a moment later would
    /// cost a second locked operation to be marked then. Where somebody else populates too, this ends.
    #[inline]
    pub(super) fn prefault(&self, leaf: Table<F>, page: usize, like: Entry, new: Entry) -> usize {
        // Relaxed: a setting.
        let limit = self.space.prefault_pages.load(Ordering::Relaxed);
        if limit <= 1 {
            return 0;
        }
        self.prefault_batch(leaf, page, limit, like, new)
    }

    #[inline(never)]
    fn prefault_batch(
        &self,
        leaf: Table<F>,
        page: usize,
        limit: usize,
        like: Entry,
        new: Entry,
    ) -> usize {
        let last = self.prefault.get();
        let batch = if last.next == page { (2 * last.batch).clamp(1, limit) } else { 1 };
        let table_end = (page | (F::ENTRIES - 1)) + 1;
        let end = (page + batch).min(table_end);
        self.fetch_tables(leaf, end..(end + batch).min(table_end));
        // Relaxed: a setting.
        let fetches_data = self.space.fetch_ahead.load(Ordering::Relaxed) != 0;
        let mut next = page + 1;
        while next < end {
            // The list is not in use while pages are added: a pager that is told of them may come back to this task.
            let run = self.with_list(|list| list.get_zeroed_run(end - next));
            let Some((first, frames)) = run else { break };
            let run_end = next + frames;
            let mut entry = new.with_frame(first);
            while next < run_end {
                let installed = self.install_next(leaf, next..run_end, like, entry);
                if installed == 0 {
                    break;
                }
                for _ in 0..installed {
                    if fetches_data {
                        self.fetch_data(entry.frame(), next - page + 1);
                    }
                    self.lru_add(next, entry.frame());
                    entry = entry.with_next_frame();
                    next += 1;
                }
            }
            if next < run_end {
                self.with_list(|list| list.put_zeroed_run(entry.frame(), run_end - next));
                break;
            }
        }
        // Where it ended early there is no sequence of this thread's alone.
        let batch = if next == end { batch } else { 1 };
        self.prefault.set(Prefault { next, batch });
        next - page - 1
    }

    /// Installs the first entries of a run, one or two, where it finds what it should. No look before: the
    /// comparison is one. How many.
    #[inline]
    fn install_next(
        &self,
        leaf: Table<F>,
        pages: Range<usize>,
        like: Entry,
        entry: Entry,
    ) -> usize {
        debug_assert!(like.may_become(entry), "{like:?} to {entry:?}");
        if let (Some(pairs), true) = (self.space.pairs, pages.start % 2 == 0 && pages.len() > 1) {
            let new = [entry, entry.with_next_frame()].map(u64::from);
            if pairs.compare_exchange(leaf.pair(pages.start), [like.into(); 2], new) {
                return 2;
            }
        }
        let ptep = leaf.entry(pages.start);
        usize::from(self.space.tables.ops.ptep_cmpxchg(ptep, like, entry).is_ok())
    }
}
