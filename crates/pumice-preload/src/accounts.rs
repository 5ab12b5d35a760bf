//! `mallinfo`, `mallinfo2` and `malloc_stats`: the next allocator's accounts, and the memory that the heap has handed
//! out.
//!
//! glibc counts an allocation that is a mapping of its own as such (`hblks`, `hblkhd`), and nowhere else. The heap's
//! allocations would be such mappings without it.

use core::ffi::c_int;
use core::fmt::Write;

use pumice_heap::heap::Heap;

use crate::{fatal, outgrown, state, symbols};

/// `struct mallinfo2` of `<malloc.h>`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Accounts {
    arena: usize,
    ordblks: usize,
    smblks: usize,
    hblks: usize,
    hblkhd: usize,
    usmblks: usize,
    fsmblks: usize,
    uordblks: usize,
    fordblks: usize,
    keepcost: usize,
}

/// `struct mallinfo`, whose integers wrap.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct NarrowAccounts {
    fields: [c_int; 10],
}

/// Allocations that the heap has handed out, those that have outgrown it included, and their bytes.
fn handed_out() -> (usize, usize) {
    let (count, bytes) = state::published().map_or((0, 0), Heap::handed_out);
    let (others, their_bytes) = outgrown::handed_out();
    (count + others, bytes + their_bytes)
}

#[no_mangle]
extern "C" fn mallinfo2() -> Accounts {
    type Next = extern "C" fn() -> Accounts;
    let next = symbols::next!(c"mallinfo2", Next);
    let mut accounts = next.map_or_else(Accounts::default, |next| next());
    let (count, bytes) = handed_out();
    accounts.hblks += count;
    accounts.hblkhd += bytes;
    accounts
}

#[no_mangle]
extern "C" fn mallinfo() -> NarrowAccounts {
    type Next = extern "C" fn() -> NarrowAccounts;
    let next = symbols::next!(c"mallinfo", Next);
    let mut accounts = next.map_or_else(NarrowAccounts::default, |next| next());
    let (count, bytes) = handed_out();
    let [.., hblks, hblkhd, _, _, _, _, _] = &mut accounts.fields;
    *hblks = hblks.wrapping_add(count as c_int);
    *hblkhd = hblkhd.wrapping_add(bytes as c_int);
    accounts
}

#[no_mangle]
extern "C" fn malloc_stats() {
    type Next = extern "C" fn();
    if let Some(next) = symbols::next!(c"malloc_stats", Next) {
        next();
    }
    let (count, bytes) = handed_out();
    if count > 0 {
        // Nothing to be done if it can't be written.
        let _ = writeln!(
            fatal::StandardError,
            "pumice:\nregions          = {count:>10}\nin use bytes     = {bytes:>10}"
        );
    }
}
