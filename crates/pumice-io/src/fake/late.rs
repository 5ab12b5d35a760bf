//! A device of a model (shuttle): it is late, goes out of order, and fails, by shuttle's random numbers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use shuttle::rand::{thread_rng, Rng};
use shuttle::thread;

use crate::engine::Direction;
use crate::{Bytes, Completion, Engine, Request};
use pumice_frames::addr::FRAME_SIZE;

/// Of how many requests one goes wrong in each way; 0 for none.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    /// `EIO`.
    pub error: u32,
    /// Fewer bytes than were asked for.
    pub short: u32,
}

/// Bytes of the whole device. A lock of the machine's own: nothing of shuttle happens while it is held.
pub struct Device {
    /// All of its bytes.
    pub bytes: Mutex<Vec<u8>>,
    /// Its faults from now on.
    pub faults: Mutex<Faults>,
}

/// An engine on it, for one thread.
pub struct Late {
    device: Arc<Device>,
    pending: Vec<Request>,
    done: VecDeque<Completion>,
}

// SAFETY: the memory of what is pending is the engine's.
unsafe impl Send for Late {}

impl Late {
    /// With nothing asked of it.
    pub fn new(device: &Arc<Device>) -> Late {
        Late { device: Arc::clone(device), pending: Vec::new(), done: VecDeque::new() }
    }

    /// Does a request, now and not before: its memory goes as it is by now.
    fn complete(&mut self, request: &Request) {
        let faults = *self.device.faults.lock().expect("no panic");
        let one_in = |many: u32| many > 0 && thread_rng().gen_range(0..many) == 0;
        let len = request.bytes.len();
        let result = if one_in(faults.error) {
            Err(Errno::IO)
        } else if one_in(faults.short) {
            Ok(len / FRAME_SIZE / 2 * FRAME_SIZE)
        } else {
            Ok(len)
        };
        // An end of the file is no short request.
        let result = if result == Ok(0) { Err(Errno::AGAIN) } else { result };
        if let Ok(bytes) = result {
            self.transfer(request, bytes);
        }
        self.done.push_back(Completion { token: request.token, result });
    }

    fn transfer(&self, request: &Request, len: usize) {
        let mut device = self.device.bytes.lock().expect("no panic");
        for at in (0..len).step_by(FRAME_SIZE) {
            let memory = match request.bytes {
                // SAFETY: within the request's bytes.
                Bytes::Run { at: first, .. } => unsafe { first.as_ptr().add(at) },
                // SAFETY: the list stays until the request is done.
                Bytes::Frames { pieces, .. } => unsafe {
                    pieces.add(at / FRAME_SIZE).as_ref().at()
                },
            };
            let offset = request.offset as usize + at;
            let place = device[offset..offset + FRAME_SIZE].as_mut_ptr();
            // SAFETY: a frame of the model's, under any owner: only one of shuttle's threads runs at a time.
            match request.direction {
                Direction::Read => unsafe { memory.copy_from_nonoverlapping(place, FRAME_SIZE) },
                Direction::Write => unsafe { place.copy_from_nonoverlapping(memory, FRAME_SIZE) },
            }
        }
    }
}

// SAFETY: bytes go at the moment that the request is done, and not at all when this is dropped before.
unsafe impl Engine for Late {
    fn depth(&self) -> usize {
        8
    }

    unsafe fn submit(&mut self, request: Request) -> Result<(), Errno> {
        self.pending.push(request);
        Ok(())
    }

    fn wait(&mut self, least: usize) -> Result<(), Errno> {
        thread::yield_now();
        let least = least.saturating_sub(self.done.len()).min(self.pending.len());
        let many = thread_rng().gen_range(least..=self.pending.len());
        for _ in 0..many {
            let which = thread_rng().gen_range(0..self.pending.len());
            let request = self.pending.swap_remove(which);
            self.complete(&request);
        }
        Ok(())
    }

    fn next(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }
}
