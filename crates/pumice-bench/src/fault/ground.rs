//! The memory for the faults of all ways: a zone in which everything is there and zero.

use pumice_frames::addr::{BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::clear::{Clearer, Warmth};
use pumice_frames::frame::Zone;
use pumice_paging::space::MemMap;

use crate::cpu::CpuClock;
use crate::team::zone::zone;
use pumice_command::{Explain, Failure};

/// Blocks beside those that are touched: tables, threads' lists, and frames scattered by those.
const SPARE_BLOCKS: usize = 64;

/// A zone for the length of an experiment.
#[derive(Debug)]
pub struct Ground {
    zone: &'static Zone,
    map: MemMap<'static>,
    clearer: Clearer,
}

impl Ground {
    /// A zone with `bytes` that can be touched at a time, all faulted in.
    pub fn new(bytes: usize) -> Result<Ground, Failure> {
        let touched = bytes.div_ceil(BLOCK_SIZE);
        // A mapper uses frames up as well, which are zero again after the round only: a tenth of what is
        // touched meanwhile. If there were none left, faults would be measured that clear.
        let blocks = touched + touched / 4 + SPARE_BLOCKS;
        // It stays for the rest of the process, which ends with the experiment.
        let zone = zone(blocks * BLOCK_SIZE / FRAME_SIZE).or_fail("no zone")?;
        let clearer = Clearer::detect();
        let map = MemMap::new(zone, clearer).or_fail("no zone")?;
        Ok(Ground { zone, map, clearer })
    }

    /// The memory map that spaces share.
    pub fn map(&self) -> &MemMap<'static> {
        &self.map
    }

    /// Makes all that is free zero again: the processor time it took.
    pub fn refill(&self) -> f64 {
        let clock = CpuClock::start();
        // SAFETY: this claims what it changes.
        let ledger = unsafe { self.zone.ledger() };
        ledger.join_all();
        for block in 0..ledger.grown() {
            if let Some(word) = ledger.claim_block(block, |word| !word.zeroed()) {
                let at = self.zone.block_address(block);
                // SAFETY: the block is claimed by this call.
                unsafe { self.clearer.clear(at, BLOCK_SIZE, Warmth::Cold) };
                ledger.release_block(block, word.with_zeroed(true));
            }
        }
        clock.elapsed().total_s()
    }

    /// Frames that are free in whole blocks.
    pub fn free_bytes(&self) -> usize {
        // SAFETY: it is only looked at.
        let ledger = unsafe { self.zone.ledger() };
        ledger.free_blocks() * (BLOCK_SIZE / FRAME_SIZE) * FRAME_SIZE
    }
}
