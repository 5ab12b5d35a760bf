//! Ours: the rule that is best for the pages in use, of three.
//!
//! No single rule is good everywhere. LIRS keeps a part of a loop that is larger than the memory, and holds on to pages
//! for too long where what was used last is used next; LRU is the other way round; where some pages are used more
//! often than others, 2Q is ahead of both. So all three are simulated on a sample of the pages ([`sample`]), as in
//! "Cache Modeling and Optimization using Miniature Simulations" (Waldspurger, Saemundsson, Ahmad and Park, USENIX ATC
//! 2017), and the memory follows the one that has the most hits. The rules need no lists of pages that are gone, and
//! work on one state ([`pages`]): so the memory changes its rule from one eviction to the next.
//!
//! | rule | which page goes |
//! |---|---|
//! | LIRS (Jiang and Zhang, SIGMETRICS 2002) | the oldest inactive one; see below |
//! | 2Q (Johnson and Shasha, VLDB 1994) | the oldest inactive one while these have more than their share, or else an active one that is seldom used |
//! | LRU | the one that was used longest ago |
//!
//! Under LIRS a page becomes active if its last use but one is younger than the last use of an active page, which
//! becomes inactive.
//!
//! # The competition
//! Each rule but the one that is followed has an *advantage*: its hits less those of the rule that is followed, of
//! which old ones fade. The memory follows a rule whose advantage is larger than chance could make it by a share of the
//! frames, since a change of the rule costs misses. LRU gets a small advantage by itself: where the rules differ in
//! nothing, the memory keeps what was used last. Where the memory has fewer hits than the simulation of its own rule,
//! its pages are not those that the rule would have kept. It then follows LRU, which forgets soonest, unless that has
//! far fewer hits.

mod census;
mod order;
mod pages;
mod sample;

use super::list::Page;
use super::policy::{Arrival, Policy, Shadow, Tunables};
use census::Census;
use order::BUCKETS;
use pages::{Pages, Rule, RULES};
use sample::Samples;

/// Hits count for so many references that are sampled as there are frames in a sample, times this.
const MEMORY: f64 = 32.0;
/// An advantage tells if it is larger than this many roots of the references that the two rules differ in, which chance
/// may be...
const ROOTS: f64 = 2.0;
/// ... by this share of the frames of a sample, or this number.
const LEAST_SHARE: f64 = 0.04;
const LEAST: f64 = 8.0;
/// A disadvantage counts up to this share of the frames of a sample.
const MOST_BEHIND: f64 = 0.25;
/// LRU gets the least advantage by itself in so many references as there are frames, times this.
const TO_LRU: f64 = 6.0;
/// The memory's own misses count where they are more than those of its simulation by this share of references...
const MISMATCH: f64 = 0.05;
/// ... and by this share of the frames of a sample.
const MOST_MISMATCH: f64 = 0.15;

/// Evictions between looks at the memory's size, and the share by which it differs from that of the samples at most.
const LOOK_EVERY: u32 = 256;
const ROOM_SHARE: usize = 8;

/// See the module's top.
#[derive(Debug)]
pub struct Adaptive<'t> {
    pages: Pages<&'t mut [Page]>,
    /// `None` without memory for them: then it stays with LRU.
    competition: Option<Box<Competition>>,
    evictions: u32,
}

#[derive(Debug)]
struct Competition {
    /// Of a memory for so many pages.
    room: usize,
    samples: Samples,
    census: Census,
    /// Of each rule over the one that is followed.
    advantage: [f64; RULES.len()],
    /// References in which each rule differed from the one that is followed.
    differences: [f64; RULES.len()],
    mismatch: f64,
}

impl Competition {
    fn new(pages: usize) -> Option<Box<Competition>> {
        let none = [0.0; RULES.len()];
        let samples = Samples::new(pages)?;
        Some(Box::new(Competition {
            room: pages,
            samples,
            census: Census::new(pages),
            advantage: none,
            differences: none,
            mismatch: 0.0,
        }))
    }

    /// A page of the sample is used, which was a hit or not. Returns the rule to follow, if it is another.
    fn note(&mut self, hash: u64, was_hit: bool, follows: Rule) -> Option<Rule> {
        let hits = self.samples.access(hash)?;
        let frames = self.samples.frames() as f64;
        let least = (LEAST_SHARE * frames).max(LEAST);
        let fading = 1.0 - 1.0 / (MEMORY * frames);
        let own = hits[follows as usize];
        for rule in RULES {
            let at = rule as usize;
            let difference = f64::from(i8::from(hits[at]) - i8::from(own));
            let by_itself = match rule {
                Rule::Lru if follows != Rule::Lru => least / (TO_LRU * frames),
                _ => 0.0,
            };
            let advantage = self.advantage[at] * fading + difference + by_itself;
            self.advantage[at] = advantage.max(-(MOST_BEHIND * frames).max(LEAST));
            self.differences[at] = self.differences[at] * fading + difference.abs();
        }
        let missed = f64::from(i8::from(own) - i8::from(was_hit));
        self.mismatch = (self.mismatch + missed - MISMATCH).max(0.0);
        self.next_rule(follows, least)
    }

    fn next_rule(&mut self, follows: Rule, least: f64) -> Option<Rule> {
        let most = MOST_MISMATCH * self.samples.frames() as f64;
        if self.mismatch > most {
            self.mismatch = 0.0;
            if follows != Rule::Lru && self.advantage[Rule::Lru as usize] > -most {
                self.advantage = [0.0; RULES.len()];
                self.differences = [0.0; RULES.len()];
                return Some(Rule::Lru);
            }
        }
        let of = |rule: &Rule| self.advantage[*rule as usize];
        let best = RULES.into_iter().max_by(|one, other| of(one).total_cmp(&of(other)))?;
        let by = of(&best);
        if best == follows || by <= ROOTS * self.differences[best as usize].sqrt() + least {
            return None;
        }
        for (advantage, differences) in self.advantage.iter_mut().zip(&mut self.differences) {
            *advantage -= by;
            // How often the others differ from the new one is not known.
            *differences = differences.max(advantage.abs());
        }
        Some(best)
    }
}

impl<'t> Adaptive<'t> {
    /// Over a table of [`Policy::table_len`] entries.
    pub fn new(table: &'t mut [Page]) -> Adaptive<'t> {
        let pages = Pages::new(table);
        let competition = Competition::new(pages.pages());
        let rule = if competition.is_some() { Rule::Lirs } else { Rule::Lru };
        Adaptive { pages: pages.with_rule(rule), competition, evictions: 0 }
    }

    /// There may be memory for fewer pages than the table has: then the samples begin anew, of such a memory.
    fn fit_competition(&mut self) {
        let room = self.pages.room();
        let Some(competition) = &mut self.competition else { return };
        if competition.room.abs_diff(room) > competition.room / ROOM_SHARE {
            if let Some(mut other) = Competition::new(room) {
                other.samples.tune(self.pages.tunables());
                *competition = other;
                competition.census.begin();
            }
        }
    }

    /// A page is used, which was a hit or not. It is in memory, or comes.
    fn note(&mut self, page: u32, name: u64, was_hit: bool) {
        let Some(competition) = &mut self.competition else { return };
        let hash = competition.samples.hash(name);
        competition.census.note(&mut self.pages, page, hash.is_some());
        let Some(hash) = hash else { return };
        if let Some(rule) = competition.note(hash, was_hit, self.pages.rule()) {
            self.pages.follow(rule);
        }
    }

    /// A page goes.
    fn note_gone(&mut self, page: u32) {
        if let Some(competition) = &mut self.competition {
            competition.census.forget(&mut self.pages, page);
        }
    }

    /// The small memories have as many frames as this one has pages of the sample.
    fn fit_samples(&mut self) {
        let Some(competition) = &mut self.competition else { return };
        competition.census.clear_some(&mut self.pages);
        let (len, room) = (self.pages.len(), self.pages.room());
        if let Some(sampled) = competition.census.look(len, room) {
            competition.samples.set_room(sampled);
        }
    }
}

impl Policy for Adaptive<'_> {
    const NAME: &'static str = "adaptive";

    fn tune(&mut self, tunables: Tunables) {
        let tunables = tunables.checked();
        self.pages.tune(tunables);
        if let Some(competition) = &mut self.competition {
            competition.samples.tune(tunables);
        }
    }

    fn table_len(pages: usize) -> usize {
        pages + BUCKETS + 1
    }

    fn batch(_pages: usize) -> usize {
        1
    }

    fn add(&mut self, page: u32, name: u64, arrival: Arrival) {
        self.note(page, name, false);
        let shadow = match arrival {
            Arrival::Refault(shadow) => Some(shadow),
            Arrival::Fresh | Arrival::ReadAhead => None,
        };
        self.pages.add(page, shadow);
    }

    fn accessed(&mut self, page: u32, name: u64) {
        self.note(page, name, true);
        self.pages.accessed(page);
    }

    fn forget(&mut self, page: u32) {
        self.note_gone(page);
        self.pages.forget(page);
    }

    fn evict(&mut self) -> Option<(u32, Shadow)> {
        self.fit_samples();
        let evicted = self.pages.evict()?;
        self.note_gone(evicted.0);
        self.evictions = self.evictions.wrapping_add(1);
        if self.evictions % LOOK_EVERY == 0 {
            self.fit_competition();
        }
        Some(evicted)
    }

    fn evict_page(&mut self, page: u32) -> Shadow {
        self.note_gone(page);
        self.pages.evict_page(page)
    }

    fn oldest(&self, most: usize, found: &mut dyn FnMut(u32)) {
        self.pages.oldest_judged(most, found);
    }

    fn put_back(&mut self, page: u32, _shadow: Shadow) {
        // As if it were used now: or pages that can't go would be chosen again and again.
        self.pages.put_back(page);
    }

    fn len(&self) -> usize {
        self.pages.len()
    }

    fn contains(&self, page: u32) -> bool {
        self.pages.contains(page)
    }
}
