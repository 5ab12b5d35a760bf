//! Backing stores: where a space's pages go, as reclaim uses it. Swap and caches implement it.
//!
//! Pages of an anonymous space go to swap, and those of a file to the file. Reclaim and faults treat both alike: a
//! [`Backing`] gives an evicted page its place, and reads pages back. Reclaim writes pages itself, many by one request,
//! since it alone knows which pages leave together.
//!
//! ```text
//!   reclaim                                        backing
//!   chooses, begins transit
//!     clean                 drop_clean             where it will be found; or it is written after all
//!     dirty, by number      place                  file and offset of the first so many, checksums sealed
//!       full, twice         stays_full             an error for the requester
//!   one request
//!   it is done              written
//!   ends each transit       evicted                what the entry says from now on
//!     met by a fault        give_up                its place holds nothing
//! ```
//!
//! A page in transit may come back and be written while the device reads it. Where each write has a new place, as in
//! swap, the bytes there are then of no use, and that is all. A page that is written *in place*, as files are, must be
//! whole: it is written back while it is held for reading ([`crate::space::write_back`]), and goes when it is clean.
//! Meanwhile its region has to stay mapped: [`Backing::hold`] says whether it does.

use core::ops::Deref;
use core::ptr::NonNull;

use rustix::io::Errno;

use crate::page_table::pager::{Evicted, Incoming, Page, ReadResult, SpaceId};
use crate::page_table::Rights;
use pumice_frames::frame::Gfp;
use pumice_io::sync::Mutex;
use pumice_io::FileRef;

/// A page that leaves: in transit, or held for reading where it is written in place, so its frame stays.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    /// The space that it belongs to.
    pub space: SpaceId,
    /// Its number: its address in the space, by 4096.
    pub page: usize,
    /// Its bytes. In transit, a fault may take the page back and write them; a copy made of them is then not used.
    pub at: NonNull<u8>,
    /// The [`Came::slot`] of when it came in; 0 for none.
    pub slot: u32,
    /// The policy's note of it, in 28 bits.
    pub note: u32,
}

/// Where pages go that lie beside each other, by one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, open until [`Backing::written`].
    pub file: FileRef,
    /// Where in it, in bytes.
    pub offset: u64,
    /// How many: 1 at least, and no more than were asked about.
    pub pages: usize,
    /// Bytes to be written: all of the pages', less only if it is one.
    pub bytes: usize,
    /// The backing's own.
    pub tag: u64,
}

/// Why pages can't be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The first of them must not be written yet: something has to be on disk before, and is not. It stays, and others
    /// go.
    NotNow,
    /// No write is begun at the moment. That ends by itself, waiting for nobody but the device, and whoever ends it
    /// wakes reclaim ([`Task::wake_reclaim`](crate::space::Task::wake_reclaim)). The first stays, and others go.
    Stopped,
    /// There is no room for any.
    Full,
    /// None can be written, for an error.
    Failed,
}

/// A backing's answer about a page that came in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Came {
    /// The policy's note of it from when it went; `None` if it was never in memory.
    pub note: Option<u32>,
    /// The slot that the page keeps in the swap cache, until [`Backing::release`]; 0 for none. A backing that names any
    /// has [`Backing::swap_caches`].
    pub slot: u32,
}

/// See the module's top. A backing keeps its errors for later questions; a caller is only told that there was one.
///
/// # Safety
/// No call uses the task that makes it, not even by a reference from elsewhere. No call unwinds: pages would stay
/// claimed. The file of a [`Place`] stays open until [`Backing::written`]. A page that is written in place stays mapped
/// from [`Backing::hold`] to [`Backing::let_go`].
pub unsafe trait Backing: Send + Sync {
    /// Flags that a reclaimer needs to start a write: [`Gfp::IO`], of files [`Gfp::FS`] too.
    fn needs(&self) -> Gfp;

    /// Whether a page is written to where it was before.
    fn writes_in_place(&self) -> bool {
        false
    }

    /// The swap caches of all zones: with their slots a full backing has room again, whichever zones the pages are in.
    /// A backing whose pages keep no slots has none.
    fn swap_caches(&self) -> Option<&SwapCaches> {
        None
    }

    /// Has the region of a page stay mapped until [`Backing::let_go`], of what is written in place. `false`: it does
    /// not, and the page is left alone.
    fn hold(&self, _space: SpaceId, _page: usize) -> bool {
        true
    }

    /// Ends one [`Backing::hold`].
    fn let_go(&self, _space: SpaceId, _page: usize) {}

    /// A page that is written in place was not, and is dirty again.
    fn dirty_again(&self, _space: SpaceId, _page: usize) {}

    /// Reads a page into a frame. It may be unmapped meanwhile, and the bytes read are then thrown away; `from` is
    /// freed when this has returned.
    ///
    /// # Errors
    /// [`ReadFailed`](crate::page_table::pager::ReadFailed): the page stays where it is.
    fn read(&self, space: SpaceId, page: usize, from: Evicted, into: &mut Page) -> ReadResult;

    /// As [`Backing::read`], of several pages: the first was demanded, the rest are readahead.
    ///
    /// # Safety
    /// The frames are this call's.
    unsafe fn read_all(&self, space: SpaceId, pages: &mut [Incoming]) {
        for page in pages {
            // SAFETY: the caller's promise.
            let into = unsafe { page.into.as_mut() };
            page.result = self.read(space, page.page, page.from, into);
        }
    }

    /// A page is in memory, clean, and no entry names where it was. `used` says how the fault uses it: the slot of a
    /// page about to be written is soon of no use, and no rights mean readahead.
    fn came_in(&self, space: SpaceId, page: usize, from: Evicted, used: Rights) -> Came;

    /// An entry of another space is to name where a page is as well, until each of the two is freed or came in by
    /// itself. `false`: it can't.
    fn share(&self, from: Evicted) -> bool {
        let _ = from;
        false
    }

    /// A page was unmapped where it was.
    fn free(&self, space: SpaceId, from: Evicted);

    /// Where a clean page that goes will be found. `None`: nowhere, and it is written as a dirty one is. Where pages
    /// are written in place this only says where that is: the page may stay, or not be clean.
    fn drop_clean(&self, page: &Outgoing) -> Option<Evicted>;

    /// Where the first of these pages go, which are one space's and in the order of their numbers. Keeps what it needs
    /// to know them again.
    ///
    /// # Errors
    /// [`Refusal`].
    ///
    /// # Safety
    /// Their frames can be read.
    unsafe fn place(&self, pages: &[Outgoing]) -> Result<Place, Refusal>;

    /// There was no room for pages, nor was there any when the swap caches had been freed: now it is an error.
    fn stays_full(&self) {}

    /// The request for a place is over, before anybody is told so of its pages.
    fn written(&self, place: &Place, pages: &[Outgoing], result: Result<(), Errno>);

    /// Where the `nth` page of a place is, which was written and goes.
    fn evicted(&self, place: &Place, nth: usize, page: &Outgoing) -> Evicted;

    /// Notes the content that the `nth` page of a place had when it went there: nobody can write it any more, and
    /// nobody reads it back before this returns.
    fn note_content(&self, place: &Place, nth: usize, bytes: &Page) {
        let _ = (place, nth, bytes);
    }

    /// The `nth` page of a place stays in memory and is redirtied: it was not written, or a fault met it meanwhile.
    fn give_up(&self, place: &Place, nth: usize);

    /// These pages are in the swap cache no more, by the slots that [`Came::slot`] named.
    fn release(&self, slots: &mut dyn Iterator<Item = u32>);
}

/// A reference to a backing, or a box with one.
///
/// # Safety
/// It is the same backing each time.
pub unsafe trait ToBacking: Deref<Target: Backing + Sized> + Send + Sync {}
// SAFETY: a reference stays what it is.
unsafe impl<B: Backing> ToBacking for &B {}
// SAFETY: as above.
unsafe impl<B: Backing> ToBacking for Box<B> {}

/// The swap cache of a zone: the pages in memory that keep their slots. Reclaim of the zone has it.
pub trait HasSwapCache: Sync {
    /// Frees the slots of the backing whose swap caches these are.
    fn free_swap_cache(&self, of: &SwapCaches);
}

/// The swap caches of one backing. They are the backing's own, so they also say whether two are one.
///
/// Its lock comes before those of reclaim, which come before those that [`Backing::release`] takes.
#[derive(Default)]
pub struct SwapCaches(Mutex<Caches>);

/// Each has a number of its own: two that are at one address, as a struct and its first field, are two.
#[derive(Default)]
struct Caches {
    next: u64,
    all: Vec<(u64, &'static dyn HasSwapCache)>,
}

impl SwapCaches {
    /// While `work` is done, slots are to be had of `cache` as well.
    pub fn with<R>(&self, cache: &dyn HasSwapCache, work: impl FnOnce() -> R) -> R {
        struct Registration<'h>(&'h SwapCaches, u64);
        impl Drop for Registration<'_> {
            fn drop(&mut self) {
                self.0 .0.lock().all.retain(|one| one.0 != self.1);
            }
        }
        // SAFETY: the lifetime is shorter than it then says: it is taken out when this call ends, however that is, and
        // its caller has the lock for as long.
        let cache =
            unsafe { std::mem::transmute::<&dyn HasSwapCache, &'static dyn HasSwapCache>(cache) };
        let mut caches = self.0.lock();
        let number = caches.next;
        caches.next += 1;
        caches.all.push((number, cache));
        drop(caches);
        let _registration = Registration(self, number);
        work()
    }

    /// Frees all of them. Slots that another call frees are free too when this returns.
    pub fn free_all(&self) {
        self.0.lock().all.iter().for_each(|(_, cache)| cache.free_swap_cache(self));
    }
}

impl std::fmt::Debug for SwapCaches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SwapCaches({})", self.0.lock().all.len())
    }
}
