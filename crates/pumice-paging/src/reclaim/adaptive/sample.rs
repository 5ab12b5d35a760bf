//! Small memories, one for each rule, over a sample of the pages.
//!
//! A page is in the sample if a hash of its name is small enough (SHARDS, Waldspurger, Park, Garthwaite and Ahmad, FAST
//! 2015). A memory for a share of the pages that has the same share of the frames has about the hit ratio of the
//! whole. It has at most [`MOST_FRAMES`] frames, so large memories pay a constant for it.
//!
//! One table has the names of pages: in which frames of the small memories each is, or its shadow there. It has no room
//! for all that ever were: of eight that share a place, the one goes that is in none of the memories and was used
//! longest ago.

use super::super::list::Page;
use super::super::policy::{Policy, Shadow, Tunables};
use super::pages::{Pages, Rule, RULES};
use super::Adaptive;

/// Frames of a small memory.
const MOST_FRAMES: usize = 512;
/// Names for each frame, of them so many at each place.
const NAMES_PER_FRAME: usize = 8;
const WAYS: usize = 8;

/// The whereabouts of a page in one small memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place(u32);

impl Place {
    const IS_IN: u32 = 1 << 31;
    const IS_OUT: u32 = 1 << 30;

    fn frame(self) -> Option<u32> {
        (self.0 & Self::IS_IN != 0).then_some(self.0 & !Self::IS_IN)
    }

    fn shadow(self) -> Option<Shadow> {
        (self.0 & Self::IS_OUT != 0).then(|| Shadow::from_bits(self.0))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Name {
    /// The upper half of the hash, never 0 of a page that is known.
    tag: u32,
    /// Of all uses: when this one was used last.
    used: u32,
    places: [Place; RULES.len()],
}

/// A small memory.
#[derive(Debug)]
struct Small {
    pages: Pages<Box<[Page]>>,
    /// Which of the names a frame has.
    names: Box<[u32]>,
    /// Frames that have had a page.
    used: u32,
}

/// See the module's top.
#[derive(Debug)]
pub(super) struct Samples {
    /// By rule. On the heap, as all here: threads that page may have small stacks.
    small: Vec<Small>,
    names: Box<[Name]>,
    frames: usize,
    /// Pages whose hash is at most this are in the sample.
    most: u32,
    uses: u32,
}

/// Of T's, if there is memory for them.
fn boxed<T: Clone>(len: usize, value: T) -> Option<Box<[T]>> {
    let mut all = Vec::new();
    all.try_reserve_exact(len).ok()?;
    all.resize(len, value);
    Some(all.into_boxed_slice())
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn hash(name: u64) -> u64 {
    let mut z = name.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Samples {
    /// For a memory of so many pages. `None` without memory for the samples, or without pages.
    pub fn new(pages: usize) -> Option<Samples> {
        let share = pages.div_ceil(MOST_FRAMES).max(1);
        let frames = pages / share;
        if frames == 0 {
            return None;
        }
        let mut small = Vec::new();
        small.try_reserve_exact(RULES.len()).ok()?;
        for rule in RULES {
            let table = boxed(Adaptive::table_len(frames), Page::new())?;
            let pages = Pages::new(table).with_rule(rule);
            small.push(Small { pages, names: boxed(frames, 0)?, used: 0 });
        }
        let places = (frames * NAMES_PER_FRAME).div_ceil(WAYS).next_power_of_two();
        let names = boxed(places * WAYS, Name::default())?;
        let most = (frames as u64 * u64::from(u32::MAX) / pages as u64) as u32;
        Some(Samples { small, names, frames, most, uses: 0 })
    }

    /// Frames that each of the memories has.
    pub fn frames(&self) -> usize {
        self.frames
    }

    pub fn tune(&mut self, tunables: Tunables) {
        for small in &mut self.small {
            small.pages.tune(tunables);
        }
    }

    /// A page is used: whether each of the rules has it, if it is in the sample.
    #[inline]
    pub fn access(&mut self, name: u64) -> Option<[bool; RULES.len()]> {
        let hash = hash(name);
        if hash as u32 > self.most {
            return None;
        }
        self.access_sampled(hash)
    }

    fn access_sampled(&mut self, hash: u64) -> Option<[bool; RULES.len()]> {
        // The lower half of the hash chose the page; the place must not depend on it alone.
        let tag = ((hash >> 32) as u32).max(1);
        let place = (hash ^ hash >> 32) as usize & (self.names.len() / WAYS - 1);
        let at = self.find(place * WAYS, tag)?;
        self.uses = self.uses.wrapping_add(1);
        self.names[at].used = self.uses;
        let mut hits = [false; RULES.len()];
        for rule in RULES {
            hits[rule as usize] = self.access_by(rule, at);
        }
        Some(hits)
    }

    /// The entry of a name, of the ways from `first` on. `None` where all of them are of pages that are in.
    fn find(&mut self, first: usize, tag: u32) -> Option<usize> {
        let ways = first..first + WAYS;
        if let Some(found) = ways.clone().find(|&at| self.names[at].tag == tag) {
            return Some(found);
        }
        let is_in = |at: &usize| self.names[*at].places.iter().any(|place| place.frame().is_some());
        let ago = |at: &usize| match self.names[*at].tag {
            0 => u32::MAX,
            _ => self.uses.wrapping_sub(self.names[*at].used),
        };
        let at = ways.filter(|at| !is_in(at)).max_by_key(ago)?;
        self.names[at] = Name { tag, ..Name::default() };
        Some(at)
    }

    fn access_by(&mut self, rule: Rule, at: usize) -> bool {
        let small = &mut self.small[rule as usize];
        let place = self.names[at].places[rule as usize];
        if let Some(frame) = place.frame() {
            small.pages.accessed(frame);
            return true;
        }
        let frame = if (small.used as usize) < self.frames {
            small.used += 1;
            small.used - 1
        } else {
            let Some((frame, shadow)) = small.pages.evict() else { return false };
            let gone = &mut self.names[small.names[frame as usize] as usize];
            gone.places[rule as usize] = Place(shadow.to_bits() | Place::IS_OUT);
            frame
        };
        small.names[frame as usize] = at as u32;
        small.pages.add(frame, place.shadow());
        self.names[at].places[rule as usize] = Place(frame | Place::IS_IN);
        false
    }
}
