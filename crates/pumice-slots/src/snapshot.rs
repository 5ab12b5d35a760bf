//! The name of a snapshot: a file whose content slots hold. Clients know names only, never paths.

use core::fmt;
use core::str::{self, FromStr};

/// The longest name, in bytes.
pub const MAX_NAME: usize = 32;

/// A name: 1 to 32 ASCII letters, digits, `-`, `_` and `.`.
///
/// ```
/// use pumice::slots::SnapshotName;
/// let name: SnapshotName = "web".parse()?;
/// assert_eq!(name.to_string(), "web");
/// assert!("../web".parse::<SnapshotName>().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotName {
    /// Zeros after the name.
    bytes: [u8; MAX_NAME],
}

impl SnapshotName {
    /// Reads a name.
    pub(crate) fn new(text: &str) -> Option<SnapshotName> {
        let is_fine = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
        if text.is_empty() || text.len() > MAX_NAME || !text.as_bytes().iter().all(is_fine) {
            return None;
        }
        let mut bytes = [0; MAX_NAME];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Some(SnapshotName { bytes })
    }

    /// The name as text.
    #[doc(hidden)]
    pub fn as_str(&self) -> &str {
        let len = self.bytes.iter().position(|&byte| byte == 0).unwrap_or(MAX_NAME);
        str::from_utf8(&self.bytes[..len]).unwrap_or_default()
    }
}

impl FromStr for SnapshotName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<SnapshotName, &'static str> {
        SnapshotName::new(text)
            .ok_or("a snapshot's name has 1 to 32 letters, digits, '-', '_' and '.'")
    }
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

pumice_frames::table! {
    /// The memory that lessees of a snapshot have.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    #[repr(u8)]
    pub enum Sharing: &'static str {
        /// Each a slot of its own, which it maps shared and writes to.
        Alone = 0 => "alone",
        /// All the same, which nobody can write to. They map it privately, and pages that they change are copied.
        Shared = 1 => "shared",
    }
}

impl Sharing {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        self.row()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_are_no_paths() {
        for good in ["a", "web-1.2_x", &"x".repeat(MAX_NAME)] {
            assert_eq!(SnapshotName::new(good).expect("good").as_str(), good);
        }
        for bad in ["", "a/b", "a b", "a:b", "a\0", "ä", &"x".repeat(MAX_NAME + 1)] {
            assert_eq!(SnapshotName::new(bad), None, "{bad:?}");
        }
    }
}
