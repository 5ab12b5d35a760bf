//! The next definition of a function behind this library, found without the loader's help.
//!
//! `dlsym` takes the loader's lock and replaces what `dlerror` is about to say. A program may call `malloc`, `prctl`
//! or `setuid` in a thread that a library's constructor waits for, with that lock held, or between a failed `dlopen`
//! and `dlerror`. So the libraries' own tables are read instead: the list of loaded libraries, which the loader keeps
//! for debuggers (`_r_debug`), and the hash table of each (`DT_GNU_HASH`).
//!
//! The list is read without a lock. The symbols that are looked up here are in the C library, or in a library that was
//! loaded before the program began, which stays where it is; libraries that come and go are behind those in the list.
//! Where there is no such list, as with musl, whose `dlsym` takes no lock that a constructor is run under, it is
//! `dlsym` after all.
//!
//! Formats: the ELF gABI, "Dynamic Linking"; `elf(5)`; `DT_GNU_HASH` as glibc's `elf/dl-lookup.c` reads it.

use core::ffi::{c_char, c_void, CStr};
use core::mem::transmute;
use core::ptr::null_mut;

use crate::weak;

/// `struct r_debug` of `<link.h>`, its beginning.
#[repr(C)]
struct Debug {
    version: i32,
    map: *const LinkMap,
}

/// `struct link_map` of `<link.h>`.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: *const Dynamic,
    next: *const LinkMap,
}

#[repr(C)]
struct Dynamic {
    tag: usize,
    value: usize,
}

#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: usize,
}

const DT_NULL: usize = 0;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_GNU_HASH: usize = 0x6fff_fef5;
const UNDEFINED: u16 = 0;
/// `STT_FUNC`, of a symbol's low four bits.
const FUNCTION: u8 = 2;
/// `STT_GNU_IFUNC`: the value is a function that chooses one.
const INDIRECT_FUNCTION: u8 = 10;

/// The next definition of a function behind this library, or null.
pub(crate) fn find(name: &CStr) -> *mut () {
    let Some(libraries) = libraries() else { return by_dlsym(name) };
    let (own, hash) = (own_dynamic(), gnu_hash(name));
    let behind = libraries.skip_while(|library| !core::ptr::eq(library.dynamic, own)).skip(1);
    // SAFETY: the loader has mapped the library and its tables.
    let mut found = behind.map(|library| unsafe { library.find(name, hash) });
    found.find(|at| !at.is_null()).unwrap_or(null_mut())
}

/// Whether no library before this one has a function of this name. Where there is no list, nobody can tell.
pub(crate) fn is_first(name: &CStr) -> bool {
    let (own, hash) = (own_dynamic(), gnu_hash(name));
    let all = libraries().into_iter().flatten();
    let mut before = all.take_while(|library| !core::ptr::eq(library.dynamic, own));
    // SAFETY: as in `find`.
    before.all(|library| unsafe { library.find(name, hash) }.is_null())
}

/// The libraries that are loaded, if the loader keeps a list.
fn libraries() -> Option<impl Iterator<Item = &'static LinkMap>> {
    let debug = weak::address!("_r_debug") as *const Debug;
    // SAFETY: where the loader has it, it is filled in before any library's code runs. The list's entries are never
    // moved, and end with a null pointer. See the module's top.
    unsafe {
        let first = debug.as_ref().filter(|debug| debug.version > 0)?.map.as_ref()?;
        Some(core::iter::successors(Some(first), |library| library.next.as_ref()))
    }
}

impl LinkMap {
    /// # Safety
    /// The library stays mapped.
    unsafe fn find(&self, name: &CStr, hash: u32) -> *mut () {
        let (mut strings, mut symbols, mut table) = (0, 0, 0);
        let mut entry = self.dynamic;
        // SAFETY: `DT_NULL` ends the section.
        while let Some(Dynamic { tag, value }) = unsafe { entry.as_ref() } {
            match *tag {
                DT_NULL => break,
                DT_STRTAB => strings = *value,
                DT_SYMTAB => symbols = *value,
                DT_GNU_HASH => table = *value,
                _ => {}
            }
            // SAFETY: not the last one.
            entry = unsafe { entry.add(1) };
        }
        if strings == 0 || symbols == 0 || table == 0 {
            return null_mut();
        }
        // The loader makes addresses of offsets, but not in tables that it may not write to.
        let absolute = |value: usize| if value < self.base { value + self.base } else { value };
        let symbols = absolute(symbols) as *const Symbol;
        // SAFETY: the tables of a library that is loaded, of the format that their tags say.
        unsafe {
            let Some(index) = find_in_table(absolute(table) as *const u32, hash, |index| {
                let symbol = &*symbols.add(index);
                let at = (absolute(strings) + symbol.name as usize) as *const c_char;
                symbol.section != UNDEFINED
                    && matches!(symbol.info & 15, FUNCTION | INDIRECT_FUNCTION)
                    && CStr::from_ptr(at) == name
            }) else {
                return null_mut();
            };
            let symbol = &*symbols.add(index);
            let at = (self.base + symbol.value) as *mut ();
            match symbol.info & 15 {
                INDIRECT_FUNCTION => transmute::<*mut (), extern "C" fn() -> *mut ()>(at)(),
                _ => at,
            }
        }
    }
}

/// The number of the matching symbol of this hash.
///
/// # Safety
/// `table` is a `DT_GNU_HASH`.
unsafe fn find_in_table(
    table: *const u32,
    hash: u32,
    is_it: impl Fn(usize) -> bool,
) -> Option<usize> {
    // SAFETY: four words, the Bloom filter's words of 64 bits, the buckets, the chains.
    unsafe {
        let [buckets, first, bloom_words, shift] = table.cast::<[u32; 4]>().read();
        let bloom = table.add(4).cast::<u64>();
        let heads = bloom.add(bloom_words as usize).cast::<u32>();
        let chains = heads.add(buckets as usize);
        let word = bloom.add((hash / 64 % bloom_words) as usize).read_unaligned();
        let bits = 1u64 << (hash % 64) | 1u64 << ((hash >> shift) % 64);
        if buckets == 0 || word & bits != bits {
            return None;
        }
        let mut index = heads.add((hash % buckets) as usize).read();
        if index < first {
            return None;
        }
        loop {
            let link = chains.add((index - first) as usize).read();
            if link | 1 == hash | 1 && is_it(index as usize) {
                return Some(index as usize);
            }
            if link & 1 == 1 {
                return None;
            }
            index += 1;
        }
    }
}

fn gnu_hash(name: &CStr) -> u32 {
    name.to_bytes()
        .iter()
        .fold(5381, |hash: u32, &byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)))
}

/// This library's dynamic section, by which its place in the list is known.
fn own_dynamic() -> *const Dynamic {
    let at: *const Dynamic;
    // SAFETY: the linker defines the symbol, hidden, in every library.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!(
            ".hidden _DYNAMIC",
            "lea {}, [rip + _DYNAMIC]",
            out(reg) at,
            options(pure, nomem, nostack, preserves_flags),
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!(
            ".hidden _DYNAMIC",
            "adrp {0}, _DYNAMIC",
            "add {0}, {0}, :lo12:_DYNAMIC",
            out(reg) at,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    at
}

fn by_dlsym(name: &CStr) -> *mut () {
    type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    type DlSym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_void) -> *mut c_void;
    const RTLD_NEXT: *mut c_void = usize::MAX as *mut c_void;
    if let Some(dlsym) = weak::function!("dlsym": Dlsym) {
        // SAFETY: as dlsym(3) wants it; "next" is seen from the caller, which is this library.
        return unsafe { dlsym(RTLD_NEXT, name.as_ptr()) }.cast();
    }
    // Before glibc 2.34 dlsym is in a library of its own, and this is the function that it calls in libc.
    if let Some(dl_sym) = weak::function!("_dl_sym": DlSym) {
        let caller = by_dlsym as *const c_void;
        // SAFETY: as dlsym, with the caller's address as the third argument.
        return unsafe { dl_sym(RTLD_NEXT, name.as_ptr(), caller) }.cast();
    }
    null_mut()
}

/// A name that ends with the only zero byte in it.
pub(crate) const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("it ends with the only zero byte"),
    }
}

/// The next definition of a function, looked up at the first call. Relaxed: code is all it leads to.
macro_rules! next {
    ($name:expr, $type:ty) => {{
        use core::sync::atomic::{AtomicPtr, Ordering};
        static NEXT: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
        let mut at = NEXT.load(Ordering::Relaxed);
        if at.is_null() {
            at = $crate::symbols::find($name);
            NEXT.store(at, Ordering::Relaxed);
        }
        // SAFETY: a function of this name has this type wherever it is defined, and `None` is null.
        unsafe { core::mem::transmute::<*mut (), Option<$type>>(at) }
    }};
}

pub(crate) use next;
