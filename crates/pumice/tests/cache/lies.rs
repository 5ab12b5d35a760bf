//! A device that lies: it flips a bit of what is read, writes half of a page only, writes it in another page's place,
//! or not at all, and says that all went well. docs/cache.md promises for pages with checksums: each of these is an
//! error that names file and page, but for a write that is lost. Its page reads as it was before.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use pumice::cache::{run, CacheError, Options, View};
use pumice::io::engine::Direction;
use pumice::io::{Bytes, Completion, Engine, Engines, Plain, Request};
use rustix::io::Errno;

use super::*;

/// Twice as many as there are frames.
const PAGES: usize = 1024;
const FRAMES: usize = 512;
/// Where pages have their checksums, and what is before.
const CHECKSUM: usize = FRAME - 8;

/// The fate of pages that are lied about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// One bit of what is read is another.
    Flip,
    /// The second half of what is written is lost.
    Tear,
    /// It is written over the page before.
    Stray,
    /// It is not written.
    Lose,
}

/// Whether a page is one of those.
fn is_lied_about(page: usize) -> bool {
    page % 7 == 3
}

/// Plain calls for each page, and lies in between.
struct Liar {
    plain: Plain,
    done: VecDeque<Completion>,
    lie: Arc<Mutex<Option<Lie>>>,
}

impl Liar {
    /// # Safety
    /// As [`Engine::submit`].
    unsafe fn transfer(&mut self, request: Request, at: NonNull<u8>) -> Result<usize, Errno> {
        let page = request.offset as usize / FRAME;
        let lie = self.lie.lock().expect("no panic").filter(|_| is_lied_about(page));
        let mut ask = |len, offset| {
            let bytes = Bytes::Run { at, len };
            // SAFETY: the caller's promise; plain calls are done when they are taken.
            unsafe { self.plain.submit(Request { bytes, offset, ..request }) }?;
            self.plain.next().map_or(Err(Errno::IO), |done| done.result)
        };
        match (lie, request.direction) {
            (Some(Lie::Flip), Direction::Read) => ask(FRAME, request.offset).inspect(|_| {
                // SAFETY: it was read there.
                unsafe { *at.as_ptr().add(page) ^= 1 << (page % 8) };
            }),
            (Some(Lie::Tear), Direction::Write) => ask(FRAME / 2, request.offset).map(|_| FRAME),
            (Some(Lie::Stray), Direction::Write) => ask(FRAME, request.offset - FRAME as u64),
            (Some(Lie::Lose), Direction::Write) => Ok(FRAME),
            _ => ask(FRAME, request.offset),
        }
    }
}

// SAFETY: as plain calls. It lies about contents only, and writes within the bytes of reads.
unsafe impl Engine for Liar {
    fn depth(&self) -> usize {
        self.plain.depth()
    }

    unsafe fn submit(&mut self, request: Request) -> Result<(), Errno> {
        let mut went = Ok(0);
        let (mut rest, mut offset) = (request.bytes, request.offset);
        while let (Ok(sum), false) = (went, rest.is_empty()) {
            let at = match rest {
                Bytes::Run { at, .. } => Some(at),
                // SAFETY: a list of one piece at least.
                Bytes::Frames { pieces, .. } => NonNull::new(unsafe { pieces.as_ref() }.at()),
            };
            let page = Request { offset, ..request };
            // SAFETY: the caller's promise.
            went = unsafe { self.transfer(page, at.expect("a frame")) }.map(|len| sum + len);
            (rest, offset) = (rest.after(FRAME), offset + FRAME as u64);
        }
        self.done.push_back(Completion { token: request.token, result: went });
        Ok(())
    }

    fn wait(&mut self, _: usize) -> Result<(), Errno> {
        Ok(())
    }

    fn next(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }
}

/// A page as it is after a step, but for its checksum.
fn content(page: usize, step: u64) -> [u8; FRAME] {
    let mut bytes = [0; FRAME];
    fill(&mut bytes, step * PAGES as u64 + page as u64 + 1);
    bytes
}

fn is_of(found: &[u8; FRAME], page: usize, step: u64) -> bool {
    found[..CHECKSUM] == content(page, step)[..CHECKSUM]
}

fn with_view<R>(
    path: &std::path::Path,
    lie: Option<Lie>,
    work: impl FnOnce(&View<'_, '_>) -> R,
) -> R {
    let lie = Arc::new(Mutex::new(lie));
    let mut settings = settings(FRAMES);
    settings.engines = Engines::new(move |_| {
        let (plain, done, lie) = (Plain::new(), VecDeque::new(), lie.clone());
        Box::new(Liar { plain, done, lie })
    });
    run(&settings, |cache| {
        let file =
            cache.open(path, &Options::new().buffered().checksums(CHECKSUM)).expect("a file");
        let task = cache.task().expect("a task");
        let view = task.view(&file).expect("a view");
        work(&view)
    })
    .expect("a cache")
}

fn write_all(view: &View<'_, '_>, step: u64) {
    for page in 0..PAGES {
        let bytes = content(page, step);
        match page % 2 {
            0 => view.write_at((page * FRAME) as u64, &bytes).expect("room"),
            _ => view.write_or_grow(page).expect("room").copy_from_slice(&bytes),
        }
    }
    view.sync().expect("it says so");
}

#[test]
fn pages_with_checksums_are_right_or_errors() {
    for lie in [Lie::Flip, Lie::Tear, Lie::Stray, Lie::Lose] {
        let scratch = Scratch::new("lies");
        let path: &std::path::Path = &scratch.0;
        let is_in_reading = lie == Lie::Flip;
        with_view(path, None, |view| write_all(view, 1));
        with_view(path, Some(lie).filter(|_| !is_in_reading), |view| write_all(view, 2));
        let mut errors = 0;
        with_view(path, Some(lie).filter(|_| is_in_reading), |view| {
            let batch: Vec<_> = (0..PAGES / 4).collect();
            view.prefetch(&batch);
            for page in 0..PAGES {
                match view.read(page) {
                    Ok(found) => {
                        let is_old = is_of(&found, page, 1);
                        let may_be_old =
                            matches!(lie, Lie::Stray | Lie::Lose) && is_lied_about(page);
                        assert!(is_of(&found, page, 2) || is_old && may_be_old, "{lie:?}: {page}");
                        assert!(!is_lied_about(page) || may_be_old, "{lie:?}: page {page}");
                    }
                    Err(CacheError::Checksum { path: file, page: named }) => {
                        assert_eq!((&*file, named), (path, page));
                        let may_be = match lie {
                            Lie::Stray => is_lied_about(page + 1),
                            _ => is_lied_about(page),
                        };
                        assert!(may_be, "{lie:?}: page {page}");
                        errors += 1;
                    }
                    Err(error) => panic!("{lie:?}: page {page}: {error}"),
                }
            }
            // The program knows its content, and writes it whole.
            let bad = (0..PAGES).find(|&page| view.read(page).is_err());
            if let Some(page) = bad {
                view.overwrite(page, &content(page, 3)).expect("room");
                assert!(is_of(&view.read(page).expect("whole"), page, 3));
            }
        });
        assert_eq!(errors > 0, lie != Lie::Lose, "{lie:?}");
        eprintln!("{lie:?}: {errors} errors");
    }
}

/// Limits of a file with checksums.
#[test]
fn a_file_with_checksums_is_whole_pages_and_opened_so() {
    let scratch = Scratch::new("sums");
    let path = &scratch.0;
    run(&settings(FRAMES), |cache| {
        let refused = |options: Options| cache.open(path, &options).map(drop).expect_err("refused");
        for at in [4, FRAME, usize::MAX] {
            let error = refused(Options::new().checksums(at));
            assert!(matches!(error, CacheError::Open { errno: Errno::INVAL, .. }), "{error}");
        }
        let file = cache.open(path, &Options::new().checksums(16)).expect("a file");
        for options in [Options::new(), Options::new().checksums(24)] {
            assert!(matches!(refused(options), CacheError::OpenOtherwise { .. }));
        }
        let task = cache.task().expect("a task");
        let view = task.view(&file).expect("a view");
        view.set_len(4096 * 3).expect("room");
        for error in [
            view.set_len(5000).expect_err("part of a page"),
            view.write_at(4096 * 4, b"x").expect_err("part of a page"),
            view.allocate(1).expect_err("part of a page"),
        ] {
            assert!(matches!(error, CacheError::PartOfPage { .. }), "{error}");
        }
        view.write_at(4096 * 2 + 10, b"some bytes").expect("room");
        assert_eq!(view.pages(), 3);
        drop(view);
        task.close(file).expect("a disk");
        // Somebody else makes it longer.
        let other = std::fs::OpenOptions::new().append(true).open(path).expect("ours");
        other.set_len(4096 * 3 + 1).expect("room");
        let error = refused(Options::new().checksums(16));
        assert!(matches!(error, CacheError::PartOfPage { len: 12289, .. }), "{error}");
        let file = cache.open(path, &Options::new()).expect("a file");
        task.close(file).expect("a disk");
        other.set_len(4096 * 3).expect("room");
        // Pages whose sums are elsewhere are wrong, but for zeros.
        let file = cache.open(path, &Options::new().checksums(32)).expect("a file");
        let view = task.view(&file).expect("a view");
        assert!(view.read(1).is_ok() && view.read(0).is_ok());
        assert!(matches!(view.read(2), Err(CacheError::Checksum { page: 2, .. })));
        assert!(matches!(view.write(2).map(drop), Err(CacheError::Checksum { page: 2, .. })));
        assert!(matches!(view.read_optimistic(2, |_| ()), Err(CacheError::Checksum { .. })));
    })
    .expect("a cache");
}
