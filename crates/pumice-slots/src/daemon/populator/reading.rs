//! A snapshot's file on its way into a slot.
//!
//! Holes are not read: the slot's memory is zero already. Data that the page cache has is copied from there, and all
//! else is read directly (`O_DIRECT`), which takes no processor time and pushes nothing out of the cache. A file system
//! without direct reads is read by plain ones.
//!
//! **No mix.** The content is that of one moment, or there is no slot:
//!
//! 1. No program may have the file open for writing when reading begins: a read lease (fcntl(2)) can't be had then. So
//!    each write that reading could see begins later, and has set the times of the file before its data is there. The
//!    lease is given back at once; a program that opens the file for writing in between waits for that.
//! 2. The last change was settled when the file was looked at ([`Version::settles_in`]), so a later one has another
//!    time.
//! 3. After the last byte, identity, size and times are as at the start, of the open file and of the one that the path
//!    names, and again nobody has it open for writing.
//!
//! Not seen is a program that maps the file, writes to it and is gone in between, on a file system that keeps no times
//! of that (tmpfs). Where no lease can be had (a file of another user's, unless the daemon is root; NFS, SMB, 9p, Ceph)
//! only the times are looked at. A lease on FUSE says nothing of other machines. A file on a stacked file system is
//! refused, since a lease there says nothing of programs that have it mapped.

use std::fmt::Display;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use rustix::fs::{openat, seek, Mode, OFlags, SeekFrom, CWD};
use rustix::io::Errno;

use pumice_frames::sys::thread as clock;

use super::super::source::{self, is_open_for_writing, Source, Version, OPEN_FOR_WRITING};
use crate::file::{Populated, Populating};

/// Alignment of direct reads, and a page.
const BLOCK: u64 = 4 << 10;

/// See the module's text.
#[derive(Debug)]
pub struct Reading {
    path: Arc<Path>,
    file: OwnedFd,
    /// The same for direct reads, where they work.
    direct: Option<OwnedFd>,
    version: Version,
    /// The last run of data that was found.
    run: (u64, u64),
    /// The part of the slot that is populated and not read yet.
    unread: Range<u64>,
    /// Processor time of threads that read beside the one that populates.
    pub beside_ns: u64,
}

impl Reading {
    /// Opens the file, which must have the version that it had when it was looked at.
    ///
    /// # Errors
    /// A line that says why it can't be read now.
    pub fn begin(source: &Source) -> Result<Reading, String> {
        let (path, version) = (Arc::clone(&source.path), source.version);
        let (file, now) = source::open(&path).map_err(|error| error.to_string())?;
        let is_written = is_open_for_writing(&file);
        let direct = open_direct(&file);
        let (run, unread) = ((0, 0), 0..0);
        let reading = Reading { path, file, direct, version, run, unread, beside_ns: 0 };
        reading.check(&now)?;
        if !version.settles_in(source.since.elapsed()).is_zero() {
            return Err(reading.fails(&"it has just changed"));
        }
        match is_written {
            true => Err(reading.fails(&OPEN_FOR_WRITING)),
            false => Ok(reading),
        }
    }

    /// Populates up to so many bytes more and reads the part that was populated last, at the same time where that waits
    /// for the device. Returns how many bytes were populated: 0 when all is done.
    ///
    /// # Errors
    /// A line that says what is wrong with the file, or with the memory.
    pub fn step(&mut self, slot: &mut Populating, bytes: usize) -> Result<usize, String> {
        let refused = |error: io::Error| format!("the kernel refuses the memory: {error}");
        let (from, populated) = (slot.done_bytes(), slot.populated());
        let unread = std::mem::take(&mut self.unread);
        let waits = self.direct.is_some()
            && !unread.is_empty()
            && !self.is_cached(unread.start, unread.end - unread.start);
        let (read, stepped) = if waits {
            thread::scope(|scope| -> Result<_, String> {
                let beside = || {
                    let read = self.read(populated, &unread);
                    self.beside_ns += clock::cpu_time_ns();
                    read
                };
                let named = thread::Builder::new().name("pumice-read".into());
                let reader = named.spawn_scoped(scope, beside);
                let reader = reader.map_err(|error| format!("no thread: {error}"))?;
                let stepped = slot.step(bytes);
                let read = reader.join().unwrap_or_else(|_| Err("a thread panicked".into()));
                Ok((read, stepped))
            })?
        } else {
            (self.read(populated, &unread), slot.step(bytes))
        };
        read?;
        let bytes = stepped.map_err(refused)?;
        self.unread = from..slot.done_bytes();
        Ok(bytes)
    }

    /// Reads a part into the slot, which is populated there and zero.
    fn read(&mut self, mut slot: Populated, part: &Range<u64>) -> Result<(), String> {
        let (from, to) = (part.start, part.end);
        self.check(&self.version_now()?)?;
        let end = to.min(self.version.bytes());
        let mut at = from;
        while let Some((start, stop)) = self.data_from(at, end)? {
            self.read_run(&mut slot, start, stop)?;
            at = stop;
        }
        if to > end {
            // A direct read brings the block's rest, too.
            slot.clear(from.max(end), to).map_err(|error| self.fails(&error))?;
        }
        Ok(())
    }

    /// Whether a part is populated and not read: another step reads it.
    pub fn is_behind(&self) -> bool {
        !self.unread.is_empty()
    }

    /// All is read: the version that the slot has.
    ///
    /// # Errors
    /// A line that says so if the file has changed meanwhile.
    pub fn finish(self) -> Result<Version, String> {
        if is_open_for_writing(&self.file) {
            return Err(self.fails(&OPEN_FOR_WRITING));
        }
        self.check(&self.version_now()?)?;
        self.check(&source::look(&self.path).map_err(|error| error.to_string())?)?;
        Ok(self.version)
    }

    fn fails(&self, why: &dyn Display) -> String {
        source::fails(&self.path, &why.to_string())
    }

    fn version_now(&self) -> Result<Version, String> {
        Version::of(&self.file).map_err(|error| self.fails(&error))
    }

    fn check(&self, now: &Version) -> Result<(), String> {
        match *now == self.version {
            true => Ok(()),
            false => Err(self.fails(&"it has just changed")),
        }
    }

    /// The next run of data before `end`, in whole blocks.
    fn data_from(&mut self, at: u64, end: u64) -> Result<Option<(u64, u64)>, String> {
        if at >= end {
            return Ok(None);
        }
        if !(self.run.0..self.run.1).contains(&at) {
            self.run = match seek(&self.file, SeekFrom::Data(at)) {
                Ok(data) => {
                    let hole = seek(&self.file, SeekFrom::Hole(data));
                    let hole = hole.map_err(|error| self.fails(&io::Error::from(error)))?;
                    (data - data % BLOCK, hole.next_multiple_of(BLOCK))
                }
                Err(Errno::NXIO) => return Ok(None),
                // It can't tell.
                Err(Errno::INVAL | Errno::OPNOTSUPP) => (0, u64::MAX),
                Err(error) => return Err(self.fails(&io::Error::from(error))),
            };
        }
        let (start, stop) = (self.run.0.max(at), self.run.1.min(end));
        Ok((start < stop).then_some((start, stop)))
    }

    fn read_run(&mut self, slot: &mut Populated, start: u64, stop: u64) -> Result<(), String> {
        let mut at = start;
        while at < stop {
            let len = stop - at;
            let is_direct = self.direct.is_some() && at % BLOCK == 0 && !self.is_cached(at, len);
            let read = match self.direct.as_ref().filter(|_| is_direct) {
                Some(direct) => slot.read_from(direct, at, len.next_multiple_of(BLOCK)),
                None => slot.read_from(&self.file, at, len),
            };
            match read {
                Ok(0) => return Err(self.fails(&"it was cut short while it was read")),
                Ok(bytes) => at += bytes.min(len),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Blocks of another size, or no direct reads at all.
                Err(error) if is_direct && error.kind() == io::ErrorKind::InvalidInput => {
                    self.direct = None;
                }
                Err(error) => return Err(self.fails(&format!("{error}, at byte {at}"))),
            }
        }
        Ok(())
    }

    /// Whether the page cache has all of a part; `false` where the kernel can't tell (Linux before 6.5).
    fn is_cached(&self, at: u64, len: u64) -> bool {
        let range = [at, len];
        let mut counts = [0u64; 5];
        // SAFETY: structures as cachestat(2) has them, of two and of five numbers, that live here.
        let failed = unsafe {
            let (range, counts) = (range.as_ptr(), counts.as_mut_ptr());
            libc::syscall(SYS_CACHESTAT, self.file.as_raw_fd(), range, counts, 0)
        };
        failed == 0 && counts[0] >= len.div_ceil(BLOCK)
    }
}

/// The same number on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

/// The same file for direct reads, if its file system has them.
fn open_direct(file: &OwnedFd) -> Option<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).ok()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::FileExt;

    use super::source::tests::{folder_in, settled, trusted_folder, trusted_place};
    use super::*;
    use crate::{PageKind, SlotFile};

    fn filled(path: &Path, pages: PageKind, step: usize) -> Result<(Vec<u8>, Version), String> {
        let source = settled(path);
        let mut reading = Reading::begin(&source)?;
        let bytes = source.version.slot_bytes(pages).expect("a size");
        let file = SlotFile::create(bytes, pages).expect("a memfd");
        let mut populating = Populating::begin(&file, bytes, pages).expect("mapped");
        while reading.step(&mut populating, step)? > 0 {}
        assert!(!reading.is_behind());
        drop(populating);
        let mut content = vec![1; bytes as usize];
        File::from(file.into_descriptor()).read_exact_at(&mut content, 0).expect("readable");
        Ok((content, reading.finish()?))
    }

    fn noise(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|index| (index * 7 + index / 251 + 1) as u8 | 1).collect()
    }

    /// Holes at the start, in the middle and at the end, and odd sizes; on a disk and in memory.
    #[test]
    fn every_byte_is_the_files() {
        let places = [trusted_place(), "/dev/shm".into()];
        for place in places.iter().filter(|place| place.is_dir()) {
            let folder = folder_in(place);
            for bytes in [1, 4095, 4096, 4097, (2 << 20) + 1, (4 << 20) + 12_345, 6 << 20] {
                let path = folder.path().join("file");
                let file = File::create(&path).expect("made");
                file.set_len(bytes).expect("a size");
                let data = noise(70_001);
                for at in [0, 100_000, (2 << 20) + 17, bytes.saturating_sub(3)] {
                    let len = data.len().min(bytes.saturating_sub(at) as usize);
                    file.write_all_at(&data[..len], at).expect("written");
                }
                file.sync_all().expect("synced");
                drop(file);
                let expected = fs::read(&path).expect("readable");
                for cached in [true, false] {
                    if !cached {
                        let file = File::open(&path).expect("there");
                        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
                            .expect("advised");
                    }
                    for (pages, step) in [(PageKind::Small, 64 << 10), (PageKind::Thp, 4 << 20)] {
                        let (content, version) = filled(&path, pages, step).expect("read");
                        assert!(content[..expected.len()] == expected, "{bytes}, {cached}");
                        assert!(content[expected.len()..].iter().all(|&byte| byte == 0));
                        assert_eq!(version.bytes(), bytes);
                    }
                }
            }
        }
    }

    #[test]
    fn a_file_that_is_open_for_writing_is_not_read() {
        let folder = trusted_folder();
        let path = folder.path().join("file");
        fs::write(&path, noise(10_000)).expect("written");
        let writer = File::options().write(true).open(&path).expect("ours");
        let why = filled(&path, PageKind::Small, 4096).expect_err("it may change");
        assert!(why.contains("open for writing"), "{why}");
        drop(writer);
        assert!(filled(&path, PageKind::Small, 4096).is_ok());
    }

    #[test]
    fn a_change_on_the_way_is_noticed() {
        let folder = trusted_folder();
        let path = folder.path().join("file");
        let change: [&dyn Fn(); 5] = [
            &|| fs::write(&path, noise(20_001)).expect("written"),
            &|| File::options().write(true).open(&path).expect("ours").set_len(9).expect("cut"),
            &|| {
                let file = File::options().write(true).open(&path).expect("ours");
                file.write_all_at(b"x", 19_999).expect("written");
            },
            &|| {
                fs::write(folder.path().join("new"), noise(20_000)).expect("written");
                fs::rename(folder.path().join("new"), &path).expect("renamed");
            },
            &|| fs::remove_file(&path).expect("ours"),
        ];
        for (index, change) in change.iter().enumerate() {
            fs::write(&path, noise(20_000)).expect("written");
            let before = settled(&path);
            fs::write(&path, noise(20_000)).expect("written");
            let why = Reading::begin(&before).expect_err("another version");
            assert!(why.contains("just changed"), "{why}");
            let mut reading = Reading::begin(&settled(&path)).expect("read");
            let file = SlotFile::create(20_480, PageKind::Small).expect("a memfd");
            let slot = Populating::begin(&file, 20_480, PageKind::Small);
            let mut slot = slot.expect("mapped");
            for _ in 0..3 {
                reading.step(&mut slot, 4096).expect("populated and read");
            }
            change();
            let rest = reading.step(&mut slot, 20_480).and_then(|_| reading.step(&mut slot, 1));
            let why = rest.and_then(|_| reading.finish().map(drop)).expect_err("changed");
            assert_eq!(why.lines().count(), 1, "{index}: {why}");
        }
    }
}
