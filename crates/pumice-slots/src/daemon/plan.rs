//! The plan of a daemon: the slots that it keeps, and the users that may lease them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pumice_frames::sys::mempolicy;

use super::allow::Allowed;
use super::pool::Key;
use super::source::{self, Version};
use crate::memory;
use crate::refusal::size;
use crate::serving::http::Address;
use crate::settings::PaceSetting;
use crate::{PageKind, ServeError, Sharing, SnapshotName};

/// The configuration of a daemon.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Classes of slots and how many of each.
    pub classes: Vec<(Key, u32)>,
    /// Snapshots, and how many slots of each.
    pub snapshots: Vec<SnapshotPlan>,
    /// The daemon's folder.
    pub dir: Option<PathBuf>,
    /// The socket, if it is not in there.
    pub socket: Option<PathBuf>,
    /// The socket for clients with tickets, if there is one.
    pub ticket_socket: Option<PathBuf>,
    /// The users and groups that may lease.
    pub allowed: Allowed,
    /// How much of a class one user may have had and ended, until it is populated again.
    pub share_percent: Option<u32>,
    /// Where metrics are served.
    pub metrics: Option<Address>,
    /// Whether hugetlb pages may be asked for.
    pub grow_hugetlb: bool,
    /// How long leases may go on after SIGTERM.
    pub drain: Duration,
    /// Threads that populate.
    pub threads: u32,
    /// Settings, raw.
    pub pace: [u64; PaceSetting::ALL.len()],
}

/// A file whose content slots are to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotPlan {
    /// The name that clients ask for.
    pub name: SnapshotName,
    /// The file.
    pub path: Arc<Path>,
    /// How many slots; 1 of a shared one.
    pub count: u32,
    /// Whether clients share it.
    pub sharing: Sharing,
    /// The kind of pages that they are made of.
    pub pages: PageKind,
    /// The memory node, if one was chosen.
    pub node: Option<u32>,
}

impl SnapshotPlan {
    /// The class of slots for a version of the file.
    pub fn key(&self, version: &Version) -> Option<Key> {
        let bytes = version.slot_bytes(self.pages).filter(|&bytes| bytes <= isize::MAX as u64)?;
        Some(Key { bytes, ..self.unseen_key() })
    }

    /// The class while the file's size is not known.
    pub fn unseen_key(&self) -> Key {
        let key = Key::new(0, self.pages).of_snapshot(self.name, self.sharing);
        Key { node: self.node, ..key }
    }

    /// Looks at the file, and returns the class.
    pub fn look(&self) -> Result<Key, ServeError> {
        let failed = |why: String| format!("snapshot {}: {why}", self.name);
        let (_, version) = source::open(&self.path).map_err(|error| error.map(failed))?;
        let key = self.key(&version);
        key.ok_or_else(|| ServeError::usage(failed("the file is too large".into())))
    }
}

impl Plan {
    /// Checks that this machine can have the slots. `key_of` tells the class of a snapshot.
    pub fn check(
        &self,
        key_of: impl Fn(&SnapshotPlan) -> Result<Key, ServeError>,
    ) -> Result<(), ServeError> {
        if self.classes.is_empty() && self.snapshots.is_empty() {
            return Err(ServeError::usage(
                "no slots to keep; say how many of which size, such as --slot 8G=2",
            ));
        }
        let mut all = self.classes.clone();
        for (index, snapshot) in self.snapshots.iter().enumerate() {
            let name = snapshot.name;
            if self.snapshots[..index].iter().any(|other| other.name == name) {
                return Err(ServeError::usage(format!("two snapshots are named {name}")));
            }
            // A mapping that writes could make such a file larger, seals or not.
            if snapshot.sharing == Sharing::Shared && snapshot.pages.is_hugetlb() {
                return Err(ServeError::usage(format!(
                    "snapshot {name} can't be shared in {} pages; choose thp or 4k",
                    snapshot.pages
                )));
            }
            all.push((key_of(snapshot)?, snapshot.count));
        }
        let mut all_bytes = 0u128;
        for &(key, count) in &all {
            let granule = key.pages.granule();
            let is_known = key.bytes != 0 || key.snapshot.is_some();
            if !is_known || key.bytes % granule != 0 {
                return Err(ServeError::usage(format!(
                    "a slot of {} pages must be a multiple of {}, and {} is not",
                    key.pages,
                    size(granule),
                    size(key.bytes)
                )));
            }
            if let Some(node) = key.node {
                let nodes = mempolicy::allowed_nodes().unwrap_or_default();
                if !nodes.is_empty() && !nodes.contains(node as usize) {
                    let there = nodes.iter().map(|node| node.to_string()).collect::<Vec<_>>();
                    let there = there.join(", ");
                    return Err(ServeError::usage(format!(
                        "no memory node {node}; there are {there}"
                    )));
                }
            }
            if !key.pages.is_hugetlb() {
                all_bytes += u128::from(key.bytes) * u128::from(count);
            }
        }
        let available = memory::available_bytes();
        if all_bytes > u128::from(available) {
            return Err(ServeError::usage(format!(
                "the slots are {:.1} GiB together, and the machine or the control group has {:.1} GiB; \
                 lower a count or a size",
                all_bytes as f64 / f64::from(1 << 30),
                available as f64 / f64::from(1 << 30)
            )));
        }
        Ok(())
    }
}
