//! Pools of memory that stays pinned ([`pumice_accel::pinned`]), against pinning memory anew.
//!
//! What counts is the time to a buffer that a device may use, all zeros:
//!
//! | way | |
//! |---|---|
//! | pool | taken from a pool that was made before, and whose free blocks are zeroed |
//! | mmap | mapped, in huge pages where there are any, then pinned |
//! | host-alloc | with a GPU: `cuMemHostAlloc`, which `cudaHostAlloc` is |
//!
//! Making the pool, and zeroing what comes back, are columns of their own. The ways take turns.

use std::time::Instant;

use pumice_accel::cuda::Cuda;
use pumice_accel::pinned::{Locked, Pool, Registrar};
use pumice_frames::clear::{Clearer, Engine};
use pumice_heap::heap::Content;
use serde::Serialize;

use super::{map_fresh, refused_as, PageKind};
use pumice_command::json_lines::{JsonLines, Samples};
use pumice_command::statistics::{interval, median};
use pumice_command::table::Table;
use pumice_command::Failure;

/// A row of the table.
#[derive(Debug, Serialize)]
struct Row {
    experiment: &'static str,
    bytes: u64,
    pin: &'static str,
    pages: &'static str,
    /// Medians, in seconds.
    pool_s: f64,
    mmap_s: f64,
    host_alloc_s: Option<f64>,
    /// How many times faster the pool is, within a round: the median and its 95 % interval.
    times_faster: f64,
    times_faster_low: f64,
    times_faster_high: f64,
    times_faster_than_host_alloc: Option<f64>,
    /// What making the pool took, and zeroing a buffer that came back.
    prepare_s: f64,
    rezero_s: f64,
    samples: Samples,
}

/// Measures pools pinned by `mlock`, or, with a GPU, by its driver.
pub fn pools(
    sizes: &[u64],
    rounds: u32,
    gpu: Option<&Cuda>,
    json: &mut JsonLines,
) -> Result<(), Failure> {
    println!("\nMemory that stays pinned, against pinning it anew: seconds to a buffer of zeros");
    let table = Table::begin(&[
        ("size MiB", 8),
        ("pin", 6),
        ("pool s", 10),
        ("mmap s", 9),
        ("host-alloc s", 12),
        ("x mmap", 9),
        ("x host-alloc", 12),
        ("prepare s", 9),
        ("re-zero s", 9),
    ]);
    for &bytes in sizes {
        let row = match gpu {
            Some(gpu) => measure("cuda", bytes as usize, rounds, Shared(gpu), Some(gpu))?,
            None => measure("mlock", bytes as usize, rounds, Locked, None)?,
        };
        let or_dash = |value: Option<f64>, decimals: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
        };
        table.row(&[
            (bytes >> 20).to_string(),
            row.pin.to_owned(),
            format!("{:.7}", row.pool_s),
            format!("{:.4}", row.mmap_s),
            or_dash(row.host_alloc_s, 4),
            format!("{:.0}", row.times_faster),
            or_dash(row.times_faster_than_host_alloc, 0),
            format!("{:.4}", row.prepare_s),
            format!("{:.4}", row.rezero_s),
        ]);
        json.write(&row)?;
    }
    Ok(())
}

/// A GPU that several pools are registered with.
struct Shared<'g>(&'g Cuda);

impl Registrar for Shared<'_> {
    type Error = <Cuda as Registrar>::Error;

    unsafe fn register(&self, at: *mut u8, len: usize) -> Result<(), Self::Error> {
        // SAFETY: as the caller promises.
        unsafe { self.0.register(at, len) }
    }

    unsafe fn unregister(&self, at: *mut u8, len: usize) {
        // SAFETY: as the caller promises.
        unsafe { Registrar::unregister(self.0, at, len) }
    }
}

fn measure<R: Registrar>(
    pin: &'static str,
    len: usize,
    rounds: u32,
    registrar: R,
    gpu: Option<&Cuda>,
) -> Result<Row, Failure> {
    let refused = |error: &dyn std::fmt::Display| refused_as(pin, len as u64, error);
    let begun = Instant::now();
    let pool = Pool::new(len, registrar).map_err(|error| refused(&error))?;
    let prepare_s = begun.elapsed().as_secs_f64();
    let clearer = Clearer::detect();
    let engine: &dyn Engine = match gpu {
        Some(gpu) => gpu,
        None => &clearer,
    };
    let (mut pooled, mut mapped, mut allocated, mut rezeroed) = (vec![], vec![], vec![], vec![]);
    // One round that does not count: memory that the host has to bring costs several times more.
    for round in 0..=rounds {
        let begun = Instant::now();
        let buffer = pool.take(len, Content::Zero);
        let pool_s = begun.elapsed().as_secs_f64();
        let mut buffer = buffer.ok_or_else(|| Failure::system("the pool has lost memory"))?;
        buffer.fill(1);
        drop(buffer);
        let begun = Instant::now();
        pool.zero_free(engine);
        let rezero_s = begun.elapsed().as_secs_f64();

        let begun = Instant::now();
        let fresh = map_fresh(len, PageKind::Thp).map_err(|error| refused(&error))?;
        // SAFETY: mapped until after it is let go.
        unsafe { pool.registrar().register(fresh.at, len) }.map_err(|error| refused(&error))?;
        let mmap_s = begun.elapsed().as_secs_f64();
        // SAFETY: registered above.
        unsafe { pool.registrar().unregister(fresh.at, len) };
        drop(fresh);

        let host_alloc_s = match gpu {
            None => None,
            Some(gpu) => {
                let begun = Instant::now();
                let at = gpu.host_alloc(len).map_err(|error| refused(&error))?;
                let took_s = begun.elapsed().as_secs_f64();
                // SAFETY: nobody uses it.
                unsafe { gpu.host_free(at) }.map_err(|error| refused(&error))?;
                Some(took_s)
            }
        };
        if round > 0 {
            pooled.push(pool_s);
            mapped.push(mmap_s);
            allocated.extend(host_alloc_s);
            rezeroed.push(rezero_s);
        }
    }
    let ratios = |peer: &[f64]| -> Vec<f64> {
        peer.iter().zip(&pooled).map(|(peer, pooled)| peer / pooled).collect()
    };
    let faster = ratios(&mapped);
    let (low, high) = interval(&faster);
    let has = !allocated.is_empty();
    Ok(Row {
        experiment: "pool",
        bytes: len as u64,
        pin,
        pages: PageKind::Thp.name(),
        pool_s: median(&pooled),
        mmap_s: median(&mapped),
        host_alloc_s: has.then(|| median(&allocated)),
        times_faster: median(&faster),
        times_faster_low: low,
        times_faster_high: high,
        times_faster_than_host_alloc: has.then(|| median(&ratios(&allocated))),
        prepare_s,
        rezero_s: median(&rezeroed),
        samples: [("pool_s", pooled), ("mmap_s", mapped)].into(),
    })
}
