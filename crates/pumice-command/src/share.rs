//! Shares of pages, for traces that are samples (SHARDS, Waldspurger and others, FAST 2015).
//!
//! A page is in a share by the hash of its number alone, so all references to it are in the trace or none is. Each
//! share contains the next smaller one. No two neighbours are in a share: of each two pages, only the one of its
//! block's parity can be.

use crate::random::Random;

/// The bits of a page's number within its address space; those above number the space.
pub const SPACE_BITS: u32 = 45;
/// Pages of a block.
const BLOCK_BITS: u32 = 9;
/// The smallest share.
const MOST: u32 = 1 << 20;

/// One page in so many: a power of two from 2 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u32);

impl Share {
    /// One in `one_in` pages. `None` if that is no power of two from 2 to 2^20.
    pub fn one_in(one_in: u32) -> Option<Share> {
        (one_in.is_power_of_two() && (2..=MOST).contains(&one_in)).then_some(Share(one_in))
    }

    /// Reads `1/16`.
    ///
    /// # Errors
    /// How a share is written.
    pub fn parse(text: &str) -> Result<Share, String> {
        let number = text.strip_prefix("1/").and_then(|number| number.parse().ok());
        number.and_then(Share::one_in).ok_or_else(|| {
            "a share is 1/2, 1/4, 1/8 and so on, down to 1/1048576, such as 1/16".to_owned()
        })
    }

    /// How many pages one stands for.
    pub fn stands_for(self) -> u32 {
        self.0
    }

    /// The next smaller one, if there is one.
    pub fn halved(self) -> Option<Share> {
        Share::one_in(self.0.saturating_mul(2))
    }

    /// Whether a page is in it.
    pub fn has(self, page: u64) -> bool {
        let page = page & ((1 << SPACE_BITS) - 1);
        if page & 1 != parity(page >> BLOCK_BITS) {
            return false;
        }
        let is_first = page & ((1 << BLOCK_BITS) - 1) == 0;
        // Its neighbour in the block before could be in.
        if is_first && page > 0 && parity((page >> BLOCK_BITS) - 1) == 1 {
            return false;
        }
        hash(page) <= u64::MAX / u64::from(self.0 / 2)
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "1/{}", self.0)
    }
}

fn parity(block: u64) -> u64 {
    // Other hashes than those of pages.
    hash(!block) & 1
}

fn hash(number: u64) -> u64 {
    Random::new(number).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_their_size_and_no_neighbours() {
        for one_in in [2, 4, 16, 64] {
            let share = Share::one_in(one_in).expect("a power of two");
            let pages: Vec<u64> = (0..1 << 18).filter(|&page| share.has(page)).collect();
            let expected = f64::from(1 << 18) / f64::from(one_in);
            assert!((pages.len() as f64 / expected - 1.0).abs() < 0.05, "{one_in}");
            assert!(pages.windows(2).all(|two| two[1] - two[0] > 1));
            let half = share.halved().expect("a smaller one");
            assert!((0..1 << 14).all(|page| share.has(page) || !half.has(page)));
        }
    }

    #[test]
    fn all_spaces_have_the_same_pages() {
        let share = Share::one_in(8).expect("a power of two");
        assert!((0..9999).all(|page| share.has(page) == share.has(page | 7 << SPACE_BITS)));
    }

    #[test]
    fn shares_are_read() {
        assert_eq!(Share::parse("1/16").map(Share::stands_for), Ok(16));
        for bad in ["", "1/0", "1/1", "1/3", "2/4", "0.1", "1/-2", "1/2097152", "1/99999999999"] {
            assert!(Share::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(Share::one_in(MOST).and_then(Share::halved), None);
        assert_eq!(Share(16).to_string(), "1/16");
    }
}
