//! Policies against naive models, and against plain LRU over sequences of every kind.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::policy::table;
use super::*;

/// A memory of frames under a policy, over pages of any number.
struct Memory<P> {
    policy: P,
    /// Pages that go at a time.
    batch: usize,
    frame_of: Vec<Option<u32>>,
    page_of: Vec<usize>,
    free: Vec<u32>,
    shadows: Vec<Option<Shadow>>,
}

impl<P: Policy> Memory<P> {
    fn new(policy: P, frames: usize, pages: usize) -> Memory<P> {
        Memory {
            policy,
            batch: P::batch(frames),
            frame_of: vec![None; pages],
            page_of: vec![0; frames],
            free: (0..frames as u32).collect(),
            shadows: vec![None; pages],
        }
    }

    fn evict(&mut self) -> usize {
        let (frame, shadow) = self.policy.evict().expect("a page is in");
        let page = self.page_of[frame as usize];
        assert_eq!(self.frame_of[page].take(), Some(frame));
        assert!(!self.policy.contains(frame));
        self.shadows[page] = Some(Shadow::from_bits(shadow.to_bits()));
        self.free.push(frame);
        page
    }

    /// Whether it was a hit.
    fn access(&mut self, page: usize) -> bool {
        if let Some(frame) = self.frame_of[page] {
            self.policy.accessed(frame, page as u64);
            return true;
        }
        if self.free.is_empty() {
            for _ in 0..self.batch {
                self.evict();
            }
        }
        let frame = self.free.pop().expect("one was made");
        self.frame_of[page] = Some(frame);
        self.page_of[frame as usize] = page;
        let arrival = self.shadows[page].map_or(Arrival::Fresh, Arrival::Refault);
        self.policy.add(frame, page as u64, arrival);
        assert!(self.policy.len() <= self.page_of.len() - self.free.len());
        false
    }

    fn hits(&mut self, trace: &[usize]) -> usize {
        trace.iter().filter(|&&page| self.access(page)).count()
    }
}

fn lru_hits(frames: usize, trace: &[usize]) -> usize {
    let mut used_at = BTreeMap::new();
    let mut by_time = BTreeMap::new();
    let mut hits = 0;
    for (now, &page) in trace.iter().enumerate() {
        match used_at.insert(page, now) {
            Some(then) => {
                hits += 1;
                by_time.remove(&then);
            }
            None if by_time.len() == frames => {
                let (_, oldest) = by_time.pop_first().expect("there are frames");
                used_at.remove(&oldest);
            }
            None => {}
        }
        by_time.insert(now, page);
    }
    hits
}

fn adaptive_hits(frames: usize, trace: &[usize]) -> usize {
    adaptive_hits_by(Tunables::DEFAULT, frames, trace)
}

fn adaptive_hits_by(tunables: Tunables, frames: usize, trace: &[usize]) -> usize {
    let pages = trace.iter().max().map_or(0, |&page| page + 1);
    let mut entries = table::<Adaptive<'_>>(frames);
    let mut policy = Adaptive::new(&mut entries);
    policy.tune(tunables);
    Memory::new(policy, frames, pages).hits(trace)
}

/// A stretch of a trace.
#[derive(Clone, Debug)]
enum Phase {
    Loop { pages: usize },
    UpAndDown { pages: usize },
    Uniform { pages: usize },
    Skewed { pages: usize },
    Scan,
    Drift { window: usize, slowness: usize },
    Twice { distance: usize },
    Stack { mean: usize },
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        // Steele, Lea and Flood's SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((u128::from(z ^ (z >> 31)) * limit as u128) >> 64) as usize
    }

    fn unit(&mut self) -> f64 {
        (self.below(1 << 30) + 1) as f64 / (1u64 << 30) as f64
    }
}

/// The phases one after the other, some on pages of their own.
fn trace(phases: &[(Phase, bool)], uses: usize, seed: u64) -> Vec<usize> {
    let mut random = Random(seed);
    let mut trace: Vec<usize> = Vec::new();
    let mut stack: Vec<usize> = Vec::new();
    let mut fresh = 4000;
    for (phase, fresh_pages) in phases {
        let base = if *fresh_pages { fresh } else { 0 };
        for step in 0..uses / phases.len() {
            let page = match *phase {
                Phase::Loop { pages } => base + step % pages,
                Phase::UpAndDown { pages } => {
                    base + (step % (2 * pages)).min(2 * pages - 1 - step % (2 * pages))
                }
                Phase::Uniform { pages } => base + random.below(pages),
                Phase::Skewed { pages } => base + (pages as f64).powf(random.unit()) as usize,
                Phase::Scan => base + step,
                Phase::Drift { window, slowness } => base + step / slowness + random.below(window),
                Phase::Twice { distance } if step % 2 == 1 => {
                    base + (step / 2).saturating_sub(distance)
                }
                Phase::Twice { .. } => base + step / 2,
                Phase::Stack { mean } => {
                    let distance = (-random.unit().ln() * mean as f64) as usize;
                    let page = if distance < stack.len() {
                        stack.remove(stack.len() - 1 - distance)
                    } else {
                        fresh += 1;
                        fresh
                    };
                    stack.push(page);
                    page
                }
            };
            trace.push(page);
        }
        fresh = fresh.max(trace.iter().max().copied().unwrap_or(0)) + 1;
    }
    trace
}

fn random_phase(random: &mut Random) -> Phase {
    let mut from = |least: usize, end: usize| least + random.below(end - least);
    match from(0, 8) {
        0 => Phase::Loop { pages: from(2, 900) },
        1 => Phase::UpAndDown { pages: from(2, 900) },
        2 => Phase::Uniform { pages: from(2, 900) },
        3 => Phase::Skewed { pages: from(2, 2000) },
        4 => Phase::Scan,
        5 => Phase::Drift { window: from(2, 600), slowness: from(1, 30) },
        6 => Phase::Twice { distance: from(1, 600) },
        _ => Phase::Stack { mean: from(1, 600) },
    }
}

/// Of random mixes of phases, each a few thousand references long, which is as short as phases that can be told apart
/// are: seldom more than two points below LRU, and far ahead of it on average.
#[test]
fn adaptive_is_seldom_worse_than_lru_and_better_on_average() {
    let mixes: u64 = if cfg!(debug_assertions) { 100 } else { 3000 };
    let mut points = Vec::new();
    for mix in 0..mixes {
        let mut random = Random(mix * 7919 + 13);
        let phases: Vec<_> = (0..1 + random.below(4))
            .map(|_| (random_phase(&mut random), random.below(2) == 0))
            .collect();
        let frames = 8 + random.below(692);
        let trace = trace(&phases, 24_000, mix);
        let (lru, ours) = (lru_hits(frames, &trace), adaptive_hits(frames, &trace));
        points.push((ours as f64 - lru as f64) * 100.0 / trace.len() as f64);
    }
    points.sort_by(f64::total_cmp);
    let mean = points.iter().sum::<f64>() / points.len() as f64;
    let below_two = points.iter().filter(|&&by| by < -2.0).count();
    println!("{mean:.2} on average, {:.2} at worst, {below_two} below -2", points[0]);
    assert!(mean > 2.5 && points[0] > -5.0, "{mean} on average, {} at worst", points[0]);
    assert!(below_two * 100 <= points.len(), "{below_two} of {mixes} are two points below LRU");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 32 } else { 3000 }))]
    /// Against lists that are queues.
    #[test]
    fn two_list_is_what_2_4_does(
        frames in 1usize..80,
        trace in prop::collection::vec(0usize..120, 1..1500),
    ) {
        let mut entries = table::<TwoList<'_>>(frames);
        let mut memory = Memory::new(TwoList::new(&mut entries), frames, 120);
        let mut model = Model { referenced: vec![false; 120], ..Model::default() };
        for page in trace {
            let evicts = memory.frame_of[page].is_none() && memory.free.is_empty();
            if evicts {
                let gone = model.shrink(TwoList::batch(frames));
                for expected in gone {
                    prop_assert_eq!(memory.evict(), expected);
                }
            }
            memory.access(page);
            model.access(page);
            prop_assert_eq!(memory.policy.lengths(), (model.active.len(), model.inactive.len()));
        }
    }

    /// Pages that go, stay after all or are unmapped leave the counts right.
    #[test]
    fn counts_stay_right(steps in prop::collection::vec((0usize..8, 0usize..60), 1..2000)) {
        let mut entries = table::<Adaptive<'_>>(30);
        let mut memory = Memory::new(Adaptive::new(&mut entries), 30, 60);
        for (step, page) in steps {
            match (step, memory.frame_of[page]) {
                (0, Some(frame)) => {
                    memory.policy.forget(frame);
                    memory.frame_of[page] = None;
                    memory.shadows[page] = None;
                    memory.free.push(frame);
                }
                (1, _) if !memory.policy.is_empty() => {
                    let (frame, shadow) = memory.policy.evict().expect("a page is in");
                    memory.policy.put_back(frame, shadow);
                }
                _ => {
                    memory.access(page);
                }
            }
            let len = memory.policy.len();
            prop_assert_eq!(len, memory.frame_of.iter().flatten().count());
        }
    }
}

/// The lists as 2.4 has them: heads at the back.
#[derive(Default)]
struct Model {
    active: VecDeque<usize>,
    inactive: VecDeque<usize>,
    referenced: Vec<bool>,
}

impl Model {
    fn shrink(&mut self, batch: usize) -> Vec<usize> {
        let mut refill = batch * self.active.len() / ((self.inactive.len() + 1) * 2);
        if self.inactive.is_empty() {
            refill = refill.max(batch);
        }
        while refill > 0 {
            let Some(page) = self.active.pop_front() else { break };
            if std::mem::replace(&mut self.referenced[page], true) {
                self.referenced[page] = false;
                self.active.push_back(page);
            } else {
                self.inactive.push_back(page);
                refill -= 1;
            }
        }
        self.inactive.drain(..batch.min(self.inactive.len())).collect()
    }

    fn access(&mut self, page: usize) {
        if let Some(at) = self.inactive.iter().position(|&other| other == page) {
            if std::mem::replace(&mut self.referenced[page], true) {
                self.referenced[page] = false;
                self.inactive.remove(at);
                self.active.push_back(page);
            }
        } else {
            self.referenced[page] = true;
            if !self.active.contains(&page) {
                self.inactive.push_back(page);
            }
        }
    }
}

/// `vm_balance_ratio` is heeded from the next batch on: how many active pages there are follows it.
#[test]
fn lists_are_balanced_as_they_are_told() {
    let mut entries = table::<TwoList<'_>>(300);
    let mut memory = Memory::new(TwoList::new(&mut entries), 300, 10_000);
    let mut random = Random(5);
    let mut fresh = 1000;
    let mut active_by = |memory: &mut Memory<TwoList<'_>>, vm_balance_ratio: usize| {
        memory.policy.tune(Tunables { vm_balance_ratio, ..Tunables::DEFAULT });
        (0..4000).for_each(|step| {
            fresh += usize::from(step % 2 == 0);
            let page = if step % 2 == 0 { 1000 + fresh % 9000 } else { random.below(200) };
            memory.access(page);
        });
        memory.policy.lengths().0
    };
    let active = [1, 16, 1].map(|ratio| active_by(&mut memory, ratio));
    assert!(active[1] > active[0] + 20 && active[1] > active[2] + 20, "{active:?}");
}

#[test]
fn a_loop_larger_than_the_memory_is_kept_in_part() {
    let trace: Vec<usize> = (0..60_000).map(|step| step % 1_200).collect();
    assert_eq!(lru_hits(1_000, &trace), 0);
    let hits = adaptive_hits(1_000, &trace);
    assert!(hits > trace.len() * 3 / 4, "{hits}");
}

/// Of which a sample may have more than its share, or less. The small memories must not have room for all of that.
#[test]
fn a_loop_a_little_larger_than_the_memory_is_kept_wherever_it_lies() {
    for (frames, pages) in [(980, 1_011), (1_200, 1_212), (3_000, 3_030)] {
        for base in (0..6).map(|nth| nth * 20_011) {
            let trace: Vec<usize> = (0..60 * pages).map(|step| base + step % pages).collect();
            let hits = adaptive_hits(frames, &trace);
            assert!(hits > trace.len() * 9 / 10, "{hits} of {} from {base}", trace.len());
        }
    }
}

/// Reclaim takes 32 pages at a time; and there may be memory for fewer pages than the policy's table has.
#[test]
fn a_loop_is_kept_in_part_also_by_batches_and_in_a_part_of_the_table() {
    let trace: Vec<usize> = (0..80_000).map(|step| step % 1_200).collect();
    for (batch, table_of) in [(8, 1_000), (32, 1_000), (1, 2_000), (32, 4_000)] {
        let mut entries = table::<Adaptive<'_>>(table_of);
        let mut memory = Memory::new(Adaptive::new(&mut entries), table_of, 1_200);
        memory.batch = batch;
        memory.free.truncate(1_000);
        let hits = memory.hits(&trace);
        assert!(hits > trace.len() * 7 / 10, "{hits} by {batch} in a table of {table_of}");
    }
}

#[test]
fn pages_that_others_are_judged_by_are_named() {
    let mut entries = table::<Adaptive<'_>>(64);
    let mut memory = Memory::new(Adaptive::new(&mut entries), 64, 100);
    memory.hits(&Vec::from_iter(0..70));
    let named = |memory: &Memory<Adaptive<'_>>, most| {
        let mut pages = Vec::new();
        memory.policy.oldest(most, &mut |frame| pages.push(memory.page_of[frame as usize]));
        pages
    };
    assert_eq!(named(&memory, 3), [0, 1, 2]);
    // Those that were used are judged by no more.
    memory.access(1);
    assert_eq!(named(&memory, 3), [0, 2, 3]);
    assert!(named(&memory, 100).len() < 64, "inactive pages are not among them");
}

#[test]
fn up_and_down_is_what_lru_has() {
    let leg = |step: usize| (step % 6_000).min(5_999 - step % 6_000);
    let trace: Vec<usize> = (0..75_000).map(leg).collect();
    let (lru, ours) = (lru_hits(2_000, &trace), adaptive_hits(2_000, &trace));
    // It costs half a memory to find out.
    assert!(ours + trace.len() / 50 > lru, "{ours} against {lru} of LRU");
}

#[test]
fn frequent_pages_stay() {
    let mut random = Random(3);
    let trace: Vec<usize> = (0..200_000).map(|_| 8_000_f64.powf(random.unit()) as usize).collect();
    let (lru, ours) = (lru_hits(1_000, &trace), adaptive_hits(1_000, &trace));
    let (lru, ours) = (trace.len() - lru, trace.len() - ours);
    assert!(ours * 100 < lru * 90, "{ours} misses against {lru} of LRU");
}

#[test]
fn a_scan_passes_by() {
    let mut random = Random(7);
    let used = |step: usize, random: &mut Random| match step % 2 {
        0 => random.below(700),
        _ => 700 + step,
    };
    let trace: Vec<usize> = (0..60_000).map(|step| used(step, &mut random)).collect();
    let (lru, ours) = (lru_hits(1_000, &trace), adaptive_hits(1_000, &trace));
    assert!(ours > lru + trace.len() / 20, "{ours} against {lru} of LRU");
}

/// A page that can't go is not chosen again before most others were.
#[test]
fn what_stays_is_rolled_over() {
    fn rolls_over<P: Policy>(policy: P) {
        let mut memory = Memory::new(policy, 64, 64);
        (0..640).for_each(|step| {
            memory.access(step % 64);
        });
        let mut chosen = std::collections::BTreeSet::new();
        for _ in 0..32 {
            let (frame, shadow) = memory.policy.evict().expect("a page is in");
            assert!(chosen.insert(frame), "{frame} of {chosen:?}");
            memory.policy.put_back(frame, shadow);
        }
    }
    rolls_over(Adaptive::new(&mut table::<Adaptive<'_>>(64)));
    rolls_over(TwoList::new(&mut table::<TwoList<'_>>(64)));
}
