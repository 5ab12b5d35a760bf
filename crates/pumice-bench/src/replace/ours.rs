//! Our policies, as reclaim runs them, over frames that there are not.

use pumice_paging::reclaim::{Arrival, Policy, Shadow};

use super::peers::Cache;

/// A page that is in no frame, and a frame's number.
const NONE: u32 = u32::MAX;

/// A memory under one of our policies.
pub struct Ours<P> {
    policy: P,
    /// Pages to give up at once.
    batch: usize,
    frame_of: Vec<u32>,
    page_of: Vec<u32>,
    free: Vec<u32>,
    /// The words of a policy on a page that is out.
    shadows: Vec<Option<Shadow>>,
}

impl<P: Policy> Ours<P> {
    /// An empty one, for pages below `pages`; the policy is one for `frames`.
    pub fn new(policy: P, frames: usize, pages: usize) -> Ours<P> {
        Ours {
            policy,
            batch: P::batch(frames),
            frame_of: vec![NONE; pages],
            page_of: vec![NONE; frames],
            free: (0..frames as u32).rev().collect(),
            shadows: vec![None; pages],
        }
    }
}

impl<P: Policy> Cache for Ours<P> {
    fn access(&mut self, page: u32) -> bool {
        let at = page as usize;
        if self.frame_of[at] != NONE {
            self.policy.accessed(self.frame_of[at], page.into());
            return true;
        }
        if self.free.is_empty() {
            for _ in 0..self.batch {
                let Some((frame, shadow)) = self.policy.evict() else { break };
                let gone = self.page_of[frame as usize] as usize;
                self.frame_of[gone] = NONE;
                self.shadows[gone] = Some(shadow);
                self.free.push(frame);
            }
        }
        let frame = self.free.pop().expect("a policy gives up a page where all are in");
        self.frame_of[at] = frame;
        self.page_of[frame as usize] = page;
        let arrival = self.shadows[at].map_or(Arrival::Fresh, Arrival::Refault);
        self.policy.add(frame, page.into(), arrival);
        false
    }
}
