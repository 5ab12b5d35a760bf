//! Errors of a space: each names the address, and the region if there is one.

use core::fmt;

use crate::page_table::Rights;

/// Addresses `start..start + bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First address.
    pub start: usize,
    /// Bytes.
    pub bytes: usize,
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start, self.start.wrapping_add(self.bytes))
    }
}

/// An address, and the region it lies in, all of it as it was mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The address.
    pub address: usize,
    /// `None` outside all regions.
    pub region: Option<Extent>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.region {
            Some(region) => write!(f, "{:#x}, in the region {region}", self.address),
            None => write!(f, "{:#x}, in no region", self.address),
        }
    }
}

/// The access that was wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// To read it.
    Read,
    /// To write it.
    Write,
}

impl Access {
    /// The right it takes.
    #[doc(hidden)]
    #[inline]
    pub const fn needs(self) -> Rights {
        match self {
            Access::Read => Rights::READ,
            Access::Write => Rights::WRITE,
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Read => "read",
            Access::Write => "written",
        })
    }
}

/// See the module's top.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VmError {
    /// Nothing is mapped there (any more).
    #[error("nothing is mapped at {0}")]
    Unmapped(Place),
    /// The page may not be accessed so.
    #[error("the page may not be {1}: {0}")]
    Denied(Place, Access),
    /// Another guard excludes it.
    #[error("the page is held by another guard: {0}")]
    Busy(Place),
    /// The page is in swap, and the space has no swap.
    #[error("the page is in swap, and there is no swap to read it from: {0}")]
    NotResident(Place),
    /// The page can't be read back from swap, or from its file.
    #[error("the page can't be read back from its backing store: {0}")]
    ReadFailed(Place),
    /// No frames for the page at this address, or for its tables.
    #[error("no frames are left for the page at {0}")]
    OutOfFrames(Place),
    /// Not whole pages.
    #[error("not whole pages: {0}")]
    Unaligned(Extent),
    /// No bytes, or more than there are addresses after the start.
    #[error("no range of addresses of this space: {0}")]
    BadRange(Extent),
    /// So many bytes have no place among the addresses of the space. The last thread in an unmapped region keeps the
    /// region's addresses until it uses the space again or leaves it.
    #[error("no {0} bytes of addresses are free side by side")]
    OutOfAddresses(usize),
    /// The space has no room for a record of another region or thread.
    #[error("the space has no room for a record of another {0}")]
    OutOfRecords(&'static str),
    /// Reclaim of a space by another pager than its own, which could not find evicted pages again.
    #[error("the space has another pager: attach it to the one that its frames were made with")]
    OtherPager,
    /// Reclaim of a space on another zone than those of the spaces that are attached already: records of frames go by
    /// their numbers.
    #[error("the reclaim belongs to another zone; each zone has its own")]
    OtherZone,
    /// The thread holds as many regions as it can.
    #[error("the thread holds {0} regions already, as many as it can")]
    TooManyHeld(usize),
}

/// [`core::result::Result`] with [`VmError`].
pub type Result<T> = core::result::Result<T, VmError>;

/// Why a fault could not be settled, before anybody has asked where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trap {
    Unmapped,
    Denied,
    Busy,
    NotResident,
    ReadFailed,
    OutOfFrames,
    /// There are so many readers that another is counted aside.
    Crowded,
}

impl Trap {
    pub(super) fn at(self, place: Place, access: Access) -> VmError {
        match self {
            Trap::Unmapped => VmError::Unmapped(place),
            Trap::Denied => VmError::Denied(place, access),
            Trap::Busy | Trap::Crowded => VmError::Busy(place),
            Trap::NotResident => VmError::NotResident(place),
            Trap::ReadFailed => VmError::ReadFailed(place),
            Trap::OutOfFrames => VmError::OutOfFrames(place),
        }
    }
}
