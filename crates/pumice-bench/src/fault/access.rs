//! The cost of access to pages that are there: one thread, pages in random order.
//!
//! A guard is two locked operations on the page's word. A row has the time of those by themselves, on words of as many
//! pages.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use pumice_frames::addr::FRAME_SIZE;
use pumice_paging::page_table::{Atomic, Rights};
use pumice_paging::space::{Access, Frames, Region, VmSpace};
use serde_json::json;

use super::ground::Ground;
use crate::harness::Output;
use crate::registry::faults::FAULT;
use crate::registry::Row;
use pumice_command::statistics::median;
use pumice_command::{Explain, Failure};

/// Pages of the regions.
const PAGES: [usize; 2] = [4096, 1 << 20];
/// Accesses in a round.
const ACCESSES: usize = 1 << 20;

type Ours<'t, 'f> = Region<'t, Frames<'f>, Atomic>;

/// The operations that are measured, in the order of [`sample`].
const OPERATIONS: [&str; 7] = [
    "the loop alone",
    "two locked operations",
    "translate",
    "translate, plain read",
    "optimistic read",
    "read guard, drop",
    "write guard, drop",
];

/// Pages in an order that looks random and costs little to tell: a linear congruence's whole period.
#[inline]
fn next(page: usize, pages: usize) -> usize {
    page.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) & (pages - 1)
}

#[inline(never)]
fn time(pages: usize, operation: impl Fn(usize) -> u64) -> f64 {
    let (mut page, mut sum) = (1, 0u64);
    let start = Instant::now();
    for _ in 0..ACCESSES {
        page = next(page, pages);
        sum = sum.wrapping_add(operation(page));
    }
    let elapsed = start.elapsed();
    black_box(sum);
    elapsed.as_nanos() as f64 / ACCESSES as f64
}

/// The least work of a latch: it is taken if the word is as it was read, and let go.
#[inline]
fn latch_and_let_go(word: &AtomicU64) -> u64 {
    let before = word.load(Ordering::Acquire);
    let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
    let _ = black_box(word.compare_exchange(before, before + 1, order, failed));
    word.fetch_sub(1, Ordering::AcqRel)
}

fn sample(region: &Ours<'_, '_>, words: &[AtomicU64]) -> [f64; OPERATIONS.len()] {
    let pages = region.pages();
    let at = |page| region.translate(page).map_or(0, |at| at.as_ptr() as usize);
    [
        time(pages, |page| page as u64),
        time(pages, |page| latch_and_let_go(&words[page])),
        time(pages, |page| at(page) as u64),
        time(pages, |page| {
            let word = (at(page) as *const u64).wrapping_add(page % 512);
            // SAFETY: the page is there, and nobody unmaps or writes it meanwhile.
            unsafe { word.read_volatile() }
        }),
        time(pages, |page| region.read_optimistic(page, |words| words.load(page)).unwrap_or(0)),
        time(pages, |page| region.read(page).map_or(0, |guard| u64::from(black_box(&guard)[0]))),
        time(pages, |page| region.write(page).map_or(0, |guard| u64::from(black_box(&guard)[0]))),
    ]
}

/// Measures every operation, in turns, and prints its rows.
pub fn measure(ground: &Ground, rounds: usize, output: &mut Output) -> Result<(), Failure> {
    println!("\naccess to pages that are there, ns each (medians of {rounds} rounds)");
    let mut columns = Vec::new();
    for pages in PAGES {
        // Frames of the measurement before are in parts yet, and do not count as free.
        ground.refill();
        let space = VmSpace::new(ground.map().frames(), Atomic).or_fail("no space")?;
        let task = space.enter().or_fail("no space")?;
        let bytes = pages * FRAME_SIZE;
        let at = task.map(bytes, Rights::READ_WRITE).or_fail("no space")?;
        let region = task.region(at).or_fail("no space")?;
        // Pages of their own where there is room. Else all read as the zero page: each has a word of
        // its own all the same, but it can't be written.
        let has_frames = bytes < ground.free_bytes();
        for page in 0..pages {
            let access = if has_frames { Access::Write } else { Access::Read };
            region.fault(page, access).or_fail("no space")?;
        }
        if !has_frames {
            task.protect(at, bytes, Rights::READ).or_fail("no space")?;
        }
        let words: Vec<AtomicU64> = (0..pages).map(|_| AtomicU64::new(0)).collect();
        let rounds: Vec<_> = (0..rounds).map(|_| sample(&region, &words)).collect();
        let of = |index: usize| rounds.iter().map(|round| round[index]).collect::<Vec<_>>();
        let loop_ns = median(&of(0));
        columns.push([0, 1, 2, 3, 4, 5, 6].map(|index| match index {
            0 => Some(of(0)),
            6 if !has_frames => None,
            _ => Some(of(index).into_iter().map(|ns| ns - loop_ns).collect()),
        }));
    }
    output.begin(&FAULT.tables[4]);
    for (index, operation) in OPERATIONS.into_iter().enumerate() {
        for (pages, column) in PAGES.into_iter().zip(&mut columns) {
            if let Some(rounds) = column[index].take() {
                let keys = json!({"experiment": "access", "operation": operation, "pages": pages});
                // Of what one took, the loop alone taken off.
                output.show(Row::of(keys).sampled("ns", rounds))?;
            }
        }
    }
    Ok(())
}
