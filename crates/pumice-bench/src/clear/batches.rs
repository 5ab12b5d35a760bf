//! The cost of zeroing to the thread that has it done.
//!
//! *Engines*: batches of 64 blocks, submitted and waited for, by each engine there is: bytes a second and
//! processor seconds a gigabyte of the whole program (a driver's threads among it, but no interrupts). Waiting is a
//! part of it: asleep between looks, as scrubd waits, and spinning for a moment first, as a thread that needs the
//! memory waits. Engines take turns, and another begins each round.
//!
//! *Overhead*: a batch of 64 blocks on the accelerator in software; submitting and settling alone are
//! timed, while the device does nothing. Waiting is left out: its looks, and waking up in between.

use pumice_accel::dsa::soft::{Manner, SoftDevice};
use pumice_accel::dsa::Dsa;
use pumice_frames::addr::BLOCK_SIZE;
use pumice_frames::clear::{Engine, Piece, PieceState, Waiting, Warmth};
use pumice_frames::sys::thread::{cpu_time_ns, now_ns, process_cpu_time_ns};
use serde_json::json;

use crate::harness::{figures, in_turns, Output, WarmUp};
use crate::registry::prezeroing::CLEAR;
use crate::registry::Row;
use pumice_command::Failure;

/// Blocks in a batch.
const BATCH: usize = 64;
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

/// An engine under its name.
pub type Named = (String, Box<dyn Engine>);

/// Measures engines side by side, by batches.
pub fn engines(
    engines: &[Named],
    region: &mut [u8],
    rounds: usize,
    output: &mut Output,
) -> Result<(), Failure> {
    let span = &mut region[..BATCH * BLOCK_SIZE];
    let bytes = (BATCH * BLOCK_SIZE) as f64;
    let measured = in_turns(engines.len(), rounds, WarmUp::None, |index, _| {
        let (name, engine) = &engines[index];
        let mut measure = |how| {
            let mut pieces = pieces_of(span);
            let (started_ns, cpu_ns) = (now_ns(), process_cpu_time_ns());
            zero(engine.as_ref(), &mut pieces, how)
                .map_err(|()| Failure::system(format!("{name} zeroes no whole batch")))?;
            let (took_ns, used_ns) = (now_ns() - started_ns, process_cpu_time_ns() - cpu_ns);
            Ok([bytes / took_ns.max(1) as f64, used_ns as f64 / bytes])
        };
        Ok::<_, Failure>([measure(Waiting::Asleep)?, measure(Waiting::Spinning)?])
    })?;
    println!("\nEngines side by side: batches of {BATCH} blocks of 2 MiB, waited for asleep and spinning");
    output.begin(&CLEAR.tables[1]);
    for ((name, _), rounds) in engines.iter().zip(measured) {
        let row = Row::of(json!({
            "experiment": "batches",
            "use": "engine",
            "engine": name,
            "size_bytes": BATCH * BLOCK_SIZE,
        }));
        output.show(
            row.sampled("gb_per_s", figures(&rounds, |[asleep, _]| asleep[0]))
                .sampled("cpu_s_per_gb", figures(&rounds, |[asleep, _]| asleep[1]))
                .sampled("spinning_gb_per_s", figures(&rounds, |[_, spinning]| spinning[0]))
                .sampled("spinning_cpu_s_per_gb", figures(&rounds, |[_, spinning]| spinning[1])),
        )?;
    }
    Ok(())
}

fn pieces_of(span: &mut [u8]) -> Vec<Piece> {
    let piece = |block: &mut [u8]| Piece::new(block.as_mut_ptr(), block.len(), Warmth::Cold);
    span.chunks_exact_mut(BLOCK_SIZE).map(piece).collect()
}

/// Zeroes all of the pieces. A queue that others keep full may have room later, but is not asked for ever.
fn zero(engine: &dyn Engine, pieces: &mut [Piece], how: Waiting) -> Result<(), ()> {
    let begun = std::time::Instant::now();
    while begun.elapsed() < PATIENCE
        && pieces.iter().any(|piece| piece.state() == PieceState::Waiting)
    {
        // SAFETY: the pieces' memory is the region's, which outlives them, and is used by nobody else.
        unsafe {
            engine.submit(pieces).map_err(drop)?;
            engine.wait(pieces, PATIENCE, how).map_err(drop)?;
        }
    }
    let all = pieces.iter().all(|piece| piece.state() == PieceState::Zeroed);
    all.then_some(()).ok_or(())
}

/// Measures what submitting and settling a batch costs.
pub fn overhead(region: &mut [u8], rounds: usize, output: &mut Output) -> Result<(), Failure> {
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
        let all = pieces.iter().all(|piece| piece.state() == PieceState::Zeroed);
        if submitted.is_err() || settled.is_err() || !all {
            return Err(Failure::system("the accelerator in software did not zero a batch"));
        }
        submits.push((submitted_ns - submit_ns) as f64 / BATCH as f64);
        settles.push((settled_ns - settle_ns) as f64 / BATCH as f64);
    }
    let both: Vec<_> = submits.iter().zip(&settles).map(|(one, other)| one + other).collect();
    println!("\nThe processor's part of a batch of {BATCH} blocks, on an accelerator in software");
    output.begin(&CLEAR.tables[2]);
    let row = Row::of(json!({
        "experiment": "overhead",
        "use": "overhead",
        "engine": "dsa (software)",
        "blocks": BATCH,
    }));
    output.show(
        row.median("submit_ns_per_block", &submits)
            .median("settle_ns_per_block", &settles)
            .sampled("ns_per_block", both),
    )
}
