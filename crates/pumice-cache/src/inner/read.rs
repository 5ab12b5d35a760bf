//! Reads of a file: of pages that are in it whole, and of others.

use std::ptr::NonNull;

use rustix::io::Errno;

use super::{pages_of, Change, Inner, FRAME, READ_ERRORS};
use crate::error::CacheError;
use pumice_frames::addr::FRAME_SIZE;
use pumice_io::engine::Direction;
use pumice_io::sync::atomic::{fence, Ordering};
use pumice_io::{Bytes, Queues, Request};
use pumice_paging::page_table::pager::Evicted;
use pumice_paging::space::region::Page;

impl Inner {
    /// Whether a page is zeros that nobody has written yet.
    pub fn is_zeros(&self, page: usize, from: Evicted) -> bool {
        // Relaxed: see `nothing_from`.
        from == Evicted::Shadow(0) && page >= self.zero_from.load(Ordering::Relaxed)
    }

    /// Whether all of a page, of which the caller has claimed the word, is in the file on the device, so that a read of
    /// it reads all.
    pub fn is_whole(&self, page: usize) -> bool {
        // SeqCst: see `is_there`.
        fence(Ordering::SeqCst);
        (page as u64 + 1) * FRAME <= self.len_on_device().min(self.len())
    }

    /// Reads a page, with zeros past the end of the file. `EBADMSG`: it is not as it was written.
    pub fn read(
        &self,
        queues: &Queues,
        page: usize,
        from: Evicted,
        into: &mut Page,
    ) -> Result<(), Errno> {
        self.read_unchecked(queues, page, from, into)?;
        match self.is_as_written(page, into) {
            true => Ok(()),
            false => Err(Errno::BADMSG),
        }
    }

    /// Whether a page that was read is as it was written, as far as anything says so.
    pub fn is_as_written(&self, page: usize, bytes: &Page) -> bool {
        self.checksum.is_none_or(|checksum| checksum.is_right(page, bytes))
    }

    fn read_unchecked(
        &self,
        queues: &Queues,
        page: usize,
        from: Evicted,
        into: &mut Page,
    ) -> Result<(), Errno> {
        if !self.is_whole(page) || self.is_zeros(page, from) {
            return self.read_plainly(page, from, into);
        }
        let mut queue = queues.take();
        let (at, offset) = (NonNull::from(&mut *into).cast(), page as u64 * FRAME);
        let (file, bytes) = (self.data.reference(), Bytes::Run { at, len: FRAME_SIZE });
        let request = Request { file, direction: Direction::Read, bytes, offset, token: 0 };
        // SAFETY: the bytes are borrowed, and the file is there, until the queue is empty, or dropped.
        unsafe { queue.submit(request, ()) }.map_err(|(errno, ())| errno)?;
        let mut went = Ok(());
        queues.drain(queue, |(), result| went = result);
        if went.is_err() && (self.state().change != Change::Still || !self.is_whole(page)) {
            // The file ended before it, which is an error to a queue only.
            return self.read_plainly(page, from, into);
        }
        went
    }

    /// Reads a page of which not all need be in the file, without a look at its checksum.
    pub fn read_plainly(&self, page: usize, from: Evicted, into: &mut Page) -> Result<(), Errno> {
        // SeqCst: see `is_there`.
        fence(Ordering::SeqCst);
        let len = self.len();
        if page >= pages_of(len) {
            return Err(Errno::OVERFLOW);
        }
        if self.is_zeros(page, from) {
            into.fill(0);
            return Ok(());
        }
        let (at, offset) = (NonNull::from(&mut *into).cast(), page as u64 * FRAME);
        // SAFETY: the bytes are borrowed.
        let there = unsafe { self.data.read_up_to(at, FRAME_SIZE, offset) }?;
        let end = (len - offset).min(there as u64) as usize;
        into[end..].fill(0);
        Ok(())
    }

    /// Keeps why a page could not be read.
    pub fn note_read_error(&self, page: usize, errno: Errno) {
        let mut state = self.state();
        if state.read_errors.len() == READ_ERRORS {
            state.read_errors.pop_front();
        }
        state.read_errors.push_back((page, errno));
    }

    /// Why a page could not be read, as far as that is known.
    pub fn read_error(&self, page: usize) -> CacheError {
        let errors = &self.state().read_errors;
        let error = errors.iter().rev().find(|(other, _)| *other == page);
        match error.map_or(Errno::IO, |&(_, errno)| errno) {
            Errno::OVERFLOW => self.past_end(page),
            Errno::BADMSG if self.checksum.is_some() => {
                CacheError::Checksum { path: self.path.clone(), page }
            }
            errno => CacheError::Read { path: self.path.clone(), page, errno },
        }
    }
}
