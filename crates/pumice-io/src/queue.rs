//! Requests that are done when all of their bytes went.
//!
//! An engine may do less than it was asked for, be interrupted, or do nothing; a queue asks again for the rest.
//! Requests past the end of the file fail. So users of a queue are told of whole requests only.
//!
//! A queue has the payload of each request, such as lists that the request refers to, and gives it back when the
//! request is done. Its user needs no table of what is in flight.
//!
//! An engine that can't be asked at all (a ring whose descriptor somebody closed, a program that was forbidden its
//! call) is asked again some times, and then given up. Drop the queue: that proves the kernel is done with its
//! requests. [`Queues::replace`](super::Queues::replace) has another in its place.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::engine::{Completion, Engine, Request};
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::thread;

/// Times a request is asked for again without a byte having gone.
const MOST_RETRIES: u32 = 16;
/// Times an engine can't be asked since something was last done, after which it is given up.
const MOST_UNANSWERED: u32 = 16;
/// How long a thread waits before it asks the engine again: requests may be done meanwhile.
const ASK_AGAIN: Duration = Duration::from_millis(1);

/// See the module's top.
#[derive(Debug)]
pub struct Queue<E, P = ()> {
    /// Before the memory of its requests: it waits for them when it is dropped.
    engine: E,
    /// A request's place is the token that the engine knows.
    pending: Vec<Option<Pending<P>>>,
    vacant: Vec<usize>,
    /// Requests that are done, in this order, and that nobody has taken.
    done: VecDeque<(P, Result<(), Errno>)>,
    /// Times that the engine could not be asked since something was last done, and when that was last found out.
    /// Failures closer together than one wait ([`ASK_AGAIN`]) count once.
    unanswered: u32,
    failed_at: Option<Instant>,
    has_answered: bool,
}

/// A request, and how far it is.
#[derive(Debug)]
struct Pending<P> {
    payload: P,
    request: Request,
    done: usize,
    retries: u32,
}

// SAFETY: the memory of what is pending is the queue's.
unsafe impl<E: Send, P: Send> Send for Queue<E, P> {}

impl<E: Engine, P> Queue<E, P> {
    /// With an engine that nothing was asked of, for `depth` requests at a time, or fewer if the engine takes fewer.
    pub fn new(engine: E, depth: usize) -> Queue<E, P> {
        let depth = depth.clamp(1, engine.depth().max(1));
        Queue {
            engine,
            pending: (0..depth).map(|_| None).collect(),
            vacant: (0..depth).collect(),
            done: VecDeque::with_capacity(depth),
            unanswered: 0,
            failed_at: None,
            has_answered: false,
        }
    }

    /// Requests that can be submitted before one must be done.
    pub fn room(&self) -> usize {
        self.vacant.len()
    }

    /// Requests that were not taken by [`Queue::pop`].
    pub fn in_flight(&self) -> usize {
        self.pending.len() - self.vacant.len() + self.done.len()
    }

    /// The payloads of requests that are not done.
    #[doc(hidden)]
    pub fn payloads(&self) -> impl Iterator<Item = &P> {
        self.pending.iter().flatten().map(|pending| &pending.payload)
    }

    /// As [`Queue::payloads`], to change them.
    ///
    /// # Safety
    /// The promise that was given to [`Queue::submit`] is kept: the lists that requests refer to are left alone.
    #[doc(hidden)]
    pub unsafe fn payloads_mut(&mut self) -> impl Iterator<Item = &mut P> {
        self.pending.iter_mut().flatten().map(|pending| &mut pending.payload)
    }

    /// Whether anything that was asked of it was ever done.
    pub fn has_answered(&self) -> bool {
        self.has_answered
    }

    /// Asks for a request, whose token is not looked at; there must be [`Queue::room`].
    ///
    /// # Errors
    /// `EBUSY` without room, or what the engine says, and the payload.
    ///
    /// # Safety
    /// As [`Engine::submit`], until the request is said to be done or the queue dropped. The payload is kept as long.
    pub unsafe fn submit(&mut self, request: Request, payload: P) -> Result<(), (Errno, P)> {
        let Some(place) = self.vacant.pop() else { return Err((Errno::BUSY, payload)) };
        let asked = Request { token: place as u64, ..request };
        // SAFETY: the caller's promise.
        if let Err(errno) = unsafe { self.engine.submit(asked) } {
            self.vacant.push(place);
            return Err((errno, payload));
        }
        self.pending[place] = Some(Pending { payload, request, done: 0, retries: 0 });
        Ok(())
    }

    /// Waits until one request is done, if any is in flight: [`Queue::pop`] says how it went.
    ///
    /// # Errors
    /// The engine's error where it can't be asked any more. Requests are then still in flight, and own all that they
    /// refer to until the queue is dropped. There is no other use for it.
    pub fn reap(&mut self) -> Result<(), Errno> {
        loop {
            self.note_done();
            if self.is_idle() {
                return Ok(());
            } else if !self.done.is_empty() {
                // The rest, which has to be asked for again, is handed over.
                return self.ask(0).map(drop);
            }
            if !self.ask(1)? {
                thread::sleep(ASK_AGAIN);
            }
        }
    }

    /// Submits the requests, and waits for nothing: [`Queue::pop`] says how requests went that are done.
    ///
    /// # Errors
    /// As [`Queue::reap`].
    pub fn poll(&mut self) -> Result<(), Errno> {
        if self.is_idle() {
            return Ok(());
        }
        let asked = self.ask(0);
        self.note_done();
        if self.unanswered == 0 {
            return Ok(());
        }
        asked.map(drop)
    }

    /// A request that is done: its payload, and how it went.
    pub fn pop(&mut self) -> Option<(P, Result<(), Errno>)> {
        self.done.pop_front()
    }

    /// Waits until all are done, and says how they went.
    ///
    /// # Errors
    /// As [`Queue::reap`].
    pub fn drain(&mut self, mut done: impl FnMut(P, Result<(), Errno>)) -> Result<(), Errno> {
        while self.in_flight() > 0 {
            let reaped = self.reap();
            self.done.drain(..).for_each(|(payload, result)| done(payload, result));
            reaped?;
        }
        Ok(())
    }

    /// With another queue's completed requests that nobody has taken.
    pub(super) fn with_done(self, done: VecDeque<(P, Result<(), Errno>)>) -> Queue<E, P> {
        Queue { done, ..self }
    }

    /// Drops the engine: the kernel has finished its requests, and they have failed.
    pub(super) fn end(self, errno: Errno) -> VecDeque<(P, Result<(), Errno>)> {
        let Queue { engine, pending, mut done, .. } = self;
        drop(engine);
        done.extend(pending.into_iter().flatten().map(|pending| (pending.payload, Err(errno))));
        done
    }

    /// Whether the engine has nothing to do.
    fn is_idle(&self) -> bool {
        self.vacant.len() == self.pending.len()
    }

    /// Submits the requests, and waits until `least` are done. Returns whether the engine could be asked.
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

    fn note_done(&mut self) {
        while let Some(completion) = self.engine.next() {
            (self.unanswered, self.has_answered) = (0, true);
            let done = self.completed(completion);
            self.done.extend(done);
        }
    }

    fn completed(&mut self, completion: Completion) -> Option<(P, Result<(), Errno>)> {
        let place = completion.token as usize;
        let pending = self.pending.get_mut(place)?.as_mut()?;
        let Pending { request, done, retries, .. } = pending;
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
        let Pending { payload, .. } = self.pending[place].take()?;
        self.vacant.push(place);
        Some((payload, result))
    }
}
