//! Small memories, one for each rule, over a sample of the pages.
//!
//! A page is in the sample if a hash of its name is small enough (SHARDS, Waldspurger, Park, Garthwaite and Ahmad, FAST
//! 2015). A memory for a share of the pages that has the same share of the frames has about the hit ratio of the
//! whole. It has about [`MOST_FRAMES`] frames at most, so large memories pay a constant for it.
//!
//! A sample may have more of the pages in use than its share, or fewer. A loop that is a little larger than the memory
//! would then fit into the small ones, or not come round. So these have as many frames as the memory has pages in it
//! that are sampled ([`Samples::set_room`]).
//!
//! One table has the names of pages: in which frames of the small memories each is, or its shadow there. It has no room
//! for all that ever were: of eight that share a place, the one goes that is in none of the memories and was used
//! longest ago.

use super::super::list::Page;
use super::super::policy::{Policy, Shadow, Tunables};
use super::pages::{Pages, Rule, RULES};
use super::Adaptive;

/// Frames of a small memory.
const MOST_FRAMES: usize = 704;
/// A small memory has room for its share of the frames, and for this part more.
const MORE_FRAMES: usize = 4;
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
    /// Which of the names a frame has; of a free one, which is free beside it.
    names: Box<[u32]>,
    /// A free frame; [`NO_FRAME`] where each has a page.
    free: u32,
}

const NO_FRAME: u32 = u32::MAX;

impl Small {
    fn new(rule: Rule, frames: usize) -> Option<Small> {
        let table = boxed(Adaptive::table_len(frames), Page::new())?;
        let mut names = boxed(frames, NO_FRAME)?;
        for (next, name) in (1..frames as u32).zip(&mut names) {
            *name = next;
        }
        Some(Small { pages: Pages::new(table).with_rule(rule), names, free: 0 })
    }

    /// Has a page go.
    fn evict(&mut self, rule: Rule, names: &mut [Name]) {
        let Some((frame, shadow)) = self.pages.evict() else { return };
        let name = std::mem::replace(&mut self.names[frame as usize], self.free);
        self.free = frame;
        names[name as usize].places[rule as usize] = Place(shadow.to_bits() | Place::IS_OUT);
    }
}

/// See the module's top.
#[derive(Debug)]
pub(super) struct Samples {
    /// By rule. On the heap, as all here: threads that page may have small stacks.
    small: Vec<Small>,
    names: Box<[Name]>,
    /// The share of the frames.
    frames: usize,
    /// Pages that each of the memories has at most.
    room: usize,
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
        // All pages of a memory that is small itself are sampled.
        let most_room = if share == 1 { frames } else { frames + frames / MORE_FRAMES + 1 };
        for rule in RULES {
            small.push(Small::new(rule, most_room)?);
        }
        let places = (most_room * NAMES_PER_FRAME).div_ceil(WAYS).next_power_of_two();
        let names = boxed(places * WAYS, Name::default())?;
        let most = (frames as u64 * u64::from(u32::MAX) / pages as u64) as u32;
        Some(Samples { small, names, frames, room: frames, most, uses: 0 })
    }

    /// Frames that each of the memories has, if the sample has its share of the pages.
    pub fn frames(&self) -> usize {
        self.frames
    }

    pub fn tune(&mut self, tunables: Tunables) {
        for small in &mut self.small {
            small.pages.tune(tunables);
        }
    }

    /// The memory has room for so many pages that are in the sample.
    pub fn set_room(&mut self, room: usize) {
        self.room = room.clamp(1, self.small[0].names.len());
    }

    /// The hash of a page that is in the sample.
    #[inline]
    pub fn hash(&self, name: u64) -> Option<u64> {
        let hash = hash(name);
        (hash as u32 <= self.most).then_some(hash)
    }

    /// A page is used that has this hash: whether each of the rules has it, if its name is known.
    pub fn access(&mut self, hash: u64) -> Option<[bool; RULES.len()]> {
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
        // It has become smaller.
        if small.pages.len() > self.room {
            small.evict(rule, &mut self.names);
        }
        let place = self.names[at].places[rule as usize];
        if let Some(frame) = place.frame() {
            small.pages.accessed(frame);
            return true;
        }
        if small.pages.len() >= self.room || small.free == NO_FRAME {
            small.evict(rule, &mut self.names);
        }
        let frame = small.free;
        if frame == NO_FRAME {
            return false;
        }
        small.free = small.names[frame as usize];
        small.names[frame as usize] = at as u32;
        small.pages.add(frame, place.shadow());
        self.names[at].places[rule as usize] = Place(frame | Place::IS_IN);
        false
    }
}
