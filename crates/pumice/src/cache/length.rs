//! A file's length: growing, and cutting off.

use std::sync::PoisonError;

use rustix::io::Errno;

use super::error::{CacheError, Result};
use super::inner::pages_of;
use super::view::View;
use crate::addr::FRAME_SIZE;

impl View<'_, '_> {
    /// Makes the file so many bytes long. What is added reads as zeros. Of what is cut off, pages in memory go: it is
    /// waited for those who have guards of them; whoever asks for such a page later is told [`CacheError::PastEnd`].
    /// A thread that has such a guard itself waits for ever.
    ///
    /// # Errors
    /// [`CacheError::Resize`], [`CacheError::NoRoom`], [`CacheError::ReadOnly`]; nothing has changed then.
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.check_writable()?;
        self.check_room(len)?;
        let _order = self.file.order.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.file.len();
        if len >= old {
            self.grow(old, len)
        } else {
            self.cut(len)
        }
    }

    /// Has blocks on the device behind the first `len` bytes, so that writing them can't fail for want of room. The
    /// file is made so long at least.
    ///
    /// # Errors
    /// As [`View::set_len`], with `ENOSPC` where there is no room.
    pub fn allocate(&self, len: u64) -> Result<()> {
        self.check_writable()?;
        self.check_room(len)?;
        let _order = self.file.order.lock().unwrap_or_else(PoisonError::into_inner);
        self.file.data.allocate(len).map_err(|errno| self.resize_error(len, errno))?;
        match self.file.len() {
            old if old < len => self.grow(old, len),
            _ => Ok(()),
        }
    }

    fn check_room(&self, len: u64) -> Result<()> {
        let room = (self.file.room * FRAME_SIZE) as u64;
        if self.file.data.is_device() && len > self.file.data.len() {
            return Err(self.resize_error(len, Errno::NOSPC));
        }
        match len <= room {
            true => Ok(()),
            false => Err(CacheError::NoRoom { path: self.file.path.clone(), len, room }),
        }
    }

    fn resize_error(&self, len: u64, errno: Errno) -> CacheError {
        CacheError::Resize { path: self.file.path.clone(), len, errno }
    }

    /// By who has the file's order.
    fn grow(&self, old: u64, len: u64) -> Result<()> {
        if self.file.data.is_device() || len == old {
            return Ok(());
        }
        self.clear_after(old)?;
        self.file.extend(len).map_err(|errno| self.resize_error(len, errno))
    }

    /// What lies on the last page after the file's end, and somebody may have written there, is nothing.
    fn clear_after(&self, len: u64) -> Result<()> {
        let within = (len % FRAME_SIZE as u64) as usize;
        if within != 0 {
            let mut page = self.write((len / FRAME_SIZE as u64) as usize)?;
            page[within..].fill(0);
        }
        Ok(())
    }

    /// By who has the file's order.
    fn cut(&self, len: u64) -> Result<()> {
        let file = &self.file;
        if file.data.is_device() {
            return Err(self.resize_error(len, Errno::INVAL));
        }
        // What is written beyond the end makes the file longer: nothing more is, until those pages are gone.
        file.set_being_cut(true);
        file.wait_for_writes();
        if let Err(errno) = file.data.set_len(len) {
            file.set_being_cut(false);
            return Err(self.resize_error(len, errno));
        }
        file.set_len_on_device(len);
        file.set_len(len);
        let first = pages_of(len);
        let beyond = file.first_page + first..file.first_page + file.room;
        let dirty = self.task.task.forget(beyond, || self.task.help());
        file.dirty.remove(dirty);
        self.task.task.give_frames_back();
        file.nothing_from(first);
        file.set_being_cut(false);
        self.clear_after(len)
    }

    /// Makes the file long enough for a page, in memory only: it is so on the device when the page is written.
    pub(super) fn grow_for(&self, page: usize) -> Result<()> {
        self.check_writable()?;
        let len = (page as u64 + 1).saturating_mul(FRAME_SIZE as u64);
        self.check_room(len)?;
        let old = self.file.len();
        if old % FRAME_SIZE as u64 != 0 && old < len {
            self.clear_after(old)?;
        }
        self.file.grow_to(len);
        Ok(())
    }
}
