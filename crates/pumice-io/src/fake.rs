//! An engine that fails on demand: errors, short transfers and late completions, at random from a seed.

#[cfg(all(shuttle, any(test, feature = "fake")))]
pub mod late;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use rustix::io::Errno;

use super::engine::{Completion, Direction, Engine, Request};
use pumice_frames::addr::FRAME_SIZE;

/// Of how many requests one goes wrong in each way; 0 for none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// `EIO`.
    pub error: u32,
    /// `ENOSPC`, of writes.
    pub no_space: u32,
    /// Fewer bytes than were asked for.
    pub short: u32,
    /// Said to be done later than others that were asked for later.
    pub late: u32,
}

/// See the module's top. Requests that are neither errors nor short really happen.
#[derive(Debug)]
pub struct FakeEngine<E> {
    engine: E,
    faults: Faults,
    random: u64,
    done: VecDeque<Completion>,
    late: Vec<Completion>,
}

impl<E: Engine> FakeEngine<E> {
    /// Over an engine, from a seed.
    pub fn new(engine: E, faults: Faults, seed: u64) -> FakeEngine<E> {
        FakeEngine { engine, faults, random: seed, done: VecDeque::new(), late: Vec::new() }
    }

    fn one_in(&mut self, many: u32) -> bool {
        // Steele, Lea and Flood's SplitMix64.
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        many > 0 && (z ^ (z >> 31)) % u64::from(many) == 0
    }

    fn fail(&mut self, token: u64, errno: Errno) {
        self.done.push_back(Completion { token, result: Err(errno) });
    }
}

// SAFETY: as the engine inside, which is not asked for the requests that fail.
unsafe impl<E: Engine> Engine for FakeEngine<E> {
    fn depth(&self) -> usize {
        self.engine.depth()
    }

    unsafe fn submit(&mut self, request: Request) -> Result<(), Errno> {
        let Faults { error, no_space, short, .. } = self.faults;
        if self.one_in(error) {
            self.fail(request.token, Errno::IO);
            return Ok(());
        }
        if self.one_in(no_space) && request.direction == Direction::Write {
            self.fail(request.token, Errno::NOSPC);
            return Ok(());
        }
        let len = request.bytes.len();
        let is_short = len > FRAME_SIZE && self.one_in(short);
        let bytes = if is_short { request.bytes.first(FRAME_SIZE) } else { request.bytes };
        if len == FRAME_SIZE && self.one_in(short) {
            self.fail(request.token, Errno::AGAIN);
            return Ok(());
        }
        // SAFETY: the caller's promise, for a part of the bytes at most.
        unsafe { self.engine.submit(Request { bytes, ..request }) }
    }

    fn wait(&mut self, least: usize) -> Result<(), Errno> {
        let here = self.done.len();
        self.engine.wait(least.saturating_sub(here))?;
        while let Some(completion) = self.engine.next() {
            if self.one_in(self.faults.late) {
                self.late.push(completion);
            } else {
                self.done.push_back(completion);
            }
        }
        if self.done.is_empty() {
            self.done.extend(self.late.drain(..).rev());
        }
        Ok(())
    }

    fn next(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }
}
