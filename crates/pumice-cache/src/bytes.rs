//! A file's bytes by copies, and pages that are written whole.

use core::ops::Range;

use super::error::{CacheError, Result};
use super::view::View;
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::lock::Backoff;
use pumice_paging::space::file::Noted;
use pumice_paging::space::region::Page;
use pumice_paging::space::VmError;

/// A piece of a page that bytes lie on.
struct Piece {
    page: usize,
    /// Its first byte on the page.
    start: usize,
    len: usize,
}

/// The first piece of so many bytes from an offset on.
fn first_piece(offset: u64, bytes: usize) -> Piece {
    let start = (offset % FRAME_SIZE as u64) as usize;
    Piece { page: (offset / FRAME_SIZE as u64) as usize, start, len: bytes.min(FRAME_SIZE - start) }
}

impl View<'_, '_> {
    /// Makes all of a page equal to `bytes`. It is not read if it is not in memory, and nobody sees anything of it but
    /// all it was, or all it is then. Else as [`View::write`].
    ///
    /// # Errors
    /// As [`View::write`], but for [`CacheError::Read`].
    pub fn overwrite(&self, page: usize, bytes: &Page) -> Result<()> {
        if page >= self.pages() {
            return Err(self.file.past_end(page));
        }
        self.prepare_to_write()?;
        let sealed = self.file.checksum.map(|checksum| {
            let mut sealed = *bytes;
            checksum.seal(page, &mut sealed);
            sealed
        });
        let bytes = sealed.as_ref().unwrap_or(bytes);
        let mut backoff = Backoff::default();
        loop {
            match self.region.try_overwrite(page, bytes, || self.file.is_there(page)) {
                Ok((_, Noted::Dirty)) => return Ok(()),
                Ok((guard, Noted::Clean)) => {
                    drop(self.made_dirty(page, guard));
                    return Ok(());
                }
                Err(VmError::Busy(_)) => self.wait_for(page, &mut backoff),
                Err(VmError::OutOfFrames(_)) if self.task.end_reads() => {}
                Err(VmError::Unmapped(_)) => return Err(self.file.past_end(page)),
                Err(error) => return Err(self.error(error, page)),
            }
        }
    }

    /// Overwrites pages in a row that are not in memory, by the bytes for them and for later ones: how many pages. 0
    /// where the first is to be overwritten by itself.
    fn overwrite_run(&self, page: usize, bytes: &[u8]) -> Result<usize> {
        if page >= self.pages() {
            return Err(self.file.past_end(page));
        }
        self.prepare_to_write()?;
        if self.file.checksum.is_some() {
            // It is made in a copy of each page.
            return Ok(0);
        }
        let made_dirty = |pages: Range<usize>, many: usize| {
            // Pages among these that were unmapped are marked, too: that says where to look only.
            self.file.dirty.add_all(pages, many);
            self.task.cache.made_dirty();
        };
        let bytes = &bytes[..bytes.len().min(self.most_at_once() * FRAME_SIZE)];
        Ok(self.region.try_overwrite_run(page, bytes, |last| self.file.is_there(last), made_dirty))
    }

    /// Writes bytes from an offset on, past the end of the file too, which is then as long as it has to be. Pages that
    /// they cover are overwritten ([`View::overwrite`]), of others a guard is taken: a thread that has one itself waits
    /// for ever. Each page changes at one instant, all of them don't.
    ///
    /// # Errors
    /// As [`View::write_or_grow`], for the first page that can't be written; those before it are.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_writable()?;
        let end = offset.saturating_add(bytes.len() as u64);
        if end > self.len() && !bytes.is_empty() {
            self.grow_to(end)?;
        }
        let (mut offset, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let Piece { page, start, len } = first_piece(offset, rest.len());
            if start == 0 && rest.len() >= 2 * FRAME_SIZE {
                let done = self.overwrite_run(page, rest)? * FRAME_SIZE;
                (offset, rest) = (offset + done as u64, &rest[done..]);
                if done > 0 {
                    continue;
                }
            }
            let (piece, later) = rest.split_at(len);
            match piece.try_into() {
                Ok(whole) => self.overwrite(page, whole)?,
                Err(_) => self.write(page)?[start..start + len].copy_from_slice(piece),
            }
            offset += len as u64;
            rest = later;
        }
        Ok(())
    }

    /// Reads bytes from an offset on, each page of them as it was at one instant: as many as there are up to the end of
    /// the file. How many that is.
    ///
    /// # Errors
    /// As [`View::read`], for the first page that can't be read.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let there = usize::try_from(self.len().saturating_sub(offset)).unwrap_or(usize::MAX);
        let there = there.min(into.len());
        let mut done = 0;
        while done < there {
            let Piece { page, start, len } = first_piece(offset + done as u64, there - done);
            let guard = match self.read(page) {
                Ok(guard) => guard,
                // It was cut off meanwhile.
                Err(CacheError::PastEnd { .. }) => break,
                Err(error) => return Err(error),
            };
            into[done..done + len].copy_from_slice(&guard[start..start + len]);
            done += len;
        }
        Ok(done)
    }
}
