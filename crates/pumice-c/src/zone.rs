//! Zones of frames, for a program that is an allocator itself.

use std::ffi::{c_uint, c_void};

use pumice_frames::addr::Order;
use pumice_frames::clear::Clearer;
use pumice_frames::frame::{self, Gfp};
use pumice_frames::sys::cpu;
use pumice_frames::sys::mem::Huge;
use pumice_heap::heap::Content;

use crate::memory::content;
use crate::status::{guard, guard_pointer, Status};

/// For pumice_zone_new: huge pages are wanted.
pub const PUMICE_HUGE: u32 = 2;
/// The largest order: 2^18 frames of 4096 bytes, 1 GiB.
pub const PUMICE_ORDER_MAX: c_uint = 18;

/// More than any machine has, and less than overflows.
const MOST_BYTES: usize = 1 << 46;

/// A range of addresses of which frames (4096 bytes) are given out in powers of two. A frame that
/// was never used, or is known to be zero, costs no clearing.
#[derive(Debug)]
pub struct Zone {
    zone: frame::Zone,
    clearer: Clearer,
}

/// Reserves addresses for `bytes` bytes of frames, rounded up to 2 MiB. Memory is used only for
/// frames that are touched. `flags` is 0 or PUMICE_HUGE.
///
/// Returns NULL, with errno EINVAL or ENOMEM, if it can't.
#[no_mangle]
pub extern "C" fn pumice_zone_new(bytes: usize, flags: u32) -> *mut Zone {
    guard_pointer(|| {
        let huge = match flags {
            0 => Huge::No,
            PUMICE_HUGE => Huge::Yes,
            _ => return Err(Status::Invalid),
        };
        if bytes == 0 {
            return Err(Status::Invalid);
        }
        if bytes > MOST_BYTES {
            return Err(Status::NoMemory);
        }
        let zone = frame::Zone::new(bytes, cpu::count(), huge)?;
        Ok(Box::into_raw(Box::new(Zone { zone, clearer: Clearer::detect() })))
    })
}

/// Gets 2^`order` frames, aligned to their size, up to PUMICE_ORDER_MAX. `flags` is 0 or
/// PUMICE_ZERO.
///
/// Returns NULL, with errno EINVAL or ENOMEM, if it can't.
///
/// # Safety
/// `zone` is NULL or a zone that is not destroyed.
#[no_mangle]
pub unsafe extern "C" fn pumice_zone_get(
    zone: *const Zone,
    order: c_uint,
    flags: u32,
) -> *mut c_void {
    guard_pointer(|| {
        // SAFETY: as the caller promises.
        let zone = unsafe { zone.as_ref() }.ok_or(Status::Invalid)?;
        let order = u8::try_from(order).ok().and_then(Order::new).ok_or(Status::Invalid)?;
        let gfp = match content(flags)? {
            Content::Any => Gfp::KERNEL,
            Content::Zero => Gfp::KERNEL | Gfp::ZERO,
        };
        let found = zone.zone.get(cpu::current(), gfp, order, &zone.clearer);
        Ok(found.ok_or(Status::NoMemory)?.as_ptr().cast())
    })
}

/// Puts back frames of pumice_zone_get.
///
/// # Safety
/// `zone` is NULL or a zone that is not destroyed, and nobody uses the frames any more.
#[no_mangle]
pub unsafe extern "C" fn pumice_zone_put(zone: *const Zone, at: *mut c_void) -> Status {
    guard(|| {
        // SAFETY: as the caller promises.
        let zone = unsafe { zone.as_ref() }.ok_or(Status::Invalid)?;
        // SAFETY: as the caller promises.
        Ok(unsafe { zone.zone.put(at.cast()) }?)
    })
}

/// Gives a zone's memory and addresses back, those of frames that were not put back too. NULL is
/// fine.
///
/// # Safety
/// `zone` is NULL or a zone that is not destroyed, and nobody uses it or its frames any more.
#[no_mangle]
pub unsafe extern "C" fn pumice_zone_destroy(zone: *mut Zone) -> Status {
    guard(|| {
        if zone.is_null() {
            return Ok(());
        }
        // SAFETY: it is the box of pumice_zone_new, and as the caller promises nobody uses it.
        let zone = *unsafe { Box::from_raw(zone) };
        Ok(zone.zone.unmap()?)
    })
}
