//! A file's length: growing, and cutting off.

use std::sync::Arc;

use rustix::io::Errno;

use super::error::{CacheError, Result};
use super::inner::{pages_of, Change, Inner};
use super::task::CacheTask;
use super::view::{PageMut, View};
use super::write_back::Writer;
use pumice_frames::addr::FRAME_SIZE;
use pumice_io::sync::atomic::{fence, Ordering};
use pumice_io::sync::MutexGuard;

/// The right to change a file's length, which one thread has at a time. Where writes were put off meanwhile, one is
/// done and reclaim is woken before the next thread has it: else threads that change lengths without end would leave
/// reclaim nothing that it may write. One only: reclaim can't evict what others are writing, and gives up where that is
/// all.
pub(super) struct Resizing<'f, 'c> {
    task: &'f CacheTask<'c>,
    file: &'f Arc<Inner>,
    _one: MutexGuard<'f, ()>,
}

impl<'c> CacheTask<'c> {
    /// Waits while another thread changes a file's length.
    pub(super) fn resize<'f>(&'f self, file: &'f Arc<Inner>) -> Resizing<'f, 'c> {
        Resizing { task: self, file, _one: file.resizing.lock() }
    }
}

impl Drop for Resizing<'_, '_> {
    fn drop(&mut self) {
        let Some(page) = self.file.take_put_off() else { return };
        let task = &self.task.task;
        let mut writer = Writer::new(task, self.task.cache.files);
        writer.write_alone(self.file, self.file.first_page + page);
        writer.close();
        task.wake_reclaim();
    }
}

impl<'c> View<'_, 'c> {
    /// Makes the file so many bytes long. The added part reads as zeros. Pages in memory of the part
    /// cut off go, when the guards of them have ended. A later request for such a page gets [`CacheError::PastEnd`].
    /// A thread that has such a guard itself, or one of the last page where the file ended within it, waits for ever.
    ///
    /// Beside that, a thread may have guards of the file when it makes it longer. Growing waits for the device and for
    /// truncation, not for `sync`.
    ///
    /// # Errors
    /// [`CacheError::Resize`], [`CacheError::NoRoom`], [`CacheError::PartOfPage`], [`CacheError::ReadOnly`]; nothing
    /// has changed then.
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.check_writable()?;
        self.check_room(len)?;
        let _length = self.task.resize(&self.file);
        if len >= self.file.len() {
            self.grow(len)
        } else {
            self.cut(len)
        }
    }

    /// Has blocks on the device behind the first `len` bytes, so that writing them can't fail for want of room. The
    /// file is made so long at least, as by [`View::set_len`].
    ///
    /// # Errors
    /// As [`View::set_len`], with `ENOSPC` where there is no room. The file is as long as it was then, and no
    /// longer on the device; it has no blocks beyond its end there, also none that another program had put there. Holes
    /// in it may have got some, which stay. Where a file system has no blocks beyond a file's end (NFS), a process that
    /// is killed meanwhile leaves the file longer, by zeros.
    pub fn allocate(&self, len: u64) -> Result<()> {
        self.check_writable()?;
        self.check_room(len)?;
        let _length = self.task.resize(&self.file);
        let allocated = self.file.data.allocate(len).map_err(|errno| self.resize_error(len, errno));
        let grown = allocated.and_then(|()| self.grow(len)).and_then(|()| {
            // Bytes beyond its end there go with the next that can't be had.
            match self.file.is_longer_than_on_device() {
                true => {
                    self.file.catch_up_on_device().map_err(|errno| self.resize_error(len, errno))
                }
                false => Ok(()),
            }
        });
        grown.inspect_err(|_| self.file.trim_on_device())
    }

    fn check_room(&self, len: u64) -> Result<()> {
        if self.file.checksum.is_some() && len % FRAME_SIZE as u64 != 0 {
            return Err(CacheError::PartOfPage { path: self.file.path.clone(), len });
        }
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

    /// The caller changes the length, so nobody else cuts it off. A writer beyond the end may make it longer meanwhile,
    /// and end within another page.
    fn grow(&self, len: u64) -> Result<()> {
        loop {
            let old = self.file.len();
            if self.file.data.is_device() || len <= old {
                return Ok(());
            }
            let _tail = self.clear_after(old)?;
            let extended = self.file.extend(old, len);
            if extended.map_err(|errno| self.resize_error(len, errno))? {
                return Ok(());
            }
        }
    }

    /// Bytes on the last page after the file's end, which another thread may have written, count for nothing, unless it
    /// is not the end any more: the thread that made it longer has cleared it, and others may have written there
    /// since. While the guard is there, nobody makes the file longer.
    fn clear_after(&self, len: u64) -> Result<Option<PageMut<'_, 'c>>> {
        let within = (len % FRAME_SIZE as u64) as usize;
        if within == 0 {
            return Ok(None);
        }
        let mut page = self.write((len / FRAME_SIZE as u64) as usize)?;
        if self.file.len() == len {
            page[within..].fill(0);
        }
        Ok(Some(page))
    }

    /// For the thread that changes the length.
    fn cut(&self, len: u64) -> Result<()> {
        let file = &self.file;
        if file.data.is_device() {
            return Err(self.resize_error(len, Errno::INVAL));
        }
        // A write beyond the end makes the file longer: nothing more is, until those pages are gone.
        file.set_change(Change::Stopped);
        file.wait_for_writes();
        if let Err(errno) = file.data.set_len(len) {
            file.set_change(Change::Still);
            return Err(self.resize_error(len, errno));
        }
        file.set_len_on_device(len);
        file.set_len(len);
        file.set_change(Change::Forgetting);
        // SeqCst: pairs with that in `Inner::is_there`: a claim of a page sees the new length, or is met below.
        fence(Ordering::SeqCst);
        let first = pages_of(len);
        let beyond = file.first_page + first..file.first_page + file.room;
        self.task.forget(file, beyond);
        file.nothing_from(first);
        file.set_change(Change::Still);
        // Where the page can't be had, it is not in memory, and a read sees zeros after the end.
        let _ = self.clear_after(len);
        Ok(())
    }

    /// Makes the file so many bytes long at least, in memory only: it is so on the device when the pages are written.
    pub(super) fn grow_to(&self, len: u64) -> Result<()> {
        self.check_writable()?;
        self.check_room(len)?;
        loop {
            let old = self.file.len_uncut();
            if old >= len {
                return Ok(());
            }
            let _tail = match self.clear_after(old) {
                // It was cut off meanwhile.
                Err(CacheError::PastEnd { .. }) => continue,
                tail => tail?,
            };
            if self.file.grow_from(old, len) {
                return Ok(());
            }
        }
    }
}
