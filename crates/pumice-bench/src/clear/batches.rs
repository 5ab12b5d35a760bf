//! What zeroing costs the thread that has it done.
//!
//! *Engines*: batches of 64 blocks, submitted and waited for, by each engine there is: bytes a second and
//! processor seconds a gigabyte of the whole program (a driver's threads among it, but no interrupts). Waiting is a
//! part of it: asleep between looks, as scrubd waits, and spinning for a moment first, as who needs the memory does.
//! Engines take turns, and another begins each round.
//!
//! *Overhead*: a batch of 64 blocks on the accelerator in software; what is timed is submitting and
//! settling alone, while the device does nothing. Waiting is left out: its looks, and waking up in between.

use pumice_accel::dsa::soft::{Manner, SoftDevice};
use pumice_accel::dsa::Dsa;
use pumice_frames::addr::BLOCK_SIZE;
use pumice_frames::clear::{Engine, Piece, State, Waiting, Warmth};
use pumice_frames::sys::thread::{cpu_time_ns, now_ns, process_cpu_time_ns};
use serde::Serialize;

use pumice_command::json_lines::{JsonLines, Samples};
use pumice_command::statistics::median;
use pumice_command::table::Table;
use pumice_command::Failure;

/// Blocks in a batch.
const BATCH: usize = 64;
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

/// An engine under its name.
pub type Named = (String, Box<dyn Engine>);

/// A row of the engines' table.
#[derive(Debug, Serialize)]
struct EngineRow {
    experiment: &'static str,
    #[serde(rename = "use")]
    usage: &'static str,
    engine: String,
    size_bytes: usize,
    /// Waited for asleep.
    gb_per_s: f64,
    cpu_s_per_gb: f64,
    spinning_gb_per_s: f64,
    spinning_cpu_s_per_gb: f64,
    samples: Samples,
}

/// Measures engines side by side, by batches.
pub fn engines(
    engines: &[Named],
    region: &mut [u8],
    rounds: usize,
    json: &mut JsonLines,
) -> Result<(), Failure> {
    let mut figures = vec![[Figures::default(), Figures::default()]; engines.len()];
    let span = &mut region[..BATCH * BLOCK_SIZE];
    for round in 0..rounds {
        for turn in 0..engines.len() {
            let index = (round + turn) % engines.len();
            let (name, engine) = &engines[index];
            for (how, figures) in WAYS.into_iter().zip(&mut figures[index]) {
                let mut pieces = pieces_of(span);
                let (started_ns, cpu_ns) = (now_ns(), process_cpu_time_ns());
                zero(engine.as_ref(), &mut pieces, how)
                    .map_err(|()| Failure::system(format!("{name} zeroes no whole batch")))?;
                let (took_ns, used_ns) = (now_ns() - started_ns, process_cpu_time_ns() - cpu_ns);
                let bytes = (BATCH * BLOCK_SIZE) as f64;
                figures.gb_per_s.push(bytes / took_ns.max(1) as f64);
                figures.cpu_s_per_gb.push(used_ns as f64 / bytes);
            }
        }
    }
    println!("\nEngines side by side: batches of {BATCH} blocks of 2 MiB, waited for asleep and spinning");
    let table = Table::begin(&[
        ("Engine", 14),
        ("GB/s", 8),
        ("CPU s/GB", 9),
        ("spinning GB/s", 13),
        ("CPU s/GB", 9),
    ]);
    for ((name, _), [asleep, spinning]) in engines.iter().zip(figures) {
        let row = EngineRow {
            experiment: "batches",
            usage: "engine",
            engine: name.clone(),
            size_bytes: BATCH * BLOCK_SIZE,
            gb_per_s: median(&asleep.gb_per_s),
            cpu_s_per_gb: median(&asleep.cpu_s_per_gb),
            spinning_gb_per_s: median(&spinning.gb_per_s),
            spinning_cpu_s_per_gb: median(&spinning.cpu_s_per_gb),
            samples: [
                ("gb_per_s", asleep.gb_per_s),
                ("cpu_s_per_gb", asleep.cpu_s_per_gb),
                ("spinning_gb_per_s", spinning.gb_per_s),
                ("spinning_cpu_s_per_gb", spinning.cpu_s_per_gb),
            ]
            .into(),
        };
        table.row(&[
            row.engine.clone(),
            format!("{:.2}", row.gb_per_s),
            format!("{:.4}", row.cpu_s_per_gb),
            format!("{:.2}", row.spinning_gb_per_s),
            format!("{:.4}", row.spinning_cpu_s_per_gb),
        ]);
        json.write(&row)?;
    }
    Ok(())
}

/// As in a row.
const WAYS: [Waiting; 2] = [Waiting::Asleep, Waiting::Spinning];

/// Of an engine that is waited for in one way, a value a round.
#[derive(Clone, Debug, Default)]
struct Figures {
    gb_per_s: Vec<f64>,
    cpu_s_per_gb: Vec<f64>,
}

fn pieces_of(span: &mut [u8]) -> Vec<Piece> {
    let piece = |block: &mut [u8]| Piece::new(block.as_mut_ptr(), block.len(), Warmth::Cold);
    span.chunks_exact_mut(BLOCK_SIZE).map(piece).collect()
}

/// Zeroes all of the pieces. A queue that others keep full may have room later, but is not asked for ever.
fn zero(engine: &dyn Engine, pieces: &mut [Piece], how: Waiting) -> Result<(), ()> {
    let begun = std::time::Instant::now();
    while begun.elapsed() < PATIENCE && pieces.iter().any(|piece| piece.state() == State::Waiting) {
        // SAFETY: the pieces' memory is the region's, which outlives them, and is used by nobody else.
        unsafe {
            engine.submit(pieces).map_err(drop)?;
            engine.wait(pieces, PATIENCE, how).map_err(drop)?;
        }
    }
    let all = pieces.iter().all(|piece| piece.state() == State::Zeroed);
    all.then_some(()).ok_or(())
}

/// A row of the overhead's table.
#[derive(Debug, Serialize)]
struct OverheadRow {
    experiment: &'static str,
    #[serde(rename = "use")]
    usage: &'static str,
    engine: &'static str,
    blocks: usize,
    submit_ns_per_block: f64,
    settle_ns_per_block: f64,
    ns_per_block: f64,
    samples: Samples,
}

/// Measures what submitting and settling a batch costs.
pub fn overhead(region: &mut [u8], rounds: usize, json: &mut JsonLines) -> Result<(), Failure> {
    let device = SoftDevice::new(Manner::default());
    let dsa = Dsa::on(&device).map_err(|error| Failure::system(error.to_string()))?;
    let span = &mut region[..BATCH * BLOCK_SIZE];
    let (mut submits, mut settles) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut pieces = pieces_of(span);
        let submit_ns = cpu_time_ns();
        // SAFETY: the memory is the region's, and the device is done with it before it goes.
        let submitted = unsafe { dsa.submit(&mut pieces) };
        let submitted_ns = cpu_time_ns();
        device.work();
        let settle_ns = cpu_time_ns();
        // SAFETY: as above.
        let settled = unsafe { dsa.poll(&mut pieces) };
        let settled_ns = cpu_time_ns();
        let all = pieces.iter().all(|piece| piece.state() == State::Zeroed);
        if submitted.is_err() || settled.is_err() || !all {
            return Err(Failure::system("the accelerator in software did not zero a batch"));
        }
        submits.push((submitted_ns - submit_ns) as f64 / BATCH as f64);
        settles.push((settled_ns - settle_ns) as f64 / BATCH as f64);
    }
    let both: Vec<_> = submits.iter().zip(&settles).map(|(one, other)| one + other).collect();
    let row = OverheadRow {
        experiment: "overhead",
        usage: "overhead",
        engine: "dsa (software)",
        blocks: BATCH,
        submit_ns_per_block: median(&submits),
        settle_ns_per_block: median(&settles),
        ns_per_block: median(&both),
        samples: [("ns_per_block", both)].into(),
    };
    println!("\nThe processor's part of a batch of {BATCH} blocks, on an accelerator in software");
    let table = Table::begin(&[("Engine", 14), ("submit ns/block", 15), ("settle ns/block", 15)]);
    let cells = [row.submit_ns_per_block, row.settle_ns_per_block].map(|ns| format!("{ns:.0}"));
    table.row(&[[row.engine.to_owned()].as_slice(), &cells].concat());
    json.write(&row)
}
