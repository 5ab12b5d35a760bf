//! Each policy against a naive one, reference by reference.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const PAGES: usize = 24;

fn hits(mut cache: impl Cache, trace: &[u32]) -> Vec<bool> {
    trace.iter().map(|&page| cache.access(page)).collect()
}

/// By age: each page's place in the order of leaving depends on when it came, or was used.
fn oldest_goes(frames: usize, trace: &[u32], use_counts: bool) -> Vec<bool> {
    let mut ages: Vec<(usize, u32)> = Vec::new();
    let mut step = |(now, &page): (usize, &u32)| {
        if let Some(found) = ages.iter_mut().find(|(_, other)| *other == page) {
            if use_counts {
                found.0 = now;
            }
            return true;
        }
        if ages.len() == frames {
            let oldest = ages.iter().min().copied();
            ages.retain(|&age| Some(age) != oldest);
        }
        ages.push((now, page));
        false
    };
    trace.iter().enumerate().map(&mut step).collect()
}

fn naive_clock(frames: usize, trace: &[u32]) -> Vec<bool> {
    let mut hand = 0;
    let mut ring: Vec<(u32, bool)> = Vec::new();
    let mut step = |&page: &u32| {
        if let Some(found) = ring.iter_mut().find(|(other, _)| *other == page) {
            found.1 = true;
            return true;
        }
        if ring.len() < frames {
            ring.push((page, false));
            return false;
        }
        while std::mem::take(&mut ring[hand].1) {
            hand = (hand + 1) % frames;
        }
        ring[hand] = (page, false);
        hand = (hand + 1) % frames;
        false
    };
    trace.iter().map(&mut step).collect()
}

/// The paper's pseudocode, with its names.
fn naive_two_q(frames: usize, trace: &[u32]) -> Vec<bool> {
    let (mut a1in, mut a1out, mut am) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
    let mut step = |&page: &u32| {
        let is_page = |other: &u32| *other == page;
        if let Some(at) = am.iter().position(is_page) {
            am.remove(at);
            am.push_front(page);
            return true;
        }
        if a1in.contains(&page) {
            return true;
        }
        let out = a1out.iter().position(is_page);
        if let Some(at) = out {
            a1out.remove(at);
        }
        if a1in.len() + am.len() >= frames {
            if a1in.len() > frames / 4 || am.is_empty() {
                a1out.push_front(a1in.pop_back().expect("not empty"));
                a1out.truncate(frames / 2);
            } else {
                am.pop_back();
            }
        }
        if out.is_some() {
            am.push_front(page);
        } else {
            a1in.push_front(page);
        }
        false
    };
    trace.iter().map(&mut step).collect()
}

/// The paper's pseudocode, cases I to IV.
fn naive_arc(frames: usize, trace: &[u32]) -> Vec<bool> {
    type List = VecDeque<u32>;
    fn take(list: &mut List, page: u32) -> bool {
        let at = list.iter().position(|&other| other == page);
        at.is_some_and(|at| list.remove(at).is_some())
    }
    fn replace(t: &mut [List; 2], b: &mut [List; 2], p: f64, is_in_b2: bool) {
        let len = t[0].len() as f64;
        let from = usize::from(!(len >= 1.0 && (len > p || is_in_b2 && len == p)));
        b[from].extend(t[from].pop_front());
    }
    let (mut t, mut b, mut p) = ([List::new(), List::new()], [List::new(), List::new()], 0.0);
    let mut step = |&page: &u32| {
        if take(&mut t[0], page) || take(&mut t[1], page) {
            t[1].push_back(page);
            return true;
        }
        let (b1, b2) = (b[0].len() as f64, b[1].len() as f64);
        if b[0].contains(&page) {
            p = (frames as f64).min(p + f64::max(1.0, b2 / b1));
            replace(&mut t, &mut b, p, false);
            take(&mut b[0], page);
            t[1].push_back(page);
        } else if b[1].contains(&page) {
            p = f64::max(0.0, p - f64::max(1.0, b1 / b2));
            replace(&mut t, &mut b, p, true);
            take(&mut b[1], page);
            t[1].push_back(page);
        } else {
            let all = t[0].len() + t[1].len() + b[0].len() + b[1].len();
            if t[0].len() + b[0].len() == frames {
                if t[0].len() < frames {
                    b[0].pop_front();
                    replace(&mut t, &mut b, p, false);
                } else {
                    t[0].pop_front();
                }
            } else if all >= frames {
                if all == 2 * frames {
                    b[1].pop_front();
                }
                replace(&mut t, &mut b, p, false);
            }
            t[0].push_back(page);
        }
        false
    };
    trace.iter().map(&mut step).collect()
}

/// By recency and reuse distance: a page is LIR if it was made so, and the oldest use of a LIR page ends the stack.
fn naive_lirs(frames: usize, trace: &[u32]) -> Vec<bool> {
    let most_lir = frames - (frames / 100).max(1).min(frames);
    let (mut used_at, mut lir, mut hir) = ([None; PAGES], Vec::<u32>::new(), Vec::<u32>::new());
    let mut step = |(now, &page): (usize, &u32)| {
        let bottom = lir.iter().filter_map(|&page| used_at[page as usize]).min();
        let last = used_at[page as usize].replace(now);
        if lir.contains(&page) {
            return true;
        }
        let hit = hir.contains(&page);
        hir.retain(|&other| other != page);
        if !hit && lir.len() + hir.len() == frames {
            hir.remove(0);
        }
        let is_in_stack = last.is_some_and(|last| bottom.is_some_and(|bottom| last > bottom));
        if most_lir > 0 && (is_in_stack || lir.len() < most_lir) {
            lir.push(page);
            if lir.len() > most_lir {
                let oldest = |&at: &usize| used_at[lir[at] as usize];
                let oldest = (0..lir.len()).min_by_key(oldest).expect("there are LIR pages");
                hir.push(lir.remove(oldest));
            }
        } else {
            hir.push(page);
        }
        hit
    };
    trace.iter().enumerate().map(&mut step).collect()
}

fn naive_s3_fifo(frames: usize, trace: &[u32]) -> Vec<bool> {
    let most_small = (frames / 10).max(1);
    let most_main = frames - most_small;
    let (mut small, mut main, mut ghost) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
    let (mut uses, mut has_evicted) = ([0_u8; PAGES], false);
    let mut step = |&page: &u32| {
        if small.contains(&page) || main.contains(&page) {
            uses[page as usize] = (uses[page as usize] + 1).min(3);
            return true;
        }
        uses[page as usize] = 0;
        let was_here = ghost.contains(&page);
        ghost.retain(|&other| other != page);
        while small.len() + main.len() >= frames {
            has_evicted = true;
            let from_main = main.len() > most_main || small.is_empty();
            let mut gone = from_main;
            while !gone && !small.is_empty() {
                let first: u32 = small.pop_front().expect("not empty");
                if uses[first as usize] >= 2 {
                    uses[first as usize] = 0;
                    main.push_back(first);
                } else {
                    while ghost.len() >= most_main.max(1) {
                        ghost.pop_front();
                    }
                    ghost.push_back(first);
                    gone = true;
                }
            }
            while (from_main || !gone) && !main.is_empty() {
                let first: u32 = main.pop_front().expect("not empty");
                if uses[first as usize] == 0 {
                    break;
                }
                uses[first as usize] -= 1;
                main.push_back(first);
            }
        }
        let to_main = was_here || !has_evicted && small.len() >= most_small;
        if to_main { &mut main } else { &mut small }.push_back(page);
        false
    };
    trace.iter().map(&mut step).collect()
}

fn naive_sieve(frames: usize, trace: &[u32]) -> Vec<bool> {
    let (mut hand, mut queue) = (0, Vec::<(u32, bool)>::new());
    let mut step = |&page: &u32| {
        if let Some(found) = queue.iter_mut().find(|(other, _)| *other == page) {
            found.1 = true;
            return true;
        }
        if queue.len() == frames {
            hand %= frames;
            while std::mem::take(&mut queue[hand].1) {
                hand = (hand + 1) % frames;
            }
            queue.remove(hand);
            // Past the youngest it comes to the oldest, though others come meanwhile.
            hand = if hand == queue.len() { 0 } else { hand };
        }
        queue.push((page, false));
        false
    };
    trace.iter().map(&mut step).collect()
}

/// A loop a little larger than the memory, of which CLOCK keeps nothing and LIRS most.
#[test]
fn clock_pro_keeps_a_part_of_a_loop() {
    let trace: Vec<u32> = (0..60_000).map(|step| step % 1_200).collect();
    let hits = |cache: &mut dyn Cache| trace.iter().filter(|&&page| cache.access(page)).count();
    let (pro, lirs) = (hits(&mut ClockPro::new(1_000, 1_200)), hits(&mut Lirs::new(1_000, 1_200)));
    assert_eq!(hits(&mut Clock::new(1_000, 1_200)), 0);
    assert!(pro * 2 > lirs, "{pro} against {lirs} of LIRS");
}

proptest! {
    #[test]
    fn peers_are_what_naive_ones_are(
        frames in 1usize..20,
        trace in prop::collection::vec(0..PAGES as u32, 0..400),
    ) {
        prop_assert_eq!(hits(Oldest::fifo(frames, PAGES), &trace), oldest_goes(frames, &trace, false));
        prop_assert_eq!(hits(Oldest::lru(frames, PAGES), &trace), oldest_goes(frames, &trace, true));
        prop_assert_eq!(hits(Clock::new(frames, PAGES), &trace), naive_clock(frames, &trace));
        prop_assert_eq!(hits(TwoQ::new(frames, PAGES), &trace), naive_two_q(frames, &trace));
        prop_assert_eq!(hits(Arc::new(frames, PAGES), &trace), naive_arc(frames, &trace));
        prop_assert_eq!(hits(Lirs::new(frames, PAGES), &trace), naive_lirs(frames, &trace));
        prop_assert_eq!(hits(S3Fifo::new(frames, PAGES), &trace), naive_s3_fifo(frames, &trace));
        prop_assert_eq!(hits(Sieve::new(frames, PAGES), &trace), naive_sieve(frames, &trace));
        // It has no naive one.
        let first = |now: usize| !trace[..now].contains(&trace[now]);
        let pro = hits(ClockPro::new(frames, PAGES), &trace);
        prop_assert!((0..trace.len()).all(|now| !(pro[now] && first(now))));
    }
}
