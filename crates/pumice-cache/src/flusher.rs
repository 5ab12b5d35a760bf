//! Writing back in the background: pages that have been dirty for long, and more when many are dirty.
//!
//! One thread. It comes round a few times in the life of a dirty page, and at once when it is told that more is dirty
//! than is left in peace. A thread that makes pages dirty faster than they can be written waits for it a moment at a
//! time, before it takes a guard: it may have others, for which the flusher does not wait. A second thread has devices
//! flush their own caches (`unflushed`).

use std::time::{Duration, Instant};

use super::dirty::Which;
use super::table::count;
use super::write_back::Writer;
use super::{Cache, FileTask};
use pumice_io::sync::atomic::Ordering;
use pumice_paging::space;

/// Rounds in which a page grows old.
const ROUNDS_OF_AGE: u32 = 4;
/// A throttled thread waits so long at a time, and so many times if nothing is written meanwhile: it may have to write
/// the log itself.
const PAUSE: Duration = Duration::from_millis(5);
const MOST_PAUSES: usize = 4;

impl Cache<'_> {
    /// Runs until it is stopped.
    pub(super) fn flush_in_background(&self) -> space::Result<()> {
        let task = self.space.enter()?;
        let files = self.files;
        let tick = (files.settings.dirty_age / (ROUNDS_OF_AGE * 2)).max(Duration::from_millis(1));
        let half = files.settings.dirty_age / 2;
        let mut aged = Instant::now();
        loop {
            let mut flusher = files.flusher();
            if flusher.is_stopped() {
                return Ok(());
            }
            if !flusher.take_wanted() {
                flusher = files.wake_flusher.wait_timeout(flusher, tick).0;
                flusher.take_wanted();
            }
            drop(flusher);
            let is_time = aged.elapsed() >= half;
            if is_time {
                aged = Instant::now();
            }
            self.flush(&task, is_time);
            files.flusher().rounds += 1;
            files.flushed.notify_all();
        }
    }

    /// Goes through all files once.
    pub(super) fn flush(&self, task: &FileTask<'_>, is_time: bool) {
        let files = self.files;
        let mut writer = None;
        for file in files.all() {
            if file.dirty.pages() == 0 || !file.is_writable {
                continue;
            }
            let which = match (files.is_dirty(), is_time) {
                (true, _) => Which::All,
                (false, true) => Which::Old,
                (false, false) => continue,
            };
            let writer = writer.get_or_insert_with(|| Writer::new(task, files));
            writer.begin(&file, which, &(0..file.room));
            if is_time {
                let _scan = file.scan.lock();
                file.dirty.age();
            }
        }
        if let Some(mut writer) = writer {
            writer.retry();
            writer.close();
        }
    }

    /// Has devices flush what they have of files, where that is due, while others write on. Runs until it is stopped.
    pub(super) fn flush_devices_in_background(&self) {
        let files = self.files;
        loop {
            let mut flusher = files.flusher();
            while !flusher.take_flush_due() && !flusher.is_stopped() {
                flusher = files.flush_due.wait(flusher);
            }
            if flusher.is_stopped() {
                return;
            }
            drop(flusher);
            let begun = Instant::now();
            // This file alone can't be closed meanwhile. Others say that they are due when more of them is written.
            let due = files.all().into_iter().filter(|file| file.unflushed.is_due());
            let next = due.max_by_key(|file| file.unflushed.times_due());
            if next.is_some_and(|file| file.flush_ahead()) {
                count(&files.counters.flushed_ahead, 1);
            }
            let (took, ended) = (begun.elapsed(), Instant::now());
            let mut flusher = files.flusher();
            while ended.elapsed() < took && !flusher.is_stopped() {
                let rest = took.saturating_sub(ended.elapsed());
                flusher = files.flush_due.wait_timeout(flusher, rest).0;
            }
        }
    }

    /// A page became dirty.
    pub(super) fn made_dirty(&self) {
        if self.files.is_dirty() {
            self.files.want_flushed();
        }
    }

    /// Waits where more is dirty than may be.
    #[cold]
    #[inline(never)]
    pub(super) fn throttle(&self) {
        let files = self.files;
        count(&files.counters.throttled, 1);
        let written = || files.counters.written.load(Ordering::Relaxed);
        let mut before = written();
        let mut pauses = 0;
        while files.is_too_dirty() && pauses < MOST_PAUSES {
            files.want_flushed();
            let flusher = files.flusher();
            if flusher.is_stopped() {
                return;
            }
            drop(files.flushed.wait_timeout(flusher, PAUSE));
            let now = written();
            pauses = if now == before { pauses + 1 } else { 0 };
            before = now;
        }
    }
}
