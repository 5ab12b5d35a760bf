//! Which pages to give up when memory is short.
//!
//! - [`policy`]: the calls of a policy.
//! - [`two_list`]: Linux 2.4's active and inactive lists.
//! - [`adaptive`]: ours, and the default.
//! - [`zone`]: a record of the zone's pages, of all its spaces; the threads that wait for frames.
//! - `members`: the spaces whose pages may go; `spaces`: how they come and go.
//! - [`settings`]: the settings of reclaim.
//! - [`shrinker`]: caches outside the page lists, which give frames back; `shrink`: how they are asked.
//! - `kswapd`: the thread that evicts pages; `kswapd_state`: its state; `direct`: direct reclaim, by the thread that
//!   asks for a frame; `requests`: the requests of direct reclaim.
//! - `round`: one round of either; `progress`: whether there is more to try; `writes`: the pages that are chosen;
//!   `writeout`: how they go.
//! - [`zoned`]: spaces over several zones.
//! - `swap_out`: the published rule for mapped pages, by walks over page tables.
//! - [`paging`]: the calls that a space's faults make.
//! - `list`: lists of pages in a table.
//!
//! A policy is plain code under its owner's lock, and allocates nothing. It knows of a page only that it came in, from
//! where, that it was used since the policy last asked, and the policy's own note of when the page was evicted (a
//! [`policy::Shadow`] of 28 bits, which fits into a page's entry). `pumice bench replace` runs it over traces as it is.

pub mod adaptive;
#[cfg(not(loom))]
mod arrivals;
#[cfg(all(test, not(any(loom, shuttle))))]
mod backing_tests;
#[cfg(not(loom))]
mod contained_policy;
#[cfg(not(loom))]
mod counts;
#[cfg(not(loom))]
mod direct;
#[cfg(all(test, not(any(loom, shuttle))))]
mod direct_tests;
#[cfg(not(loom))]
mod kswapd;
#[cfg(not(loom))]
mod kswapd_state;
mod list;
#[cfg(not(loom))]
mod members;
#[cfg(all(test, shuttle))]
mod models;
#[cfg(not(loom))]
pub mod paging;
pub mod policy;
#[cfg(not(loom))]
mod progress;
#[cfg(not(loom))]
mod requests;
#[cfg(not(loom))]
mod round;
#[cfg(not(loom))]
pub mod settings;
#[cfg(not(loom))]
mod shrink;
#[cfg(not(loom))]
pub mod shrinker;
#[cfg(all(test, not(any(loom, shuttle))))]
mod shrinker_tests;
#[cfg(not(loom))]
mod spaces;
#[cfg(all(test, not(any(loom, shuttle))))]
mod spaces_tests;
#[cfg(not(loom))]
mod swap_out;
#[cfg(all(test, not(any(loom, shuttle))))]
mod swap_out_tests;
#[cfg(all(test, not(any(loom, shuttle))))]
mod swap_tests;
#[cfg(all(test, not(any(loom, shuttle))))]
mod testing;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
pub mod two_list;
#[cfg(all(test, not(any(loom, shuttle))))]
mod watched;
#[cfg(not(loom))]
mod writeout;
#[cfg(not(loom))]
mod writes;
#[cfg(not(loom))]
pub mod zone;
#[cfg(not(loom))]
pub mod zoned;
#[cfg(all(test, shuttle))]
mod zoned_models;
#[cfg(all(test, not(any(loom, shuttle))))]
mod zoned_tests;

pub use adaptive::Adaptive;
#[cfg(not(loom))]
pub use counts::Counts;
pub use list::Page;
#[cfg(not(loom))]
pub use paging::{Paging, SwapPager};
pub use policy::{Arrival, Policy, Shadow, Tunables};
#[cfg(not(loom))]
pub use settings::Settings;
#[cfg(not(loom))]
pub use shrink::Registration;
#[cfg(not(loom))]
pub use shrinker::Shrinker;
pub use two_list::TwoList;
#[cfg(not(loom))]
pub use zone::ZoneReclaim;
#[cfg(not(loom))]
pub use zoned::ZonedPaging;
