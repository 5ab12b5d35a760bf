//! Paging as spaces see it: a [`super::FrameSource`] may have a pager, and spaces call it.
//!
//! `space::swap_out` says how pages go and come back.
//!
//! A [`Pager`] and a `backing::Backing` are two sides of reclaim: spaces call the pager, and reclaim calls the backing.
//! They are two traits for these reasons:
//! - The pager tells a zone's lists of each page that came. The backing knows a page's note and slot, the zone decides
//!   whether they are kept, and the pager joins the two.
//! - Only backings write pages. With one trait, each pager would have 14 methods that nobody calls, seven of them
//!   without a default; four methods are the same in both.
//! - Loom's models have pagers, but no files and no locks to sleep on. A backing needs both.
//! - The zone's policy and the backing are type parameters of the pager. So on one zone, `swap_in` makes one dynamic
//!   call, and the backing's code is inlined behind it. A space that had a backing too would make a second one.

use core::ptr::NonNull;

use pumice_frames::addr::{Pfn, FRAME_SIZE};
use pumice_frames::frame::Reclaim;

use super::{Entry, Rights, State};

/// Identifies a space by the address of its first table. Frame numbers would not do: frames of two zones may have the
/// same number, and a pager may serve spaces on both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpaceId(pub usize);

/// A page that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LruPage {
    /// Its number: its address in the space, by 4096.
    pub page: usize,
    /// The frame it came in.
    pub frame: Pfn,
}

/// Where a page is that is not in memory, by numbers up to [`super::entry::MAX_NUMBER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Evicted {
    /// In a slot of the pager's swap.
    Swapped(u32),
    /// Where the pager knows, with a number of its own.
    Shadow(u32),
}

impl Evicted {
    /// The place that an entry names, if its page is not in memory.
    pub fn of(entry: Entry) -> Option<Evicted> {
        match entry.state() {
            State::Swapped => Some(Evicted::Swapped(entry.number())),
            State::Shadow => Some(Evicted::Shadow(entry.number())),
            _ => None,
        }
    }

    /// The word of a page that is there now, and was as `entry` says.
    #[must_use]
    pub fn entry(self, entry: Entry) -> Entry {
        let (state, number) = match self {
            Evicted::Swapped(slot) => (State::Swapped, slot),
            Evicted::Shadow(age) => (State::Shadow, age),
        };
        let kept = Entry::EMPTY.with_rights(entry.rights()).with_version(entry.version());
        kept.with_state(state).with_number(number)
    }

    /// Its share of `swap_rss`.
    pub fn in_swap(self) -> i64 {
        i64::from(matches!(self, Evicted::Swapped(_)))
    }
}

/// A page could not be read; the pager knows why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadFailed;

/// How reading a page went.
pub type ReadResult = Result<(), ReadFailed>;

/// The contents of a page.
pub type Page = [u8; FRAME_SIZE];

/// A page to be read.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// Its number.
    pub page: usize,
    /// Where it is.
    pub from: Evicted,
    /// A frame for it.
    pub into: NonNull<Page>,
    /// How that went.
    pub result: ReadResult,
}

/// A page that has come from where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its number and frame.
    pub page: LruPage,
    /// Where it was.
    pub from: Evicted,
    /// The use that the fault makes of it; none of readahead.
    pub used: Rights,
}

/// Reclaim as spaces see it. It is called by threads that fault, and by those that unmap and fork, which hold the
/// space's `mmap_lock`. Its requests to that space in the call must not map, unmap, protect or fork.
///
/// # Safety
/// No call uses the task that makes it, not even by a reference that it has from elsewhere.
pub unsafe trait Pager: Sync {
    /// Pages of a space came in. A batch is a hint: some may be gone again.
    fn lru_add(&self, space: SpaceId, pages: &[LruPage]);

    /// How many pages a thread gathers before it reports them, if that is fewer than it has room for.
    fn batch(&self) -> usize {
        usize::MAX
    }

    /// Reads a page into a frame. It may be unmapped meanwhile, and the bytes read are then thrown away; `from` is
    /// freed when this has returned.
    ///
    /// # Errors
    /// [`ReadFailed`]: the fault ends in `VmError::ReadFailed`, and the page stays where it is.
    fn swap_in(&self, space: SpaceId, page: usize, from: Evicted, into: &mut Page) -> ReadResult;

    /// As [`Pager::swap_in`], of several pages: the first was demanded, the rest are readahead. All of them are waited
    /// for.
    ///
    /// # Safety
    /// The frames are this call's.
    unsafe fn swap_in_all(&self, space: SpaceId, pages: &mut [Incoming]) {
        for page in pages {
            // SAFETY: the caller's promise.
            let into = unsafe { page.into.as_mut() };
            page.result = self.swap_in(space, page.page, page.from, into);
        }
    }

    /// A page is in memory, clean, and no entry names where it was: a slot to be kept for when it goes
    /// again, or freed. It does not go again before this returns. `used` says how the fault uses it: the slot of a page
    /// about to be written is soon of no use, and no rights mean readahead.
    fn swapped_in(&self, space: SpaceId, page: LruPage, from: Evicted, used: Rights);

    /// As [`Pager::swapped_in`], of pages that came together.
    fn swapped_in_all(&self, space: SpaceId, pages: &[Arrived]) {
        for &Arrived { page, from, used } in pages {
            self.swapped_in(space, page, from, used);
        }
    }

    /// A page that is not in memory is to be in two spaces: its copy stays until each of the two entries is read or
    /// freed. `false`: the pager does not do that.
    fn share(&self, space: SpaceId, from: Evicted) -> bool {
        let _ = (space, from);
        false
    }

    /// The reclaim of the zone, if it has one. Faulting threads call it where no frame is to be had; they have no
    /// page's word claimed then, but may have guards.
    fn zone(&self) -> Option<&dyn Reclaim> {
        None
    }

    /// A page was unmapped where it was.
    fn free(&self, space: SpaceId, from: Evicted);
}

impl core::fmt::Debug for dyn Pager + '_ {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Pager")
    }
}
