//! The steps by which a page cache fills and cleans the pages of its files.
//!
//! They are no methods of a task's own, so that a program which has one through `pumice` can't take them: it would end
//! no read, and no write-back, that it begins.

use core::ops::Range;
use core::ptr::NonNull;

use super::file::{Filling, Overtaken, Patience};
use super::runs::Halt;
use super::swap_in::Use;
use super::task::Task;
use super::write_back::{StillHeld, WriteBack, WriteFailed};
use super::Result;
use crate::page_table::pager::ReadResult;
use crate::page_table::{FrameSource, Rights, TableOps};
use pumice_frames::addr::Pfn;

/// See the module's top. Each method is as the task's of the same name.
///
/// # Safety
/// Of [`FileOps::scan_dirty`], [`FileOps::forget`] and [`FileOps::forget_idle`]: the regions of these pages stay, and
/// the code that they call maps and unmaps nothing in the space.
#[allow(clippy::missing_errors_doc, clippy::missing_safety_doc, missing_docs, reason = "see there")]
pub trait FileOps {
    /// Where a frame of the space is.
    fn bytes(&self, frame: Pfn) -> NonNull<u8>;
    fn map_file(&self, bytes: usize, rights: Rights) -> Result<usize>;
    unsafe fn end_fill(&self, filling: Filling, read: ReadResult, used: Use);
    fn begin_fill_all(
        &self,
        pages: Range<usize>,
        patience: Patience,
        begun: &mut dyn FnMut(Filling),
    ) -> Halt;
    unsafe fn end_fill_all(&self, fillings: &mut dyn Iterator<Item = (Filling, ReadResult, Use)>);
    fn take_over(&self, filling: Filling) -> core::result::Result<(Filling, Overtaken), Filling>;
    unsafe fn end_overtaken(&self, overtaken: Overtaken);
    fn is_being_read(&self, page: usize) -> bool;
    unsafe fn scan_dirty(&self, pages: Range<usize>, found: impl FnMut(usize));
    unsafe fn forget_idle(&self, pages: Range<usize>) -> usize;
    unsafe fn forget(&self, pages: Range<usize>, waits: impl FnMut(usize)) -> usize;
    fn begin_write_back(&self, page: usize) -> Option<WriteBack>;
    fn begin_write_back_all(
        &self,
        pages: &[usize],
        begun: &mut dyn FnMut(usize, Option<WriteBack>),
    );
    fn wait_to_write_back(
        &self,
        page: usize,
        may_wait: bool,
    ) -> core::result::Result<Option<WriteBack>, StillHeld>;
    unsafe fn end_write_back_all(&self, begun: &mut dyn Iterator<Item = WriteBack>);
    unsafe fn end_write_back(&self, begun: WriteBack, went: core::result::Result<(), WriteFailed>);
}

impl<F: FrameSource, T: TableOps> FileOps for Task<'_, F, T> {
    fn bytes(&self, frame: Pfn) -> NonNull<u8> {
        self.space().frames().bytes(frame)
    }

    fn map_file(&self, bytes: usize, rights: Rights) -> Result<usize> {
        self.map_file(bytes, rights)
    }
    unsafe fn end_fill(&self, filling: Filling, read: ReadResult, used: Use) {
        // SAFETY: the caller's promise.
        unsafe { self.end_fill(filling, read, used) }
    }
    fn begin_fill_all(
        &self,
        pages: Range<usize>,
        patience: Patience,
        begun: &mut dyn FnMut(Filling),
    ) -> Halt {
        self.begin_fill_all(pages, patience, begun)
    }
    unsafe fn end_fill_all(&self, fillings: &mut dyn Iterator<Item = (Filling, ReadResult, Use)>) {
        // SAFETY: the caller's promise.
        unsafe { self.end_fill_all(fillings) }
    }
    fn take_over(&self, filling: Filling) -> core::result::Result<(Filling, Overtaken), Filling> {
        self.take_over(filling)
    }
    unsafe fn end_overtaken(&self, overtaken: Overtaken) {
        // SAFETY: the caller's promise.
        unsafe { self.end_overtaken(overtaken) }
    }
    fn is_being_read(&self, page: usize) -> bool {
        self.is_being_read(page)
    }
    unsafe fn scan_dirty(&self, pages: Range<usize>, found: impl FnMut(usize)) {
        self.scan_dirty(pages, found)
    }
    unsafe fn forget_idle(&self, pages: Range<usize>) -> usize {
        self.forget_idle(pages)
    }
    unsafe fn forget(&self, pages: Range<usize>, waits: impl FnMut(usize)) -> usize {
        self.forget(pages, waits)
    }
    fn begin_write_back(&self, page: usize) -> Option<WriteBack> {
        self.begin_write_back(page)
    }
    fn begin_write_back_all(
        &self,
        pages: &[usize],
        begun: &mut dyn FnMut(usize, Option<WriteBack>),
    ) {
        self.begin_write_back_all(pages, begun);
    }
    unsafe fn end_write_back_all(&self, begun: &mut dyn Iterator<Item = WriteBack>) {
        // SAFETY: the caller's promise.
        unsafe { self.end_write_back_all(begun) }
    }
    fn wait_to_write_back(
        &self,
        page: usize,
        may_wait: bool,
    ) -> core::result::Result<Option<WriteBack>, StillHeld> {
        self.wait_to_write_back(page, may_wait)
    }
    unsafe fn end_write_back(&self, begun: WriteBack, went: core::result::Result<(), WriteFailed>) {
        // SAFETY: the caller's promise.
        unsafe { self.end_write_back(begun, went) }
    }
}
