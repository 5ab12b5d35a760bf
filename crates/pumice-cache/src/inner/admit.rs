//! Which pages may be written, and by one request.

use std::ptr::NonNull;
use std::sync::Arc;

use super::{Admitted, Change, Inner, FRAME, MOST_PAGES};
use crate::error::CacheError;
use pumice_io::engine::Piece;
use pumice_io::sync::atomic::Ordering;
use pumice_io::sync::contain;
use pumice_io::{BlockFile, Way};
use pumice_paging::backing::Refusal;
use pumice_paging::space::write_back::WriteBack;

/// Requests in flight at a time.
pub const WRITE_DEPTH: usize = 32;

/// Why the first of some pages can't be written now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It waits for the log.
    Log,
    /// The file's length is being changed on the device.
    Stopped,
    /// The file ends before it by now, or is the parent's of this process.
    Length,
}

/// Pages on their way to the device.
pub struct Write {
    pub file: Arc<Inner>,
    pub admitted: Admitted,
    pub pages: Vec<WriteBack>,
    /// For the kernel only.
    pub _pieces: Vec<Piece>,
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Refusal {
        match refused {
            Refused::Stopped => Refusal::Stopped,
            Refused::Log | Refused::Length => Refusal::NotNow,
        }
    }
}

impl Inner {
    /// Says which of these pages, which are held for reading and in order, may be written by one request: the first,
    /// and those that follow it.
    ///
    /// # Safety
    /// The pages' bytes are at these addresses, and nobody changes them.
    pub unsafe fn admit(
        &self,
        pages: impl Iterator<Item = (usize, NonNull<u8>)> + Clone,
    ) -> Result<Admitted, Refused> {
        if !self.maker.is_here() {
            return Err(Refused::Length);
        }
        let (mut state, first, many, bytes) = loop {
            let len = self.len();
            // SAFETY: the caller's promise.
            let may_go = self.ask(|| unsafe { self.first_to_go(pages.clone(), len) });
            let (first, many, bytes) = may_go.unwrap_or(Err(Refused::Log))?;
            let mut state = self.state();
            if state.change == Change::Stopped {
                state.put_off.get_or_insert(first);
                return Err(Refused::Stopped);
            }
            // Else it was cut off since its length was looked at: a page that was whole may be the end of the file now.
            if self.len() >= len {
                break (state, first, many, bytes);
            }
        };
        let epoch = state.epoch;
        state.writing[epoch] += 1;
        drop(state);
        self.unflushed.add(bytes);
        let offset = first as u64 * FRAME;
        Ok(Admitted { file: self.written_by(bytes).reference(), offset, pages: many, bytes, epoch })
    }

    /// Asks the rule, which is somebody else's. `None` if it panics, or has before.
    fn ask<R>(&self, ask: impl FnOnce() -> R) -> Option<R> {
        // Relaxed: a thread that does not see it asks once more.
        if self.rule_has_panicked.load(Ordering::Relaxed) {
            return None;
        }
        // Nothing of the file's is touched in between.
        let answer = contain(ask);
        if answer.is_none() {
            self.rule_has_panicked.store(true, Ordering::Relaxed);
        }
        answer
    }

    /// Whether pages that wait for the log wait for ever.
    pub fn log_has_failed(&self) -> bool {
        let Some(rule) = &self.rule else { return false };
        self.ask(|| rule.has_failed()).unwrap_or(true)
    }

    /// The error of that.
    pub fn log_error(&self) -> CacheError {
        CacheError::Log { path: self.path.clone() }
    }

    /// Of pages that may go by one request the first, how many, and how many bytes; or why not even the first may.
    ///
    /// # Safety
    /// As [`Inner::admit`].
    unsafe fn first_to_go(
        &self,
        pages: impl Iterator<Item = (usize, NonNull<u8>)>,
        len: u64,
    ) -> Result<(usize, usize, usize), Refused> {
        let durable = self.rule.as_ref().map(|rule| rule.durable());
        let (mut first, mut many, mut bytes) = (0, 0, 0);
        let mut refused = Refused::Length;
        for (page, at) in pages.take(MOST_PAGES) {
            let offset = page as u64 * FRAME;
            let is_whole = offset + FRAME <= len;
            if offset >= len || (many > 0 && (page != first + many || !is_whole)) {
                break;
            }
            if let (Some(rule), Some(durable)) = (&self.rule, durable) {
                // SAFETY: the caller's promise.
                let position = rule.position(page, unsafe { at.cast().as_ref() });
                if position > durable {
                    if many == 0 {
                        rule.wanted(position);
                        refused = Refused::Log;
                    }
                    break;
                }
            }
            if many == 0 {
                first = page;
            }
            many += 1;
            bytes += FRAME.min(len - offset) as usize;
            if !is_whole {
                break;
            }
        }
        if many > 0 {
            Ok((first, many, bytes))
        } else {
            Err(refused)
        }
    }

    /// The file that writes so many bytes from the start of a page.
    fn written_by(&self, bytes: usize) -> &BlockFile {
        match (self.data.way(), &self.tail) {
            (Way::Direct { offset, .. }, Some(tail)) if bytes % offset as usize != 0 => tail,
            _ => &self.data,
        }
    }
}
