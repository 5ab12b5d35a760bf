//! A file that there is not: each of its pages says its own number, so reading one is writing that into the frame.
//!
//! Pages are read only, so they go without a write. A page that went has its policy's note in its word, as in a cache.

use std::sync::atomic::{AtomicU64, Ordering};

use pumice_frames::frame::Gfp;
use pumice_paging::backing::{Backing, Came, Outgoing, Place, Refusal};
use pumice_paging::page_table::pager::{Evicted, Page, ReadResult, SpaceId};
use pumice_paging::page_table::Rights;
use rustix::io::Errno;

/// See the module's top.
#[derive(Debug, Default)]
pub struct Numbers {
    /// Relaxed: a number.
    reads: AtomicU64,
}

impl Numbers {
    /// Pages read so far: the misses.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

/// The number that a page says.
pub fn number(page: &Page) -> u64 {
    u64::from_ne_bytes(page[..8].try_into().expect("eight bytes"))
}

// SAFETY: it knows of no task, and does not unwind. No page is written, so no place has a file.
unsafe impl Backing for Numbers {
    fn needs(&self) -> Gfp {
        Gfp::IO
    }

    fn read(&self, _: SpaceId, page: usize, _: Evicted, into: &mut Page) -> ReadResult {
        self.reads.fetch_add(1, Ordering::Relaxed);
        into[..8].copy_from_slice(&(page as u64).to_ne_bytes());
        Ok(())
    }

    fn came_in(&self, _: SpaceId, _: usize, from: Evicted, _: Rights) -> Came {
        // All begin as shadows, and go as pages of swap: so those that were never in memory are known.
        let note = match from {
            Evicted::Shadow(_) => None,
            Evicted::Swapped(note) => Some(note),
        };
        Came { note, slot: 0 }
    }

    fn free(&self, _: SpaceId, _: Evicted) {}

    fn drop_clean(&self, page: &Outgoing) -> Option<Evicted> {
        Some(Evicted::Swapped(page.note))
    }

    unsafe fn place(&self, _: &[Outgoing]) -> Result<Place, Refusal> {
        Err(Refusal::Failed)
    }

    fn written(&self, _: &Place, _: &[Outgoing], _: Result<(), Errno>) {}

    fn evicted(&self, _: &Place, _: usize, page: &Outgoing) -> Evicted {
        Evicted::Swapped(page.note)
    }

    fn give_up(&self, _: &Place, _: usize) {}

    fn release(&self, _: &mut dyn Iterator<Item = u32>) {}
}
