//! An io_uring of one thread's: reads and writes between files and memory.

use std::os::fd::RawFd;

use io_uring::{opcode, squeue, types, IoUring};
use rustix::io::Errno;

use super::block::{Direction, Piece};

/// See the module's top.
pub struct Uring {
    ring: IoUring,
    in_flight: usize,
}

impl Uring {
    /// A ring for `depth` requests at a time.
    ///
    /// # Errors
    /// What the kernel says: `ENOSYS` or `EPERM` where it is switched off.
    pub fn new(depth: u32) -> Result<Uring, Errno> {
        // What is done is looked at when it is asked for, so nobody need be interrupted for it. Kernels before 5.19
        // don't know that.
        let ring = IoUring::builder().setup_coop_taskrun().build(depth.max(1));
        let ring = ring.or_else(|_| IoUring::new(depth.max(1))).map_err(|error| errno(&error))?;
        Ok(Uring { ring, in_flight: 0 })
    }

    /// Requests that are not done.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Queues a request, if there is room; [`Uring::wait`] hands it to the kernel.
    ///
    /// # Safety
    /// The `len` bytes at `at` stay (to be read into, nobody else's), and the file stays open, until the request is
    /// done.
    pub unsafe fn push(
        &mut self,
        direction: Direction,
        file: RawFd,
        (at, len): (*mut u8, u32),
        offset: u64,
        token: u64,
    ) -> bool {
        let file = types::Fd(file);
        let entry = match direction {
            Direction::Read => opcode::Read::new(file, at, len).offset(offset).build(),
            Direction::Write => opcode::Write::new(file, at, len).offset(offset).build(),
        };
        // SAFETY: the caller's promise.
        unsafe { self.push_entry(&entry.user_data(token)) }
    }

    /// As [`Uring::push`], from or to many places.
    ///
    /// # Safety
    /// As there, of each piece; and the `count` pieces stay.
    pub unsafe fn push_pieces(
        &mut self,
        direction: Direction,
        file: RawFd,
        (pieces, count): (*const Piece, u32),
        offset: u64,
        token: u64,
    ) -> bool {
        let file = types::Fd(file);
        let entry = match direction {
            Direction::Read => {
                opcode::Readv::new(file, pieces.cast(), count).offset(offset).build()
            }
            Direction::Write => {
                opcode::Writev::new(file, pieces.cast(), count).offset(offset).build()
            }
        };
        // SAFETY: the caller's promise.
        unsafe { self.push_entry(&entry.user_data(token)) }
    }

    /// # Safety
    /// What the entry refers to stays until it is done.
    unsafe fn push_entry(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the caller's promise.
        let pushed = unsafe { self.ring.submission().push(entry) }.is_ok();
        self.in_flight += usize::from(pushed);
        pushed
    }

    /// Hands over what is queued, and waits until `done` requests are done.
    ///
    /// # Errors
    /// What the kernel says, but for an interruption.
    pub fn wait(&mut self, done: usize) -> Result<(), Errno> {
        loop {
            match self.ring.submit_and_wait(done.min(self.in_flight)).map_err(|error| errno(&error))
            {
                Err(Errno::INTR) => {}
                // Completions are to be taken first.
                Err(Errno::BUSY | Errno::AGAIN) => return Ok(()),
                result => return result.map(|_| ()),
            }
        }
    }

    /// A request that is done: its token, and the bytes that went.
    pub fn pop(&mut self) -> Option<(u64, Result<usize, Errno>)> {
        let entry = self.ring.completion().next()?;
        self.in_flight -= 1;
        let result = match entry.result() {
            bytes @ 0.. => Ok(bytes as usize),
            errno => Err(Errno::from_raw_os_error(-errno)),
        };
        Some((entry.user_data(), result))
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // The memory of what is in flight is its owner's again afterwards.
        while self.in_flight > 0 {
            if self.wait(1).is_err() {
                break;
            }
            while self.pop().is_some() {}
        }
    }
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
