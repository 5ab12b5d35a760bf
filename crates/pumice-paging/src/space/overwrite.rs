//! Pages of files that are written whole: nobody needs their old content.
//!
//! A page that is in memory is held for writing, and written over. One that is not is claimed as for reading, but is
//! not read: it gets a frame of unknown content, which is filled before the page's word names it. So the device is not
//! asked, the frame is not zeroed, and nobody sees its old content. Threads that want the page meanwhile wait.
//!
//! Pages in a row that are not in memory are claimed, filled and installed together ([`super::runs`]).

use core::ops::Range;

use super::error::Trap;
use super::fault::Walked;
use super::file::{Noted, Patience};
use super::region::{Page, Region, WriteGuard};
use super::runs::{Arrivals, Near, RunFrames, RUN};
use super::swap_in::{Claim, Use};
use super::{Access, Result};
use crate::page_table::entry::EXCLUSIVE;
use crate::page_table::pager::Evicted;
use crate::page_table::tables::FrameList;
use crate::page_table::{Entry, FrameSource, Rights, State, TableOps};
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::copy::{copy_all_to_cold, copy_to_cold};

impl<F: FrameSource, T: TableOps> Region<'_, F, T> {
    /// Makes all of a page equal to `bytes`, and returns a guard of it, without waiting for those of others; and
    /// whether the page was clean before. Of a page that is not in memory it is asked, when nobody else gets at it any
    /// more, whether it is there at all.
    ///
    /// # Errors
    /// As [`Region::try_write_noting`]; [`super::VmError::Unmapped`] for a page that is not there.
    #[doc(hidden)]
    pub fn try_overwrite(
        &self,
        page: usize,
        bytes: &Page,
        is_there: impl Fn() -> bool,
    ) -> Result<(WriteGuard<'_, F, T>, Noted)> {
        let (task, ops) = (self.task(), &self.task().space.tables.ops);
        let error = |trap| self.error(trap, page, Access::Write);
        loop {
            let walked = self.walk(page).map_err(error)?;
            let entry = ops.ptep_get(walked.ptep);
            let Some(from) = Evicted::of(entry) else {
                // By this word, or it is looked at again: it may go at any moment, and is not to be read then.
                if let Some((mut guard, noted)) = self.try_hold_as_it_is(&walked, entry, page)? {
                    guard.copy_from_slice(bytes);
                    return Ok((guard, noted));
                }
                continue;
            };
            if entry.latch() != 0 {
                return Err(error(Trap::Busy));
            }
            if !entry.rights().contains(Rights::WRITE) {
                return Err(error(Trap::Denied));
            }
            let frame = task.get_any().ok_or_else(|| error(Trap::OutOfFrames))?;
            let claimed = entry.with_latch(EXCLUSIVE);
            if ops.ptep_cmpxchg(walked.ptep, entry, claimed).is_err() {
                task.with_list(|list| list.put(frame));
                continue;
            }
            let claim = Claim { ptep: walked.ptep, page: walked.page, claimed, from };
            if !is_there() {
                task.with_list(|list| list.put(frame));
                let _ = task.come_in(claim, Err(Trap::Unmapped), Use::None);
                return Err(error(Trap::Unmapped));
            }
            let mut into = task.space.tables.source.bytes(frame).cast::<Page>();
            // SAFETY: the frame is this thread's alone until it is installed.
            copy_to_cold(bytes, unsafe { into.as_mut() });
            // Dirty at once: it is nowhere else.
            let used = (Use::Now(Rights::READ_WRITE), Noted::Dirty);
            if let Ok(Ok(_)) = task.come_in_held(claim, Ok(frame), used) {
                task.lru_add(walked.page, frame);
                return Ok((self.held_for_writing(&walked, frame), Noted::Clean));
            }
            // It was unmapped.
            task.with_list(|list| list.put(frame));
        }
    }

    /// As [`Region::try_overwrite`], of pages in a row, up to the first that is in memory, or for which there is no
    /// frame at once. `are_there` is asked of the last of them, and `made_dirty` is told how many they are, while all
    /// are held. How many; 0 where it has to be tried in that other way.
    #[doc(hidden)]
    pub fn try_overwrite_run(
        &self,
        page: usize,
        bytes: &[u8],
        are_there: impl Fn(usize) -> bool,
        made_dirty: impl FnOnce(Range<usize>, usize),
    ) -> usize {
        let task = self.task();
        let most = (bytes.len() / FRAME_SIZE).min(self.pages().saturating_sub(page)).min(RUN);
        let first = self.start() / FRAME_SIZE + page;
        let (mut near, mut frames, mut claims) = (Near::NONE, RunFrames::NONE, [None; RUN]);
        let mut len = 0;
        for number in first..first + most {
            let rest = (number..first + most, Patience::None);
            match task.claim_next(&mut near, &mut frames, rest, Rights::WRITE) {
                Ok(claim) => claims[len] = Some(claim),
                Err(_) => break,
            }
            len += 1;
        }
        task.put_rest(&mut frames);
        let claims = &claims[..len];
        if len == 0 || !are_there(page + len - 1) {
            claims.iter().flatten().for_each(|claim| task.give_up_claim(claim));
            return 0;
        }
        let frames = claims.iter().flatten().map(|claim| {
            let mut into = task.space.tables.source.bytes(claim.frame).cast::<Page>();
            // SAFETY: the frame is this thread's alone until it is installed.
            unsafe { into.as_mut() }
        });
        copy_all_to_cold(bytes.chunks_exact(FRAME_SIZE).zip(frames));
        let mut came = Arrivals::new();
        for claim in claims.iter().flatten() {
            // Dirty at once: it is nowhere else.
            let used = Use::Now(Rights::READ_WRITE);
            if task.install_claimed(claim, (used, Noted::Dirty)) {
                came.add(claim.ptep, claim.arrived(used));
            }
        }
        task.tell_of(&came);
        made_dirty(page..page + len, came.len());
        task.let_go_of(&mut came);
        len
    }

    /// A guard for writing of a page that is in memory, or was never to be elsewhere. `None` where its word has become
    /// another.
    fn try_hold_as_it_is<'r>(
        &'r self,
        walked: &Walked<'r, F>,
        entry: Entry,
        page: usize,
    ) -> Result<Option<(WriteGuard<'r, F, T>, Noted)>> {
        if entry.state() == State::InTransit {
            let back = entry.with_state(State::Present);
            let _ = self.task().space.tables.ops.ptep_cmpxchg(walked.ptep, entry, back);
            Ok(None)
        } else if !entry.can_write() {
            // Not a file's, or not to be written.
            Ok(Some((self.try_write(page)?, Noted::Dirty)))
        } else if entry.latch() != 0 {
            Err(self.error(Trap::Busy, page, Access::Write))
        } else {
            Ok(self.hold_noting(walked, entry))
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::{mpsc, Mutex};

    use super::super::disk::Disk;
    use super::super::{MemMap, VmSpace};
    use super::*;
    use crate::page_table::Atomic;
    use pumice_frames::clear::Clearer;
    use pumice_frames::frame::Zone;
    use pumice_frames::sys::mem::Huge;

    /// Has another thread do something, once, between a look at the word of a page in memory and what comes of it.
    struct Between {
        is_armed: AtomicBool,
        looked: mpsc::Sender<()>,
        is_done: Mutex<mpsc::Receiver<()>>,
    }

    // SAFETY: the processor's own operations.
    unsafe impl TableOps for Between {
        fn ptep_get(&self, ptep: &AtomicU64) -> Entry {
            let entry = Atomic.ptep_get(ptep);
            if entry.state() == State::Present && self.is_armed.swap(false, Ordering::SeqCst) {
                self.looked.send(()).expect("somebody waits");
                self.is_done.lock().expect("no panic").recv().expect("it is done");
            }
            entry
        }
        fn ptep_cmpxchg(
            &self,
            ptep: &AtomicU64,
            old: Entry,
            new: Entry,
        ) -> core::result::Result<(), Entry> {
            Atomic.ptep_cmpxchg(ptep, old, new)
        }
        fn ptep_xchg(&self, ptep: &AtomicU64, new: Entry) -> Entry {
            Atomic.ptep_xchg(ptep, new)
        }
        fn ptep_add(&self, ptep: &AtomicU64, sum: u64) -> Entry {
            Atomic.ptep_add(ptep, sum)
        }
        fn ptep_clear_bits(&self, ptep: &AtomicU64, mask: u64) -> Entry {
            Atomic.ptep_clear_bits(ptep, mask)
        }
    }

    #[test]
    fn a_page_that_goes_at_that_moment_is_not_read() {
        let disk = Disk::file();
        let zone = Zone::new(8 << 20, 1, Huge::No).expect("a zone");
        let map = MemMap::new(&zone, Clearer::detect()).expect("tables").with_pager(&disk);
        let ((looked, has_looked), (done, is_done)) = (mpsc::channel(), mpsc::channel());
        let (is_armed, is_done) = (AtomicBool::new(false), Mutex::new(is_done));
        let ops = Between { is_armed, looked, is_done };
        let space = VmSpace::for_files(map.frames(), ops).expect("frames");
        let task = space.enter().expect("a task");
        let at = task.map_file(16 * FRAME_SIZE, Rights::READ_WRITE).expect("room");
        let (region, first) = (task.region(at).expect("mapped"), at / FRAME_SIZE);
        drop(region.read(3).expect("there"));
        // A reader is now told that it can't be read.
        disk.fails.store(true, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let space = &space;
            scope.spawn(move || {
                let task = space.enter().expect("a task");
                has_looked.recv().expect("it looks");
                assert!(
                    task.evict_clean(first + 3, Evicted::Shadow(7)),
                    "it is clean, and nobody's"
                );
                done.send(()).expect("it waits");
            });
            space.tables.ops.is_armed.store(true, Ordering::SeqCst);
            let (guard, noted) = region.try_overwrite(3, &[7; FRAME_SIZE], || true).expect("there");
            assert_eq!((guard[9], noted), (7, Noted::Clean));
        });
        assert!(task.is_dirty(first + 3));
    }

    #[test]
    fn a_page_on_its_way_out_is_taken_back_and_one_that_is_held_is_not_waited_for() {
        let disk = Disk::file();
        let zone = Zone::new(8 << 20, 1, Huge::No).expect("a zone");
        let map = MemMap::new(&zone, Clearer::detect()).expect("tables").with_pager(&disk);
        let space = VmSpace::for_files(map.frames(), Atomic).expect("frames");
        let task = space.enter().expect("a task");
        let at = task.map_file(16 * FRAME_SIZE, Rights::READ_WRITE).expect("room");
        let (region, first) = (task.region(at).expect("mapped"), at / FRAME_SIZE);
        let held = region.read(3).expect("there");
        disk.fails.store(true, Ordering::Relaxed);
        let overwrite =
            |byte| region.try_overwrite(3, &[byte; FRAME_SIZE], || true).map(|held| held.1);
        assert!(matches!(overwrite(7), Err(super::super::VmError::Busy(_))));
        drop(held);
        let transit = task.begin_swap_out(first + 3).expect("nobody has it");
        assert_eq!(overwrite(8), Ok(Noted::Clean));
        assert!(task.end_swap_out(transit, Evicted::Shadow(7)).is_err(), "it was taken back");
        assert_eq!((overwrite(9), region.read(3).expect("there")[0]), (Ok(Noted::Dirty), 9));
    }
}
