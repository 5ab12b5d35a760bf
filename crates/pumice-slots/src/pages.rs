//! Kinds of pages, and who is charged for them.

use core::fmt;

/// The kind of pages that a slot's memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PageKind {
    /// Pages of 4 KiB.
    Small = 1,
    /// Transparent huge pages of 2 MiB where they can be had, small ones where not.
    Thp = 2,
    /// Pages of 2 MiB from the kernel's hugetlb pool.
    Hugetlb2M = 3,
    /// Pages of 1 GiB from the kernel's hugetlb pool.
    Hugetlb1G = 4,
}

impl PageKind {
    /// All of them.
    pub const ALL: [PageKind; 4] =
        [PageKind::Small, PageKind::Thp, PageKind::Hugetlb2M, PageKind::Hugetlb1G];

    /// The name that is typed.
    pub const fn name(self) -> &'static str {
        match self {
            PageKind::Small => "4k",
            PageKind::Thp => "thp",
            PageKind::Hugetlb2M => "hugetlb-2m",
            PageKind::Hugetlb1G => "hugetlb-1g",
        }
    }

    /// Reads a name.
    pub fn parse(name: &str) -> Option<PageKind> {
        PageKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The kind with this number in a message.
    pub fn from_number(number: u8) -> Option<PageKind> {
        PageKind::ALL.into_iter().find(|&kind| kind as u8 == number)
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
    pub const fn is_hugetlb(self) -> bool {
        matches!(self, PageKind::Hugetlb2M | PageKind::Hugetlb1G)
    }
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The side whose control group is charged for a slot's pages: it touches them first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Charge {
    /// The daemon populates.
    #[default]
    Daemon = 0,
    /// The slot comes empty and the lessee populates.
    Lessee = 1,
}

impl Charge {
    /// The one with this number in a message.
    pub fn from_number(number: u8) -> Option<Charge> {
        [Charge::Daemon, Charge::Lessee].into_iter().find(|&charge| charge as u8 == number)
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
        assert_eq!(PageKind::from_number(0), None);
        assert_eq!(PageKind::parse("2m"), None);
    }
}
