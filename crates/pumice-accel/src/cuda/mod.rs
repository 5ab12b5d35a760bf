//! The copy engine of an NVIDIA GPU: zeros copied from the device's memory to the host's.
//!
//! A block-transfer engine that many machines have. Memory is registered with the driver once ([`Cuda::register`]),
//! since registering pins it, page by page; then a batch is copies on a stream of our own and one event behind them.
//! Memory that is not registered is left for the next engine.
//!
//! Nobody's GPU is touched unless this is opened. It needs libc's threads, so it serves what a
//! program does itself (`pumice bench`, [`crate::pinned`]), and not the shim's scrubd. A forked child
//! must not use it, as no child may use CUDA.
//!
//! # Trust
//! An error that a call returns may come from any work before it (CUDA Driver API, "Error handling"): the engine is
//! lost then, and its pieces in flight stay in flight.

mod driver;
#[cfg(test)]
mod tests;

use core::ffi::{c_void, CStr};
use core::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use driver::CudaError;
use driver::{DevicePointer, Driver, Handle, NOT_READY};

use pumice_frames::clear::{Engine, Lost, Piece, PieceState};
use pumice_frames::sync::atomic::{AtomicBool, Ordering};

/// Registered at a time: one registration of 512 GiB and more fails.
pub const MOST_REGISTERED: usize = 64 << 30;

/// Zeros in the GPU's memory: the most that one copy brings.
const ZEROS_BYTES: usize = 32 << 20;
/// Batches in flight.
const BATCHES: usize = 16;
/// In a tag: not all of the piece was handed over.
const PARTLY: u32 = 1 << 31;

const LIBRARY: &CStr = c"libcuda.so.1";

/// See the module's top.
#[derive(Debug)]
pub struct Cuda {
    driver: Driver,
    stream: Handle,
    zeros: DevicePointer,
    state: Mutex<Shared>,
    /// Set once, never unset. Relaxed: it spares calls, and orders nothing.
    is_lost: AtomicBool,
}

#[derive(Debug)]
struct Shared {
    batches: [Batch; BATCHES],
    /// Start and length.
    registered: Vec<(usize, usize)>,
}

#[derive(Clone, Copy, Debug)]
struct Batch {
    event: Handle,
    /// Pieces that are not settled.
    left: usize,
}

// SAFETY: handles may be used from any thread with the context current.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

/// An event's report on the batch before it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    NotYet,
    UnderWay,
    Over,
    Failed,
}

impl Cuda {
    /// Takes the first GPU.
    ///
    /// # Errors
    /// The part that is missing.
    pub fn open() -> Result<Cuda, CudaError> {
        // SAFETY: that name is NVIDIA's.
        unsafe { Cuda::open_library(LIBRARY) }
    }

    /// As [`Cuda::open`], by another library.
    ///
    /// # Errors
    /// The part that is missing.
    ///
    /// # Safety
    /// It does as NVIDIA's does.
    #[doc(hidden)]
    pub unsafe fn open_library(path: &CStr) -> Result<Cuda, CudaError> {
        // SAFETY: as the caller promises.
        let driver = unsafe { Driver::open(path)? };
        let none = Batch { event: null_mut(), left: 0 };
        let mut cuda = Cuda {
            driver,
            stream: null_mut(),
            zeros: 0,
            state: Mutex::new(Shared { batches: [none; BATCHES], registered: Vec::new() }),
            is_lost: AtomicBool::new(false),
        };
        cuda.prepare()?;
        Ok(cuda)
    }

    fn prepare(&mut self) -> Result<(), CudaError> {
        /// `CU_STREAM_NON_BLOCKING`: no waiting for the program's own work.
        const NON_BLOCKING: u32 = 1;
        /// `CU_EVENT_DISABLE_TIMING`
        const NO_TIMING: u32 = 2;
        let _current = self.driver.enter()?;
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: places for the results; the zeros are written before anybody copies them.
        // The memset runs on the NULL stream, and returns before it is over (CUDA Driver API, "API
        // synchronization behavior"); a stream that is non-blocking does not wait for that one.
        unsafe {
            self.driver.stream_create((&mut self.stream, NON_BLOCKING))?;
            self.driver.alloc((&mut self.zeros, ZEROS_BYTES))?;
            self.driver.fill((self.zeros, 0, ZEROS_BYTES))?;
            self.driver.stream_wait((null_mut(),))?;
            for batch in &mut state.batches {
                self.driver.event_create((&mut batch.event, NO_TIMING))?;
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, Shared> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers memory, so that it can be zeroed, and copied to and from at full speed: in chunks of
    /// [`MOST_REGISTERED`]. It is pinned from now on.
    ///
    /// # Errors
    /// The driver's; nothing is registered then.
    ///
    /// # Safety
    /// The memory stays mapped until [`Cuda::unregister`], or this value's end.
    #[doc(hidden)]
    pub unsafe fn register(&self, at: *mut u8, len: usize) -> Result<(), CudaError> {
        /// `CU_MEMHOSTREGISTER_PORTABLE`: for every context.
        const PORTABLE: u32 = 1;
        let _current = self.driver.enter()?;
        for from in (0..len).step_by(MOST_REGISTERED) {
            let bytes = MOST_REGISTERED.min(len - from);
            // SAFETY: as the caller promises.
            let registered = unsafe {
                self.driver.host_register((at.wrapping_add(from).cast(), bytes, PORTABLE))
            };
            if let Err(error) = registered {
                for from in (0..from).step_by(MOST_REGISTERED) {
                    // SAFETY: registered above.
                    let _ = unsafe { self.driver.host_unregister((at.wrapping_add(from).cast(),)) };
                }
                return Err(error);
            }
        }
        self.state().registered.push((at as usize, len));
        Ok(())
    }

    /// Takes it back.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// Nobody relies on it being pinned any more, and the device does nothing with it.
    #[doc(hidden)]
    pub unsafe fn unregister(&self, at: *mut u8) -> Result<(), CudaError> {
        let mut state = self.state();
        let Some(place) = state.registered.iter().position(|range| range.0 == at as usize) else {
            return Ok(());
        };
        let (_, len) = state.registered.swap_remove(place);
        drop(state);
        let _current = self.driver.enter()?;
        for from in (0..len).step_by(MOST_REGISTERED) {
            // SAFETY: registered by `register`.
            unsafe { self.driver.host_unregister((at.wrapping_add(from).cast(),))? };
        }
        Ok(())
    }

    /// Memory as the driver gives it (`cudaHostAlloc` in the runtime's words): the peer of
    /// [`crate::pinned`] in measurements.
    ///
    /// # Errors
    /// The driver's.
    #[doc(hidden)]
    pub fn host_alloc(&self, len: usize) -> Result<*mut u8, CudaError> {
        let _current = self.driver.enter()?;
        let mut at = null_mut::<c_void>();
        // SAFETY: a place for the result.
        unsafe { self.driver.host_alloc((&mut at, len, 0))? };
        Ok(at.cast())
    }

    /// Gives it back.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// It is [`Cuda::host_alloc`]'s, and nobody uses it any more.
    #[doc(hidden)]
    pub unsafe fn host_free(&self, at: *mut u8) -> Result<(), CudaError> {
        let _current = self.driver.enter()?;
        // SAFETY: as the caller promises.
        unsafe { self.driver.host_free((at.cast(),)) }
    }

    fn lost(&self) -> Result<(), Lost> {
        match self.is_lost.load(Ordering::Relaxed) {
            true => Err(Lost),
            false => Ok(()),
        }
    }

    fn lose(&self) -> Result<(), Lost> {
        self.is_lost.store(true, Ordering::Relaxed);
        Err(Lost)
    }

    /// Hands copies for all of a piece over, which is in memory registered from `start` on; how many of
    /// them were taken, and whether all. No copy may lie in two registrations.
    fn copy(&self, piece: &Piece, start: usize) -> (usize, bool) {
        let (at, len) = piece.remaining();
        let (mut taken, mut from) = (0, 0);
        while from < len {
            let in_chunk = (at as usize + from - start) % MOST_REGISTERED;
            let bytes = ZEROS_BYTES.min(len - from).min(MOST_REGISTERED - in_chunk);
            let arguments = (at.wrapping_add(from).cast(), self.zeros, bytes, self.stream);
            // SAFETY: the piece is the caller's until it is settled, and registered.
            if unsafe { self.driver.copy_to_host(arguments) }.is_err() {
                return (taken, false);
            }
            taken += 1;
            from += bytes;
        }
        (taken, true)
    }

    fn query(&self, event: Handle) -> Look {
        // SAFETY: an event of ours, which was recorded.
        match unsafe { self.driver.event_query((event,)) } {
            Ok(()) => Look::Over,
            Err(CudaError::Call { code: NOT_READY, .. }) => Look::UnderWay,
            Err(_) => Look::Failed,
        }
    }
}

impl Shared {
    /// Where the memory starts that was registered with this in it.
    fn registered(&self, at: usize, len: usize) -> Option<usize> {
        let mut starts = self.registered.iter();
        let holds = |range: &&(usize, usize)| range.0 <= at && at + len <= range.0 + range.1;
        starts.find(holds).map(|range| range.0)
    }
}

// SAFETY: a piece is settled once the event behind its copies says that they are over.
unsafe impl Engine for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    unsafe fn submit(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
        self.lost()?;
        let mut state = self.state();
        let Some(number) = state.batches.iter().position(|batch| batch.left == 0) else {
            return Ok(());
        };
        let Ok(_current) = self.driver.enter() else { return self.lose() };
        let (mut left, mut is_failed) = (0, false);
        for piece in pieces.iter_mut().filter(|piece| piece.state() == PieceState::Waiting) {
            let (at, len) = piece.remaining();
            if len == 0 {
                piece.take(0);
                // SAFETY: nothing is zero.
                unsafe { piece.settle_zeroed() };
            } else if let Some(start) = state.registered(at as usize, len) {
                let (taken, all) = self.copy(piece, start);
                is_failed = !all;
                if taken > 0 {
                    piece.take(number as u32 | if all { 0 } else { PARTLY });
                    left += 1;
                }
                if is_failed {
                    break;
                }
            }
        }
        state.batches[number].left = left;
        if left > 0 {
            let event = state.batches[number].event;
            // SAFETY: an event and a stream of ours.
            is_failed |= unsafe { self.driver.event_record((event, self.stream)) }.is_err();
        }
        match is_failed {
            true => self.lose(),
            false => Ok(()),
        }
    }

    unsafe fn poll(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
        if !pieces.iter().any(|piece| piece.state() == PieceState::InFlight) {
            return self.lost();
        }
        let mut state = self.state();
        let Ok(_current) = self.driver.enter() else { return self.lose() };
        let mut looks = [Look::NotYet; BATCHES];
        for piece in pieces.iter_mut().filter(|piece| piece.state() == PieceState::InFlight) {
            let number = (piece.tag() & !PARTLY) as usize;
            if looks[number] == Look::NotYet {
                looks[number] = self.query(state.batches[number].event);
            }
            match looks[number] {
                // An event that was not recorded says that all is over. It is: of nothing.
                Look::Over if self.lost().is_ok() => {}
                Look::NotYet | Look::UnderWay | Look::Over => continue,
                Look::Failed => {
                    let _now_lost = self.lose();
                    continue;
                }
            }
            state.batches[number].left -= 1;
            // SAFETY: the copies are over.
            unsafe {
                match piece.tag() & PARTLY {
                    0 => piece.settle_zeroed(),
                    _ => piece.settle_faulted(0),
                }
            }
        }
        self.lost()
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        if self.lost().is_err() {
            // The device may still write to the memory in flight: all of it stays, but for this value's hold on the
            // device's primary context.
            return;
        }
        let Ok(_current) = self.driver.enter() else { return };
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: all of it is ours, and nothing is under way once the stream was waited for.
        let _ = unsafe {
            self.driver.stream_wait((self.stream,)).and_then(|()| {
                for &(at, len) in &state.registered {
                    for from in (0..len).step_by(MOST_REGISTERED) {
                        self.driver.host_unregister(((at + from) as *mut c_void,))?;
                    }
                }
                // Opening may have failed at any of them.
                for batch in state.batches.iter().filter(|batch| !batch.event.is_null()) {
                    self.driver.event_destroy((batch.event,))?;
                }
                if self.zeros != 0 {
                    self.driver.free((self.zeros,))?;
                }
                match self.stream.is_null() {
                    true => Ok(()),
                    false => self.driver.stream_destroy((self.stream,)),
                }
            })
        };
    }
}
