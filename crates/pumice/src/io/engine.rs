//! One face over the ways that the kernel has of reading and writing.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;

use super::file::BlockFile;
use crate::sys::block;
use crate::sys::uring::Uring;

pub use crate::sys::block::Direction;

/// Bytes to read or write.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Which way they go.
    pub direction: Direction,
    /// Where they are in memory.
    pub at: NonNull<u8>,
    /// How many there are.
    pub len: usize,
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

/// A way of reading and writing one file, for one thread at a time.
pub trait Engine {
    /// Requests it takes at a time.
    fn depth(&self) -> usize;

    /// Takes a request; less than [`Engine::depth`] are in flight.
    ///
    /// # Errors
    /// What the kernel says; the request is then not taken.
    ///
    /// # Safety
    /// The bytes in memory stay there, and are the engine's (of a write: are written by nobody), until the request
    /// is done or the engine dropped.
    unsafe fn submit(&mut self, request: Request) -> Result<(), Errno>;

    /// Waits until `least` requests are done, or all that are in flight; with 0 it does not wait.
    ///
    /// # Errors
    /// What the kernel says.
    fn wait(&mut self, least: usize) -> Result<(), Errno>;

    /// A request that is done.
    fn next(&mut self) -> Option<Completion>;
}

impl<E: Engine + ?Sized> Engine for Box<E> {
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

/// `pread` and `pwrite`: each request is done when it is taken.
#[derive(Debug)]
pub struct Plain {
    file: Arc<BlockFile>,
    done: VecDeque<Completion>,
}

impl Plain {
    /// For a file.
    pub fn new(file: Arc<BlockFile>) -> Plain {
        Plain { file, done: VecDeque::new() }
    }
}

impl Engine for Plain {
    fn depth(&self) -> usize {
        usize::MAX
    }

    unsafe fn submit(&mut self, request: Request) -> Result<(), Errno> {
        let Request { direction, at, len, offset, token } = request;
        let file = self.file.fd();
        let result = match direction {
            // SAFETY: the bytes are this engine's.
            Direction::Read => unsafe { block::read_at(file, at.as_ptr(), len, offset) },
            // SAFETY: as above.
            Direction::Write => unsafe { block::write_at(file, at.as_ptr(), len, offset) },
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
    // Before the file: it waits for what is in flight when it is dropped.
    ring: Uring,
    file: Arc<BlockFile>,
    depth: usize,
}

impl Ring {
    /// For a file, with `depth` requests at a time.
    ///
    /// # Errors
    /// What the kernel says: `ENOSYS` or `EPERM` where io_uring is switched off.
    pub fn new(file: Arc<BlockFile>, depth: u32) -> Result<Ring, Errno> {
        Ok(Ring { ring: Uring::new(depth)?, file, depth: depth.max(1) as usize })
    }
}

impl Engine for Ring {
    fn depth(&self) -> usize {
        self.depth
    }

    unsafe fn submit(&mut self, request: Request) -> Result<(), Errno> {
        let Request { direction, at, len, offset, token } = request;
        let len = u32::try_from(len).map_err(|_| Errno::INVAL)?;
        let memory = (at.as_ptr(), len);
        // SAFETY: the caller's promise, and the file is kept.
        while !unsafe { self.ring.push(direction, self.file.raw(), memory, offset, token) } {
            self.ring.wait(0)?;
        }
        Ok(())
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
pub fn best(file: Arc<BlockFile>, depth: u32) -> Box<dyn Engine + Send> {
    match Ring::new(file.clone(), depth) {
        Ok(ring) => Box::new(ring),
        Err(_) => Box::new(Plain::new(file)),
    }
}
