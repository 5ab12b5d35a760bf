//! Shrinkers: caches outside the page lists, which give frames back when they are asked.
//!
//! No policy knows the content of a program's own caches. Where these have a zone's memory, eviction finds no page, or
//! takes the pages that are needed most. A cache that has registered a [`Shrinker`] shares the pressure: it is scanned
//! in proportion to the scan of the pages in memory (`vm_scan_ratio`, and `shrink_slab` of later kernels). One counter
//! sums that scan, and each cache keeps the value up to which it has paid. So a debt that can't be paid for one
//! request, because of its flags, is there for the next. Where no page is left to go, each is asked for a batch before
//! there are no frames.
//!
//! Others' code runs here, so reclaim has nothing that anybody could wait for meanwhile: no lock, no space, and no
//! write in flight. It is asked in batches, and no longer than frames are short. One that panics is not asked again,
//! and one that gave nothing not before all pages were scanned once more. Now and then reclaim checks that the frames a
//! cache reported are free: else a request would ask again and again for frames that are only said to be free.
//!
//! ```
//! use std::sync::{Arc, Mutex};
//!
//! use pumice::addr::{Order, FRAME_SIZE};
//! use pumice::clear::Clearer;
//! use pumice::frame::{Gfp, Zone};
//! use pumice::io::Cached;
//! use pumice::page_table::{Atomic, Rights};
//! use pumice::reclaim::{policy, Adaptive, Settings, Shrinker, SwapPager};
//! use pumice::space::{MemMap, VmSpace};
//! use pumice::{swap::Swap, sys::mem::Huge};
//!
//! /// What a program keeps in case it is wanted again: addresses of frames.
//! struct Slab(&'static Zone, Mutex<Vec<usize>>);
//!
//! // SAFETY: it has no task.
//! unsafe impl Shrinker for Slab {
//!     fn count(&self) -> usize {
//!         self.1.lock().map_or(0, |frames| frames.len())
//!     }
//!     fn scan(&self, frames: usize, _: Gfp) -> usize {
//!         let Ok(mut ours) = self.1.try_lock() else { return 0 };
//!         let kept = ours.len().saturating_sub(frames);
//!         // SAFETY: nobody else knows of them.
//!         let put = |at: usize| unsafe { self.0.put(at as *mut u8) }.is_ok();
//!         ours.drain(kept..).filter(|&at| put(at)).count()
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const FRAMES: usize = 2048;
//! let zone: &Zone = Box::leak(Box::new(Zone::new(FRAMES * FRAME_SIZE, 1, Huge::No)?));
//! # let path = std::env::temp_dir().join(format!("pumice-shrinker-{}", std::process::id()));
//! let swap = Swap::create(&path, 1 << 20, Cached::No)?;
//! let mut entries = policy::table::<Adaptive<'_>>(FRAMES);
//! let pager = SwapPager::new(swap, Adaptive::new(&mut entries), FRAMES, Settings::of(FRAMES));
//! let map = MemMap::new(zone, Clearer::detect())?.with_pager(&pager);
//! let space = VmSpace::new(map.frames(), Atomic)?;
//!
//! let clearer = Clearer::detect();
//! let get = |_| zone.get(0, Gfp::KERNEL, Order::FRAME, &clearer).map(|at| at.as_ptr() as usize);
//! let slab = Arc::new(Slab(zone, Mutex::new((0..FRAMES - 100).map_while(get).collect())));
//! let registration = pager.zone().register_shrinker(slab.clone());
//! pager.attach(&space, || {
//!     let task = space.enter()?;
//!     let at = task.map(1000 * FRAME_SIZE, Rights::READ_WRITE)?;
//!     // Five times as many pages as there are frames left.
//!     (0..500).try_for_each(|page| task.write_at(at + page * FRAME_SIZE, b"here"))
//! })??;
//! assert!(slab.count() < FRAMES - 100, "it has given some");
//! drop(registration); // it is not asked any more
//! # std::fs::remove_file(path)?;
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use pumice_frames::frame::Gfp;
use pumice_io::sync::{current_thread, ThreadId};

use super::settings::Settings;

/// `SHRINK_BATCH` of the kernel: frames that a cache is asked for at a time.
pub(super) const SHRINK_BATCH: usize = 128;

/// A cache that reclaim may ask for memory. Several threads may ask at a time.
///
/// A call may do all that a thread may do: take frames, also from the reserve, and nothing is reclaimed for it; unmap
/// regions, and give frames back to the zone. Frames that it leaves in a task's list do not count:
/// [`Task::give_frames_back`](crate::space::Task::give_frames_back), or dropping the task, lets others have them. It
/// must not wait for anything that a thread may hold while it asks for frames with the flags that the cache needs, or
/// while it ends the registration. A thread that holds a cache's lock asks under
/// [`Task::gfp_scope`](crate::space::Task::gfp_scope) with [`Gfp::NOFS`], as those do that map, unmap and fork. Where a
/// cache maps, unmaps or forks, a thread with a guard does the same before it asks for another page, since a fork waits
/// for guards.
///
/// # Safety
/// No call uses the task that makes it, not even by a reference that it has from elsewhere.
pub unsafe trait Shrinker: Send + Sync {
    /// Flags that a request must have for this cache to be asked on its behalf. The default excludes requests with
    /// [`Gfp::NOFS`] and less.
    fn needs(&self) -> Gfp {
        Gfp::IO | Gfp::FS
    }

    /// `count_objects`: how many frames it could give, about. It is asked often, and answers at once.
    fn count(&self) -> usize;

    /// `scan_objects`: gives up to so many frames back, doing no more for it than the request allows. Returns how many
    /// frames became free; 0 where it can give none at the moment.
    fn scan(&self, frames: usize, gfp: Gfp) -> usize;
}

// SAFETY: it is the same shrinker.
unsafe impl<S: Shrinker + ?Sized> Shrinker for &S {
    fn needs(&self) -> Gfp {
        (**self).needs()
    }

    fn count(&self) -> usize {
        (**self).count()
    }

    fn scan(&self, frames: usize, gfp: Gfp) -> usize {
        (**self).scan(frames, gfp)
    }
}

/// A share of the pages in memory, or of a cache, in parts of [`ALL`].
pub(super) type Share = u64;
const ALL: Share = 1 << 32;
/// The share of a cache after which it is asked for its size again.
const COUNTED_ANEW: Share = ALL / 8;

/// Of so many calls, one is looked at closer.
const CALLS_PER_CHECK: u32 = 16;
/// After so many false reports of free frames in a row a cache is no longer trusted. (Other threads may have taken the
/// frames in between.)
const MOST_UNSEEN: u32 = 16;

/// The reason for a call of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// The debt of the cache.
    Owed,
    /// There is no page left to go.
    LastResort,
}

/// Whether its reports are true.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trust {
    calls: u32,
    /// Times in a row that frames were not seen.
    unseen: u32,
}

impl Trust {
    /// Whether this call is looked at closer.
    pub fn is_to_check(&self) -> bool {
        self.unseen > 0 || self.calls % CALLS_PER_CHECK == 1
    }

    /// Takes note of whether frames that were said to be free were seen.
    pub fn note(&mut self, is_seen: bool) {
        self.unseen = if is_seen { 0 } else { self.unseen + 1 };
    }

    /// Whether it is believed no more.
    pub fn is_lost(&self) -> bool {
        self.unseen > MOST_UNSEEN
    }
}

pub(super) struct Entry {
    id: u64,
    shrinker: Arc<dyn Shrinker>,
    needs: Gfp,
    /// The value of [`Shrinkers::scanned`] up to which it has paid.
    paid: Share,
    /// Frames it had when it was asked last.
    frames: usize,
    /// It gave nothing then.
    is_futile: bool,
    /// It has panicked, or is being taken out: nobody asks it any more.
    is_closed: bool,
    trust: Trust,
    callers: Vec<ThreadId>,
}

impl Entry {
    /// The debt of the cache.
    fn owed(&self, scanned: Share) -> Share {
        scanned.wrapping_sub(self.paid).min(ALL)
    }

    fn is_due(&self, scanned: Share, batch: usize) -> bool {
        match self.owed(scanned) {
            0 => false,
            owed if self.is_futile => owed == ALL,
            owed => owed >= COUNTED_ANEW || part(self.frames, owed) >= batch,
        }
    }
}

/// Those of a zone.
#[derive(Default)]
pub(super) struct Shrinkers {
    entries: Vec<Entry>,
    last_id: u64,
    /// Share of the pages in memory that was scanned, of all so far. It wraps around.
    scanned: Share,
}

/// A call of one, begun.
pub(super) struct Call {
    pub id: u64,
    pub shrinker: Arc<dyn Shrinker>,
    pub owed: Share,
    pub trust: Trust,
}

/// How a call went.
#[derive(Default)]
pub(super) struct Outcome {
    pub count: usize,
    pub asked: usize,
    pub freed: usize,
    pub has_panicked: bool,
}

impl Shrinkers {
    /// So many pages of those in memory are about to be scanned: where there are none, they are all.
    pub fn note_scanned(&mut self, pages: usize, of: usize, settings: &Settings) {
        let share = (pages.min(of.max(1)) as Share * ALL) / of.max(1) as Share;
        let share = if of == 0 { ALL } else { share };
        let pressure = settings.cache_pressure_percent as Share;
        self.scanned = self.scanned.wrapping_add(share * pressure / 100);
    }

    /// The next one after `after` that is to be asked where `gfp` is allowed. Its debt is this call's.
    pub fn begin(&mut self, after: u64, ask: Ask, gfp: Gfp) -> Option<Call> {
        let scanned = self.scanned;
        let may =
            |entry: &&mut Entry| entry.id > after && !entry.is_closed && gfp.contains(entry.needs);
        let is_next = |entry: &&mut Entry| match ask {
            // Where one is in there already, another would only wait for the same.
            Ask::Owed => entry.callers.is_empty() && entry.is_due(scanned, SHRINK_BATCH),
            Ask::LastResort => true,
        };
        let entry = self.entries.iter_mut().filter(may).find(is_next)?;
        let owed = entry.owed(scanned);
        entry.paid = scanned;
        entry.callers.push(current_thread().id());
        entry.trust.calls = entry.trust.calls.wrapping_add(1);
        let (id, shrinker, trust) = (entry.id, entry.shrinker.clone(), entry.trust);
        Some(Call { id, shrinker, owed, trust })
    }

    /// Ends a call that was made with the flags `gfp`.
    pub fn end(&mut self, id: u64, owed: Share, outcome: &Outcome, trust: Trust, gfp: Gfp) {
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) else { return };
        let me = current_thread().id();
        if let Some(at) = entry.callers.iter().position(|&caller| caller == me) {
            entry.callers.swap_remove(at);
        }
        let &Outcome { count, asked, freed, has_panicked } = outcome;
        entry.is_closed |= has_panicked;
        entry.trust.unseen = trust.unseen;
        entry.frames = count.saturating_sub(freed);
        let has_all_flags = gfp.contains(Gfp::KERNEL);
        let paid = match freed {
            // Others may be given something.
            0 if !has_all_flags => 0,
            0 => owed,
            _ => {
                ((asked as u128 * u128::from(ALL)) / count.max(1) as u128).min(owed.into()) as Share
            }
        };
        entry.paid = entry.paid.wrapping_sub(owed - paid);
        if freed > 0 || has_all_flags {
            entry.is_futile = freed == 0;
        }
    }

    pub fn add(&mut self, shrinker: Arc<dyn Shrinker>, needs: Gfp, frames: usize) -> u64 {
        self.last_id += 1;
        self.entries.push(Entry {
            id: self.last_id,
            shrinker,
            needs,
            paid: self.scanned,
            frames,
            is_futile: false,
            is_closed: false,
            trust: Trust::default(),
            callers: Vec::new(),
        });
        self.last_id
    }

    /// Has nobody ask it any more. Whether a thread is in it, but this one.
    pub fn close(&mut self, id: u64) -> bool {
        let me = current_thread().id();
        let entry = self.entries.iter_mut().find(|entry| entry.id == id);
        entry.is_some_and(|entry| {
            entry.is_closed = true;
            entry.callers.iter().any(|&caller| caller != me)
        })
    }

    pub fn remove(&mut self, id: u64) -> Option<Entry> {
        let at = self.entries.iter().position(|entry| entry.id == id)?;
        // In order: a pass goes by their numbers.
        Some(self.entries.remove(at))
    }
}

impl std::fmt::Debug for Shrinkers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shrinkers({})", self.entries.len())
    }
}

pub(super) fn part(frames: usize, share: Share) -> usize {
    ((frames as u128 * u128::from(share)) / u128::from(ALL)) as usize
}
