//! One interface to the kernel's ways of reading and writing.

use std::collections::VecDeque;
use std::ptr::NonNull;

use rustix::io::Errno;

use super::file::FileRef;
use crate::sys::block;
use crate::sys::uring::Uring;
use pumice_frames::addr::FRAME_SIZE;

pub use crate::sys::block::{Direction, Piece};

/// Where a request's bytes are in memory.
#[derive(Clone, Copy, Debug)]
pub enum Bytes {
    /// All in one place.
    Run {
        /// The first.
        at: NonNull<u8>,
        /// How many there are.
        len: usize,
    },
    /// In frames here and there, which lie beside each other in the file.
    Frames {
        /// A list of them, which stays until the request is done.
        pieces: NonNull<Piece>,
        /// How many there are.
        count: usize,
    },
}

impl Bytes {
    /// Of frames that follow one another in the file. `pieces` is for their list, and stays until the request is done.
    /// Where they follow one another in memory too, none is needed, and the kernel has less to do.
    #[doc(hidden)]
    pub fn of_frames(frames: impl Iterator<Item = NonNull<u8>>, pieces: &mut Vec<Piece>) -> Bytes {
        pieces.clear();
        pieces.extend(frames.map(Piece::frame));
        let count = pieces.len();
        let is_next = |two: &[Piece]| two[0].at().wrapping_add(FRAME_SIZE) == two[1].at();
        match pieces.first().and_then(|first| NonNull::new(first.at())) {
            Some(at) if pieces.windows(2).all(is_next) => {
                Bytes::Run { at, len: count * FRAME_SIZE }
            }
            _ => Bytes::Frames { pieces: NonNull::from(&mut pieces[..]).cast(), count },
        }
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        match *self {
            Bytes::Run { len, .. } => len,
            Bytes::Frames { count, .. } => count * FRAME_SIZE,
        }
    }

    /// Whether there are none.
    #[doc(hidden)]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first `len`, of frames whole ones.
    #[doc(hidden)]
    #[must_use]
    #[inline]
    pub fn first(self, len: usize) -> Bytes {
        match self {
            Bytes::Run { at, len: all } => Bytes::Run { at, len: len.min(all) },
            Bytes::Frames { pieces, count } => {
                Bytes::Frames { pieces, count: count.min(len / FRAME_SIZE) }
            }
        }
    }

    /// The rest when `done` went, of frames whole ones.
    #[doc(hidden)]
    #[must_use]
    #[inline]
    pub fn after(self, done: usize) -> Bytes {
        match self {
            Bytes::Run { at, len } => {
                let done = done.min(len);
                let rest = NonNull::new(at.as_ptr().wrapping_add(done));
                Bytes::Run { at: rest.unwrap_or(NonNull::dangling()), len: len - done }
            }
            Bytes::Frames { pieces, count } => {
                let done = (done / FRAME_SIZE).min(count);
                let rest = NonNull::new(pieces.as_ptr().wrapping_add(done));
                Bytes::Frames { pieces: rest.unwrap_or(NonNull::dangling()), count: count - done }
            }
        }
    }
}

/// Bytes to read or write.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The file.
    pub file: FileRef,
    /// Which way they go.
    pub direction: Direction,
    /// Where they are in memory.
    pub bytes: Bytes,
    /// Where they are in the file.
    pub offset: u64,
    /// Says which request it was when it is done.
    pub token: u64,
}

/// A request that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's.
    pub token: u64,
    /// How many bytes went, which may be less than were asked for.
    pub result: Result<usize, Errno>,
}

/// A way of reading and writing files, for one thread at a time.
///
/// # Safety
/// A request's memory is used for something else once the request is done. So:
///
/// - The engine touches the request's bytes and their list only, and writes to the bytes of reads only.
/// - [`Engine::next`] names a request's token once, and only when nothing touches its memory any more. Nothing touches
///   that of a request that [`Engine::submit`] refused.
/// - Dropping the engine waits until nothing touches the memory of those in flight.
/// - Neither [`Engine::submit`] nor dropping the engine unwinds while something may touch a request's memory.
pub unsafe trait Engine {
    /// Requests it takes at a time.
    fn depth(&self) -> usize;

    /// Takes a request; less than [`Engine::depth`] are in flight.
    ///
    /// # Errors
    /// The kernel's error; the request is then not taken.
    ///
    /// # Safety
    /// The file stays open, and the bytes in memory and their list stay, until the request is done or the engine
    /// dropped; those to be read into are the engine's. The bytes may change while they are written: it is then not
    /// known which version went.
    unsafe fn submit(&mut self, request: Request) -> Result<(), Errno>;

    /// Waits until `least` requests are done, or all that are in flight; with 0 it does not wait.
    ///
    /// # Errors
    /// The kernel's error.
    fn wait(&mut self, least: usize) -> Result<(), Errno>;

    /// A request that is done.
    fn next(&mut self) -> Option<Completion>;
}

// SAFETY: as the engine inside.
unsafe impl<E: Engine + ?Sized> Engine for Box<E> {
    fn depth(&self) -> usize {
        (**self).depth()
    }

    unsafe fn submit(&mut self, request: Request) -> Result<(), Errno> {
        // SAFETY: forwarded with the caller's promise.
        unsafe { (**self).submit(request) }
    }

    fn wait(&mut self, least: usize) -> Result<(), Errno> {
        (**self).wait(least)
    }

    fn next(&mut self) -> Option<Completion> {
        (**self).next()
    }
}

/// An engine of any kind.
pub type AnyEngine = Box<dyn Engine + Send>;

/// `pread` and `pwrite`: each request is done when it is taken.
#[derive(Debug, Default)]
pub struct Plain {
    done: VecDeque<Completion>,
}

impl Plain {
    /// With nothing asked of it.
    pub fn new() -> Plain {
        Plain::default()
    }
}

// SAFETY: a request is done before `submit` returns.
unsafe impl Engine for Plain {
    fn depth(&self) -> usize {
        usize::MAX
    }

    unsafe fn submit(&mut self, request: Request) -> Result<(), Errno> {
        let Request { file, direction, bytes, offset, token } = request;
        // SAFETY: the caller keeps it open.
        let file = unsafe { file.borrow() };
        let result = match bytes {
            Bytes::Run { at, len } => {
                // SAFETY: the caller's promise.
                unsafe { block::transfer(direction, file, (at.as_ptr(), len), offset) }
            }
            Bytes::Frames { pieces, count } => {
                // SAFETY: as above.
                unsafe { block::transfer_pieces(direction, file, (pieces.as_ptr(), count), offset) }
            }
        };
        self.done.push_back(Completion { token, result });
        Ok(())
    }

    fn wait(&mut self, _least: usize) -> Result<(), Errno> {
        Ok(())
    }

    fn next(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }
}

/// io_uring: requests are taken together, and done in any order.
#[derive(Debug)]
pub struct Ring {
    /// It waits for its requests in flight when it is dropped.
    ring: Uring,
    depth: usize,
}

impl Ring {
    /// For `depth` requests at a time.
    ///
    /// # Errors
    /// The kernel's error: `ENOSYS` or `EPERM` where io_uring is switched off.
    pub fn new(depth: u32) -> Result<Ring, Errno> {
        Ok(Ring { ring: Uring::new(depth)?, depth: depth.max(1) as usize })
    }
}

// SAFETY: the kernel says which requests are done, and the ring waits for the rest when it is dropped.
unsafe impl Engine for Ring {
    fn depth(&self) -> usize {
        self.depth
    }

    unsafe fn submit(&mut self, request: Request) -> Result<(), Errno> {
        let Request { file, direction, bytes, offset, token } = request;
        let short = |number: usize| u32::try_from(number).map_err(|_| Errno::INVAL);
        let file = file.raw();
        loop {
            let is_taken = match bytes {
                Bytes::Run { at, len } => {
                    let run = (at.as_ptr(), short(len)?);
                    // SAFETY: the caller's promise.
                    unsafe { self.ring.push(direction, file, run, offset, token) }
                }
                Bytes::Frames { pieces, count } => {
                    let pieces = (pieces.as_ptr().cast_const(), short(count)?);
                    // SAFETY: as above.
                    unsafe { self.ring.push_pieces(direction, file, pieces, offset, token) }
                }
            };
            if is_taken {
                return Ok(());
            }
            self.ring.wait(0)?;
        }
    }

    fn wait(&mut self, least: usize) -> Result<(), Errno> {
        self.ring.wait(least)
    }

    fn next(&mut self) -> Option<Completion> {
        let (token, result) = self.ring.pop()?;
        Some(Completion { token, result })
    }
}

/// io_uring where the kernel has it, else plain calls.
pub fn best(depth: u32) -> Box<dyn Engine + Send> {
    match Ring::new(depth) {
        Ok(ring) => Box::new(ring),
        Err(_) => Box::new(Plain::new()),
    }
}
