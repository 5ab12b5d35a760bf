//! The optimum: the page goes that is used again last (Belady, 1966).

use std::collections::BTreeSet;

use super::peers::Cache;

/// Never used again.
const NEVER: u32 = u32::MAX;

/// For each reference, when its page is referenced next.
pub fn next_uses(trace: &[u32], pages: usize) -> Vec<u32> {
    let mut next_of = vec![NEVER; pages];
    let mut next_uses = vec![NEVER; trace.len()];
    for (now, &page) in trace.iter().enumerate().rev() {
        next_uses[now] = std::mem::replace(&mut next_of[page as usize], now as u32);
    }
    next_uses
}

/// A memory that knows what comes: it must be asked for the trace it was made for.
pub struct Opt<'t> {
    frames: usize,
    now: usize,
    next_uses: &'t [u32],
    /// Of pages that are in: when it is used next.
    next_of: Vec<Option<u32>>,
    by_next: BTreeSet<(u32, u32)>,
}

impl Opt<'_> {
    pub fn new(frames: usize, pages: usize, next_uses: &[u32]) -> Opt<'_> {
        Opt { frames, now: 0, next_uses, next_of: vec![None; pages], by_next: BTreeSet::new() }
    }
}

impl Cache for Opt<'_> {
    fn access(&mut self, page: u32) -> bool {
        let next = self.next_uses[self.now];
        self.now += 1;
        let this = self.next_of[page as usize].replace(next);
        if let Some(this) = this {
            self.by_next.remove(&(this, page));
        } else if self.by_next.len() == self.frames {
            if let Some((_, last)) = self.by_next.pop_last() {
                self.next_of[last as usize] = None;
            }
        }
        self.by_next.insert((next, page));
        this.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const PAGES: usize = 8;

    /// Most hits that any choices give, from `now` on with the pages of the set `resident`.
    fn most_hits(
        trace: &[u32],
        frames: u32,
        now: usize,
        resident: u32,
        known: &mut HashMap<(usize, u32), usize>,
    ) -> usize {
        let Some(&page) = trace.get(now) else { return 0 };
        if let Some(&hits) = known.get(&(now, resident)) {
            return hits;
        }
        let with = resident | 1 << page;
        let hits = if with == resident {
            1 + most_hits(trace, frames, now + 1, resident, known)
        } else if resident.count_ones() < frames {
            most_hits(trace, frames, now + 1, with, known)
        } else {
            let others = (0..PAGES).filter(|other| resident & 1 << other != 0);
            let choices = others.map(|other| with & !(1 << other));
            choices.map(|set| most_hits(trace, frames, now + 1, set, known)).max().unwrap_or(0)
        };
        known.insert((now, resident), hits);
        hits
    }

    proptest! {
        #[test]
        fn no_choices_give_more(
            frames in 1u32..6,
            trace in prop::collection::vec(0..PAGES as u32, 0..40),
        ) {
            let next_uses = next_uses(&trace, PAGES);
            let mut opt = Opt::new(frames as usize, PAGES, &next_uses);
            let hits = trace.iter().filter(|&&page| opt.access(page)).count();
            prop_assert_eq!(hits, most_hits(&trace, frames, 0, 0, &mut HashMap::new()));
        }
    }
}
