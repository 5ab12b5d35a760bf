//! A device that follows a script: it refuses, faults, is late, hangs and is lost.

use proptest::prelude::*;
use std::sync::Mutex;

use super::{Engine, Lost, Piece, PieceState};

/// A [`FakeDevice`]'s treatment of a piece.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    /// does not take it: no room
    Refuse,
    /// zeroes it at a later poll
    Zero { polls: u8 },
    /// zeroes some of it, says so, and stops
    Fault { percent: u8 },
    /// scribbles zeros over some of it but says nothing of it
    FaultSilently { percent: u8 },
    /// never comes back
    Hang,
}

/// A device that follows a script: the fate of each piece it is offered, in turn.
#[derive(Debug)]
pub struct FakeDevice {
    script: Vec<Fate>,
    state: Mutex<DeviceState>,
    /// is lost after it was offered so many pieces
    lost_after: usize,
}

#[derive(Debug, Default)]
pub struct DeviceState {
    offered: usize,
    /// fate and polls so far of the pieces taken; the tag is the index
    pub taken: Vec<(Fate, u8)>,
    pub submits_after_loss: usize,
}

impl FakeDevice {
    pub fn new(script: Vec<Fate>, lost_after: usize) -> FakeDevice {
        FakeDevice { script, lost_after, state: Mutex::default() }
    }

    pub fn state(&self) -> std::sync::MutexGuard<'_, DeviceState> {
        self.state.lock().expect("no test panics in here")
    }
}

/// Zeroes the first `percent` of what remains of a piece.
unsafe fn zero_part(piece: &Piece, percent: u8) -> usize {
    let (at, len) = piece.remaining();
    let part = len * usize::from(percent) / 100;
    // SAFETY: the part lies in the piece.
    unsafe { at.write_bytes(0, part) };
    part
}

// SAFETY: pieces are settled as zeroed after they were zeroed, and touched no more.
unsafe impl Engine for FakeDevice {
    fn name(&self) -> &'static str {
        "fake"
    }

    unsafe fn submit(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
        let mut state = self.state();
        for piece in pieces.iter_mut().filter(|piece| piece.state() == PieceState::Waiting) {
            if state.offered >= self.lost_after {
                state.submits_after_loss += 1;
                return Err(Lost);
            }
            let fate = self.script[state.offered % self.script.len()];
            state.offered += 1;
            if !matches!(fate, Fate::Refuse) {
                piece.take(state.taken.len() as u32);
                state.taken.push((fate, 0));
            }
        }
        Ok(())
    }

    unsafe fn poll(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
        let mut state = self.state();
        for piece in pieces.iter_mut().filter(|piece| piece.state() == PieceState::InFlight) {
            let (fate, polls) = &mut state.taken[piece.tag() as usize];
            *polls = polls.saturating_add(1);
            // SAFETY: the pieces' memory is the test's; the statements about it are true.
            unsafe {
                match *fate {
                    Fate::Zero { polls: wanted } if *polls >= wanted => {
                        zero_part(piece, 100);
                        piece.settle_zeroed();
                    }
                    Fate::Fault { percent } => {
                        let done = zero_part(piece, percent);
                        piece.settle_faulted(done);
                    }
                    Fate::FaultSilently { percent } => {
                        zero_part(piece, percent);
                        piece.settle_faulted(0);
                    }
                    Fate::Zero { .. } | Fate::Hang | Fate::Refuse => {}
                }
            }
        }
        if state.offered >= self.lost_after {
            Err(Lost)
        } else {
            Ok(())
        }
    }
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        Just(Fate::Refuse),
        (0u8..4).prop_map(|polls| Fate::Zero { polls }),
        (0u8..=100).prop_map(|percent| Fate::Fault { percent }),
        (0u8..=100).prop_map(|percent| Fate::FaultSilently { percent }),
        Just(Fate::Hang),
    ]
}

/// Fates of pieces in turn, and after how many the device is lost.
#[derive(Clone, Debug)]
pub struct Script {
    fates: Vec<Fate>,
    lost_after: usize,
}

impl Script {
    /// For what waits for pieces.
    pub fn without_hanging(mut self) -> Script {
        self.fates.retain(|fate| !matches!(fate, Fate::Hang));
        if self.fates.is_empty() {
            self.fates.push(Fate::Zero { polls: 1 });
        }
        // One that is lost may have something in flight.
        self.lost_after = usize::MAX;
        self
    }

    pub fn device(&self) -> FakeDevice {
        FakeDevice::new(self.fates.clone(), self.lost_after)
    }
}

pub fn script() -> impl Strategy<Value = Script> {
    let lost_after = prop_oneof![Just(usize::MAX), 0usize..20];
    (prop::collection::vec(fate(), 1..8), lost_after)
        .prop_map(|(fates, lost_after)| Script { fates, lost_after })
}

pub fn device() -> impl Strategy<Value = FakeDevice> {
    script().prop_map(|script| script.device())
}
