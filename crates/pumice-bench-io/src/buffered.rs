//! The kernel's page cache, by `read` and `write`.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use pumice_frames::addr::FRAME_SIZE;
use rustix::fs::{fadvise, fallocate, Advice, FallocateFlags};

use super::backend::{change, check, fill, Backend, PageAccess, CHUNK_PAGES};
use super::job::{Op, Setup, CHUNK};

/// A file of the kernel's.
#[derive(Debug)]
pub struct Buffered {
    file: File,
    bytes: u64,
}

impl Buffered {
    pub fn open(setup: &Setup) -> Result<Buffered, String> {
        let file = open(&setup.file)?;
        Ok(Buffered { file, bytes: setup.bytes })
    }

    fn way(&self) -> Plain<'_> {
        Plain { file: &self.file, buffer: vec![0; CHUNK] }
    }
}

/// A file that may not be there yet.
pub fn open(path: &str) -> Result<File, String> {
    let mut options = OpenOptions::new();
    let opened = options.read(true).write(true).create(true).truncate(false).open(path);
    opened.map_err(|error| format!("can't open {path}: {error}"))
}

/// Empties a file and reserves its blocks, so that no way has to look for them while it is measured.
pub fn empty(file: &File, bytes: u64) -> Result<(), String> {
    let emptied = file.set_len(0).and_then(|()| file.sync_all());
    emptied.map_err(|error| format!("can't empty a file: {error}"))?;
    // A file system without it has the work later.
    let _ = fallocate(file, FallocateFlags::empty(), 0, bytes);
    file.set_len(bytes).map_err(|error| format!("no room for {bytes} bytes: {error}"))
}

/// Advises the kernel as an operation wants it; has it drop what it has of the file before that is read in order.
pub fn advise(file: &File, op: Op) -> Result<(), String> {
    let failed = |error| format!("can't advise: {error}");
    if op == Op::In {
        fadvise(file, 0, None, Advice::DontNeed).map_err(failed)?;
    }
    let advice = match op {
        Op::Random | Op::RandomAhead => Advice::Random,
        Op::In => Advice::Sequential,
        _ => Advice::Normal,
    };
    fadvise(file, 0, None, advice).map_err(failed)
}

impl Backend for Buffered {
    fn prepare(&self, op: Op) -> Result<(), String> {
        if op == Op::Out {
            empty(&self.file, self.bytes)?;
        }
        advise(&self.file, op)
    }

    fn enter(&self, work: &mut dyn FnMut(&mut dyn PageAccess)) -> Result<(), String> {
        work(&mut self.way());
        Ok(())
    }

    fn sync(&self) -> Result<(), String> {
        self.file.sync_all().map_err(|error| format!("can't sync: {error}"))
    }
}

struct Plain<'f> {
    file: &'f File,
    buffer: Vec<u8>,
}

impl Plain<'_> {
    fn read(&mut self, page: usize, bytes: usize) -> Result<(), String> {
        let offset = (page * FRAME_SIZE) as u64;
        let read = self.file.read_exact_at(&mut self.buffer[..bytes], offset);
        read.map_err(|error| format!("can't read: {error}"))
    }

    fn write(&mut self, page: usize) -> Result<(), String> {
        let written = self.file.write_all_at(&self.buffer, (page * FRAME_SIZE) as u64);
        written.map_err(|error| format!("can't write: {error}"))
    }
}

impl PageAccess for Plain<'_> {
    fn fill(&mut self, chunk: usize) -> Result<(), String> {
        let first = chunk * CHUNK_PAGES;
        for (index, bytes) in self.buffer.chunks_exact_mut(FRAME_SIZE).enumerate() {
            fill(first + index, bytes);
        }
        self.write(first)
    }

    fn change(&mut self, chunk: usize) -> Result<(), String> {
        self.look(chunk)?;
        self.buffer.chunks_exact_mut(FRAME_SIZE).for_each(change);
        self.write(chunk * CHUNK_PAGES)
    }

    fn look(&mut self, chunk: usize) -> Result<(), String> {
        let first = chunk * CHUNK_PAGES;
        self.read(first, CHUNK)?;
        let mut pages = self.buffer.chunks_exact(FRAME_SIZE).enumerate();
        pages.try_for_each(|(index, bytes)| check(first + index, bytes))
    }

    fn ask(&mut self, pages: &[usize]) -> Result<(), String> {
        pages.iter().try_for_each(|page| {
            let length = std::num::NonZeroU64::new(FRAME_SIZE as u64);
            fadvise(self.file, (page * FRAME_SIZE) as u64, length, Advice::WillNeed)
                .map_err(|error| format!("can't advise: {error}"))
        })
    }

    fn look_at(&mut self, page: usize) -> Result<(), String> {
        self.read(page, FRAME_SIZE)?;
        check(page, &self.buffer)
    }

    fn is_there(&mut self, _: usize) -> Option<bool> {
        None
    }
}
