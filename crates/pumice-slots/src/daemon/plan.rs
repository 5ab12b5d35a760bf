//! The plan of a daemon: the slots that it keeps, and the users that may lease them.

use std::path::PathBuf;
use std::time::Duration;

use pumice_frames::sys::mempolicy;

use super::allow::Allowed;
use super::pool::Key;
use crate::memory;
use crate::refusal::size;
use crate::serving::http::Address;
use crate::settings::PaceSetting;
use crate::ServeError;

/// The configuration of a daemon.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Classes of slots and how many of each.
    pub classes: Vec<(Key, u32)>,
    /// The daemon's folder.
    pub dir: Option<PathBuf>,
    /// The socket, if it is not in there.
    pub socket: Option<PathBuf>,
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

impl Plan {
    /// Checks that this machine can have the slots.
    pub fn check(&self) -> Result<(), ServeError> {
        if self.classes.is_empty() {
            return Err(ServeError::usage(
                "no slots to keep; say how many of which size, such as --slot 8G=2",
            ));
        }
        let mut all_bytes = 0u128;
        for &(key, count) in &self.classes {
            let granule = key.pages.granule();
            if key.bytes == 0 || key.bytes % granule != 0 {
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
