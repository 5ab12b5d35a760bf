//! Pools of memory that stays pinned ([`pumice_accel::pinned`]), against pinning memory anew.
//!
//! The time to a buffer that a device may use, all zeros, is measured:
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
use serde_json::json;

use super::{map_fresh, refused_as, PageKind, FASTER};
use crate::harness::{figures, in_turns, Output, WarmUp};
use crate::registry::machines::PIN;
use crate::registry::Row;
use pumice_command::statistics::{median, Ratio};
use pumice_command::Failure;

/// Measures pools pinned by `mlock`, or, with a GPU, by its driver.
pub fn pools(
    sizes: &[u64],
    rounds: u32,
    gpu: Option<&Cuda>,
    output: &mut Output,
) -> Result<(), Failure> {
    println!("\nMemory that stays pinned, against pinning it anew: seconds to a buffer of zeros");
    output.begin(&PIN.tables[1]);
    for &bytes in sizes {
        output.show(match gpu {
            Some(gpu) => measure("cuda", bytes as usize, rounds, Shared(gpu), Some(gpu))?,
            None => measure("mlock", bytes as usize, rounds, Locked, None)?,
        })?;
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
    let measured = in_turns(1, rounds as usize, WarmUp::Round, |_, _| {
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
        // SAFETY: registered above, and nobody has been told of it.
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
        Ok(([pool_s, mmap_s, rezero_s], host_alloc_s))
    })?;
    let [pooled, mapped, rezeroed] = [0, 1, 2].map(|it| figures(&measured[0], |round| round.0[it]));
    let allocated: Vec<f64> = measured[0].iter().filter_map(|round| round.1).collect();
    let (len, pages) = (len as u64, PageKind::Thp.name());
    let has = !allocated.is_empty();
    let faster = |peer: &[f64]| Ratio::within_rounds(peer, &pooled);
    let row = Row::of(json!({
        "experiment": "pool",
        "bytes": len,
        "pin": pin,
        "pages": pages,
        "host_alloc_s": has.then(|| median(&allocated)),
        "times_faster_than_host_alloc": has.then(|| faster(&allocated).median),
        "prepare_s": prepare_s,
    }));
    Ok(row
        .interval(FASTER, faster(&mapped))
        .sampled("pool_s", pooled)
        .sampled("mmap_s", mapped)
        .median("rezero_s", &rezeroed))
}
