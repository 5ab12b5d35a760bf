//! Requests that are done when all of their bytes went.
//!
//! An engine may do less than it was asked for, be interrupted, or do nothing; a queue asks again for the rest.
//! Requests past the end of the file fail. So users of a queue are told of whole requests only.
//!
//! An engine that can't be asked at all (a ring whose descriptor somebody closed, a program that was forbidden its
//! call) is asked again some times, and then given up: the queue is of no more use but to be dropped, by which who
//! used it knows that the kernel is done with what it had asked for. [`Queues::replace`](super::Queues::replace) has
//! another in its place.

use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::engine::{Completion, Engine, Request};
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::thread;

/// Times a request is asked for again without a byte having gone.
const MOST_RETRIES: u32 = 16;
/// Times an engine can't be asked since something was last done, after which it is given up.
const MOST_UNANSWERED: u32 = 16;
/// How long who waits does so before the engine is asked again: what it has may be done meanwhile.
const ASK_AGAIN: Duration = Duration::from_millis(1);

/// See the module's top.
#[derive(Debug)]
pub struct Queue<E> {
    engine: E,
    /// A request's place is the token that the engine knows.
    pending: Vec<Option<Pending>>,
    vacant: Vec<usize>,
    /// Times that the engine could not be asked since something was last done, and when that was last found out. Those
    /// that come faster than who waits asks count once.
    unanswered: u32,
    failed_at: Option<Instant>,
    has_answered: bool,
}

/// A request, and how far it is.
#[derive(Debug)]
struct Pending {
    request: Request,
    done: usize,
    retries: u32,
}

// SAFETY: the memory of what is pending is the queue's.
unsafe impl<E: Send> Send for Queue<E> {}

impl<E: Engine> Queue<E> {
    /// With an engine that nothing was asked of, for `depth` requests at a time, or fewer if the engine takes fewer.
    pub fn new(engine: E, depth: usize) -> Queue<E> {
        let depth = depth.clamp(1, engine.depth().max(1));
        Queue {
            engine,
            pending: (0..depth).map(|_| None).collect(),
            vacant: (0..depth).collect(),
            unanswered: 0,
            failed_at: None,
            has_answered: false,
        }
    }

    /// Requests that can be submitted before one must be done.
    pub fn room(&self) -> usize {
        self.vacant.len()
    }

    /// Requests that are not done.
    pub fn in_flight(&self) -> usize {
        self.pending.len() - self.vacant.len()
    }

    /// Whether anything that was asked of it was ever done.
    pub fn has_answered(&self) -> bool {
        self.has_answered
    }

    /// Asks for a request; there must be [`Queue::room`].
    ///
    /// # Errors
    /// `EBUSY` without room, or what the engine says.
    ///
    /// # Safety
    /// As [`Engine::submit`], until the request is said to be done or the queue dropped.
    pub unsafe fn submit(&mut self, request: Request) -> Result<(), Errno> {
        let place = self.vacant.pop().ok_or(Errno::BUSY)?;
        let asked = Request { token: place as u64, ..request };
        // SAFETY: the caller's promise.
        if let Err(errno) = unsafe { self.engine.submit(asked) } {
            self.vacant.push(place);
            return Err(errno);
        }
        self.pending[place] = Some(Pending { request, done: 0, retries: 0 });
        Ok(())
    }

    /// Waits until one request is done, if any is in flight, and says of all that are how they went, by their tokens.
    ///
    /// # Errors
    /// The engine's error where it can't be asked any more. Requests are then still in flight, and what they refer to
    /// is theirs until the queue is dropped, for which there is no other use.
    pub fn reap(&mut self, mut done: impl FnMut(u64, Result<(), Errno>)) -> Result<(), Errno> {
        let mut any = self.in_flight() == 0;
        loop {
            any |= self.take_done(&mut done);
            if any {
                // The rest, which has to be asked for again, is handed over.
                return if self.in_flight() > 0 { self.ask(0).map(drop) } else { Ok(()) };
            }
            if !self.ask(1)? {
                thread::sleep(ASK_AGAIN);
            }
        }
    }

    /// Hands over what was asked for, waits for nothing, and says of all that are done how they went.
    ///
    /// # Errors
    /// As [`Queue::reap`].
    pub fn poll(&mut self, mut done: impl FnMut(u64, Result<(), Errno>)) -> Result<(), Errno> {
        if self.in_flight() == 0 {
            return Ok(());
        }
        let asked = self.ask(0);
        self.take_done(&mut done);
        if self.unanswered == 0 {
            return Ok(());
        }
        asked.map(drop)
    }

    /// Waits until all are done.
    ///
    /// # Errors
    /// As [`Queue::reap`].
    pub fn drain(&mut self, mut done: impl FnMut(u64, Result<(), Errno>)) -> Result<(), Errno> {
        while self.in_flight() > 0 {
            self.reap(&mut done)?;
        }
        Ok(())
    }

    /// Hands over what was asked for, and waits until `least` are done: whether the engine could be asked.
    ///
    /// # Errors
    /// The engine's error, where it could not be asked so often that it is given up.
    fn ask(&mut self, least: usize) -> Result<bool, Errno> {
        let Err(errno) = self.engine.wait(least) else { return Ok(true) };
        if self.failed_at.is_none_or(|then| then.elapsed() >= ASK_AGAIN) {
            self.unanswered += 1;
            self.failed_at = Some(Instant::now());
        }
        if self.unanswered < MOST_UNANSWERED {
            Ok(false)
        } else {
            Err(errno)
        }
    }

    /// Says of all requests that are done how they went; whether there were any.
    fn take_done(&mut self, mut done: impl FnMut(u64, Result<(), Errno>)) -> bool {
        let mut any = false;
        while let Some(completion) = self.engine.next() {
            (self.unanswered, self.has_answered) = (0, true);
            if let Some((token, result)) = self.completed(completion) {
                any = true;
                done(token, result);
            }
        }
        any
    }

    fn completed(&mut self, completion: Completion) -> Option<(u64, Result<(), Errno>)> {
        let place = completion.token as usize;
        let pending = self.pending.get_mut(place)?.as_mut()?;
        let Pending { request, done, retries } = pending;
        let result = match completion.result {
            Ok(bytes) if *done + bytes >= request.bytes.len() => Some(Ok(())),
            // The end of the file, or a device that takes no more.
            Ok(0) => Some(Err(Errno::IO)),
            Ok(bytes) => {
                // Direct I/O goes on at a boundary.
                let whole = (*done + bytes) / FRAME_SIZE * FRAME_SIZE;
                *retries = if whole > *done { 0 } else { *retries + 1 };
                *done = whole;
                None
            }
            Err(Errno::INTR | Errno::AGAIN) => {
                *retries += 1;
                None
            }
            Err(errno) => Some(Err(errno)),
        };
        let result = match result {
            Some(result) => Some(result),
            None if *retries > MOST_RETRIES => Some(Err(Errno::IO)),
            None => {
                let rest = Request {
                    bytes: request.bytes.after(*done),
                    offset: request.offset + *done as u64,
                    token: place as u64,
                    ..*request
                };
                // SAFETY: the bytes are the queue's until the request is done.
                unsafe { self.engine.submit(rest) }.err().map(Err)
            }
        }?;
        let token = request.token;
        self.pending[place] = None;
        self.vacant.push(place);
        Some((token, result))
    }
}
