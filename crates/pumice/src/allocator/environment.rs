//! The variables the process was started with, and the C library's facts about it.

use std::ffi::c_ulong;

use pumice_heap::process::{EnvironmentBlock, AT_PAGESZ, AT_SECURE};

/// The variables. None in programs that gain privileges: those must not be led by the variables of their caller.
pub(super) fn read() -> EnvironmentBlock {
    match auxiliary_value(AT_SECURE) {
        0 => EnvironmentBlock::read(),
        _ => EnvironmentBlock::EMPTY,
    }
}

/// Bytes in a page of this kernel.
pub(super) fn page_size() -> usize {
    auxiliary_value(AT_PAGESZ)
}

fn auxiliary_value(kind: usize) -> usize {
    extern "C" {
        fn getauxval(kind: c_ulong) -> c_ulong;
    }
    // SAFETY: it takes any number; the C library that std needs has it.
    unsafe { getauxval(kind as c_ulong) as usize }
}
