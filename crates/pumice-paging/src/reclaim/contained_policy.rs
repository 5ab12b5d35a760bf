//! A policy whose panics end in errors, and that can't come back to its zone.
//!
//! A policy is called under the lock of its zone's reclaim, in the middle of faults and of reclaim. If it panicked
//! through them, pages would stay latched, and threads would wait for those for ever. So one that panics has failed:
//! it is called no more, no page goes out, and a thread that finds no frame gets an error. If a policy used a space, a
//! cache or a zone, the thread could wait for a lock that it has itself. Such a use panics instead
//! ([`in_policy::refuse`]).

use super::policy::{Arrival, Policy, Shadow, Tunables};
use pumice_io::sync::{contain, in_policy};

/// See the module's top. The methods are those of [`Policy`].
#[derive(Debug)]
pub(super) struct ContainedPolicy<P> {
    policy: P,
    /// Pages are numbered below this.
    pages: usize,
    has_failed: bool,
}

impl<P: Policy> ContainedPolicy<P> {
    pub fn new(policy: P, pages: usize) -> ContainedPolicy<P> {
        ContainedPolicy { policy, pages, has_failed: false }
    }

    /// `None`: it has failed, now or before.
    #[inline]
    fn call<R>(&mut self, work: impl FnOnce(&mut P) -> R) -> Option<R> {
        if self.has_failed {
            return None;
        }
        let result = in_policy::call(|| contain(|| work(&mut self.policy)));
        self.has_failed = result.is_none();
        result
    }

    /// Pages that were not in, or whose frames are others' by now.
    pub fn add_all(&mut self, pages: &[(u32, u64, Arrival)]) {
        self.call(|policy| {
            for &(page, name, arrival) in pages {
                if policy.contains(page) {
                    policy.forget(page);
                }
                policy.add(page, name, arrival);
            }
        });
    }

    pub fn tune(&mut self, tunables: Tunables) {
        self.call(|policy| policy.tune(tunables));
    }

    pub fn accessed(&mut self, page: u32, name: u64) {
        self.call(|policy| policy.accessed(page, name));
    }

    pub fn forget(&mut self, page: u32) {
        self.call(|policy| policy.forget(page));
    }

    pub fn evict(&mut self) -> Option<(u32, Shadow)> {
        let evicted = self.call(P::evict).flatten()?;
        self.is_page(evicted.0).then_some(evicted)
    }

    /// `None`: it is not known whether it would be known.
    pub fn evict_page(&mut self, page: u32) -> Option<Shadow> {
        self.call(|policy| policy.evict_page(page))
    }

    pub fn refill(&mut self, batch: usize) {
        self.call(|policy| policy.refill(batch));
    }

    pub fn roll_over(&mut self) -> Option<u32> {
        let page = self.call(P::roll_over).flatten()?;
        self.is_page(page).then_some(page)
    }

    pub fn is_active(&mut self, page: u32) -> bool {
        self.call(|policy| policy.is_active(page)).unwrap_or(true)
    }

    /// Adds to `found`.
    pub fn oldest(&mut self, most: usize, found: &mut Vec<u32>) {
        let pages = self.pages;
        self.call(|policy| {
            policy.oldest(most, &mut |page| {
                if (page as usize) < pages && found.len() < most {
                    found.push(page);
                }
            });
        });
    }

    pub fn put_back(&mut self, page: u32, shadow: Shadow) {
        self.call(|policy| policy.put_back(page, shadow));
    }

    /// Pages that are in; as many as there are at most.
    pub fn len(&mut self) -> usize {
        self.call(|policy| policy.len()).unwrap_or(0).min(self.pages)
    }

    pub fn contains(&mut self, page: u32) -> bool {
        self.call(|policy| policy.contains(page)).unwrap_or(false)
    }

    /// Drops what is of pages that are not in, of many by one call.
    pub fn retain_known<T>(&mut self, all: &mut Vec<T>, page: impl Fn(&T) -> u32) {
        if self.call(|policy| all.retain(|one| policy.contains(page(one)))).is_none() {
            all.clear();
        }
    }

    /// Whether there is such a page. A policy that names another has failed.
    fn is_page(&mut self, page: u32) -> bool {
        let is_page = (page as usize) < self.pages;
        self.has_failed |= !is_page;
        is_page
    }
}
