//! The ledger: the owner of each frame, and which free frames are zero.
//!
//! Single frames come from a block that the calling processor has reserved, so that two processors seldom write the
//! same cache line; there is one reservation for zeroed frames and one for dirty ones. A reservation is a hint like
//! the rest: a processor that finds nothing unreserved takes frames from another's block.
//!
//! LLFree (Wrenger et al., USENIX ATC 2023) is the nearest relative: bit fields below, small
//! words above, reservations per CPU. It counts free frames exactly and does not track zeroed ones.

use core::ops::Range;
use core::ptr::NonNull;
use crossbeam_utils::CachePadded;

use super::block::{BlockState, BlockWord, ROOM_ALL, ROOM_UNKNOWN};
use super::hidden::HiddenRanges;
use super::table::Table;
use super::word::{self, Word};
use super::working::Working;
use crate::addr::Pfn;
use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// How many frames a word speaks of, and how many words a block has. Loom wants both small.
pub trait Geometry: Sync {
    /// 1 to 32.
    const FRAMES_PER_WORD: u32;
    /// A power of two, [`MAX_WORDS_PER_BLOCK`] at most.
    const WORDS_PER_BLOCK: usize;

    /// Frames in a block.
    const FRAMES_PER_BLOCK: usize = Self::FRAMES_PER_WORD as usize * Self::WORDS_PER_BLOCK;
    /// A word's frames, as bits.
    const MASK: u32 = word::span(0, Self::FRAMES_PER_WORD);
}

/// Most words a block may have.
pub const MAX_WORDS_PER_BLOCK: usize = 16;

/// Blocks of 512 frames of 4 KiB: 2 MiB, in two cache lines.
#[derive(Debug)]
pub struct Native;

impl Geometry for Native {
    const FRAMES_PER_WORD: u32 = 32;
    const WORDS_PER_BLOCK: usize = 16;
}

/// The memory behind a ledger, as far as the ledger needs anything of it.
pub trait Backing: Sync {
    /// Makes a claimed block, whose word is given, read as zeros, unpopulated, with no attribute left on it. Its first
    /// `kept` frames may stay as they are. `false` if the kernel refused; the block is then as it was.
    fn refresh(&self, block: usize, word: BlockWord, kept: usize) -> bool;

    /// Accounts for `blocks` more blocks that are no longer pristine. `false` if there may not be
    /// as many.
    fn charge(&self, _blocks: usize) -> bool {
        true
    }

    /// Takes that back: they are pristine again.
    fn uncharge(&self, _blocks: usize) {}

    /// For how many more blocks [`Backing::charge`] would say yes, now.
    fn room(&self) -> usize {
        usize::MAX
    }

    /// Whether a block has all of its pages once some of it was written: one huge page.
    fn is_huge(&self) -> bool {
        false
    }

    /// A free block goes into parts, and what its word says of its pages ([`BlockWord::of_pages`]) is lost.
    fn forget_pages(&self, _word: BlockWord) {}

    /// Has core dumps leave blocks out.
    fn hide(&self, _blocks: Range<usize>) {}

    /// Has core dumps hold blocks again. `false` if the kernel refused.
    fn show(&self, _blocks: Range<usize>) -> bool {
        true
    }
}

/// No memory at all: a ledger of numbers.
impl Backing for () {
    fn refresh(&self, _block: usize, _word: BlockWord, _kept: usize) -> bool {
        true
    }
}

/// Which frames a request takes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Want {
    /// Zeroed ones.
    Zeroed = 0,
    /// Dirty ones, so that zeroed ones are kept for requests that need them.
    Dirty = 1,
}

impl Want {
    pub(super) const fn other(self) -> Want {
        match self {
            Want::Zeroed => Want::Dirty,
            Want::Dirty => Want::Zeroed,
        }
    }

    #[inline]
    pub(super) const fn candidates<G: Geometry>(self, word: Word) -> u32 {
        match self {
            Want::Zeroed => word.free_zeroed(),
            Want::Dirty => word.free_dirty(G::MASK),
        }
    }

    pub(super) const fn hinted(self, block: BlockWord) -> bool {
        match self {
            Want::Zeroed => block.zeroed(),
            Want::Dirty => block.dirty(),
        }
    }

    #[inline]
    pub(super) const fn with_hint(self, block: BlockWord, hint: bool) -> BlockWord {
        match self {
            Want::Zeroed => block.with_zeroed(hint),
            Want::Dirty => block.with_dirty(hint),
        }
    }
}

/// How much of a word a request takes.
#[derive(Clone, Copy)]
pub(super) enum Take {
    One,
    All,
}

/// A processor's reservation: 1 + the number of the word where it found a frame last.
#[derive(Debug, Default)]
pub struct Reservations {
    zeroed: AtomicUsize,
    dirty: AtomicUsize,
    /// The frame after the run that was got last.
    pub(super) run: AtomicUsize,
}

impl Reservations {
    pub(super) fn of(&self, want: Want) -> &AtomicUsize {
        match want {
            Want::Zeroed => &self.zeroed,
            Want::Dirty => &self.dirty,
        }
    }
}

/// The storage of a ledger: zeroed, and big enough for the zone at its largest.
#[derive(Debug)]
pub struct Storage {
    /// [`Geometry::WORDS_PER_BLOCK`] for each block.
    pub words: &'static [AtomicU64],
    /// One for each block.
    pub blocks: &'static [AtomicU64],
    /// One for each processor, 255 at most; more processors share.
    pub cpus: &'static [CachePadded<Reservations>],
}

#[cfg(all(test, not(any(loom, shuttle))))]
impl Storage {
    /// For a test's ledger of so many blocks, and two processors.
    pub(super) fn leaked(blocks: usize) -> Storage {
        fn leak<T>(count: usize, make: impl Fn() -> T) -> &'static [T] {
            Vec::leak((0..count).map(|_| make()).collect())
        }
        Storage {
            words: leak(blocks * Native::WORDS_PER_BLOCK, || AtomicU64::new(0)),
            blocks: leak(blocks, || AtomicU64::new(0)),
            cpus: leak(2, Default::default),
        }
    }
}

/// Set in a ledger's number of blocks when it can't grow any more.
const AT_ITS_END: usize = 1 << (usize::BITS - 1);

/// See the module's top.
#[derive(Debug)]
pub struct Ledger<G: Geometry = Native, B: Backing = ()> {
    pub(super) words: Table<AtomicU64>,
    pub(super) blocks: Table<AtomicU64>,
    pub(super) cpus: &'static [CachePadded<Reservations>],
    /// Blocks below this are or were part of the zone. Only grows, and not any more with [`AT_ITS_END`].
    grown: AtomicUsize,
    /// Blocks in state Free: the watermarks look at this. Off by the changes in flight.
    free_blocks: AtomicUsize,
    /// Those of them that are not pristine, and so cost nothing more. Off by the changes in flight, too.
    held_blocks: AtomicUsize,
    /// The fork epoch; see [`Ledger::advance_epoch`].
    epoch: AtomicU32,
    /// How often something came free of which the hints did not tell before.
    pub(super) changes: AtomicUsize,
    /// For each [`Want`]: 1 + the changes there had been when a search last found nothing. Until
    /// there is another, nobody searches in vain again.
    pub(super) found_none: [AtomicUsize; 2],
    /// How often a block in parts came to have frames while nobody had reserved it.
    opened: AtomicUsize,
    /// The same as [`Ledger::found_none`], for a search for such blocks: 1 + how often there had come to be one. It
    /// looks at all blocks, and where whole ones are taken, one after the other, there is none for long.
    pub(super) found_none_open: [AtomicUsize; 2],
    /// 1 + the changes there had been when all of the blocks in parts were last joined.
    joined: AtomicUsize,
    /// The same for a search for a run through all of them: a word's upper bits, with the frames that were not found.
    pub(super) found_no_run: AtomicUsize,
    /// The memory that a helper works on within blocks in parts.
    pub(super) working: Working,
    pub(super) hidden_ranges: HiddenRanges,
    pub(super) backing: B,
    geometry: core::marker::PhantomData<G>,
}

impl<G: Geometry, B: Backing> Ledger<G, B> {
    /// A ledger in which every block is absent.
    pub fn new(storage: Storage, backing: B) -> Ledger<G, B> {
        let Storage { words, blocks, cpus } = storage;
        assert!(G::WORDS_PER_BLOCK.is_power_of_two() && G::WORDS_PER_BLOCK <= MAX_WORDS_PER_BLOCK);
        assert_eq!(words.len(), blocks.len() * G::WORDS_PER_BLOCK);
        assert!(!cpus.is_empty() && cpus.len() <= 255);
        Ledger {
            words: Table::new(words),
            blocks: Table::new(blocks),
            cpus,
            grown: AtomicUsize::new(0),
            free_blocks: AtomicUsize::new(0),
            held_blocks: AtomicUsize::new(0),
            epoch: AtomicU32::new(0),
            changes: AtomicUsize::new(0),
            found_none: [AtomicUsize::new(0), AtomicUsize::new(0)],
            opened: AtomicUsize::new(0),
            found_none_open: [AtomicUsize::new(0), AtomicUsize::new(0)],
            joined: AtomicUsize::new(0),
            found_no_run: AtomicUsize::new(0),
            working: Working::new(),
            hidden_ranges: HiddenRanges::new(),
            backing,
            geometry: core::marker::PhantomData,
        }
    }

    /// Blocks that are or were part of the zone.
    #[inline]
    pub fn grown(&self) -> usize {
        // Acquire: pairs with `grow`, so that the words below are seen as it left them.
        self.grown.load(Ordering::Acquire) & !AT_ITS_END
    }

    /// Blocks there is storage for.
    pub fn capacity(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that are free as a whole, roughly.
    pub fn free_blocks(&self) -> usize {
        self.free_blocks.load(Ordering::Relaxed)
    }

    pub(super) fn count_free_blocks(&self, freed: usize, taken: usize) {
        // Relaxed: an estimate that orders nothing. One wrapping addition does both.
        self.free_blocks.fetch_add(freed.wrapping_sub(taken), Ordering::Relaxed);
    }

    /// Free blocks that cost nothing more, roughly.
    pub fn held_blocks(&self) -> usize {
        let held = self.held_blocks.load(Ordering::Relaxed);
        // The thread that takes a block may count sooner than the one that freed it.
        if held > isize::MAX as usize {
            0
        } else {
            held
        }
    }

    pub(super) fn count_held_blocks(&self, freed: usize, taken: usize) {
        if freed != taken {
            // Relaxed: as `count_free_blocks`.
            self.held_blocks.fetch_add(freed.wrapping_sub(taken), Ordering::Relaxed);
        }
    }

    /// Whether so many whole blocks may be had, side by side or not: those that are held, and those that may be
    /// charged for.
    pub fn may_have(&self, blocks: usize) -> bool {
        let held = self.held_blocks();
        held >= blocks || self.backing.room() >= blocks - held
    }

    /// How often something came free of which the hints did not tell before.
    pub fn changes(&self) -> usize {
        // Acquire: pairs with `note_change`.
        self.changes.load(Ordering::Acquire)
    }

    /// Whether all blocks in parts have been joined since something last came free.
    pub(super) fn is_joined(&self) -> bool {
        // Relaxed: a hint.
        self.joined.swap(self.changes() + 1, Ordering::Relaxed) == self.changes() + 1
    }

    /// The fork epoch.
    #[inline]
    pub fn epoch(&self) -> u16 {
        self.epoch.load(Ordering::Relaxed) as u16
    }

    /// Says that from now on every page written before is shared with a forked child, so that
    /// writing it costs more than a fault. Sixteen bits come round again; a block that looks
    /// young by that only costs its copying.
    pub fn advance_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a block must be refreshed before it is used again.
    #[inline]
    pub fn is_stale(&self, block: BlockWord) -> bool {
        block.tainted() || (block.ready() && block.epoch() != self.epoch())
    }

    /// Whether a block is no part of the zone.
    #[inline]
    pub fn is_absent(&self, block: usize) -> bool {
        // Relaxed: an owner of memory of the block has been given it after it was part of the zone.
        block >= self.grown()
            || BlockWord::from_bits(self.blocks[block].load(Ordering::Relaxed)).state()
                == BlockState::Absent
    }

    /// The word of a block.
    #[inline]
    pub fn block(&self, index: usize) -> BlockWord {
        BlockWord::from(self.blocks[index].load(Ordering::Acquire))
    }

    /// Stores the word of a block that the caller owns.
    #[inline]
    pub(super) fn set_block(&self, index: usize, word: BlockWord) {
        // Release: pairs with the compare-and-swap of the next claim of the block.
        self.blocks[index].store(word.into(), Ordering::Release);
    }

    /// Replaces one word of a block by another if it still is what the caller saw.
    #[inline]
    pub(super) fn swap_block(&self, index: usize, old: BlockWord, new: BlockWord) -> bool {
        // SeqCst: see "The hint that must not get lost" in `block`.
        self.blocks[index]
            .compare_exchange(old.into(), new.into(), Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    }

    /// Changes a block's hints for as long as it is in parts.
    #[inline]
    pub(super) fn update_hints(&self, index: usize, change: impl Fn(BlockWord) -> BlockWord) {
        loop {
            let old = BlockWord::from(self.blocks[index].load(Ordering::SeqCst));
            if old.state() != BlockState::Parts || change(old) == old {
                return;
            }
            if self.swap_block(index, old, change(old)) {
                return;
            }
        }
    }

    /// Tells the block's word that frames of this kind were freed, if it does not know.
    #[inline]
    pub(super) fn note_free(&self, index: usize, want: Want) {
        let word = BlockWord::from(self.blocks[index].load(Ordering::SeqCst));
        if !(want.hinted(word) && word.room() == ROOM_UNKNOWN) {
            self.update_hints(index, |word| want.with_hint(word, true).with_room(ROOM_UNKNOWN));
            self.note_opened();
        }
    }

    /// Comes after what it tells of: a search that finds nothing is remembered with the changes before it.
    pub(super) fn note_change(&self) {
        // Release: a search because of it finds the free memory.
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// As [`Ledger::note_change`], of a block in parts that may be reserved.
    pub(super) fn note_opened(&self) {
        // Release: as above.
        self.opened.fetch_add(1, Ordering::Release);
        self.note_change();
    }

    /// How often there came to be such a block.
    pub(super) fn opened(&self) -> usize {
        // Acquire: pairs with `note_opened`.
        self.opened.load(Ordering::Acquire)
    }

    pub(super) fn words_of(&self, block: usize) -> Range<usize> {
        block * G::WORDS_PER_BLOCK..(block + 1) * G::WORDS_PER_BLOCK
    }

    pub(super) fn cpu(&self, cpu: usize) -> &Reservations {
        &self.cpus[cpu % self.cpus.len()]
    }

    /// Gets one frame for processor `cpu` (any number will do): the frame, and whether it is
    /// zeroed. One of the wanted kind if there is any, else one of the other.
    #[inline]
    pub fn get_frame(&self, cpu: usize, want: Want) -> Option<(Pfn, bool)> {
        let (first, bit, zeroed) = self.get_bits(cpu, want, Take::One)?;
        Some((Pfn(first + bit.trailing_zeros() as usize), zeroed))
    }

    /// Gets all frames of one kind that are free in one word: the word's first frame, a bit for
    /// each frame got, and whether they are zeroed.
    pub(super) fn get_word(&self, cpu: usize, want: Want) -> Option<(usize, u32, bool)> {
        self.get_bits(cpu, want, Take::All)
    }

    #[inline]
    fn get_bits(&self, cpu: usize, want: Want, take: Take) -> Option<(usize, u32, bool)> {
        let slot = self.cpu(cpu).of(want);
        if let Some(word) = slot.load(Ordering::Relaxed).checked_sub(1) {
            if let Some(bits) = self.claim_bits(word, want, take) {
                return Some((Self::first_of(word), bits, want == Want::Zeroed));
            }
        }
        self.get_elsewhere(cpu, want, take)
    }

    pub(super) fn first_of(word: usize) -> usize {
        word * G::FRAMES_PER_WORD as usize
    }

    /// Claims frames of the wanted kind in a word: their bits.
    #[inline]
    pub(super) fn claim_bits(&self, index: usize, want: Want, take: Take) -> Option<u32> {
        let chosen = |word: Word| {
            let candidates = want.candidates::<G>(word);
            match take {
                Take::One => candidates & candidates.wrapping_neg(),
                Take::All => candidates,
            }
        };
        // Acquire: pairs with the put or the scrub that freed the frames.
        let before = word::update(&self.words[index], Ordering::Acquire, |word| {
            let bits = chosen(word);
            (bits != 0).then(|| word.allocate(bits, bits))
        });
        before.ok().map(chosen)
    }

    /// Turns a free block into one in parts whose first `taken` frames are allocated as one run, and are dirty where
    /// the block was. Pages that its user has a number about stay under the first `kept` of them. `false` if somebody
    /// else was first.
    pub(super) fn split(&self, block: usize, word: BlockWord, taken: usize, kept: usize) -> bool {
        let is_beyond_budget = word.is_pristine() && self.backing.room() == 0;
        if is_beyond_budget || self.take_block(block, |now| now == word).is_none() {
            return false;
        }
        if word.hidden() {
            self.show(block..block + 1);
        }
        let mut word = word;
        let has_pages = word.of_pages() > 0;
        if has_pages {
            self.backing.forget_pages(word);
        }
        let is_stale = self.is_stale(word);
        let kept = if is_stale { 0 } else { kept };
        if (is_stale || has_pages) && self.backing.refresh(block, word, kept) {
            word = BlockWord::FRESH.with_ready(false);
        }
        self.open_words(block, taken, word.zeroed());
        let parts = BlockWord::new()
            .with_state(BlockState::Parts)
            .with_zeroed(word.zeroed())
            .with_dirty(!word.zeroed())
            .with_ready(word.ready())
            .with_tainted(word.tainted())
            .with_trimmed(word.trimmed())
            .with_room(ROOM_ALL)
            .with_epoch(self.epoch());
        self.set_block(block, parts);
        // A search that found nothing meanwhile did not see the rest of it. The caller that takes nothing reserves it.
        match taken {
            0 => self.note_change(),
            _ => self.note_opened(),
        }
        true
    }

    /// Writes the words of a block that the caller owns: `taken` frames allocated as one run
    /// (none if 0), the rest free and zeroed or not.
    pub(super) fn open_words(&self, block: usize, taken: usize, zeroed: bool) {
        let per_word = G::FRAMES_PER_WORD as usize;
        for (index, word) in self.words[self.words_of(block)].iter().enumerate() {
            let here = taken.saturating_sub(index * per_word).min(per_word) as u32;
            let allocated = if here == 0 { 0 } else { word::span(0, here) };
            let ends_here = here > 0 && index * per_word + here as usize == taken;
            let last = if ends_here { 1 << (here - 1) } else { 0 };
            let free = G::MASK & !allocated;
            let value =
                Word(0).release(free, if zeroed { free } else { 0 }).allocate(allocated, last);
            // Release: a thread that gets a frame from here sees the memory as it was refreshed.
            word.store(value.0, Ordering::Release);
        }
    }

    /// Puts one frame back, with unknown content.
    ///
    /// # Errors
    /// [`Error::DoubleFree`] if it is not an allocated frame that ends a run.
    #[inline]
    pub fn put_frame(&self, pfn: Pfn) -> Result<()> {
        self.put_one(pfn, Want::Dirty)
    }

    /// Puts one frame back that the caller has not written to since it got it zeroed.
    ///
    /// # Errors
    /// As [`Ledger::put_frame`].
    #[inline]
    pub fn put_zeroed_frame(&self, pfn: Pfn) -> Result<()> {
        self.put_one(pfn, Want::Zeroed)
    }

    #[inline]
    fn put_one(&self, pfn: Pfn, kind: Want) -> Result<()> {
        let offset = pfn.0 % G::FRAMES_PER_WORD as usize;
        self.put_word(pfn.0 - offset, 1 << offset, kind)
    }

    /// Puts single frames of one word back, or none of them: `first` is the word's first frame.
    #[inline]
    pub(super) fn put_word(&self, first: usize, frames: u32, kind: Want) -> Result<()> {
        let index = first / G::FRAMES_PER_WORD as usize;
        let word = self.words.get(index).ok_or(Error::NotAllocated)?;
        let zeroed = if kind == Want::Zeroed { frames } else { 0 };
        // SeqCst includes release, for the next owner, and see `block` for the hint.
        word::update(word, Ordering::SeqCst, |word| {
            (word.last() & frames == frames).then(|| word.release(frames, zeroed))
        })
        .map_err(|_| Error::DoubleFree)?;
        self.note_free(index / G::WORDS_PER_BLOCK, kind);
        Ok(())
    }

    /// A frame's word and its bit there.
    #[inline]
    pub(super) fn locate(pfn: Pfn) -> (usize, u32) {
        let per_word = G::FRAMES_PER_WORD as usize;
        (pfn.0 / per_word, 1 << (pfn.0 % per_word))
    }

    /// Makes `blocks` more blocks part of the zone: they must be touchable, and zero. They are
    /// the ones that [`Ledger::claim_growth`] returned. `hidden`: core dumps leave them out.
    pub(super) fn grow(&self, blocks: Range<usize>, hidden: bool) {
        let fresh = BlockWord::FRESH.with_hidden(hidden).with_epoch(self.epoch());
        if hidden {
            self.hidden_ranges.add(1);
        }
        let added = blocks.filter(|&block| self.end_adding(block, fresh)).count();
        self.count_free_blocks(added, 0);
        self.note_change();
    }

    /// Claims the next `blocks` blocks that were never part of the zone. `None` at its end.
    pub(super) fn claim_growth(&self, blocks: usize) -> Option<Range<usize>> {
        let capacity = self.capacity();
        let next = |grown: usize| grown.checked_add(blocks).filter(|&end| end <= capacity);
        // AcqRel: the winner's blocks are its own; Absent until `grow` says otherwise. At its end it is larger than
        // any capacity.
        let start = self.grown.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok()?;
        Some(start..start + blocks)
    }

    /// Whether growing has ended.
    pub(super) fn is_at_its_end(&self) -> bool {
        // SeqCst: see `end_growth`.
        self.grown.load(Ordering::SeqCst) & AT_ITS_END != 0
    }

    /// Ends growing: the blocks that never were part of the zone, and never will be. Empty if it had ended.
    pub fn end_growth(&self) -> Range<usize> {
        // SeqCst: a thread that claims absent blocks looks at this then, and the caller at what is claimed.
        let grown = self.grown.fetch_or(AT_ITS_END, Ordering::SeqCst);
        match grown & AT_ITS_END {
            0 => grown..self.capacity(),
            _ => 0..0,
        }
    }

    /// The pages of the tables that are about no block below [`Ledger::grown`].
    ///
    /// # Safety
    /// Growing has [ended](Ledger::end_growth). The caller may unmap them, and from then on nobody asks about a block
    /// that is not below, but by [`Ledger::is_absent`].
    pub(super) unsafe fn cut_tables(&self) -> [Option<(NonNull<u8>, usize)>; 2] {
        let grown = self.grown();
        // SAFETY: as the caller promises.
        unsafe { [self.words.cut(grown * G::WORDS_PER_BLOCK), self.blocks.cut(grown)] }
    }
}
