//! Memory that a program holds and hardly touches.
//!
//! The ready zone's memory is there before it is touched, or comes in huge pages. So a program that asks for it, keeps
//! it and touches little would have far more resident than it needs. Sizes are known by what was touched of their
//! memory when it was freed, which tells nothing of memory that is never freed. So there is one budget for all memory
//! in use of which it is not known that it is touched: [`UNSEEN`], and what follows from experience.
//!
//! Now and then a run goes out as a *witness*: it stands for all memory that went out since the last one, and has eight
//! pages that tell later whether they were written. Pages that read as zeros do so as long as they are not. In others,
//! whose content is nothing to anybody, a mark is left, since a program may write what it wrote before; and a sum of
//! all of such a page is kept, since a program may write anywhere in it. A witness of which two pages and more have
//! been written is *seen*, and does not count any more. Nor does one that is freed. The rest of them, all in use and
//! hardly touched, are an unbiased sample of such memory, whatever the program frees and asks for anew.
//!
//! Where a program has advised the kernel to use huge pages, as NumPy does with every large array, a page that is
//! touched has its whole huge page there, with pumice or without. There a place stands for its huge page: one that is
//! resident in a demand zone is written, and in the ready zone other pages of it are looked at, too.
//!
//! As long as they stand for more than the budget, requests of about the size of such a witness are *held*: they are
//! served as those of a sparse class are, from the demand zone, as the kernel would serve them. They go on being
//! witnesses there, so that the end of it is seen. Other sizes go on. A guess is made within the budget only.
//!
//! A witness that was found to be hardly touched, and is written later, shows a program that asks for all first and
//! fills all then. So the budget grows by some times as much, and shrinks where that does not happen again.
//!
//! The program may have unmapped such memory, or forbidden itself to read it: so the kernel copies the places, which
//! fails then. A witness that nobody can look at is taken for seen, as all are under a seccomp filter.

mod places;

use super::classes::{held_bit, scattered};
use super::retain::subtract;
use super::{Content, Heap, PoolZone, ZoneKind};
use core::{array, slice};
pub(super) use places::PLACES;
use places::{in_same_block, is_dirty, mark, places, sum, sum_of_page};
use pumice_frames::addr::{PageRange, BLOCK_FRAMES, BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::frame::{Dirt, Run};
use pumice_frames::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use pumice_frames::sys::mem;
use rustix::io::Errno;

/// Frames that may be in use without being seen...
const UNSEEN: usize = (24 << 20) / FRAME_SIZE;
/// ... and this share of the ready zones' memory in use.
const SHARE: usize = 8;
/// New memory is had on a guess for so many frames at most.
pub(super) const MOST_GUESSED: usize = (256 << 20) / FRAME_SIZE;
/// There is a witness for each such share of the budget.
const STEP_SHARE: usize = 16;
/// A witness is looked at when this share of the budget has gone out after it.
const RIPE_SHARE: usize = 8;
/// A witness that was written late adds so many times as much to the budget...
const LATE: usize = 4;
/// ... and at most so many frames.
const MOST_LATE: usize = (2 << 30) / FRAME_SIZE;
/// Sizes stay hardly touched while so many parts of the budget are used...
const MUCH: usize = 3;
/// ... of so many.
const MUCH_OF: usize = 4;
/// There is a look for so many frames that are asked for while the budget is used up...
const LOOK_FRAMES: usize = 1024;
/// ... twice as many after so many looks as there are witnesses that found nothing new, up to this many times...
const MOST_PATIENCE: usize = 4;
/// ... and so many looks at most for one request.
const MOST_LOOKS: usize = 2;

const WITNESSES: usize = 64;
/// So many places are written, and more, where a run is touched.
const FEW_WRITTEN: usize = PLACES / 4;
/// Bytes that are looked at first of a page: most programs write those.
const FIRST_BYTES: usize = 64;
/// Pages of which all bytes are looked at, at most.
const WHOLE_PAGES: usize = 4;
/// Pages of a huge page that are looked at where a program has advised to use them.
const PAGES_OF_HUGE: usize = 16;

/// A witness was found to be hardly touched.
const IS_UNUSED: usize = 1;
/// Where the bits begin that say which places have a mark.
const MARKED: u32 = 1;
/// Its owner has advised to use huge pages.
const IS_HUGE: usize = 1 << 11;
const ADDRESS: usize = !(FRAME_SIZE - 1);

/// A run that goes out as a witness. Relaxed, as all here: amounts that order nothing, and a witness that is forgotten
/// teaches nothing.
#[derive(Debug, Default)]
struct Witness {
    /// Its address, with flags in the low bits; 0: there is none, [`IS_UNUSED`] alone: there will be one.
    word: AtomicUsize,
    frames: AtomicUsize,
    /// As many when they were asked for: it speaks for requests of that size, however much is cut off later.
    asked_for: AtomicUsize,
    /// Frames at its start that it had before it grew: the others are looked at.
    skipped: AtomicUsize,
    /// Frames that it stands for.
    weight: AtomicUsize,
    /// [`Held::age`] by then.
    born: AtomicUsize,
    /// The sums of its places that have a mark.
    sums: [AtomicU64; PLACES],
}

/// See the module's top.
#[derive(Debug)]
pub(super) struct Held {
    witnesses: [Witness; WITNESSES],
    /// Frames that all witnesses stand for.
    unseen: AtomicUsize,
    /// Frames that have gone out, ever, of those that count: from ready zones, and of sizes that are held.
    given: AtomicUsize,
    /// How many there were at the last witness.
    last: AtomicUsize,
    /// Frames that go out before the next one.
    step: AtomicUsize,
    /// Frames that were asked for while there was a reason to look.
    asked: AtomicUsize,
    /// The witness that is looked at next.
    hand: AtomicUsize,
    /// Looks since one found something new.
    in_vain: AtomicUsize,
    /// Bits of the sizes that were found to be hardly touched on its way round.
    found: AtomicU64,
    /// Frames that the budget grew by.
    late: AtomicUsize,
}

/// The finding of a look.
enum Finding {
    /// It is in use, and hardly touched.
    Unused,
    /// It is touched, or nobody knows.
    Seen,
    /// It is not in use any more.
    Gone,
}

/// The places that are known to be written, and those of which it is not known.
struct Looked {
    written: usize,
    left: [bool; PLACES],
}

impl Looked {
    /// Notes those that are written of the places that are left.
    fn note(&mut self, is_written: impl Fn(usize) -> bool) {
        for nth in 0..PLACES {
            if self.left[nth] && is_written(nth) {
                (self.left[nth], self.written) = (false, self.written + 1);
            }
        }
    }

    fn is_enough(&self) -> bool {
        self.written >= FEW_WRITTEN
    }
}

impl Held {
    pub(super) fn new() -> Held {
        let zero = || AtomicUsize::new(0);
        Held {
            witnesses: array::from_fn(|_| Witness::default()),
            unseen: zero(),
            given: zero(),
            last: zero(),
            step: zero(),
            asked: zero(),
            hand: zero(),
            in_vain: zero(),
            found: AtomicU64::new(0),
            late: zero(),
        }
    }

    /// The witness at an address, if there is one.
    fn of(&self, at: usize) -> &Witness {
        &self.witnesses[scattered((at / FRAME_SIZE) as u64) as usize % WITNESSES]
    }

    /// A run's witness and its word, if the run is one.
    #[inline]
    fn own(&self, zone: &PoolZone, range: PageRange) -> Option<(&Witness, usize)> {
        let at = zone.address(range.start) as usize;
        let witness = self.of(at);
        let word = witness.word.load(Ordering::Relaxed);
        (word & ADDRESS == at).then_some((witness, word))
    }

    #[cfg(test)]
    pub(super) fn unseen(&self) -> usize {
        self.unseen.load(Ordering::Relaxed)
    }

    /// Frames that have been asked for, as far as it matters.
    fn age(&self) -> usize {
        self.given.load(Ordering::Relaxed) + self.asked.load(Ordering::Relaxed)
    }

    pub(super) fn note_late(&self, weight: usize) {
        let more = |late: usize| Some((late + LATE * weight).min(MOST_LATE));
        let _ = self.late.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }
}

impl Heap {
    /// Frames that may be in use without being seen.
    fn may_be_unseen(&self) -> usize {
        self.may_be_guessed() + self.held.late.load(Ordering::Relaxed)
    }

    /// Frames of these that may be had on a guess: a program that fills some memory late says nothing of other memory.
    fn may_be_guessed(&self) -> usize {
        UNSEEN + self.footprint.in_use() / SHARE
    }

    /// Whether more is hardly touched than may be. Nothing is guessed then.
    pub(super) fn is_too_much_held(&self) -> bool {
        self.held.unseen.load(Ordering::Relaxed) > self.may_be_unseen()
    }

    /// Whether so many frames more that are hardly touched would not be much: a guess that was wrong has no size held.
    pub(super) fn may_hold_unseen(&self, frames: usize) -> bool {
        let unseen = self.held.unseen.load(Ordering::Relaxed);
        unseen + frames <= self.may_be_guessed() / MUCH_OF * MUCH
    }

    fn is_much_held(&self) -> bool {
        self.held.unseen.load(Ordering::Relaxed) > self.may_be_unseen() / MUCH_OF * MUCH
    }

    /// Before a request: looks at witnesses, if there is a reason.
    #[inline]
    pub(super) fn look_at_held(&self, frames: usize) {
        if self.is_too_much_held() || self.classes.is_any_held() {
            self.look_at_some(frames);
        }
    }

    #[cold]
    fn look_at_some(&self, frames: usize) {
        let before = self.held.asked.fetch_add(frames, Ordering::Relaxed);
        let in_vain = self.held.in_vain.load(Ordering::Relaxed);
        let each = LOOK_FRAMES << (in_vain / WITNESSES).min(MOST_PATIENCE);
        let looks = (before + frames) / each - before / each;
        for _ in 0..looks.min(MOST_LOOKS) {
            self.look_at_next();
        }
    }

    /// Looks at the next witness that is old enough: its owner may be about to fill it.
    fn look_at_next(&self) {
        let ripe = self.may_be_unseen() / RIPE_SHARE;
        let now = self.held.age();
        for _ in 0..WITNESSES {
            let hand = self.held.hand.fetch_add(1, Ordering::Relaxed) % WITNESSES;
            if hand == 0 {
                let found = self.held.found.swap(0, Ordering::Relaxed);
                self.classes.set_all_held(if self.is_much_held() { found } else { 0 });
            }
            let witness = &self.held.witnesses[hand];
            let word = witness.word.load(Ordering::Relaxed);
            let is_ripe = now.wrapping_sub(witness.born.load(Ordering::Relaxed)) >= ripe;
            if word & ADDRESS != 0 && is_ripe {
                self.look_at(witness, word);
                return;
            }
        }
    }

    fn look_at(&self, witness: &Witness, word: usize) {
        let frames = witness.asked_for.load(Ordering::Relaxed);
        let finding = self.written_places(witness, word);
        self.held.in_vain.fetch_add(1, Ordering::Relaxed);
        match finding {
            Finding::Unused => {
                self.held.found.fetch_or(held_bit(frames), Ordering::Relaxed);
                let swap = |now| {
                    let relaxed = Ordering::Relaxed;
                    witness.word.compare_exchange(word, now, relaxed, relaxed).is_ok()
                };
                if self.is_too_much_held() {
                    if !self.classes.is_held(frames) {
                        self.held.in_vain.store(0, Ordering::Relaxed);
                        self.classes.set_held(frames);
                    }
                    if word & IS_UNUSED == 0 && swap(word | IS_UNUSED) {
                        let weight = witness.weight.load(Ordering::Relaxed);
                        subtract(&self.held.late, weight / 2);
                    }
                }
            }
            Finding::Seen | Finding::Gone => {
                self.held.in_vain.store(0, Ordering::Relaxed);
                self.end_witness(witness, word, &finding);
            }
        }
    }

    fn end_witness(&self, witness: &Witness, word: usize, finding: &Finding) {
        let weight = witness.weight.load(Ordering::Relaxed);
        let swap = witness.word.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
        if swap.is_err() {
            return;
        }
        subtract(&self.held.unseen, weight);
        if word & IS_UNUSED != 0 && matches!(finding, Finding::Seen) {
            self.held.note_late(weight);
        }
        if !self.is_much_held() && self.classes.is_any_held() {
            self.classes.set_all_held(0);
        }
    }

    /// A run is about to be freed.
    #[inline]
    pub(super) fn end_held(&self, zone: &PoolZone, range: PageRange) {
        if let Some((witness, word)) = self.held.own(zone, range) {
            self.end_witness_freed(witness, word);
        }
    }

    #[cold]
    fn end_witness_freed(&self, witness: &Witness, word: usize) {
        let finding = match word & IS_UNUSED {
            0 => Finding::Gone,
            _ => self.written_places(witness, word),
        };
        self.end_witness(witness, word, &finding);
    }

    /// A run goes out: it is a witness, if it is one that counts and it is time for one.
    #[inline]
    pub(super) fn hand_out_held(&self, zone: &PoolZone, run: &Run, content: Content) {
        let frames = run.range.frames;
        if zone.kind == ZoneKind::Demand && !self.classes.is_held(frames) {
            return;
        }
        let given = self.held.given.fetch_add(frames, Ordering::Relaxed) + frames;
        let since = given.wrapping_sub(self.held.last.load(Ordering::Relaxed));
        if since > self.held.step.load(Ordering::Relaxed) {
            self.begin_witness(zone, run, 0, content, given);
        }
    }

    /// A run that had so many frames has grown: the new ones count, and are looked at.
    pub(super) fn grow_held(&self, zone: &PoolZone, range: PageRange, had: usize) {
        let added = range.frames - had;
        let given = self.held.given.fetch_add(added, Ordering::Relaxed) + added;
        if let Some((witness, word)) = self.held.own(zone, range) {
            // Its marks lie in other places.
            let now = word & (ADDRESS | IS_UNUSED | IS_HUGE);
            let relaxed = Ordering::Relaxed;
            if witness.word.compare_exchange(word, now, relaxed, relaxed).is_ok() {
                let since = given.wrapping_sub(self.held.last.swap(given, relaxed));
                witness.skipped.store(had, relaxed);
                witness.frames.store(range.frames, relaxed);
                witness.asked_for.store(range.frames, relaxed);
                witness.weight.fetch_add(since, relaxed);
                self.held.unseen.fetch_add(since, relaxed);
            }
            return;
        }
        let since = given.wrapping_sub(self.held.last.load(Ordering::Relaxed));
        if since > self.held.step.load(Ordering::Relaxed) {
            // No marks: the owner has its own content there.
            let run = Run { range, dirt: Dirt::NONE };
            self.begin_witness(zone, &run, had, Content::Zero, given);
        }
    }

    /// A run is about to be cut to so many frames: if it is a witness, what is left of it stays one, without its marks.
    #[inline]
    pub(super) fn cut_held(&self, zone: &PoolZone, range: PageRange, kept: usize) {
        if let Some((witness, word)) = self.held.own(zone, range) {
            self.cut_witness(witness, word, kept);
        }
    }

    #[cold]
    fn cut_witness(&self, witness: &Witness, word: usize, kept: usize) {
        let relaxed = Ordering::Relaxed;
        let (frames, skipped) = (witness.frames.load(relaxed), witness.skipped.load(relaxed));
        if kept <= skipped {
            return self.end_witness(witness, word, &Finding::Gone);
        }
        let now = word & (ADDRESS | IS_UNUSED | IS_HUGE);
        if kept < frames && witness.word.compare_exchange(word, now, relaxed, relaxed).is_ok() {
            witness.frames.store(kept, relaxed);
            let cut = |weight: usize| weight * (frames - kept) / (frames - skipped);
            let weight = witness.weight.load(relaxed);
            witness.weight.store(weight - cut(weight), relaxed);
            subtract(&self.held.unseen, cut(weight));
        }
    }

    /// A run stands elsewhere now: if it is a witness, it stays one, without its marks.
    pub(super) fn move_held(&self, zone: &PoolZone, from: PageRange, to: PageRange) {
        let relaxed = Ordering::Relaxed;
        let Some((old, word)) = self.held.own(zone, from) else { return };
        if old.word.compare_exchange(word, 0, relaxed, relaxed).is_err() {
            return;
        }
        let at = zone.address(to.start) as usize;
        let new = self.held.of(at);
        let weight = old.weight.load(relaxed);
        if new.word.compare_exchange(0, IS_UNUSED, relaxed, relaxed).is_err() {
            // The next one stands for as much more.
            subtract(&self.held.unseen, weight);
            self.held.last.fetch_sub(weight, relaxed);
            return;
        }
        for (to, from) in [
            (&new.frames, &old.frames),
            (&new.asked_for, &old.asked_for),
            (&new.skipped, &old.skipped),
            (&new.weight, &old.weight),
            (&new.born, &old.born),
        ] {
            to.store(from.load(relaxed), relaxed);
        }
        new.word.store(at | word & (IS_UNUSED | IS_HUGE), relaxed);
    }

    /// All of a run is taken for written: if it is a witness, it counts no more.
    pub(super) fn is_seen(&self, zone: &PoolZone, range: PageRange) {
        if let Some((witness, word)) = self.held.own(zone, range) {
            self.end_witness(witness, word, &Finding::Seen);
        }
    }

    /// Looks at a run that may be a witness, whose owner has had time to fill it.
    pub(super) fn look_at_own(&self, zone: &PoolZone, range: PageRange) {
        if let Some((witness, word)) = self.held.own(zone, range) {
            self.look_at(witness, word);
        }
    }

    /// How many of eight places all over a range were written, as far as the content tells. Memory that is there tells
    /// nothing where huge pages are. `None` where nobody may look: under a filter, or where a place is unmapped.
    pub(super) fn written_eighths(&self, zone: &PoolZone, range: PageRange) -> Option<usize> {
        if self.is_quiet() {
            return None;
        }
        let places = places(zone.address(range.start) as usize, range.frames);
        let is_there = |nth: usize| self.is_there(zone, places[nth]);
        let mut looked = Looked { written: 0, left: array::from_fn(is_there) };
        let mut bytes = [[0; FIRST_BYTES]; PLACES];
        mem::copy_own(places, looked.left, &mut bytes).ok()?;
        looked.note(|nth| bytes[nth] != [0; FIRST_BYTES]);
        looked.note(|nth| sum_of_page(places[nth]).is_ok_and(|sum| sum != 0));
        Some(looked.written)
    }

    #[cold]
    fn begin_witness(
        &self,
        zone: &PoolZone,
        run: &Run,
        skipped: usize,
        content: Content,
        given: usize,
    ) {
        let at = zone.address(run.range.start) as usize;
        let witness = self.held.of(at);
        let relaxed = Ordering::Relaxed;
        if witness.word.compare_exchange(0, IS_UNUSED, relaxed, relaxed).is_err() {
            // The next one will be.
            return;
        }
        let since = given.wrapping_sub(self.held.last.swap(given, relaxed));
        let step = self.may_be_unseen() / STEP_SHARE;
        self.held.step.store(step / 2 + scattered(given as u64) as usize % step, relaxed);
        let mut word = at;
        if content == Content::Any {
            for (nth, place) in places(at, run.range.frames).into_iter().enumerate() {
                if is_dirty(zone, run, place) {
                    // SAFETY: the place is the new run's, whose content is nothing to anybody.
                    unsafe { (place as *mut u64).write_volatile(mark(place)) };
                    // SAFETY: as above: nobody else writes to that page yet.
                    let page = unsafe { slice::from_raw_parts(place as *const u8, FRAME_SIZE) };
                    witness.sums[nth].store(sum(0, page), relaxed);
                    word |= 1 << MARKED << nth;
                }
            }
        }
        witness.frames.store(run.range.frames, relaxed);
        witness.asked_for.store(run.range.frames, relaxed);
        witness.skipped.store(skipped, relaxed);
        witness.weight.store(since, relaxed);
        witness.born.store(self.held.age(), relaxed);
        witness.word.store(word, relaxed);
        self.held.unseen.fetch_add(since, relaxed);
    }

    /// Its owner advises to use huge pages in this range.
    pub(super) fn note_huge(&self, at: usize, len: usize) {
        for witness in &self.held.witnesses {
            let word = witness.word.load(Ordering::Relaxed);
            let (start, frames) = (word & ADDRESS, witness.frames.load(Ordering::Relaxed));
            if start != 0 && start < at + len && at < start + frames * FRAME_SIZE {
                let (now, relaxed) = (word | IS_HUGE, Ordering::Relaxed);
                let _ = witness.word.compare_exchange(word, now, relaxed, relaxed);
            }
        }
    }

    /// Looks at a witness's places.
    fn written_places(&self, witness: &Witness, word: usize) -> Finding {
        let at = word & ADDRESS;
        let frames = witness.frames.load(Ordering::Relaxed);
        let Ok((zone, range)) = self.run_at(at as *const u8) else { return Finding::Gone };
        if range.frames < frames {
            return Finding::Gone;
        }
        if self.is_quiet() {
            return Finding::Seen;
        }
        match self.look_at_places(zone, witness, word) {
            Ok(looked) if !looked.is_enough() => Finding::Unused,
            Ok(_) | Err(_) => Finding::Seen,
        }
    }

    /// Looks at a witness's places until enough are known to be written.
    fn look_at_places(
        &self,
        zone: &PoolZone,
        witness: &Witness,
        word: usize,
    ) -> Result<Looked, Errno> {
        let skipped = witness.skipped.load(Ordering::Relaxed);
        let frames = witness.frames.load(Ordering::Relaxed).saturating_sub(skipped);
        let places = places((word & ADDRESS) + skipped * FRAME_SIZE, frames);
        let is_marked = |nth: usize| word >> MARKED >> nth & 1 != 0;
        // Where nothing is, nothing was written, or it was given back.
        let is_there = |nth: usize| self.is_there(zone, places[nth]);
        let mut looked = Looked { written: 0, left: array::from_fn(is_there) };
        let is_huge = word & IS_HUGE != 0 && witness.frames.load(Ordering::Relaxed) >= BLOCK_FRAMES;
        let mut bytes = [[0; FIRST_BYTES]; PLACES];
        mem::copy_own(places, looked.left, &mut bytes)?;
        looked.note(|nth| match is_marked(nth) {
            true => bytes[nth][..size_of::<u64>()] != mark(places[nth]).to_ne_bytes(),
            false => is_huge && zone.kind == ZoneKind::Demand || bytes[nth] != [0; FIRST_BYTES],
        });
        if is_huge && zone.kind == ZoneKind::Ready && !looked.is_enough() {
            let left = array::from_fn(|nth| looked.left[nth] && !is_marked(nth));
            self.look_at_huge(zone, places, left, &mut looked)?;
        }
        let left = looked.left;
        for (nth, page) in
            places.into_iter().enumerate().filter(|(nth, _)| left[*nth]).take(WHOLE_PAGES)
        {
            if !looked.is_enough() {
                let before =
                    if is_marked(nth) { witness.sums[nth].load(Ordering::Relaxed) } else { 0 };
                let is_written = sum_of_page(page)? != before;
                looked.note(|place| place == nth && is_written);
            }
        }
        Ok(looked)
    }

    /// Looks at other pages of those huge pages that are there in one piece.
    fn look_at_huge(
        &self,
        zone: &PoolZone,
        places: [usize; PLACES],
        left: [bool; PLACES],
        looked: &mut Looked,
    ) -> Result<(), Errno> {
        let is_whole = |place: usize| {
            let start = (place & !(BLOCK_SIZE - 1)) as *mut u8;
            self.resident(zone, start, BLOCK_SIZE) == Some(BLOCK_FRAMES)
        };
        let left: [bool; PLACES] = array::from_fn(|nth| left[nth] && is_whole(places[nth]));
        let mut bytes = [[0; FIRST_BYTES]; PLACES];
        for page in 1..PAGES_OF_HUGE {
            if !looked.is_enough() {
                mem::copy_own(places.map(|place| in_same_block(place, page)), left, &mut bytes)?;
                looked.note(|nth| left[nth] && bytes[nth] != [0; FIRST_BYTES]);
            }
        }
        Ok(())
    }

    /// Whether a page is resident: to look at one that is not would bring it, or wait for the program to bring it
    /// (userfaultfd(2)).
    fn is_there(&self, zone: &PoolZone, place: usize) -> bool {
        self.resident(zone, place as *mut u8, FRAME_SIZE) != Some(0)
    }
}
