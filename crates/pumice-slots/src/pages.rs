//! Kinds of pages, and the side that is charged for them.

use core::fmt;

pumice_frames::table! {
    /// The kind of pages that a slot's memory is made of.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[repr(u8)]
    pub enum PageKind: &'static str {
        /// Pages of 4 KiB.
        Small = 1 => "4k",
        /// Transparent huge pages of 2 MiB where they can be had, small ones where not.
        Thp = 2 => "thp",
        /// Pages of 2 MiB from the kernel's hugetlb pool.
        Hugetlb2M = 3 => "hugetlb-2m",
        /// Pages of 1 GiB from the kernel's hugetlb pool.
        Hugetlb1G = 4 => "hugetlb-1g",
    }
}

impl PageKind {
    /// The name that is typed.
    #[doc(hidden)]
    pub const fn name(self) -> &'static str {
        self.row()
    }

    /// Reads a name.
    #[doc(hidden)]
    pub fn parse(name: &str) -> Option<PageKind> {
        PageKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Bytes that a slot's size must be a multiple of.
    pub const fn granule(self) -> u64 {
        match self {
            PageKind::Small | PageKind::Thp => 4 << 10,
            PageKind::Hugetlb2M => 2 << 20,
            PageKind::Hugetlb1G => 1 << 30,
        }
    }

    /// Bytes that a mapping must be aligned to for the largest pages to be mapped whole.
    pub const fn alignment(self) -> u64 {
        match self {
            PageKind::Small => 4 << 10,
            PageKind::Thp | PageKind::Hugetlb2M => 2 << 20,
            PageKind::Hugetlb1G => 1 << 30,
        }
    }

    /// Whether the pages come from the kernel's hugetlb pool.
    #[doc(hidden)]
    pub const fn is_hugetlb(self) -> bool {
        matches!(self, PageKind::Hugetlb2M | PageKind::Hugetlb1G)
    }
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

pumice_frames::table! {
    /// The side whose control group is charged for a slot's pages: it touches them first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(u8)]
    pub enum Charge {
        /// The daemon populates.
        Daemon = 0,
        /// The slot comes empty and the lessee populates.
        Lessee = 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_read_back() {
        for kind in PageKind::ALL {
            assert_eq!(PageKind::parse(kind.name()), Some(kind));
            assert_eq!(PageKind::from_number(kind as u8), Some(kind));
        }
        assert_eq!(PageKind::from_number(0u8), None);
        assert_eq!(PageKind::parse("2m"), None);
    }
}
