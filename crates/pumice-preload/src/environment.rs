//! The environment, without libc where libc is not there yet.
//!
//! Other threads may change the variables, and `setenv` frees the vector of them. So the shim's variables are copied
//! when the program is loaded, before it has other threads, or at the first request if that comes before.

use core::cell::UnsafeCell;
use core::ffi::{c_char, CStr};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::mem;
use pumice_heap::process::{value_of, EnvironmentBlock, Variables, AT_PAGESZ};

use crate::{symbols, weak};

/// The variables that concern the shim, as they were when the program was loaded: strings, each ended by a zero byte.
pub(crate) struct Environment(&'static [u8]);

/// Where they are; null until they are.
static KEPT: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// Bytes of them. Relaxed: [`KEPT`] publishes it.
static KEPT_LEN: AtomicUsize = AtomicUsize::new(0);

/// Most are empty, and few are longer than this.
const USUAL_BYTES: usize = 2048;
struct Room(UnsafeCell<[u8; USUAL_BYTES]>);

// SAFETY: written by one thread, before `KEPT` points here, and only read after that.
unsafe impl Sync for Room {}

static ROOM: Room = Room(UnsafeCell::new([0; USUAL_BYTES]));

impl Environment {
    /// `None` until they are kept.
    pub(crate) fn kept() -> Option<Environment> {
        // Acquire: pairs with the Release in `keep`.
        let at = KEPT.load(Ordering::Acquire);
        // SAFETY: so many bytes were written there before, and none since.
        (!at.is_null()).then(|| unsafe {
            Environment(core::slice::from_raw_parts(at, KEPT_LEN.load(Ordering::Relaxed)))
        })
    }

    /// Keeps them, and returns them. `None` while the C library has not set `environ` up.
    ///
    /// # Safety
    /// One thread at a time calls it.
    pub(crate) unsafe fn keep() -> Option<Environment> {
        if KEPT.load(Ordering::Relaxed).is_null() {
            // SAFETY: forwarded.
            unsafe {
                match environ() {
                    None => copy(EnvironmentBlock::read().entries())?,
                    Some(environ) => copy(entries_of(environ.read_volatile())?)?,
                }
            }
        }
        Environment::kept()
    }
}

impl Variables for Environment {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.split(|&byte| byte == 0).find_map(|entry| value_of(name, entry))
    }
}

/// Copies the entries that concern the shim.
///
/// # Safety
/// As [`Environment::keep`].
unsafe fn copy<'e>(entries: impl Iterator<Item = &'e [u8]> + Clone) -> Option<()> {
    let names: [&[u8]; 3] = [b"PUMICE", b"MALLOC_PERTURB_=", b"GLIBC_TUNABLES="];
    let concerning = entries.filter(|entry| names.into_iter().any(|name| entry.starts_with(name)));
    let len = concerning.clone().map(|entry| entry.len() + 1).sum();
    let at = match len {
        0..=USUAL_BYTES => ROOM.0.get().cast(),
        _ => mem::map_table(len).ok()?.as_ptr(),
    };
    // SAFETY: it is there, and as long, and nobody reads it yet.
    let mut room = unsafe { core::slice::from_raw_parts_mut(at, len) };
    for entry in concerning {
        // A program that changes them meanwhile may have made them longer.
        let (its, rest) = room.split_at_mut_checked(entry.len() + 1)?;
        its[..entry.len()].copy_from_slice(entry);
        its[entry.len()] = 0;
        room = rest;
    }
    KEPT_LEN.store(len, Ordering::Relaxed);
    // Release: pairs with the Acquire in `kept`.
    KEPT.store(at, Ordering::Release);
    Some(())
}

/// The entries of a vector of the C library's; `None` if it has not set it up.
///
/// # Safety
/// Nobody changes it meanwhile.
unsafe fn entries_of<'e>(
    vector: *const *const c_char,
) -> Option<impl Iterator<Item = &'e [u8]> + Clone> {
    let entries = (0..)
        // SAFETY: the vector ends with a null pointer, where `take_while` stops.
        .map(move |index| unsafe { *vector.add(index) })
        .take_while(|entry| !entry.is_null())
        // SAFETY: every other entry is a string.
        .map(|entry| unsafe { CStr::from_ptr(entry) }.to_bytes());
    (!vector.is_null()).then_some(entries)
}

/// Where the C library keeps it, if it has it.
fn environ() -> Option<*const *const *const c_char> {
    let [environ, older] = [weak::address!("environ"), weak::address!("__environ")];
    let variable = if environ != 0 { environ } else { older };
    (variable != 0).then_some(variable as *const *const *const c_char)
}

/// A value of the auxiliary vector, by its `AT_` number; 0 if the kernel gave none.
pub(crate) fn auxiliary_value(kind: usize) -> Option<usize> {
    type Getauxval = unsafe extern "C" fn(usize) -> usize;
    // Looked up rather than linked: on aarch64 there is one in [`crate::builtins`].
    let getauxval = symbols::next!(c"getauxval", Getauxval)?;
    // SAFETY: it takes any number.
    Some(unsafe { getauxval(kind) })
}

/// Bytes in a page of this kernel.
pub(crate) fn page_size() -> usize {
    /// 0 until it is known. Relaxed: a thread that finds 0 asks for itself.
    static KNOWN: AtomicUsize = AtomicUsize::new(0);
    match KNOWN.load(Ordering::Relaxed) {
        0 => {
            let size = auxiliary_value(AT_PAGESZ).unwrap_or(FRAME_SIZE);
            KNOWN.store(size, Ordering::Relaxed);
            size
        }
        size => size,
    }
}
