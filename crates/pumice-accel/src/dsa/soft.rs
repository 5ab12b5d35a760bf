//! A device in software that takes the same 64 bytes as the hardware, and reads them by the published offsets alone.
//! It stands in for the hardware in tests and in `pumice bench clear`; it proves that the engine speaks as published,
//! and survives all that a device may do. It proves nothing of a real device's speed.
//!
//! It works when it is told to ([`SoftDevice::work`]), or on a thread of the caller's. A script says what goes wrong:
//! descriptor by descriptor, in turn.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::descriptor::{Descriptor, Record};
use super::portal::{Handover, Portal};

/// The fate of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is done.
    Done,
    /// A page in it is not there: so many hundredths are filled.
    PageFault(u8),
    /// As [`Fate::PageFault`], but the address named is none of its pages.
    StrangeFault(u8),
    /// It is done after so many others, or so many rounds.
    Late(u8),
    /// It is done now, but its record comes after so many rounds, later than its batch's: the device did not find
    /// the record's page, and the kernel writes it.
    LateRecord(u8),
    /// It is never done, and nothing is said of it.
    Lost,
    /// A page fault whose record says that so many bytes were filled, more than were asked for.
    TooMuch(u32),
    /// Nothing is done, and the record says this.
    Status(u8),
    /// All of it is filled, and the record says this.
    DoneBut(u8),
    /// In a batch: it and the descriptors behind it are not begun. Else refused.
    Unread,
}

/// How the device behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manner {
    /// Fates of fills, in turn.
    pub fates: Vec<Fate>,
    /// Entries of a dedicated queue; `None`: a shared one.
    pub entries: Option<u32>,
    /// A shared queue is full for so many of every sixteen offers.
    pub busy_sixteenths: u32,
    /// Descriptors in a batch at most.
    pub most_in_batch: usize,
    /// Bytes of a fill at most.
    pub most_bytes: u32,
    /// The device is gone after so many offers.
    pub broken_after: usize,
}

impl Default for Manner {
    fn default() -> Manner {
        Manner {
            fates: vec![Fate::Done],
            entries: Some(128),
            busy_sixteenths: 0,
            most_in_batch: 1024,
            most_bytes: 1 << 31,
            broken_after: usize::MAX,
        }
    }
}

/// See the module's top.
#[derive(Debug)]
pub struct SoftDevice {
    manner: Manner,
    state: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    queue: VecDeque<[u8; 64]>,
    /// Rounds until they are due.
    late: Vec<(u8, Late)>,
    offers: usize,
    fills: usize,
    overruns: usize,
}

/// A fill, and where its record is.
#[derive(Clone, Copy, Debug)]
struct Fill {
    at: u64,
    len: u32,
    pattern: u64,
    record: u64,
}

/// Work that is still to be done.
#[derive(Clone, Copy, Debug)]
enum Late {
    Fill(Fill),
    Record(u64),
    /// A batch's record, which comes last.
    Batch {
        record: u64,
        status: u8,
        done: u32,
    },
}

/// Published offsets: `struct dsa_hw_desc`.
fn u64_at(bytes: &[u8; 64], offset: usize) -> u64 {
    bytes[offset..offset + 8].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

const SUCCESS: u8 = 0x01;
const PAGE_FAULT: u8 = 0x03 | 0x80;
const BATCH_FAIL: u8 = 0x05;
const BATCH_PAGE_FAULT: u8 = 0x06;
const BAD_OPCODE: u8 = 0x10;

impl SoftDevice {
    /// A device that has nothing to do.
    pub fn new(manner: Manner) -> SoftDevice {
        SoftDevice { manner, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, Progress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Descriptors that a dedicated queue was offered while it was full: hardware drops them.
    pub fn overruns(&self) -> usize {
        self.state().overruns
    }

    /// Does the work in the queue.
    pub fn work(&self) {
        let mut state = self.state();
        for (rounds, late) in std::mem::take(&mut state.late) {
            match (rounds.checked_sub(1), late) {
                (Some(rounds), late) => state.late.push((rounds, late)),
                (None, Late::Fill(fill)) => {
                    fill.run(100);
                    fill.complete(SUCCESS, 0, 0);
                }
                (None, Late::Record(record)) => complete(record, SUCCESS, 0, 0),
                (None, Late::Batch { record, status, done }) => complete(record, status, done, 0),
            }
        }
        while let Some(bytes) = state.queue.pop_front() {
            match bytes[7] {
                0x01 => self.batch(&mut state, &bytes),
                0x04 => {
                    self.fill(&mut state, &bytes);
                }
                _ => complete(u64_at(&bytes, 8), BAD_OPCODE, 0, 0),
            }
        }
    }

    fn batch(&self, state: &mut Progress, bytes: &[u8; 64]) {
        let (record, list) = (u64_at(bytes, 8), u64_at(bytes, 16));
        let count = u64_at(bytes, 32) as u32;
        assert!(list % 64 == 0 && record % 32 == 0 && count >= 2, "as the specification has it");
        assert!(count as usize <= self.manner.most_in_batch);
        let (mut done, mut status, mut last) = (0, SUCCESS, None);
        for index in 0..u64::from(count) {
            // SAFETY: the batch's descriptor names a list of so many.
            let one = unsafe { *((list + 64 * index) as *const [u8; 64]) };
            match self.fill(state, &one) {
                Ran::Success => {}
                Ran::Failure => status = BATCH_FAIL,
                Ran::Unread => {
                    status = BATCH_PAGE_FAULT;
                    break;
                }
                Ran::Later(rounds) => last = last.max(Some(rounds)),
                // The batch is over when each of it is: never.
                Ran::Never => return,
            }
            done += 1;
        }
        match last {
            Some(rounds) => state.late.push((rounds, Late::Batch { record, status, done })),
            None => complete(record, status, done, 0),
        }
    }

    fn fill(&self, state: &mut Progress, bytes: &[u8; 64]) -> Ran {
        let (record, pattern) = (u64_at(bytes, 8), u64_at(bytes, 16));
        let fill = Fill { at: u64_at(bytes, 24), len: u64_at(bytes, 32) as u32, pattern, record };
        let flags = u64_at(bytes, 0) >> 32 & 0xff_ffff;
        assert!(bytes[7] == 0x04 && flags & 0x0c == 0x0c && record % 32 == 0, "{bytes:x?}");
        assert!(fill.len > 0 && fill.len <= self.manner.most_bytes);
        let fate = self.manner.fates[state.fills % self.manner.fates.len()];
        state.fills += 1;
        match fate {
            Fate::Done => {
                fill.run(100);
                fill.complete(SUCCESS, 0, 0);
                return Ran::Success;
            }
            Fate::PageFault(percent) => {
                let done = fill.run(percent.min(99));
                fill.complete(PAGE_FAULT, done, fill.at + u64::from(done));
            }
            Fate::StrangeFault(percent) => {
                let done = fill.run(percent.min(99));
                fill.complete(PAGE_FAULT, done, fill.at + (1 << 40));
            }
            Fate::Late(rounds) => {
                state.late.push((rounds, Late::Fill(fill)));
                return Ran::Later(rounds);
            }
            Fate::LateRecord(rounds) => {
                fill.run(100);
                state.late.push((rounds, Late::Record(record)));
                return Ran::Success;
            }
            Fate::Lost => return Ran::Never,
            Fate::TooMuch(more) => {
                fill.complete(PAGE_FAULT, fill.len.saturating_add(more), fill.at)
            }
            Fate::Status(status) => fill.complete(status, 0, 0),
            Fate::DoneBut(status) => {
                fill.run(100);
                fill.complete(status, fill.len, 0);
            }
            Fate::Unread => {
                fill.complete(0, 0, 0);
                return Ran::Unread;
            }
        }
        Ran::Failure
    }
}

/// The outcome of one descriptor of a batch.
enum Ran {
    Success,
    Later(u8),
    Failure,
    Unread,
    Never,
}

impl Fill {
    /// Fills so many hundredths; how many bytes that is.
    fn run(&self, percent: u8) -> u32 {
        let bytes = (u64::from(self.len) * u64::from(percent) / 100) as u32;
        assert_eq!(self.pattern, 0, "this engine fills with zeros");
        // SAFETY: the descriptor's submitter vouches for its destination.
        unsafe { (self.at as *mut u8).write_bytes(0, bytes as usize) };
        bytes
    }

    fn complete(&self, status: u8, bytes: u32, fault_at: u64) {
        complete(self.record, status, bytes, fault_at);
    }
}

fn complete(record: u64, status: u8, bytes: u32, fault_at: u64) {
    // SAFETY: the descriptor's submitter vouches for its record.
    unsafe { &*(record as *const Record) }.complete(status, bytes, fault_at);
}

// SAFETY: it writes where its descriptors say.
unsafe impl Portal for &SoftDevice {
    unsafe fn hand_over(&self, descriptor: &Descriptor) -> Handover {
        let mut state = self.state();
        state.offers += 1;
        if state.offers > self.manner.broken_after {
            return Handover::Broken;
        }
        match self.manner.entries {
            None if (state.offers % 16) < self.manner.busy_sixteenths as usize => {
                return Handover::Busy;
            }
            Some(entries) if state.queue.len() >= entries as usize => {
                state.overruns += 1;
                return Handover::Taken;
            }
            _ => {}
        }
        state.queue.push_back(descriptor.bytes());
        Handover::Taken
    }

    fn entries(&self) -> Option<u32> {
        self.manner.entries
    }

    fn most_in_batch(&self) -> usize {
        self.manner.most_in_batch
    }

    fn most_bytes(&self) -> u32 {
        self.manner.most_bytes
    }
}
