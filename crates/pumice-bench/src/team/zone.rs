//! Frames of a process of ours.

use pumice_frames::addr::{BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::frame::Zone;
use pumice_frames::sys::cpu;
use pumice_frames::sys::mem::{Huge, Memory as _, Os};

/// So many frames, faulted in: the kernel's pages come without that only when they are first touched, which filling
/// does.
pub fn zone(frames: usize) -> Result<&'static Zone, String> {
    let bytes = (frames * FRAME_SIZE).next_multiple_of(BLOCK_SIZE);
    let zone = Zone::new(bytes, cpu::count(), Huge::Yes).map_err(|error| error.to_string())?;
    let zone: &'static Zone = Box::leak(Box::new(zone));
    let blocks = bytes / BLOCK_SIZE;
    zone.grow(blocks).map_err(|error| error.to_string())?;
    // SAFETY: the zone's own range, all of which was made usable.
    unsafe { Os.populate(zone.block_address(0), bytes) }
        .map_err(|errno| format!("can't populate {bytes} bytes: {errno}"))?;
    Ok(zone)
}
