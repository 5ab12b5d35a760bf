//! Allocations: large ones from the process's heap, all others, and those it declines, libc's.

use std::ffi::c_void;
use std::ptr::{null_mut, NonNull};

use pumice::allocator::ProcessHeap;
use pumice_heap::config::DEFAULT_THRESHOLD;
use pumice_heap::heap::Content;
use pumice_heap::stats::Event;

use crate::status::{guard, guard_pointer, Status};

/// For pumice_alloc and pumice_zone_get: the memory must read as zeros.
pub const PUMICE_ZERO: u32 = 1;
/// The largest alignment there is, in bytes.
pub const PUMICE_ALIGN_MAX: usize = 1 << 30;

/// The alignment that `malloc` promises.
const MALLOC_ALIGN: usize = 16;

/// The heap that all of the process shares.
pub(crate) static HEAP: ProcessHeap = ProcessHeap::new();

/// Allocates `size` bytes (0 counts as 1), aligned to `align`: a power of two up to
/// PUMICE_ALIGN_MAX, or 0 for that of malloc. `flags` is 0 or PUMICE_ZERO. 64 KiB and more come
/// from memory that is kept ready, smaller requests from malloc.
///
/// Returns NULL, with errno EINVAL or ENOMEM, if it can't. To be freed by pumice_free only.
#[no_mangle]
pub extern "C" fn pumice_alloc(size: usize, align: usize, flags: u32) -> *mut c_void {
    guard_pointer(|| allocate(size, checked(align)?, content(flags)?))
}

/// Frees an allocation of pumice_alloc or pumice_realloc; NULL is fine.
///
/// # Safety
/// `at` is NULL or such an allocation, and nobody uses it any more.
#[no_mangle]
pub unsafe extern "C" fn pumice_free(at: *mut c_void) -> Status {
    guard(|| match HEAP.owned(at.cast()) {
        // SAFETY: as the caller promises.
        Some(owned) => Ok(unsafe { owned.free(at.cast()) }?),
        None => {
            // SAFETY: null, or libc's, which is where all the rest comes from.
            unsafe { libc::free(at) };
            Ok(())
        }
    })
}

/// Makes an allocation `size` bytes long (0 counts as 1), where it stands or elsewhere, and
/// returns where it is now; `align` is that of the allocation. The added part has any content.
/// Large allocations grow in place or by moving pages, not by copying. NULL for `at` allocates.
///
/// Returns NULL, with errno EINVAL or ENOMEM, if it can't; the allocation is then as it was.
///
/// # Safety
/// `at` is NULL or an allocation of pumice_alloc or pumice_realloc, which after a success is used
/// at its new address only.
#[no_mangle]
pub unsafe extern "C" fn pumice_realloc(at: *mut c_void, size: usize, align: usize) -> *mut c_void {
    guard_pointer(|| {
        let align = checked(align)?;
        match NonNull::new(at) {
            None => allocate(size, align, Content::Any),
            // SAFETY: as the caller promises.
            Some(at) => unsafe { resize(at, size.max(1), align) },
        }
    })
}

/// Bytes usable at an allocation: at least those asked for. 0 for NULL, and for an address in
/// pumice's own memory at which no allocation starts.
///
/// # Safety
/// `at` is NULL or an allocation of pumice_alloc or pumice_realloc.
#[no_mangle]
pub unsafe extern "C" fn pumice_usable_size(at: *const c_void) -> usize {
    let mut bytes = 0;
    guard(|| {
        // SAFETY: as the caller promises.
        bytes = unsafe { usable_size(at) };
        Ok(())
    });
    bytes
}

/// To be called before a seccomp filter is installed: from then on pumice makes no system calls
/// but those that malloc makes, and has no helper threads.
#[no_mangle]
pub extern "C" fn pumice_go_quiet() -> Status {
    guard(|| {
        HEAP.go_quiet();
        Ok(())
    })
}

fn checked(align: usize) -> Result<usize, Status> {
    match align {
        0 => Ok(MALLOC_ALIGN),
        _ if align.is_power_of_two() && align <= PUMICE_ALIGN_MAX => Ok(align),
        _ => Err(Status::Invalid),
    }
}

/// The content of the memory that the flags ask for.
pub(crate) fn content(flags: u32) -> Result<Content, Status> {
    match flags {
        0 => Ok(Content::Any),
        PUMICE_ZERO => Ok(Content::Zero),
        _ => Err(Status::Invalid),
    }
}

fn allocate(size: usize, align: usize, content: Content) -> Result<*mut c_void, Status> {
    if size > isize::MAX as usize {
        return Err(Status::NoMemory);
    }
    let served = match size {
        DEFAULT_THRESHOLD.. => HEAP.allocate(size, align, content),
        _ => None,
    };
    let at = served.map_or_else(|| from_libc(size.max(1), align, content), |at| at.as_ptr().cast());
    if at.is_null() {
        Err(Status::NoMemory)
    } else {
        Ok(at)
    }
}

fn from_libc(size: usize, align: usize, content: Content) -> *mut c_void {
    // SAFETY: the alignment is a power of two and at least a pointer's where it is passed on; the memory that is
    // cleared was just allocated.
    unsafe {
        match (content, align <= MALLOC_ALIGN) {
            (Content::Any, true) => libc::malloc(size),
            (Content::Zero, true) => libc::calloc(1, size),
            (_, false) => {
                let mut at = null_mut();
                if libc::posix_memalign(&mut at, align, size) != 0 {
                    return null_mut();
                }
                if content == Content::Zero {
                    at.write_bytes(0, size);
                }
                at
            }
        }
    }
}

/// # Safety
/// As [`pumice_usable_size`].
unsafe fn usable_size(at: *const c_void) -> usize {
    match HEAP.owned(at.cast()) {
        Some(owned) => owned.usable_size(at.cast()),
        // SAFETY: null, or libc's.
        None => unsafe { libc::malloc_usable_size(at.cast_mut()) },
    }
}

/// # Safety
/// As [`pumice_realloc`].
unsafe fn resize(at: NonNull<c_void>, size: usize, align: usize) -> Result<*mut c_void, Status> {
    let at = at.as_ptr();
    if size > isize::MAX as usize {
        return Err(Status::NoMemory);
    }
    let owned = HEAP.owned(at.cast());
    // SAFETY: as the caller promises.
    let usable = unsafe { usable_size(at) };
    match owned {
        Some(_) if usable == 0 => return Err(Status::NotAllocated),
        Some(owned) => {
            if size >= DEFAULT_THRESHOLD {
                // SAFETY: as the caller promises.
                if let Some(new) = unsafe { owned.resize(at.cast(), size, align) } {
                    return Ok(new.as_ptr().cast());
                }
            }
            owned.count(Event::ReallocMoved);
        }
        // An allocation that is large already was declined before and stays: its owner can move pages.
        None if align <= MALLOC_ALIGN
            && (size < DEFAULT_THRESHOLD || usable >= DEFAULT_THRESHOLD) =>
        {
            // SAFETY: the allocation is libc's.
            let new = unsafe { libc::realloc(at, size) };
            return if new.is_null() { Err(Status::NoMemory) } else { Ok(new) };
        }
        None => {}
    }
    let sparse = owned.filter(|owned| owned.is_sparse(at.cast()));
    let content = if sparse.is_some() { Content::Zero } else { Content::Any };
    let new = allocate(size, align, content)?;
    // SAFETY: both are at least as long as what is copied, and the old one is not used again.
    unsafe {
        match sparse {
            Some(owned) => owned.copy_sparse(at.cast(), new.cast(), usable.min(size)),
            None => new.cast::<u8>().copy_from_nonoverlapping(at.cast(), usable.min(size)),
        }
        match owned {
            Some(owned) => owned.free(at.cast())?,
            None => libc::free(at),
        }
    }
    Ok(new)
}
