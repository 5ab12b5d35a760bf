//! The frame at the start of a swap area.
//!
//! ```text
//!   0  8  "PUMISWAP"
//!   8  4  version, 1
//!  12  4  bytes of a slot, 4096
//!  16  4  slots
//!  20  4  zero
//!  24  8  XXH3 of the 24 bytes before it
//! ```
//! Numbers are little-endian; the rest is zero. It says that the file may be written to, and nothing about its content.

use xxhash_rust::xxh3::xxh3_64;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use pumice_frames::addr::FRAME_SIZE;

const MAGIC: [u8; 8] = *b"PUMISWAP";
const VERSION: u32 = 1;

/// The part that the checksum covers.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Summed {
    magic: [u8; 8],
    version: U32,
    slot_bytes: U32,
    slots: U32,
    zero: U32,
}

/// See the module's top.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    summed: Summed,
    sum: U64,
}

impl Summed {
    fn sum(&self) -> U64 {
        xxh3_64(self.as_bytes()).into()
    }
}

/// The contents of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Slots behind it.
    pub slots: u32,
}

/// The fault of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// It begins otherwise.
    #[error("it begins with something else")]
    Magic,
    /// It was damaged.
    #[error("its header is damaged")]
    Checksum,
    /// It is of a version that is not known.
    #[error("its header is of version {0}, and this pumice writes version 1")]
    Version(u32),
    /// Its numbers contradict each other.
    #[error("its header is inconsistent")]
    Numbers,
}

impl Header {
    /// Into the first frame.
    pub fn write(self, frame: &mut [u8; FRAME_SIZE]) {
        let summed = Summed {
            magic: MAGIC,
            version: VERSION.into(),
            slot_bytes: (FRAME_SIZE as u32).into(),
            slots: self.slots.into(),
            zero: U32::ZERO,
        };
        frame.fill(0);
        let layout = Layout { summed, sum: summed.sum() };
        let fits = layout.write_to_prefix(frame);
        debug_assert!(fits.is_ok(), "a frame is longer");
    }

    /// From the first frame.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn read(frame: &[u8; FRAME_SIZE]) -> Result<Header, HeaderError> {
        let Ok((Layout { summed, sum }, _)) = Layout::read_from_prefix(frame) else {
            return Err(HeaderError::Magic);
        };
        if summed.magic != MAGIC {
            return Err(HeaderError::Magic);
        }
        if summed.version != VERSION {
            return Err(HeaderError::Version(summed.version.get()));
        }
        if sum != summed.sum() {
            return Err(HeaderError::Checksum);
        }
        let slots = summed.slots.get();
        let is_possible = (1..=super::MOST_SLOTS).contains(&slots);
        if summed.slot_bytes != FRAME_SIZE as u32 || !is_possible {
            return Err(HeaderError::Numbers);
        }
        Ok(Header { slots })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(slots in 1..=super::super::MOST_SLOTS) {
            let mut frame = [0; FRAME_SIZE];
            Header { slots }.write(&mut frame);
            prop_assert_eq!(Header::read(&frame), Ok(Header { slots }));
        }

        #[test]
        fn no_changed_byte_goes_unseen(at in 0usize..32, change in 1u8..) {
            let mut frame = [0; FRAME_SIZE];
            Header { slots: 1000 }.write(&mut frame);
            frame[at] ^= change;
            prop_assert!(Header::read(&frame).is_err());
        }

        #[test]
        fn no_bytes_are_too_bad(bytes in prop::collection::vec(any::<u8>(), 40), begins_well: bool) {
            let mut frame = [0; FRAME_SIZE];
            frame[..40].copy_from_slice(&bytes);
            if begins_well {
                let (layout, _) = Layout::mut_from_prefix(&mut frame).expect("long enough");
                (layout.summed.magic, layout.summed.version) = (MAGIC, VERSION.into());
                layout.sum = layout.summed.sum();
            }
            if let Ok(Header { slots }) = Header::read(&frame) {
                prop_assert!((1..=super::super::MOST_SLOTS).contains(&slots));
            }
        }
    }
}
