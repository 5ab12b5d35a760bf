//! The entry: one 64-bit word, the same at every level of the tables.
//!
//! ```text
//!  63      44 43              16 15     9 8        4 3     0
//! +----------+------------------+--------+----------+-------+
//! | version  |      number      | latch  | A D C W R | state |
//! +----------+------------------+--------+----------+-------+
//!      20             28            7         5         4
//! ```
//!
//! - *state*: see [`State`]; the number means what it says there.
//! - *R*, *W*: the rights of the page. *W* alone does not allow a write: see *C*.
//! - *C*, copy on write: the frame may be another space's as well, so it must not be written.
//! - *A*, *D*: accessed and dirty, as `pte_young` and `pte_dirty`; set by guards and faults, cleared
//!   by reclaim.
//! - *latch*: how many guards there are for reading, or [`EXCLUSIVE`] for one for writing. While it is
//!   not 0, the frame stays what and where it is. Of a page that is not in memory: [`EXCLUSIVE`] while a
//!   fault reads it. Guards for reading that find [`CROWDED`] of them count themselves aside, and have one of the latch
//!   together until the last of them ends (`space::crowd`): there may be as many as like. The rest up to
//!   [`MAX_READERS`] is for that one, for `fork`, and for write-back.
//! - *version*: goes up with each write guard that ends, in every state, and when a page leaves, comes
//!   back or is copied; a read without a guard is
//!   good if the whole word but *A* was the same before and after it. Twenty bits come round again: such
//!   a read must not last as long as a million writes to the page, which take 10 ms and more.
//!
//! # Transitions
//! Every change of a word is one atomic operation, so that each happens at an instant, and only those
//! of this table happen ([`Entry::may_become`]; tests go through all pairs). *p* and *m* say at which
//! level: of pages (4 KiB) or the middle one (2 MiB).
//!
//! | from | to | cause |
//! |---|---|---|
//! | Untouched p | Zero | a fault for reading |
//! | Untouched p | Present | a fault for writing, prefaulting |
//! | Untouched, Absent | Absent | `protect`: rights of its own |
//! | Untouched m | Absent m | `map`, at addresses that are nobody's |
//! | Absent p | Zero, Present | as from Untouched |
//! | Absent m | Table | populate: a table for its pages |
//! | Absent m | Present m | a fault for writing, of a huge page |
//! | Present m | Present m, Gone m | A, D, rights of all; `unmap` of all. It is never latched |
//! | Present m | Table | split: somebody needs a word for a page |
//! | any but Doomed | Gone | `unmap`, where no guard is held; of Swapped and Shadow also while it is read |
//! | Zero | Present | a fault for writing |
//! | Zero, Present | Doomed | `unmap`, while guards are held |
//! | Doomed | Gone | the last guard |
//! | Present | Present | latch, rights, A, D, C; another frame where C is taken off |
//! | Present, D | Present, one reader more | write-back begins: it can't be written to meanwhile |
//! | Present | Present, one reader less | write-back ends; D again if that failed |
//! | Present p | InTransit | `swap_out`, where no guard is held |
//! | Present p, clean, not C | Shadow | evicted at once, where no guard is held |
//! | InTransit | Present | a fault that meets it: the frame is still there |
//! | InTransit | Swapped, Shadow | written out, claimed until its checksum is noted; or clean, and its copy is good |
//! | InTransit, Swapped, Shadow | itself | rights; of the latter two also the claim of the one fault that reads it |
//! | Shadow | Shadow 0 | a file is cut off before the page: it is as if it never was in memory |
//! | Swapped, Shadow | Present | read in again, or written whole, by the thread that has claimed it |
//! | Table m | Closed m | `unmap`, when all of the VMA is gone: nobody walks in any more |
//! | Closed m, Gone m | Untouched | when nobody holds the VMA any more: its addresses are free |
//!
//! A page on its way to swap is never seen as empty (SPEC B1): *InTransit* keeps its frame. One that is unmapped while
//! it is read keeps its slot until its reader is done. *Gone* never becomes anything else while its VMA lives, so a
//! fault that began before an `unmap` can't bring a page back: its compare-and-swap finds the word changed. That is why
//! `unmap` and `protect` wait for no fault. (RadixVM, Clements et al., EuroSys 2013, keeps a mapping's metadata in the
//! radix tree for the same reason.)
//!
//! # Changes in two steps
//! Some changes come in two steps, with a read or a write of a device in between. The second step must not take
//! another page's word for its own: versions come round, and begin at 0 again with a region's tables.
//!
//! | begun | its word can't be another's, for |
//! |---|---|
//! | *InTransit* | of one frame there is one transit at a time ([`IN_TRANSIT`]); nobody holds the VMA |
//! | a reader's claim | its VMA is held, or the cache has the region: it stays claimed, or is *Gone* |
//! | write-back, a guard | counted in the latch, it stays or is *Doomed*; its VMA is held, as above |
//!
//! [`IN_TRANSIT`]: super::tables::IN_TRANSIT

use bitfield_struct::bitfield;

use pumice_frames::addr::Pfn;

/// The state of an entry's page, or of the table that the entry stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// Nothing was ever here. Of a page: mapped, with the rights in the entry of its table. At the
    /// upper levels: nothing is mapped.
    Untouched = 0,
    /// Mapped and empty, with rights of its own. At the middle level, the number is 1 where the region
    /// wants huge pages, and 2 where it is of a file: a table for it begins with shadows.
    Absent = 1,
    /// Unmapped, of a VMA of which something is still mapped or held.
    Gone = 2,
    /// Unmapped while guards are held; the number is still the frame.
    Doomed = 3,
    /// The shared zero page, whose frame the number is.
    Zero = 4,
    /// A frame, the number. At the middle level: a huge page, of the frames from there on.
    Present = 5,
    /// On its way to swap; the number is still the frame.
    InTransit = 6,
    /// In swap, in the slot that is the number.
    Swapped = 7,
    /// Evicted; the number is the eviction's age (`mm/workingset.c`). Of a file's page that never was in memory 0.
    Shadow = 8,
    /// At the upper levels: a table, in the frame that is the number. The rights are those of its
    /// untouched pages, and do not change while it is there.
    Table = 9,
    /// A table that nobody may walk into; somebody may still be in it.
    Closed = 10,
}

impl State {
    /// All of them.
    pub const ALL: [State; 11] = [
        State::Untouched,
        State::Absent,
        State::Gone,
        State::Zero,
        State::Present,
        State::Doomed,
        State::InTransit,
        State::Swapped,
        State::Shadow,
        State::Table,
        State::Closed,
    ];

    const fn into_bits(self) -> u8 {
        self as u8
    }

    const fn from_bits(bits: u8) -> State {
        match bits {
            0 => State::Untouched,
            1 => State::Absent,
            3 => State::Doomed,
            4 => State::Zero,
            5 => State::Present,
            6 => State::InTransit,
            7 => State::Swapped,
            8 => State::Shadow,
            9 => State::Table,
            10 => State::Closed,
            // Nothing may be done with it.
            _ => State::Gone,
        }
    }
}

pumice_frames::flags! {
    /// Rights to a page.
    pub struct Rights: u8 {
        /// It may be read.
        const READ = 1;
        /// It may be written.
        const WRITE = 2;
        /// Both.
        const READ_WRITE = 3;
    }
}

/// The latch of a page that is held for writing.
pub const EXCLUSIVE: u8 = 127;
/// The largest latch of a page that is held for reading.
pub const MAX_READERS: u8 = EXCLUSIVE - 1;
/// From this latch on, guards for reading are counted aside. In models, where there are few threads, at once.
pub const CROWDED: u8 = if cfg!(any(loom, shuttle)) { 1 } else { MAX_READERS - 3 };
/// Numbers that fit an entry: frames of 1 TiB.
pub const MAX_NUMBER: usize = (1 << 28) - 1;

/// See the module's top.
#[bitfield(u64, new = false, default = false)]
#[derive(PartialEq, Eq, Default)]
pub struct Entry {
    /// The entry's state.
    #[inline]
    #[bits(4)]
    pub state: State,
    /// The page may be read.
    #[inline]
    pub read: bool,
    /// The page may be written, if the frame is its own.
    #[inline]
    pub write: bool,
    /// The frame may be another space's as well.
    #[inline]
    pub cow: bool,
    /// `PG_referenced`, or `pte_young`.
    #[inline]
    pub accessed: bool,
    /// Written since it was last clean.
    #[inline]
    pub dirty: bool,
    /// Guards, or [`EXCLUSIVE`].
    #[inline]
    #[bits(7)]
    pub latch: u8,
    #[inline]
    #[bits(28)]
    number_bits: u32,
    /// Write guards that have ended.
    #[inline]
    #[bits(20)]
    pub version: u32,
}

/// One guard for reading, as it is added to a word.
pub const ONE_READER: u64 = 1 << LATCH_SHIFT;
/// The number that is added to the word of a page held for writing when the guard ends: a version, less the
/// latch.
pub const END_WRITE: u64 = (1 << VERSION_SHIFT) - ((EXCLUSIVE as u64) << LATCH_SHIFT);

// The word's fields as bits, for what is asked of several of them at once; `fields_are_where_they_are_said_to_be`
// holds them against the definition above.
const STATE: u64 = 0b1111;
const READ: u64 = 1 << 4;
const WRITE: u64 = 1 << 5;
const RIGHTS: u64 = READ | WRITE;
const COW: u64 = 1 << 6;
const ACCESSED: u64 = 1 << 7;
const DIRTY: u64 = 1 << 8;
const LATCH_SHIFT: u32 = 9;
const NUMBER_SHIFT: u32 = 16;
const VERSION_SHIFT: u32 = 44;
/// Zero and Present differ in one bit, so that *either, and R* is one comparison.
const READABLE_MASK: u64 = (STATE & !(State::Zero as u64 ^ State::Present as u64)) | READ;
const READABLE: u64 = State::Zero as u64 | READ;

impl Entry {
    /// All fields 0.
    #[inline]
    pub const fn new() -> Entry {
        Entry(0)
    }

    /// The meaning of zeroed memory: nothing was ever here.
    pub const EMPTY: Entry = Entry(0);

    /// An empty entry with rights of its own.
    #[inline]
    pub const fn absent(rights: Rights) -> Entry {
        Entry::new().with_state(State::Absent).with_rights(rights)
    }

    /// As [`Entry::absent`], of a granule that a huge page may be installed for.
    #[inline]
    pub const fn absent_huge(rights: Rights) -> Entry {
        Entry::absent(rights).with_number_bits(1)
    }

    /// Whether a huge page may be installed for the granule.
    #[inline]
    pub const fn wants_huge(self) -> bool {
        matches!(self.state(), State::Absent) && self.number_bits() == 1
    }

    /// As [`Entry::absent`], of a granule of a file: its pages are elsewhere, and were never in memory.
    #[inline]
    pub const fn absent_file(rights: Rights) -> Entry {
        Entry::absent(rights).with_number_bits(2)
    }

    /// Whether a granule without a table is a file's.
    #[inline]
    pub const fn is_absent_file(self) -> bool {
        matches!(self.state(), State::Absent) && self.number_bits() == 2
    }

    /// A table in frame `table`, whose untouched pages have these rights.
    #[inline]
    pub const fn table(table: Pfn, rights: Rights) -> Entry {
        Entry::new().with_state(State::Table).with_frame(table).with_rights(rights)
    }

    /// A page of a frame that nobody else has, used for writing, with the rights in `pmd`.
    #[inline]
    pub const fn used_frame(pmd: Entry, frame: Pfn) -> Entry {
        const USED: u64 = State::Present as u64 | ACCESSED | DIRTY;
        debug_assert!(frame.0 <= MAX_NUMBER);
        Entry((pmd.0 & RIGHTS) | USED | (frame.0 as u64) << NUMBER_SHIFT)
    }

    /// Whether a fault for such an access finds nothing to do: in one comparison each.
    #[inline]
    pub const fn is_ready(self, for_writing: bool) -> bool {
        const WRITTEN: u64 = State::Present as u64 | WRITE | ACCESSED | DIRTY;
        if for_writing {
            self.0 & (STATE | WRITE | COW | ACCESSED | DIRTY) == WRITTEN
        } else {
            self.0 & (READABLE_MASK | ACCESSED) == READABLE | ACCESSED
        }
    }

    /// With one more reader in the latch; there are less than [`MAX_READERS`].
    #[inline]
    pub const fn held_for_reading(self) -> Entry {
        Entry((self.0 | ACCESSED) + ONE_READER)
    }

    /// Held for writing; nobody else has a guard.
    #[inline]
    pub const fn held_for_writing(self) -> Entry {
        Entry(self.0 | ACCESSED | DIRTY | (EXCLUSIVE as u64) << LATCH_SHIFT)
    }

    /// Of a page with a frame: the entry that the page of the next frame would have.
    #[inline]
    #[must_use]
    pub const fn with_next_frame(self) -> Entry {
        debug_assert!(self.frame().0 < MAX_NUMBER);
        Entry(self.0 + (1 << NUMBER_SHIFT))
    }

    /// The rights in it.
    #[inline]
    pub const fn rights(self) -> Rights {
        Rights::from_bits_truncate(((self.0 >> 4) & 3) as u8)
    }

    /// With these rights.
    #[inline]
    pub const fn with_rights(self, rights: Rights) -> Entry {
        Entry((self.0 & !(3 << 4)) | (rights.bits() as u64) << 4)
    }

    /// The frame it names.
    #[inline]
    pub const fn frame(self) -> Pfn {
        Pfn(self.number_bits() as usize)
    }

    /// With this frame.
    #[inline]
    pub const fn with_frame(self, frame: Pfn) -> Entry {
        debug_assert!(frame.0 <= MAX_NUMBER);
        self.with_number_bits(frame.0 as u32)
    }

    /// With the version after its own: readers that saw it before see that it is another.
    #[inline]
    #[must_use]
    pub const fn with_next_version(self) -> Entry {
        Entry(self.0.wrapping_add(1 << VERSION_SHIFT))
    }

    /// The swap slot, or the age.
    #[inline]
    pub const fn number(self) -> u32 {
        self.number_bits()
    }

    /// With this slot or age, [`MAX_NUMBER`] at most.
    #[inline]
    pub const fn with_number(self, number: u32) -> Entry {
        self.with_number_bits(number)
    }

    /// Unmapped. The version stays.
    #[inline]
    pub const fn gone(self) -> Entry {
        Entry::new().with_state(State::Gone).with_version(self.version())
    }

    /// Whether it has a frame of its own or of several spaces', or the zero page.
    #[inline]
    pub const fn is_mapped(self) -> bool {
        matches!(self.state(), State::Present | State::Zero)
    }

    /// Whether a frame has to be given up when this entry goes.
    #[inline]
    pub const fn has_frame(self) -> bool {
        matches!(self.state(), State::Present | State::Doomed | State::InTransit)
    }

    /// Whether the page can be read as it is.
    #[inline]
    pub const fn can_read(self) -> bool {
        self.0 & READABLE_MASK == READABLE
    }

    /// Whether the page can be written as it is.
    #[inline]
    pub const fn can_write(self) -> bool {
        self.0 & (STATE | WRITE | COW) == State::Present as u64 | WRITE
    }

    /// Whether a read without a guard that saw `self` before and `after` after it is good.
    #[inline]
    pub const fn is_same_content(self, after: Entry) -> bool {
        (self.0 ^ after.0) & !ACCESSED == 0
    }

    /// Whether the table of transitions has the one from this word to `next`.
    pub fn may_become(self, next: Entry) -> bool {
        use State::*;
        let is_held = self.latch() != 0;
        let same_frame = self.number_bits() == next.number_bits();
        match (self.state(), next.state()) {
            (Untouched, Absent | Zero | Present | Table) | (Absent, Zero | Present | Table) => true,
            (Absent, Absent) => true,
            (Untouched | Absent | InTransit, Gone) => !is_held,
            // A reader finds that it is gone.
            (Swapped | Shadow, Gone) => true,
            (Swapped, Swapped) => same_frame,
            (Shadow, Shadow) => same_frame || (next.number_bits() == 0 && !is_held),
            (Zero | Present, Gone) => !is_held,
            (Zero, Zero) => same_frame,
            (Zero, Present) => !is_held || self.latch() == EXCLUSIVE,
            // Another frame: the copying thread holds the page alone.
            (Present, Present) => same_frame || (self.cow() && self.latch() == EXCLUSIVE),
            (Zero | Present, Doomed) => is_held && same_frame,
            (Doomed, Doomed) => same_frame,
            (Doomed, Gone) => !is_held,
            (Present, Table) => !is_held,
            (Present, InTransit) => !is_held && same_frame,
            (Present, Shadow) => !is_held && !self.dirty() && !self.cow(),
            (InTransit, Present | InTransit) => same_frame,
            (InTransit, Swapped | Shadow) => !is_held,
            (Swapped | Shadow, Present) => self.latch() == EXCLUSIVE,
            (Table, Closed) => same_frame,
            (Closed | Gone, Untouched) => !is_held,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_survive_the_word() {
        for state in State::ALL {
            let entry = Entry::new().with_state(state).with_frame(Pfn(MAX_NUMBER));
            assert_eq!((entry.state(), entry.frame()), (state, Pfn(MAX_NUMBER)));
        }
    }

    #[test]
    fn fields_are_where_they_are_said_to_be() {
        let zero = Entry::new();
        assert_eq!(u64::from(zero.with_read(true)), READ);
        assert_eq!(u64::from(zero.with_write(true)), WRITE);
        assert_eq!(u64::from(zero.with_rights(Rights::READ_WRITE)), RIGHTS);
        assert_eq!(u64::from(zero.with_cow(true)), COW);
        assert_eq!(u64::from(zero.with_accessed(true)), ACCESSED);
        assert_eq!(u64::from(zero.with_dirty(true)), DIRTY);
        assert_eq!(u64::from(zero.with_latch(1)), 1 << LATCH_SHIFT);
        assert_eq!(u64::from(zero.with_frame(Pfn(1))), 1 << NUMBER_SHIFT);
        assert_eq!(u64::from(zero.with_version(1)), 1 << VERSION_SHIFT);
        for state in State::ALL {
            let entry = zero.with_state(state).with_rights(Rights::READ);
            assert_eq!(u64::from(entry) & STATE, state as u64);
            assert_eq!(
                entry.can_read(),
                matches!(state, State::Zero | State::Present),
                "{state:?}"
            );
        }
    }

    #[test]
    fn short_cuts_say_what_the_fields_say() {
        let pmd = Entry::table(Pfn(9), Rights::READ_WRITE);
        let used = Entry::used_frame(pmd, Pfn(77));
        let by_fields = Entry::new().with_state(State::Present).with_rights(Rights::READ_WRITE);
        let by_fields = by_fields.with_accessed(true).with_dirty(true).with_frame(Pfn(77));
        assert_eq!(used, by_fields);
        assert!(used.is_ready(true) && used.is_ready(false));
        assert!(!used.with_cow(true).is_ready(true) && !used.with_dirty(false).is_ready(true));
        assert!(used.with_dirty(false).is_ready(false));
        assert!(!used.with_accessed(false).is_ready(false));
        assert_eq!(used.with_next_frame(), Entry::used_frame(pmd, Pfn(78)));
        assert_eq!(used.with_latch(3).held_for_reading(), used.with_latch(4));
        assert_eq!(used.with_dirty(false).held_for_writing(), used.with_latch(EXCLUSIVE));
    }

    #[test]
    fn a_write_that_ends_counts_up_and_lets_go() {
        let held = Entry::new().with_state(State::Present).with_latch(EXCLUSIVE);
        for version in [0, 1, (1 << 20) - 1] {
            let held = held.with_version(version);
            let after = Entry::from(u64::from(held).wrapping_add(END_WRITE));
            let next = (version + 1) % (1 << 20);
            assert_eq!(after, held.with_latch(0).with_version(next));
        }
    }

    #[test]
    fn writing_takes_a_frame_of_ones_own_and_the_right() {
        let present = Entry::new().with_state(State::Present).with_rights(Rights::READ_WRITE);
        assert!(present.can_write() && present.with_latch(3).with_accessed(true).can_write());
        assert!(!present.with_cow(true).can_write());
        assert!(!present.with_write(false).can_write());
        assert!(!present.with_state(State::Zero).can_write());
    }

    #[test]
    fn a_page_under_write_back_can_be_read_and_not_written() {
        let dirty = Entry::new().with_state(State::Present).with_rights(Rights::READ_WRITE);
        let dirty = dirty.with_dirty(true);
        let written_back = dirty.with_dirty(false).with_latch(1);
        assert!(dirty.may_become(written_back) && written_back.may_become(dirty));
        assert!(written_back.may_become(written_back.held_for_reading()));
        for state in [State::InTransit, State::Gone, State::Shadow] {
            assert!(!written_back.may_become(Entry::new().with_state(state)), "{state:?}");
        }
        // Unmapped meanwhile, and the last reader's.
        assert!(written_back.may_become(written_back.with_state(State::Doomed)));
    }

    #[test]
    fn a_page_is_evicted_at_once_only_as_it_is_elsewhere() {
        let clean = Entry::new().with_state(State::Present);
        let shadow = Entry::new().with_state(State::Shadow).with_number(7);
        assert!(clean.may_become(shadow));
        for other in [clean.with_dirty(true), clean.with_cow(true), clean.with_latch(1)] {
            assert!(!other.may_become(shadow), "{other:?}");
        }
        assert!(!clean.may_become(shadow.with_state(State::Swapped)));
    }

    #[test]
    fn a_shadow_is_forgotten_or_stays_what_it_is() {
        let shadow = Entry::new().with_state(State::Shadow);
        assert!(shadow.with_number(7).may_become(shadow));
        assert!(!shadow.with_number(7).may_become(shadow.with_number(8)));
        assert!(!shadow.with_number(7).with_latch(EXCLUSIVE).may_become(shadow));
        assert!(!shadow.may_become(shadow.with_number(8)));
    }

    #[test]
    fn nothing_leads_back_from_gone_within_a_vma() {
        let gone = Entry::new().with_state(State::Gone);
        for state in State::ALL {
            let next = Entry::new().with_state(state);
            assert_eq!(gone.may_become(next), state == State::Untouched, "{state:?}");
        }
    }

    #[test]
    fn a_page_in_transit_is_never_empty() {
        for state in [State::Untouched, State::Absent] {
            let transit = Entry::new().with_state(State::InTransit);
            assert!(!transit.may_become(Entry::new().with_state(state)));
        }
    }
}
