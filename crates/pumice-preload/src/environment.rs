//! The environment, without libc where libc is not there yet.

use core::ffi::{c_char, CStr};
use core::sync::atomic::{AtomicUsize, Ordering};

use pumice_frames::addr::FRAME_SIZE;
use pumice_heap::process::{value_of, EnvironmentBlock, Variables, AT_PAGESZ};

use crate::{symbols, weak};

/// Where the variables are.
pub(crate) enum Environment {
    /// As `environ`: pointers, the last one null.
    Vector(*const *const c_char),
    /// As `/proc/self/environ`: strings, each ended by a zero byte.
    Block(EnvironmentBlock),
}

impl Environment {
    /// `None` while the C library has not set `environ` up.
    pub(crate) fn find() -> Option<Environment> {
        match environ() {
            None => Some(Environment::Block(EnvironmentBlock::read())),
            Some(_) => Environment::find_vector(),
        }
    }

    /// As [`Environment::find`], where the C library has `environ`.
    pub(crate) fn find_vector() -> Option<Environment> {
        // SAFETY: the variable is a pointer to pointers in every C library that has it. Reading
        // it races with `setenv` no more than `getenv` does.
        let vector = unsafe { environ()?.read_volatile() };
        (!vector.is_null()).then_some(Environment::Vector(vector))
    }
}

/// Where the C library keeps it, if it has it.
fn environ() -> Option<*const *const *const c_char> {
    let [environ, older] = [weak::address!("environ"), weak::address!("__environ")];
    let variable = if environ != 0 { environ } else { older };
    (variable != 0).then_some(variable as *const *const *const c_char)
}

impl Variables for Environment {
    fn get(&self, name: &str) -> Option<&str> {
        match self {
            Environment::Block(block) => block.get(name),
            Environment::Vector(vector) => (0..)
                // SAFETY: the vector ends with a null pointer, where `take_while` stops.
                .map(|index| unsafe { *vector.add(index) })
                .take_while(|entry| !entry.is_null())
                // SAFETY: every other entry is a string that outlives this call.
                .find_map(|entry| value_of(name, unsafe { CStr::from_ptr(entry) }.to_bytes())),
        }
    }
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
