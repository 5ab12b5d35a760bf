//! Our page cache, around the kernel's.

use std::path::Path;

use pumice_cache::{Advice, Cache, CacheError, CacheTask, File, Options, Settings, View};
use pumice_frames::addr::FRAME_SIZE;

use super::backend::{change, check, fill, pages_of, Backend, PageAccess};
use super::job::{Op, Setup};
use pumice_command::Failure;

/// A file in a cache of ours.
struct Direct<'c> {
    cache: &'c Cache<'c>,
    file: File,
    bytes: u64,
}

fn explain(error: CacheError) -> String {
    error.to_string()
}

/// Runs `work` with the file, in a cache with so many frames. `Err` says why there is none.
pub fn run(
    setup: &Setup,
    work: impl FnOnce(&dyn Backend) -> Result<(), Failure>,
) -> Result<Result<(), Failure>, String> {
    let with_cache = |cache: &Cache<'_>| {
        let options = Options::new().room(setup.bytes);
        let file = cache.open(Path::new(&setup.file), &options).map_err(explain)?;
        Ok(work(&Direct { cache, file, bytes: setup.bytes }))
    };
    pumice_cache::run(&Settings::new(setup.frames), with_cache).map_err(explain)?
}

impl Direct<'_> {
    fn with_view<R>(
        &self,
        work: impl FnOnce(&View<'_, '_>) -> Result<R, CacheError>,
    ) -> Result<R, String> {
        let task = self.cache.task().map_err(explain)?;
        let view = task.view(&self.file).map_err(explain)?;
        work(&view).map_err(explain)
    }
}

impl Backend for Direct<'_> {
    fn prepare(&self, op: Op) -> Result<(), String> {
        if op == Op::Out {
            // As the others' file is. A file system that does not reserve blocks has the work later.
            self.with_view(|view| {
                view.set_len(0)?;
                view.sync()?;
                view.allocate(self.bytes).or_else(|_| view.set_len(self.bytes))
            })?;
        }
        if op == Op::In {
            self.with_view(|view| {
                view.advise(0..view.pages(), Advice::DontNeed);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn enter(&self, work: &mut dyn FnMut(&mut dyn PageAccess)) -> Result<(), String> {
        let task: CacheTask<'_> = self.cache.task().map_err(explain)?;
        let view = task.view(&self.file).map_err(explain)?;
        work(&mut Ours { view, piece: vec![0; PIECE_PAGES * FRAME_SIZE] });
        Ok(())
    }

    fn sync(&self) -> Result<(), String> {
        self.with_view(|view| view.sync())
    }

    fn pages_in(&self) -> u64 {
        self.cache.counts().read
    }

    fn helpers_cpu_s(&self) -> f64 {
        0.0
    }
}

/// Pages that are written by one call: their bytes stay in the processor's cache.
const PIECE_PAGES: usize = 64;

struct Ours<'t, 'c> {
    view: View<'t, 'c>,
    /// The bytes of pages to be written.
    piece: Vec<u8>,
}

impl PageAccess for Ours<'_, '_> {
    fn fill(&mut self, chunk: usize) -> Result<(), String> {
        let pages: Vec<usize> = pages_of(chunk).collect();
        pages.chunks(PIECE_PAGES).try_for_each(|pages| {
            let bytes = self.piece.chunks_exact_mut(FRAME_SIZE);
            pages.iter().zip(bytes).for_each(|(&page, bytes)| fill(page, bytes));
            let piece = &self.piece[..pages.len() * FRAME_SIZE];
            self.view.write_at((pages[0] * FRAME_SIZE) as u64, piece).map_err(explain)
        })
    }

    fn change(&mut self, chunk: usize) -> Result<(), String> {
        pages_of(chunk).try_for_each(|page| {
            let mut guard = self.view.write(page).map_err(explain)?;
            check(page, &guard[..])?;
            change(&mut guard[..]);
            Ok(())
        })
    }

    fn look(&mut self, chunk: usize) -> Result<(), String> {
        let mut pages = pages_of(chunk);
        while !pages.is_empty() {
            let range = self.view.read_range(pages.clone()).map_err(explain)?;
            range.pages().zip(range.iter()).try_for_each(|(page, bytes)| check(page, bytes))?;
            pages.start = range.pages().end;
        }
        Ok(())
    }

    fn ask(&mut self, pages: &[usize]) -> Result<(), String> {
        // Pages that it does not take now are read when they are wanted.
        self.view.prefetch(pages);
        Ok(())
    }

    fn look_at(&mut self, page: usize) -> Result<(), String> {
        let guard = self.view.read(page).map_err(explain)?;
        check(page, &guard[..FRAME_SIZE])
    }

    fn is_there(&mut self, page: usize) -> Option<bool> {
        Some(self.view.translate(page).is_some())
    }
}
