//! A pager for tests: slots in memory, which are counted; or a file, each of whose pages has its place.

use std::boxed::Box;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;
use std::vec::Vec;

use super::file::{Filling, Patience};
use super::swap_in::Use;
use super::write_back::WriteFailed;
use super::Task;
use crate::page_table::pager::{Evicted, LruPage, Page, Pager, ReadFailed, ReadResult, SpaceId};
use crate::page_table::{FrameSource, Rights, TableOps};
use pumice_frames::addr::FRAME_SIZE;

/// A page, and how many entries name it.
type Slot = (Box<Page>, usize);

/// Locks of the machine's own: nothing of loom or shuttle happens while they are held.
#[derive(Debug, Default)]
pub(super) struct Disk {
    slots: Mutex<Vec<Option<Slot>>>,
    told: Mutex<Vec<LruPage>>,
    pub fails: AtomicBool,
    /// Of a file, what was written of its pages; the others are zeros.
    file: Option<Mutex<BTreeMap<usize, Box<Page>>>>,
}

fn slot(at: Evicted) -> usize {
    match at {
        Evicted::Swapped(slot) | Evicted::Shadow(slot) => slot as usize,
    }
}

impl Disk {
    /// A file.
    pub fn file() -> Disk {
        Disk { file: Some(Mutex::default()), ..Disk::default() }
    }

    /// The first eight bytes of a page of the file.
    pub fn first_word(&self, page: usize) -> u64 {
        let file = self.file.as_ref().expect("a file").lock().expect("no panic");
        file.get(&page)
            .map_or(0, |page| u64::from_ne_bytes(page[..8].try_into().expect("eight bytes")))
    }

    /// Writes a page of the file back, if it is dirty and nobody writes to it. Whether it was.
    pub fn write_back<F: FrameSource>(
        &self,
        task: &Task<'_, F, impl TableOps>,
        page: usize,
        went: Result<(), WriteFailed>,
    ) -> bool {
        let Some(begun) = task.begin_write_back(page) else { return false };
        let from = task.space().tables.source.bytes(begun.page().frame);
        let mut copy = [0; FRAME_SIZE];
        // SAFETY: nobody writes to the page.
        unsafe { from.as_ptr().copy_to_nonoverlapping(copy.as_mut_ptr(), FRAME_SIZE) };
        if went.is_ok() {
            let file = self.file.as_ref().expect("a file");
            file.lock().expect("no panic").insert(page, Box::new(copy));
        }
        // SAFETY: it was begun by the same task, which holds the page's region as its caller does.
        unsafe { task.end_write_back(begun, went) };
        true
    }

    /// Reads pages of the file as a batch of reads does: begun, and ended later. Those up to one that is there.
    pub fn fill(&self, task: &Task<'_, impl FrameSource, impl TableOps>, pages: Range<usize>) {
        let mut begun = Vec::new();
        task.begin_fill_all(pages, Patience::None, &mut |filling| begun.push(filling));
        let read = |filling: Filling| {
            let mut into = task.space().tables.source.bytes(filling.frame()).cast::<Page>();
            let (page, from) = (filling.page(), filling.from());
            // SAFETY: the frame is this read's.
            let read = self.swap_in(task.space().id(), page, from, unsafe { into.as_mut() });
            (filling, read, Use::None)
        };
        // SAFETY: they were begun by the same task, and are read.
        unsafe { task.end_fill_all(&mut begun.into_iter().map(read)) };
    }

    fn put(&self, page: Page) -> u32 {
        let mut slots = self.slots.lock().expect("no panic");
        let free = slots.iter().position(Option::is_none).unwrap_or(slots.len());
        if free == slots.len() {
            slots.push(None);
        }
        slots[free] = Some((Box::new(page), 1));
        free as u32
    }

    fn take(&self, at: Evicted) {
        if self.file.is_some() {
            return;
        }
        let slot = &mut self.slots.lock().expect("no panic")[slot(at)];
        let Some((_, entries)) = slot else { panic!("{at:?} is freed, and free") };
        *entries -= 1;
        if *entries == 0 {
            *slot = None;
        }
    }

    /// Slots in use.
    pub fn used(&self) -> usize {
        self.slots.lock().expect("no panic").iter().flatten().count()
    }

    /// Pages it was told of.
    #[cfg(not(shuttle))]
    pub fn told(&self) -> Vec<LruPage> {
        self.told.lock().expect("no panic").clone()
    }

    /// Takes a page out, if it may go: to swap, or to where a shadow stands for it. Whether it went.
    pub fn swap_out<F: FrameSource>(
        &self,
        task: &Task<'_, F, impl TableOps>,
        page: usize,
        to: fn(u32) -> Evicted,
    ) -> bool {
        self.swap_out_while(task, page, to, || {})
    }

    /// As [`Disk::swap_out`]; `meanwhile` is done while the page is written.
    pub fn swap_out_while<F: FrameSource>(
        &self,
        task: &Task<'_, F, impl TableOps>,
        page: usize,
        to: fn(u32) -> Evicted,
        meanwhile: impl FnOnce(),
    ) -> bool {
        let Some(transit) = task.begin_swap_out(page) else { return false };
        let from = task.space().tables.source.bytes(transit.page().frame);
        let mut copy = [0; FRAME_SIZE];
        // SAFETY: a frame's memory can be read under any owner. A model's threads run one at a time, and other tests
        // have no second thread while they do this.
        unsafe { from.as_ptr().copy_to_nonoverlapping(copy.as_mut_ptr(), FRAME_SIZE) };
        meanwhile();
        let ended = task.end_swap_out(transit, to(self.put(copy)));
        if let Err(to) = ended {
            self.take(to);
        }
        ended.is_ok()
    }
}

// SAFETY: it uses no task in its calls.
unsafe impl Pager for Disk {
    fn lru_add(&self, _: SpaceId, pages: &[LruPage]) {
        self.told.lock().expect("no panic").extend(pages);
    }

    fn swap_in(&self, _: SpaceId, page: usize, from: Evicted, into: &mut Page) -> ReadResult {
        if self.fails.load(Ordering::Relaxed) {
            return Err(ReadFailed);
        }
        if let Some(file) = &self.file {
            let file = file.lock().expect("no panic");
            *into = file.get(&page).map_or([0; FRAME_SIZE], |page| **page);
            return Ok(());
        }
        let slots = self.slots.lock().expect("no panic");
        let Some((page, _)) = &slots[slot(from)] else { panic!("{from:?} is read, and free") };
        *into = **page;
        Ok(())
    }

    fn swapped_in(&self, _: SpaceId, _: LruPage, from: Evicted, _: Rights) {
        self.take(from);
    }

    fn share(&self, _: SpaceId, from: Evicted) -> bool {
        // A page that has a shadow is read first.
        if !matches!(from, Evicted::Swapped(_)) {
            return false;
        }
        let slot = &mut self.slots.lock().expect("no panic")[slot(from)];
        let (_, entries) = slot.as_mut().expect("an entry names it");
        *entries += 1;
        true
    }

    fn free(&self, _: SpaceId, from: Evicted) {
        self.take(from);
    }
}
