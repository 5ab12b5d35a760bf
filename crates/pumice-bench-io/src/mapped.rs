//! The kernel's page cache, mapped.

use std::fs::File;
use std::ptr::null_mut;

use pumice_frames::addr::FRAME_SIZE;
use rustix::mm::{madvise, mmap, Advice, MapFlags, ProtFlags};

use super::backend::{change, check, fill, pages_of, Backend, PageAccess};
use super::buffered::{advise, empty, open};
use super::job::{Op, Setup};

/// A file that is mapped for the rest of the process.
#[derive(Debug)]
pub struct Mapped {
    file: File,
    at: usize,
    bytes: usize,
}

impl Mapped {
    pub fn open(setup: &Setup) -> Result<Mapped, String> {
        let (file, bytes) = (open(&setup.file)?, setup.bytes as usize);
        let len = file.metadata().map_err(|error| error.to_string())?.len();
        if len < setup.bytes {
            empty(&file, setup.bytes)?;
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping.
        let at = unsafe { mmap(null_mut(), bytes, access, MapFlags::SHARED, &file, 0) }
            .map_err(|errno| format!("can't map {}: {errno}", setup.file))?;
        Ok(Mapped { file, at: at as usize, bytes })
    }

    fn advise(&self, first: usize, bytes: usize, advice: Advice) -> Result<(), String> {
        // SAFETY: a piece of the mapping, which shares its pages with the file: none of these loses anything.
        unsafe { madvise((self.at + first) as *mut _, bytes, advice) }
            .map_err(|errno| format!("can't advise: {errno}"))
    }
}

impl Backend for Mapped {
    fn prepare(&self, op: Op) -> Result<(), String> {
        if op == Op::Out {
            empty(&self.file, self.bytes as u64)?;
        }
        if op == Op::In {
            // Mapped pages are not dropped.
            self.advise(0, self.bytes, Advice::LinuxDontNeed)?;
        }
        advise(&self.file, op)?;
        let advice = match op {
            Op::Random | Op::RandomAhead => Advice::Random,
            Op::In => Advice::Sequential,
            _ => Advice::Normal,
        };
        self.advise(0, self.bytes, advice)
    }

    fn enter(&self, work: &mut dyn FnMut(&mut dyn PageAccess)) -> Result<(), String> {
        work(&mut &*self);
        Ok(())
    }

    fn sync(&self) -> Result<(), String> {
        self.file.sync_all().map_err(|error| format!("can't sync: {error}"))
    }
}

impl Mapped {
    /// The calling thread uses it for one access at a time; of several threads none writes.
    fn page(&self, page: usize) -> *mut [u8; FRAME_SIZE] {
        debug_assert!((page + 1) * FRAME_SIZE <= self.bytes);
        (self.at + page * FRAME_SIZE) as *mut _
    }
}

impl PageAccess for &Mapped {
    fn fill(&mut self, chunk: usize) -> Result<(), String> {
        for page in pages_of(chunk) {
            // SAFETY: see `page`; only sequences write, and those have one thread.
            fill(page, unsafe { &mut *self.page(page) });
        }
        Ok(())
    }

    fn change(&mut self, chunk: usize) -> Result<(), String> {
        for page in pages_of(chunk) {
            // SAFETY: as above.
            let bytes = unsafe { &mut *self.page(page) };
            check(page, bytes)?;
            change(bytes);
        }
        Ok(())
    }

    fn ask(&mut self, pages: &[usize]) -> Result<(), String> {
        pages
            .iter()
            .try_for_each(|page| self.advise(page * FRAME_SIZE, FRAME_SIZE, Advice::WillNeed))
    }

    fn look_at(&mut self, page: usize) -> Result<(), String> {
        // SAFETY: as above.
        check(page, unsafe { &*self.page(page) })
    }

    fn is_there(&mut self, page: usize) -> Option<bool> {
        let mut resident = 0_u8;
        // SAFETY: a page of the mapping, and a byte for it.
        let asked = unsafe { libc::mincore(self.page(page).cast(), FRAME_SIZE, &mut resident) };
        (asked == 0).then_some(resident & 1 != 0)
    }
}
