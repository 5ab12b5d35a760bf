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
//! Numbers are little-endian; what follows is zero. It says that the file may be written to, and nothing of what is in
//! it.

use xxhash_rust::xxh3::xxh3_64;

use pumice_frames::addr::FRAME_SIZE;

const MAGIC: [u8; 8] = *b"PUMISWAP";
const VERSION: u32 = 1;
const SUMMED: usize = 24;

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
    /// Its numbers can't be.
    #[error("its header says what can't be")]
    Numbers,
}

impl Header {
    /// Into the first frame.
    pub fn write(self, frame: &mut [u8; FRAME_SIZE]) {
        frame.fill(0);
        frame[..8].copy_from_slice(&MAGIC);
        frame[8..12].copy_from_slice(&VERSION.to_le_bytes());
        frame[12..16].copy_from_slice(&(FRAME_SIZE as u32).to_le_bytes());
        frame[16..20].copy_from_slice(&self.slots.to_le_bytes());
        let sum = xxh3_64(&frame[..SUMMED]);
        frame[SUMMED..SUMMED + 8].copy_from_slice(&sum.to_le_bytes());
    }

    /// From the first frame.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn read(frame: &[u8; FRAME_SIZE]) -> Result<Header, HeaderError> {
        let word = |at: usize| {
            frame[at..].first_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        if frame[..8] != MAGIC {
            return Err(HeaderError::Magic);
        }
        if word(8) != VERSION {
            return Err(HeaderError::Version(word(8)));
        }
        if frame[SUMMED..SUMMED + 8] != xxh3_64(&frame[..SUMMED]).to_le_bytes() {
            return Err(HeaderError::Checksum);
        }
        let header = Header { slots: word(16) };
        if word(12) as usize != FRAME_SIZE || !(1..=super::MOST_SLOTS).contains(&header.slots) {
            return Err(HeaderError::Numbers);
        }
        Ok(header)
    }
}

#[cfg(test)]
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
                frame[..8].copy_from_slice(&MAGIC);
                frame[8..12].copy_from_slice(&VERSION.to_le_bytes());
                let sum = xxh3_64(&frame[..SUMMED]);
                frame[SUMMED..SUMMED + 8].copy_from_slice(&sum.to_le_bytes());
            }
            if let Ok(Header { slots }) = Header::read(&frame) {
                prop_assert!((1..=super::super::MOST_SLOTS).contains(&slots));
            }
        }
    }
}
