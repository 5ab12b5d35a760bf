//! An io_uring of one thread's: reads and writes between files and memory.

use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::slice;
use std::time::Duration;

use io_uring::{opcode, squeue, types, IoUring};
use rustix::io::Errno;

use super::block::{Direction, Piece};
use pumice_frames::sys::thread;

/// Dropping a ring looks this often whether the kernel is done.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// See the module's top.
pub struct Uring {
    ring: ManuallyDrop<IoUring>,
    in_flight: usize,
    /// Whether the kernel reads a request's list of pieces when it is handed the request, and not later.
    reads_lists_at_once: bool,
    /// Lists that it may not have read yet, and some that are free.
    lists: Vec<Vec<Piece>>,
    spare: Vec<Vec<Piece>>,
    /// Its descriptor is no ring: somebody has closed it, and its number may be another file's.
    is_lost: bool,
}

impl Uring {
    /// A ring for `depth` requests at a time.
    ///
    /// # Errors
    /// The kernel's error: `ENOSYS` or `EPERM` where io_uring is switched off.
    pub fn new(depth: u32) -> Result<Uring, Errno> {
        // Not `IORING_SETUP_COOP_TASKRUN`, nor `DEFER_TASKRUN`: with these a completion is said only when the thread
        // that asked enters the kernel by itself, and others wait for what it asked for. So it is interrupted for that.
        // One that has no processor for long, stopped by a debugger or over its quota, is not, either way: the kernel
        // says completions in the thread that asked.
        let ring = IoUring::new(depth.max(1)).map_err(|error| errno(&error))?;
        Ok(Uring {
            in_flight: 0,
            reads_lists_at_once: ring.params().is_feature_submit_stable(),
            lists: Vec::new(),
            spare: Vec::new(),
            is_lost: false,
            ring: ManuallyDrop::new(ring),
        })
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

    /// As [`Uring::push`], from or to many places. The kernel is told of pieces that follow one another in memory as
    /// one: it looks up the pages of each by itself.
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
        let mut list = (pieces, count);
        if self.reads_lists_at_once {
            let mut joined = self.spare.pop().unwrap_or_default();
            // SAFETY: the caller's promise.
            Piece::join(unsafe { slice::from_raw_parts(pieces, count as usize) }, &mut joined);
            // It stays where it is until the kernel was handed all requests.
            list = (joined.as_ptr(), joined.len() as u32);
            self.lists.push(joined);
        }
        if self.reads_lists_at_once && list.1 == 1 {
            // SAFETY: there is one. Its memory is the pieces', of which the caller promises the same.
            return unsafe {
                let run = *list.0;
                self.push(direction, file, (run.at(), run.len() as u32), offset, token)
            };
        }
        let (file, (pieces, count)) = (types::Fd(file), list);
        let entry = match direction {
            Direction::Read => {
                opcode::Readv::new(file, pieces.cast(), count).offset(offset).build()
            }
            Direction::Write => {
                opcode::Writev::new(file, pieces.cast(), count).offset(offset).build()
            }
        };
        // SAFETY: the caller's promise, also of the joined list.
        unsafe { self.push_entry(&entry.user_data(token)) }
    }

    /// Where the kernel was handed all requests, it has read their lists.
    fn free_lists(&mut self) {
        if !self.lists.is_empty() && self.ring.submission().is_empty() {
            self.spare.append(&mut self.lists);
        }
    }

    /// # Safety
    /// The memory that the entry refers to stays until it is done.
    unsafe fn push_entry(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the caller's promise.
        let pushed = unsafe { self.ring.submission().push(entry) }.is_ok();
        self.in_flight += usize::from(pushed);
        pushed
    }

    /// Submits the queued requests, and waits until `done` of them are done.
    ///
    /// # Errors
    /// The kernel's error, but for an interruption.
    pub fn wait(&mut self, done: usize) -> Result<(), Errno> {
        loop {
            match self.ring.submit_and_wait(done.min(self.in_flight)).map_err(|error| errno(&error))
            {
                Err(Errno::INTR) => {}
                // Completions are to be taken first.
                Err(Errno::BUSY | Errno::AGAIN) => return Ok(()),
                Err(errno) => {
                    self.is_lost |= matches!(errno, Errno::BADF | Errno::OPNOTSUPP);
                    return Err(errno);
                }
                Ok(_) => {
                    self.free_lists();
                    return Ok(());
                }
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
        // The memory of requests in flight is its owner's again afterwards. The kernel does not touch requests that it
        // was not handed; it goes on with the others, and says so in memory that it shares with the ring. It is not
        // asked: the descriptor may be another ring's by now, on which nothing is ever done.
        while self.pop().is_some() {}
        while self.in_flight > self.ring.submission().len() {
            thread::sleep(LOOK_AGAIN);
            while self.pop().is_some() {}
        }
        if !self.is_lost {
            // SAFETY: nobody uses it any more.
            unsafe { ManuallyDrop::drop(&mut self.ring) }
        }
        // Else it stays for good, some pages: to close it would close a file of somebody's.
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::io::Write;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A thread asks, and then makes no more system calls: it computes, or waits for a lock. Others see what is done.
    #[test]
    fn others_see_what_is_done_while_who_asked_is_busy() {
        for waits in [false, true] {
            let Ok(mut ring) = Uring::new(4) else {
                eprintln!("skipped: no io_uring here");
                return;
            };
            assert!(
                !has_to_be_asked(&ring),
                "completions wait for a system call of the thread that asked"
            );
            let (reader, mut writer) = std::io::pipe().expect("a pipe");
            let mut byte = Box::new(0u8);
            let at = SendPtr(&raw mut *byte);
            let (asked, seen) = (AtomicBool::new(false), AtomicBool::new(false));
            let lock = std::sync::Mutex::new(());
            let held = lock.lock().expect("no panic");
            let shared = std::sync::Mutex::new(&mut ring);
            std::thread::scope(|scope| {
                let (reader, shared, asked, seen, lock) = (&reader, &shared, &asked, &seen, &lock);
                scope.spawn(move || {
                    let SendPtr(at) = { at };
                    let mut ring = shared.lock().expect("no panic");
                    // SAFETY: both stay until it is done.
                    assert!(unsafe {
                        ring.push(Direction::Read, reader.as_raw_fd(), (at, 1), 0, 7)
                    });
                    ring.wait(0).expect("room");
                    drop(ring);
                    asked.store(true, Ordering::Release);
                    if waits {
                        drop(lock.lock());
                    } else {
                        while !seen.load(Ordering::Acquire) {
                            std::hint::spin_loop();
                        }
                    }
                });
                while !asked.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                writer.write_all(&[9]).expect("a reader");
                // Nothing is asked of the kernel for it.
                while shared.lock().expect("no panic").pop().is_none() {
                    std::thread::yield_now();
                }
                seen.store(true, Ordering::Release);
                drop(held);
            });
            assert_eq!(*byte, 9);
        }
    }

    /// Frames here and there, of which some follow one another, are written and read back into others.
    #[test]
    fn frames_that_are_joined_go_where_each_belongs() {
        use pumice_frames::addr::FRAME_SIZE;
        use std::os::fd::AsRawFd;
        use std::ptr::NonNull;
        let Ok(mut ring) = Uring::new(4) else {
            eprintln!("skipped: no io_uring here");
            return;
        };
        let file =
            rustix::fs::memfd_create("joined", rustix::fs::MemfdFlags::CLOEXEC).expect("room");
        let orders: [&[usize]; 5] = [&[0], &[3, 4, 5], &[0, 2, 4], &[7, 1, 2, 3, 6], &[5, 4, 3]];
        for order in orders.into_iter().cycle().take(50) {
            let mut memory: Vec<u8> = (0..8 * FRAME_SIZE).map(|at| (at / 517) as u8).collect();
            let mut other = vec![0; 8 * FRAME_SIZE];
            let mut transfer = |direction, memory: &mut [u8]| {
                let mut at = |nth: &usize| NonNull::from(&mut memory[nth * FRAME_SIZE]);
                let pieces: Vec<Piece> = order.iter().map(|nth| Piece::frame(at(nth))).collect();
                let list = (pieces.as_ptr(), pieces.len() as u32);
                // SAFETY: all of it stays until it is done.
                assert!(unsafe { ring.push_pieces(direction, file.as_raw_fd(), list, 0, 7) });
                ring.wait(1).expect("it is a ring");
                assert_eq!(ring.pop(), Some((7, Ok(order.len() * FRAME_SIZE))));
            };
            transfer(Direction::Write, &mut memory);
            transfer(Direction::Read, &mut other);
            for nth in 0..8 {
                let frame = nth * FRAME_SIZE..(nth + 1) * FRAME_SIZE;
                let is_moved = order.contains(&nth);
                assert_eq!(other[frame.clone()] == memory[frame], is_moved, "{nth} of {order:?}");
            }
        }
        assert!(ring.lists.is_empty() && ring.spare.len() <= 1);
    }

    struct SendPtr(*mut u8);

    // SAFETY: an address of the test's.
    unsafe impl Send for SendPtr {}

    /// Whether a ring was made so that completions wait for a system call of its thread.
    fn has_to_be_asked(ring: &Uring) -> bool {
        const COOP_TASKRUN: u32 = 1 << 8;
        const DEFER_TASKRUN: u32 = 1 << 13;
        let params = ring.ring.params();
        // SAFETY: the parameters that the kernel was given, of which the first three numbers are looked at: the library
        // says the first two, and by them it is seen that these are they.
        let [entries, completions, flags] =
            unsafe { *core::ptr::from_ref(params).cast::<[u32; 3]>() };
        assert_eq!((entries, completions), (params.sq_entries(), params.cq_entries()));
        flags & (COOP_TASKRUN | DEFER_TASKRUN) != 0
    }

    /// A descriptor that somebody else closed, as programs do that close all they find.
    #[test]
    fn nothing_is_in_flight_once_it_is_dropped() {
        let Ok(mut ring) = Uring::new(4) else {
            eprintln!("skipped: no io_uring here");
            return;
        };
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        let mut byte = Box::new(0u8);
        let at = (&raw mut *byte, 1);
        // SAFETY: both stay until the ring is dropped.
        assert!(unsafe { ring.push(Direction::Read, reader.as_raw_fd(), at, 0, 7) });
        ring.wait(0).expect("room");
        let null = std::fs::File::open("/dev/null").expect("there");
        // SAFETY: the ring's descriptor, which stays its own: it is only no ring any more.
        let mut its = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(ring.ring.as_raw_fd()) });
        rustix::io::dup2(&null, &mut its).expect("descriptors");
        assert!(ring.wait(1).is_err());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                writer.write_all(&[9]).expect("a reader");
            });
            drop(ring);
            // SAFETY: read by nobody else any more.
            assert_eq!(unsafe { std::ptr::read_volatile(&raw const *byte) }, 9);
        });
    }
}
