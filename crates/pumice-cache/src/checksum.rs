//! Checksums of pages, each kept in its page: it goes to the device and comes back together with the page.
//!
//! A page gets its sum when a guard of it for writing ends, so any thread may write the page back. A read is checked
//! against it. A sum's seed is the page's number, so a page that was written in another's place is found. A page of
//! zeros needs none: nobody has written it yet. A page that is too old, because the device has lost a write, has the
//! right sum of its old content: nothing within a page can show that.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use pumice_frames::addr::FRAME_SIZE;
use pumice_paging::space::region::Page;

/// Bytes of a sum.
const LEN: usize = size_of::<u64>();

/// Where pages have their sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checksum {
    at: usize,
}

impl Checksum {
    /// From this byte of each page on; `None` where no word of a page is.
    pub fn at(at: usize) -> Option<Checksum> {
        (at % LEN == 0 && at < FRAME_SIZE).then_some(Checksum { at })
    }

    /// Where that is.
    pub fn place(self) -> usize {
        self.at
    }

    fn of(self, number: usize, page: &Page) -> u64 {
        let before = xxh3_64_with_seed(&page[..self.at], number as u64);
        // A page without a sum has 0.
        xxh3_64_with_seed(&page[self.at + LEN..], before).max(1)
    }

    fn noted(self, page: &Page) -> u64 {
        let bytes = &page[self.at..self.at + LEN];
        bytes.try_into().map_or(0, u64::from_le_bytes)
    }

    /// Gives a page its sum.
    pub fn seal(self, number: usize, page: &mut Page) {
        let sum = self.of(number, page);
        page[self.at..self.at + LEN].copy_from_slice(&sum.to_le_bytes());
    }

    /// Whether a page is unchanged since it got its sum, or zeros.
    pub fn is_right(self, number: usize, page: &Page) -> bool {
        match self.noted(page) {
            0 => page.iter().all(|&byte| byte == 0),
            noted => noted == self.of(number, page),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bit_and_any_place_count() {
        for at in [0, 24, FRAME_SIZE - LEN] {
            let checksum = Checksum::at(at).expect("a word");
            let mut page = [0; FRAME_SIZE];
            assert!(checksum.is_right(3, &page), "zeros");
            for byte in (0..FRAME_SIZE).step_by(7) {
                page[byte] = byte as u8;
            }
            checksum.seal(3, &mut page);
            assert!(checksum.is_right(3, &page) && !checksum.is_right(4, &page));
            for bit in 0..FRAME_SIZE * 8 {
                page[bit / 8] ^= 1 << (bit % 8);
                assert!(!checksum.is_right(3, &page), "bit {bit}, and the sum is at {at}");
                page[bit / 8] ^= 1 << (bit % 8);
            }
        }
        assert!([4, FRAME_SIZE, 8000].map(Checksum::at).iter().all(Option::is_none));
    }
}
