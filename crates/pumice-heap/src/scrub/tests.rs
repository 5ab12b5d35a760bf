//! The threads at work on a source of whole blocks.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::config::Setting;
use crate::stats::{CounterSlot, Event, Tree};
use pumice_frames::addr::BLOCK_SIZE;
use pumice_frames::clear::Clearer;
use pumice_frames::sys::mem;

const BLOCKS: usize = 8;
/// Far longer than anything here takes; a busy machine may hold a thread off for long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Blocks that are free or not, marked or not; dirty ones hold ones.
struct Blocks {
    memory: usize,
    dirty: [AtomicBool; BLOCKS],
    marked: [AtomicBool; BLOCKS],
    to_populate: AtomicUsize,
    decays: AtomicUsize,
    looks: AtomicUsize,
}

impl Blocks {
    fn new() -> &'static Blocks {
        let memory = mem::map_table(BLOCKS * BLOCK_SIZE).expect("memory").as_ptr() as usize;
        Box::leak(Box::new(Blocks {
            memory,
            dirty: Default::default(),
            marked: Default::default(),
            to_populate: AtomicUsize::new(0),
            decays: AtomicUsize::new(0),
            looks: AtomicUsize::new(0),
        }))
    }

    fn block(&self, index: usize) -> *mut u8 {
        (self.memory + index * BLOCK_SIZE) as *mut u8
    }

    fn free_dirty(&self, index: usize) {
        // SAFETY: only a block that is neither dirty nor claimed is freed.
        unsafe { self.block(index).write_bytes(1, BLOCK_SIZE) };
        self.marked[index].store(false, Ordering::Relaxed);
        self.dirty[index].store(true, Ordering::Release);
    }

    fn is_clean(&self) -> bool {
        self.dirty.iter().all(|dirty| !dirty.load(Ordering::Acquire))
    }
}

// SAFETY: the blocks are the test's own.
unsafe impl Source for Blocks {
    fn age(&self, _stop: Order) -> Left {
        self.looks.fetch_add(1, Ordering::Relaxed);
        let mut left = Left::Nothing;
        for (dirty, marked) in self.dirty.iter().zip(&self.marked) {
            if dirty.load(Ordering::Acquire) {
                marked.store(true, Ordering::Relaxed);
                left = Left::More;
            }
        }
        left
    }

    fn claim(&self, _stop: Order) -> Option<Claim> {
        let index = (0..BLOCKS).find(|&index| self.marked[index].swap(false, Ordering::Relaxed))?;
        Some(Claim { at: self.block(index), len: BLOCK_SIZE, node: 3, token: index as u64 })
    }

    fn prefer(&self, node: usize) {
        assert_eq!(node, 3, "as the request said");
    }

    fn finish(&self, claim: Claim, outcome: Outcome) {
        assert_eq!(outcome, Outcome::Zeroed);
        self.dirty[claim.token as usize].store(false, Ordering::Release);
    }

    fn need(&self) -> Need {
        Need::Wanted
    }

    fn left_to_populate(&self) -> Left {
        match self.to_populate.load(Ordering::Relaxed) {
            0 => Left::Nothing,
            _ => Left::More,
        }
    }

    fn populate(&self) -> Left {
        let spend = |left: usize| left.checked_sub(1);
        match self.to_populate.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend) {
            Ok(left) if left > 1 => Left::More,
            _ => Left::Nothing,
        }
    }

    fn offer(&self) -> Left {
        Left::Nothing
    }

    fn decay(&self) -> Left {
        match self.decays.fetch_add(1, Ordering::Relaxed) {
            0 => Left::More,
            _ => Left::Nothing,
        }
    }
}

fn scrubber() -> (&'static Scrubber, &'static CounterSlot) {
    let tree = Tree::private(0, 0).expect("memory");
    let slot = tree.attach(std::process::id()).expect("a slot");
    (
        Box::leak(Box::new(Scrubber::new(
            slot,
            Clearer::detect(),
            pumice_frames::sys::sched::Affinity::UNKNOWN,
        ))),
        slot,
    )
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_is_freed_is_zeroed_and_counted() {
    let (scrubber, slot) = scrubber();
    let blocks = Blocks::new();
    for round in 1..=3 {
        (0..BLOCKS).for_each(|index| blocks.free_dirty(index));
        scrubber.freed(blocks, Order::BLOCK);
        wait_for("all is clean", || blocks.is_clean());
        for index in 0..BLOCKS {
            // SAFETY: the block is clean, so nobody writes it.
            let bytes = unsafe { std::slice::from_raw_parts(blocks.block(index), BLOCK_SIZE) };
            assert!(bytes.iter().all(|&byte| byte == 0), "block {index}");
        }
        let scrubbed = round * BLOCKS * BLOCK_SIZE;
        wait_for("it is counted", || slot.get(Event::ScrubbedBytes) == scrubbed as u64);
    }
    assert!(slot.get(Event::ScrubberNs) > 0);
}

#[test]
fn small_areas_wake_nobody() {
    let (scrubber, slot) = scrubber();
    let blocks = Blocks::new();
    blocks.free_dirty(0);
    scrubber.freed(blocks, Order::FRAME);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(blocks.looks.load(Ordering::Relaxed), 0);
    Setting::ScrubStart.set(slot, 0);
    scrubber.freed(blocks, Order::FRAME);
    wait_for("it is clean", || blocks.is_clean());
}

#[test]
fn with_nothing_to_do_it_sleeps() {
    let (scrubber, _) = scrubber();
    let blocks = Blocks::new();
    scrubber.freed(blocks, Order::BLOCK);
    wait_for("it looks", || blocks.looks.load(Ordering::Relaxed) == 1);
    wait_for("decay is through", || blocks.decays.load(Ordering::Relaxed) == 1);
    thread::sleep(Duration::from_millis(50));
    assert_eq!(blocks.looks.load(Ordering::Relaxed), 1, "one ring, one look");
}

#[test]
fn the_keeper_populates_and_comes_back_for_decay() {
    let (scrubber, slot) = scrubber();
    Setting::DecayMs.set(slot, 20);
    let blocks = Blocks::new();
    blocks.to_populate.store(5, Ordering::Relaxed);
    scrubber.keep(blocks);
    wait_for("all is populated", || blocks.to_populate.load(Ordering::Relaxed) == 0);
    wait_for("decay is through", || blocks.decays.load(Ordering::Relaxed) >= 2);
    thread::sleep(Duration::from_millis(100));
    let decays = blocks.decays.load(Ordering::Relaxed);
    thread::sleep(Duration::from_millis(100));
    assert_eq!(blocks.decays.load(Ordering::Relaxed), decays, "nothing was left");
}

#[test]
fn quiet_is_for_good() {
    let (scrubber, _) = scrubber();
    let blocks = Blocks::new();
    scrubber.quiet();
    blocks.free_dirty(0);
    scrubber.freed(blocks, Order::BLOCK);
    thread::sleep(Duration::from_millis(50));
    assert!(!blocks.is_clean());
    assert_eq!(blocks.looks.load(Ordering::Relaxed), 0);
}

#[test]
fn quiet_ends_threads_that_run() {
    let (scrubber, slot) = scrubber();
    let blocks = Blocks::new();
    Setting::ScrubDelayMs.set(slot, 200);
    blocks.free_dirty(0);
    scrubber.freed(blocks, Order::BLOCK);
    wait_for("it looks", || blocks.looks.load(Ordering::Relaxed) > 0);
    scrubber.quiet();
    thread::sleep(Duration::from_millis(300));
    assert!(!blocks.is_clean(), "it was ended in its delay");
}

#[test]
fn a_forks_child_starts_threads_of_its_own() {
    let (scrubber, slot) = scrubber();
    let blocks = Blocks::new();
    scrubber.freed(blocks, Order::BLOCK);
    wait_for("it looks", || blocks.looks.load(Ordering::Relaxed) > 0);
    // As in a child: the state says that there is a thread, and there is none that would answer.
    // SAFETY: nobody else uses it; the thread that there is works on blocks that are claimed by one at a time.
    unsafe { scrubber.after_fork(slot) };
    blocks.free_dirty(0);
    scrubber.freed(blocks, Order::BLOCK);
    wait_for("all is clean", || blocks.is_clean());
}

#[test]
fn the_threads_are_named_and_have_no_privileges() {
    let (scrubber, _) = scrubber();
    let blocks = Blocks::new();
    scrubber.freed(blocks, Order::BLOCK);
    let status_of = |name: &str| {
        let tasks = std::fs::read_dir("/proc/self/task").expect("/proc").flatten();
        let mut texts =
            tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
        texts.find(|text| text.starts_with(&format!("Name:\t{name}\n")))
    };
    for name in ["pumice-scrubd", "pumice-keeper"] {
        wait_for("the thread is there and has dropped them", || {
            status_of(name).is_some_and(|status| status.contains("CapEff:\t0000000000000000"))
        });
        let status = status_of(name).expect("it was there");
        assert!(status.contains("CapPrm:\t0000000000000000"), "{status}");
        assert!(status.contains("SigBlk:\tfffffffffffbfeff"), "{status}");
    }
}

#[test]
fn what_is_cleared_together_is_zero() {
    const THREADS: usize = 3;
    const LEN: usize = 12 << 20;
    let (scrubber, _) = scrubber();
    let blocks = Blocks::new();
    let at = mem::map_table(THREADS * LEN).expect("memory").as_ptr() as usize;
    thread::scope(|scope| {
        for index in 0..THREADS {
            scope.spawn(move || {
                let at = (at + index * LEN) as *mut u8;
                for round in 0..20 {
                    let len = LEN - round * 4096 * index;
                    // SAFETY: each thread has a part of its own.
                    unsafe { at.write_bytes(0xff, LEN) };
                    // SAFETY: as above.
                    unsafe { scrubber.clear(blocks, at, len, 3) };
                    // SAFETY: as above.
                    let bytes = unsafe { core::slice::from_raw_parts(at, LEN) };
                    assert!(bytes[..len].iter().all(|&byte| byte == 0));
                    assert!(bytes[len..].iter().all(|&byte| byte == 0xff), "and no more than that");
                }
            });
        }
    });
    scrubber.quiet();
    // SAFETY: the threads have ended.
    unsafe { scrubber.clear(blocks, at as *mut u8, LEN, 3) };
}
