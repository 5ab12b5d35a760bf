//! `pumice bench replace --live`: the same references with real pages, and how many hits that costs.
//!
//! A policy that is simulated sees each reference. Reclaim sees faults and, now and then, that a page was accessed. So
//! the trace is replayed in a space ([`memory`]): each reference is a read guard on a page, and each miss a fault,
//! for which reclaim takes a page out by the same policy. The pages are those of a file that there is not
//! ([`backing`]), so nothing waits for a device. LRU and 2Q are no policies of reclaim's but for this ([`policies`]).
//!
//! The frames are those that hold pages at most: the reserve and the tables are not among them. Reclaim runs ahead,
//! so fewer are in memory on average, and the table says how many. `kswapd` keeps between a 128th and a 64th of the
//! frames free, as in a zone of 1 GiB; without it a batch goes when there is no frame.

mod backing;
mod memory;
mod policies;

use clap::ValueEnum;
use indicatif::ProgressBar;
use pumice_paging::reclaim::policy::table;
use pumice_paging::reclaim::{Adaptive, TwoList};
use serde_json::json;

use super::curve::Point;
use super::trace::Trace;
use crate::harness::Output;
use crate::registry::paging::LIVE_HITS;
use crate::registry::Row;
use memory::{replay, table_frames, Replayed};
use policies::{Lru, TwoQ};
use pumice_command::Failure;

/// The policies that reclaim can run.
pub const POLICIES: [&str; 4] = ["lru", "2q", "two-list", "adaptive"];
/// Those that are run unless others are asked for.
pub const USUAL: [&str; 3] = ["lru", "2q", "adaptive"];
/// Reclaim works in batches, which are much of a memory that is smaller.
const LEAST_FRAMES: u32 = 64;

/// The threads that take pages out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Reclaimer {
    /// `kswapd`, and the thread that replays where that is late
    Kswapd,
    /// The thread that replays alone: the same each time
    Direct,
}

/// Checks what was asked for.
pub fn check(policies: &[&'static str], frames: &[u32]) -> Result<(), Failure> {
    if let Some(other) = policies.iter().find(|policy| !POLICIES.contains(policy)) {
        let all = POLICIES.join(", ");
        return Err(Failure::usage(format!("--live runs {all}, and not {other}")));
    }
    match frames.iter().find(|&&frames| frames < LEAST_FRAMES) {
        Some(few) => Err(Failure::usage(format!(
            "--live takes --frames of {LEAST_FRAMES} and more, and not {few}"
        ))),
        None => Ok(()),
    }
}

/// Prints the table of one trace: of each policy, `simulate`'s hits beside the live ones.
pub fn run_trace(
    trace: &Trace,
    (policies, points): (&[&'static str], &[Point]),
    reclaimer: Reclaimer,
    output: &mut Output,
    bar: &ProgressBar,
    simulate: &dyn Fn(&str, u32) -> usize,
) -> Result<(), Failure> {
    let (references, pages) = (trace.references.len(), trace.pages);
    bar.suspend(|| {
        println!("{}: {references} references to {pages} pages; hits in percent", trace.name);
        output.begin(&LIVE_HITS);
    });
    let percent = |hits: f64| 100.0 * hits / references as f64;
    for &Point { frames, simulated } in points {
        for &policy in policies {
            let hits = simulate(policy, simulated);
            let live = live(policy, simulated as usize, reclaimer, trace, bar);
            let live = live.map_err(|error| {
                Failure::system(format!("{policy} with {frames} frames: {error}"))
            })?;
            let (hit_pct, live_pct) =
                (percent(hits as f64), percent(references as f64 - live.misses as f64));
            let row = Row::of(json!({
                "trace": trace.name,
                "policy": policy,
                "frames": frames,
                "hit_ratio": hit_pct / 100.0,
                "hit_pct": hit_pct,
                "live_hit_pct": live_pct,
                // Of the simulated hits.
                "lost_points": hit_pct - live_pct,
                "misses": live.misses,
                // Pages in memory, once it was full.
                "mean_pages": live.mean_pages,
                "most_pages": live.most_pages,
                "reclaimer": match reclaimer {
                    Reclaimer::Kswapd => "kswapd",
                    Reclaimer::Direct => "direct",
                },
            }));
            bar.suspend(|| output.show(row))?;
        }
    }
    Ok(())
}

fn live(
    policy: &str,
    frames: usize,
    reclaimer: Reclaimer,
    trace: &Trace,
    bar: &ProgressBar,
) -> Result<Replayed, String> {
    // More than all pages need, and a few for reclaim to run ahead, make no difference.
    let frames = frames.min(trace.pages + trace.pages / 8 + LEAST_FRAMES as usize);
    let (size, table_len) = ((frames, trace.pages), table_frames(frames));
    let references = &trace.references;
    let mut report = |done| bar.inc(done);
    match policy {
        "lru" => replay(Lru::new(table_len), size, reclaimer, references, &mut report),
        "2q" => {
            let policy = TwoQ::new(frames, table_len, trace.pages);
            replay(policy, size, reclaimer, references, &mut report)
        }
        "two-list" => {
            let mut entries = table::<TwoList<'_>>(table_len);
            replay(TwoList::new(&mut entries), size, reclaimer, references, &mut report)
        }
        _ => {
            let mut entries = table::<Adaptive<'_>>(table_len);
            replay(Adaptive::new(&mut entries), size, reclaimer, references, &mut report)
        }
    }
}
