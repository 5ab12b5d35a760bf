//! The write-ahead log: segments of records, appended in memory, made durable by groups.
//!
//! Positions count bytes of the whole log, over all segments. A segment is a file `log.<its first position>`, and
//! begins where the one before it ended; each checkpoint begins one, and removes those before when all pages that
//! they are about are durable. So whatever segment is the first that is left, everything before it is in the tree's
//! file.
//!
//! A thread that waits for a position writes everything there is up to then, for all others too. Threads that come
//! meanwhile wait, and the next of them writes for all of those (group commit). A thread does so for pages that
//! the cache wants to write and that the log holds back.
//!
//! After an error nothing more becomes durable: it is not known how much of a record was written. Pages whose change
//! has no record get a position that no log reaches ([`NEVER`]), so the cache never writes them.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use pumice::cache::WriteAhead;

use super::node::{self, Page};
use super::record::{self, Change, Writer};

const MAGIC: &[u8; 8] = b"kvlog\0\0\x01";
/// Magic and the first position.
const HEADER: usize = 16;
/// Where the first log begins: no page that was never changed is newer.
const FIRST: u64 = 4096;
/// The position of a page whose change is in no record.
const NEVER: u64 = u64::MAX;
/// Bytes in memory beyond which an append also writes.
const MOST_IN_MEMORY: usize = 4 << 20;

/// A log, and what is not durable of it yet.
#[derive(Debug)]
pub struct Log {
    folder: PathBuf,
    state: Mutex<State>,
    /// Something became durable, or is wanted, or it is over.
    news: Condvar,
    durable: AtomicU64,
}

#[derive(Debug)]
struct State {
    file: Arc<File>,
    /// The first position of the segment.
    start: u64,
    /// Records from `durable` on, or from what is being written on.
    buffer: Vec<u8>,
    end: u64,
    /// The position up to which pages are in the tree's file, or will be when the checkpoint is over: the first
    /// change of a page after it has the page's image in its record.
    redo: u64,
    is_writing: bool,
    wanted: u64,
    is_over: bool,
    failed: Option<io::ErrorKind>,
}

/// A page that a record is about, changed already, and latched until the record is there.
pub struct Part<'p> {
    pub number: u32,
    pub page: &'p mut Page,
    /// How it was changed; `None` where only its image says.
    pub change: Option<Change<'p>>,
}

impl Log {
    /// The log in a folder, which is made if there is none. Its records are durable; half a
    /// record at its end was cut off by a crash.
    pub fn open(folder: &Path) -> io::Result<Log> {
        fs::create_dir_all(folder)?;
        let (mut end, mut last) = (FIRST, None);
        let segments = segments(folder)?;
        for (index, (&start, path)) in segments.iter().enumerate() {
            let bytes = fs::read(path)?;
            let is_last = index + 1 == segments.len();
            if !has_header(&bytes, start) && is_last {
                // It was being made when all ended.
                fs::remove_file(path)?;
                break;
            }
            if index > 0 && start < end && bytes.len() <= HEADER {
                // It could not be made for good, and was not used.
                fs::remove_file(path)?;
                continue;
            }
            if index > 0 && start != end {
                return Err(bad(path, "does not begin where the one before it ends"));
            }
            end = records(path, &bytes, start, |_| Ok::<(), io::Error>(()))?;
            last = Some((path, end - start));
        }
        // That of those that were used: a killed process may have left data that is not durable, or half a record.
        if let Some((path, len)) = last {
            let file = OpenOptions::new().write(true).open(path)?;
            file.set_len(len)?;
            file.sync_all()?;
        }
        // The names of those that are there come before the next one's: their maker may have been killed before.
        File::open(folder)?.sync_all()?;
        let (file, start) = (Arc::new(new_segment(folder, end)?), end);
        let end = start + HEADER as u64;
        let state = State {
            file,
            start,
            buffer: Vec::new(),
            end,
            redo: end,
            is_writing: false,
            wanted: 0,
            is_over: false,
            failed: None,
        };
        let (state, news) = (Mutex::new(state), Condvar::new());
        Ok(Log { folder: folder.to_owned(), state, news, durable: AtomicU64::new(end) })
    }

    /// Goes through the records that were there when it was opened, in their order: how many.
    pub fn replay<E: From<io::Error>>(
        &self,
        mut apply: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let now = self.lock().start;
        let mut count = 0;
        for (start, path) in segments(&self.folder)?.range(..now) {
            let bytes = fs::read(path)?;
            records(path, &bytes, *start, |body| {
                count += 1;
                apply(body)
            })?;
        }
        Ok(count)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds it panics halfway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.news.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a record of changes that happen together: the position that must be durable for them to be. Pages get it
    /// as their `lsn`.
    pub fn append(&self, parts: &mut [Part<'_>]) -> io::Result<u64> {
        let mut state = self.lock();
        if let Some(failed) = state.failed {
            parts.iter_mut().for_each(|part| node::set_lsn(part.page, NEVER));
            return Err(failed.into());
        }
        let state = &mut *state;
        let is_image = |part: &Part<'_>| node::lsn(part.page) <= state.redo;
        let mut bytes = record::HEAD + 1;
        for part in parts.iter_mut() {
            if is_image(part) {
                part.change = None;
            }
            bytes += part.change.as_ref().map_or(5 + part.page.len(), Writer::len_of);
        }
        let (position, end) = (state.end, state.end + bytes as u64);
        let mut writer = Writer::new(&mut state.buffer);
        for part in parts {
            node::set_lsn(part.page, end);
            writer.part(part.number, part.change.unwrap_or(Change::Image(part.page)));
        }
        writer.end(position);
        state.end = end;
        Ok(end)
    }

    /// Takes it that some of these pages were changed, of which there is no record: nothing more becomes durable.
    pub fn give_up(&self, parts: &mut [Part<'_>]) {
        self.lock().failed.get_or_insert(io::ErrorKind::InvalidData);
        parts.iter_mut().for_each(|part| node::set_lsn(part.page, NEVER));
        self.news.notify_all();
    }

    /// Returns when the log is durable up to there.
    pub fn flush(&self, position: u64) -> io::Result<()> {
        // Acquire: pairs with the store in `flush_locked`; a thread that sees it finds the file as it was written.
        if self.durable.load(Ordering::Acquire) >= position {
            return Ok(());
        }
        drop(self.flush_locked(self.lock(), position)?);
        Ok(())
    }

    /// Makes all that there is durable.
    pub fn flush_all(&self) -> io::Result<()> {
        let end = self.lock().end;
        self.flush(end)
    }

    /// Writes if there is very much to write.
    pub fn keep_short(&self) -> io::Result<()> {
        let state = self.lock();
        if state.buffer.len() > MOST_IN_MEMORY {
            let end = state.end;
            drop(self.flush_locked(state, end)?);
        }
        Ok(())
    }

    fn flush_locked<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        position: u64,
    ) -> io::Result<MutexGuard<'s, State>> {
        loop {
            // Relaxed: the lock orders it.
            let durable = self.durable.load(Ordering::Relaxed);
            if durable >= position {
                return Ok(state);
            }
            if let Some(failed) = state.failed {
                return Err(failed.into());
            }
            if state.is_writing {
                state = self.wait(state);
                continue;
            }
            state.is_writing = true;
            let buffer = std::mem::take(&mut state.buffer);
            let (file, offset, end) = (state.file.clone(), durable - state.start, state.end);
            drop(state);
            let written = file.write_all_at(&buffer, offset).and_then(|()| file.sync_data());
            state = self.lock();
            state.is_writing = false;
            match written {
                // Release: see `flush`.
                Ok(()) => self.durable.store(end, Ordering::Release),
                Err(error) => state.failed = Some(error.kind()),
            }
            self.news.notify_all();
        }
    }

    /// Begins a segment. Pages that were changed before are to be made durable; then what came before it can go
    /// ([`Log::forget`]). Returns where it begins.
    pub fn begin_segment(&self) -> io::Result<u64> {
        let mut state = self.lock();
        // Others may append while this waits for the device.
        loop {
            let end = state.end;
            state = self.flush_locked(state, end)?;
            if state.end == end && !state.is_writing {
                break;
            }
        }
        let start = state.end;
        let file = new_segment(&self.folder, start).inspect_err(|_| {
            // Appending goes on in the segment that there is. A crash may bring this one back: see `open`.
            let _ = fs::remove_file(path_of(&self.folder, start));
        })?;
        state.file = Arc::new(file);
        (state.start, state.end) = (start, start + HEADER as u64);
        state.redo = state.end;
        // Release: see `flush`.
        self.durable.store(state.end, Ordering::Release);
        Ok(start)
    }

    /// Removes the segments before a position, the oldest first, each for good before the next, so that none is ever
    /// missing in between: two removals need not become durable in order otherwise.
    pub fn forget(&self, before: u64) -> io::Result<()> {
        let folder = File::open(&self.folder)?;
        for (_, path) in segments(&self.folder)?.range(..before) {
            fs::remove_file(path)?;
            folder.sync_all()?;
        }
        Ok(())
    }

    /// Bytes of the log that a crash now would have to go through.
    pub fn len(&self) -> u64 {
        let state = self.lock();
        state.end - state.redo
    }

    /// Writes what the cache waits for, until it is over.
    pub fn serve(&self) {
        let mut state = self.lock();
        while !state.is_over {
            // Relaxed: the lock orders it.
            let is_wanted = state.wanted > self.durable.load(Ordering::Relaxed);
            if !is_wanted || state.failed.is_some() {
                state = self.wait(state);
                continue;
            }
            let wanted = state.wanted.min(state.end);
            state = match self.flush_locked(state, wanted) {
                Ok(state) => state,
                // Noted there.
                Err(_) => self.lock(),
            };
        }
    }

    /// Ends [`Log::serve`].
    pub fn stop(&self) {
        self.lock().is_over = true;
        self.news.notify_all();
    }
}

impl WriteAhead for Log {
    fn position(&self, _: usize, page: &Page) -> u64 {
        node::lsn(page)
    }

    fn durable(&self) -> u64 {
        // Acquire: as in `flush`.
        self.durable.load(Ordering::Acquire)
    }

    fn wanted(&self, position: u64) {
        let mut state = self.lock();
        state.wanted = state.wanted.max(position);
        self.news.notify_all();
    }

    fn has_failed(&self) -> bool {
        self.lock().failed.is_some()
    }
}

/// By their first positions.
fn segments(folder: &Path) -> io::Result<BTreeMap<u64, PathBuf>> {
    let mut segments = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let start = name.and_then(|name| name.strip_prefix("log."));
        if let Some(start) = start.and_then(|start| u64::from_str_radix(start, 16).ok()) {
            segments.insert(start, path);
        }
    }
    Ok(segments)
}

/// Goes through the records of a segment: where the last whole one ends.
fn records<E: From<io::Error>>(
    path: &Path,
    bytes: &[u8],
    start: u64,
    mut apply: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<u64, E> {
    if !has_header(bytes, start) {
        return Err(bad(path, "is no segment").into());
    }
    let mut at = HEADER;
    loop {
        let position = start + at as u64;
        let body = bytes.get(at..).and_then(|rest| record::body_at(rest, position));
        let Some(body) = body else { return Ok(position) };
        apply(body)?;
        at += record::HEAD + body.len();
    }
}

fn has_header(bytes: &[u8], start: u64) -> bool {
    bytes.get(..8) == Some(MAGIC) && bytes.get(8..HEADER) == Some(&start.to_le_bytes())
}

fn path_of(folder: &Path, start: u64) -> PathBuf {
    folder.join(format!("log.{start:016x}"))
}

/// A segment that is there after a crash, too.
fn new_segment(folder: &Path, start: u64) -> io::Result<File> {
    let path = path_of(folder, start);
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.write_all_at(MAGIC, 0)?;
    file.write_all_at(&start.to_le_bytes(), 8)?;
    file.sync_all()?;
    File::open(folder)?.sync_all()?;
    Ok(file)
}

fn bad(path: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{} {why}", path.display()))
}
