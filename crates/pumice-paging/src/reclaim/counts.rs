//! Counts of the work that a zone's reclaim has done.

/// The counts so far, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// `pswpout`: written out.
    pub pswpout: u64,
    /// Requests that they were written by.
    pub writes: u64,
    /// `pswpin`: read in.
    pub pswpin: u64,
    /// Of these, pages of readahead.
    pub read_ahead: u64,
    /// Evicted without being written: the copy elsewhere was good.
    pub clean: u64,
    /// Met again by a fault while they were written.
    pub rescued: u64,
    /// Not written or not read, for an error.
    pub errors: u64,
    /// `allocstall`: times a thread did direct reclaim, or waited for a thread that does.
    pub allocstall: u64,
    /// Of the pages that went, those evicted by direct reclaim.
    pub direct: u64,
    /// Frames that shrinkers gave back.
    pub shrunk: u64,
    /// Mapped pages that were met at the inactive tail and passed over (`vm_mapped_ratio`).
    pub passed_over: u64,
    /// Pages whose entries were looked at by walks over page tables for some to unmap (`swap_out`).
    pub walked: u64,
}
