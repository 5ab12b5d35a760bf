//! The engine over a device in software that misbehaves as it is told, for tests of all users of engines.

use core::mem::ManuallyDrop;
use proptest::prelude::*;

use super::soft::{Fate, Manner, SoftDevice};
use super::Dsa;
use pumice_frames::clear::{Engine, Lost, Piece};

/// An engine whose device works whenever it is polled.
#[derive(Debug)]
pub struct Driven {
    pub(super) device: &'static SoftDevice,
    pub(super) dsa: ManuallyDrop<Dsa<&'static SoftDevice>>,
}

impl Driven {
    /// Over a new device.
    pub fn new(manner: &Manner) -> Driven {
        let device: &SoftDevice = Box::leak(Box::new(SoftDevice::new(manner.clone())));
        Driven { device, dsa: ManuallyDrop::new(Dsa::on(device).expect("memory")) }
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        // SAFETY: taken once. Pieces in flight stay so: the device works only when this has it work.
        unsafe { ManuallyDrop::take(&mut self.dsa).give_back() };
        // SAFETY: leaked by `new`, and the engine, which had it too, is gone.
        drop(unsafe { Box::from_raw(core::ptr::from_ref(self.device).cast_mut()) });
    }
}

// SAFETY: the engine's own.
unsafe impl Engine for Driven {
    fn name(&self) -> &'static str {
        self.dsa.name()
    }

    unsafe fn submit(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
        // SAFETY: as the caller promises.
        unsafe { self.dsa.submit(pieces) }
    }

    unsafe fn poll(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
        self.device.work();
        // SAFETY: as the caller promises.
        unsafe { self.dsa.poll(pieces) }
    }

    unsafe fn cancel(&self, pieces: &mut [Piece]) {
        // SAFETY: as the caller promises.
        unsafe { self.dsa.cancel(pieces) }
    }
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        4 => Just(Fate::Done),
        2 => (0u8..100).prop_map(Fate::PageFault),
        1 => (0u8..100).prop_map(Fate::StrangeFault),
        1 => (0u8..4).prop_map(Fate::Late),
        1 => (0u8..4).prop_map(Fate::LateRecord),
        1 => Just(Fate::Lost),
        1 => (1u32..100).prop_map(Fate::TooMuch),
        2 => any::<u8>().prop_map(|status| Fate::Status(if status == 1 { 2 } else { status })),
        1 => any::<u8>().prop_map(Fate::DoneBut),
        1 => Just(Fate::Unread),
    ]
}

/// Any manner of a device.
pub fn manner() -> impl Strategy<Value = Manner> {
    (
        prop::collection::vec(fate(), 1..6),
        prop_oneof![Just(None), (1u32..6).prop_map(Some)],
        0u32..12,
        prop::sample::select(vec![0usize, 2, 3, 1024]),
        prop::sample::select(vec![1u32 << 12, 1 << 31]),
        prop_oneof![4 => Just(usize::MAX), 1 => 0usize..30],
    )
        .prop_map(
            |(fates, entries, busy_sixteenths, most_in_batch, most_bytes, broken_after)| Manner {
                fates,
                entries,
                busy_sixteenths,
                most_in_batch,
                most_bytes,
                broken_after,
            },
        )
}
