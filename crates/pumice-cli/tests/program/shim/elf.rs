//! The shim as a file: it must load into any program, and bring nothing along.

use std::collections::BTreeSet;
use std::path::Path;

/// The parts of an ELF file of 64 bits that these tests look at (elf(5)).
struct Elf {
    bytes: Vec<u8>,
}

struct Segment {
    kind: u32,
    flags: u32,
}

struct Section {
    kind: u32,
    offset: usize,
    size: usize,
    link: usize,
}

struct Symbol {
    name: String,
    is_weak: bool,
    is_defined: bool,
}

const PT_TLS: u32 = 7;
const PT_INTERP: u32 = 3;
const PT_GNU_STACK: u32 = 0x6474_e551;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const SHT_DYNAMIC: u32 = 6;
const SHT_DYNSYM: u32 = 11;
const SHT_INIT_ARRAY: u32 = 14;
const DT_NEEDED: u64 = 1;
const DT_INIT: u64 = 12;
const DT_TEXTREL: u64 = 22;

impl Elf {
    fn of(file: &Path) -> Elf {
        let bytes = std::fs::read(file).expect("the build script made it");
        assert_eq!(&bytes[..5], b"\x7fELF\x02", "an ELF file of 64 bits");
        Elf { bytes }
    }

    fn of_shim() -> Elf {
        Elf::of(&crate::shim::shim_file())
    }

    fn number(&self, at: usize, bytes: usize) -> u64 {
        self.bytes[at..at + bytes].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
    }

    fn segments(&self) -> Vec<Segment> {
        let (start, count) = (self.number(32, 8) as usize, self.number(56, 2) as usize);
        let segment =
            |at| Segment { kind: self.number(at, 4) as u32, flags: self.number(at + 4, 4) as u32 };
        (0..count).map(|index| segment(start + index * 56)).collect()
    }

    fn sections(&self) -> Vec<Section> {
        let (start, count) = (self.number(40, 8) as usize, self.number(60, 2) as usize);
        let section = |at| Section {
            kind: self.number(at + 4, 4) as u32,
            offset: self.number(at + 24, 8) as usize,
            size: self.number(at + 32, 8) as usize,
            link: self.number(at + 40, 4) as usize,
        };
        (0..count).map(|index| section(start + index * 64)).collect()
    }

    fn dynamic_tags(&self) -> Vec<u64> {
        let sections = self.sections();
        let dynamic = sections.iter().find(|section| section.kind == SHT_DYNAMIC);
        let dynamic = dynamic.expect("a library has one");
        (0..dynamic.size / 16).map(|index| self.number(dynamic.offset + index * 16, 8)).collect()
    }

    fn symbols(&self) -> Vec<Symbol> {
        let sections = self.sections();
        let table = sections.iter().find(|section| section.kind == SHT_DYNSYM);
        let table = table.expect("a library has one");
        let names = sections[table.link].offset;
        let name = |offset: usize| {
            let bytes = self.bytes[names + offset..].iter().take_while(|&&byte| byte != 0);
            String::from_utf8(bytes.copied().collect()).expect("names are ASCII")
        };
        let symbol = |at| Symbol {
            name: name(self.number(at, 4) as usize),
            is_weak: self.number(at + 4, 1) >> 4 == 2,
            is_defined: self.number(at + 6, 2) != 0,
        };
        // The first one is empty.
        (1..table.size / 24).map(|index| symbol(table.offset + index * 24)).collect()
    }
}

#[test]
fn it_needs_no_library() {
    let tags = Elf::of_shim().dynamic_tags();
    assert!(!tags.contains(&DT_NEEDED));
    assert!(!tags.contains(&DT_TEXTREL));
}

#[test]
fn it_runs_one_function_when_it_is_loaded() {
    let elf = Elf::of_shim();
    assert!(!elf.dynamic_tags().contains(&DT_INIT));
    // The one that looks whether memory is to be populated ahead.
    let sections = elf.sections();
    let arrays: Vec<_> = sections.iter().filter(|section| section.kind == SHT_INIT_ARRAY).collect();
    assert_eq!(arrays.iter().map(|array| array.size).sum::<usize>(), 8);
}

#[test]
fn it_can_do_without_what_it_refers_to() {
    for symbol in Elf::of_shim().symbols() {
        assert!(symbol.is_defined || symbol.is_weak, "{} is wanted", symbol.name);
    }
}

#[test]
fn it_exports_what_it_interposes_and_nothing_else() {
    let exported = Elf::of_shim().symbols().into_iter().filter(|symbol| symbol.is_defined);
    let exported: BTreeSet<_> = exported.map(|symbol| symbol.name).collect();
    let interposed = [
        "__asan_default_options",
        "aligned_alloc",
        "calloc",
        "capset",
        "cfree",
        "chroot",
        "free",
        "free_aligned_sized",
        "free_sized",
        "initgroups",
        "madvise",
        "mallinfo",
        "mallinfo2",
        "malloc",
        "malloc_stats",
        "malloc_usable_size",
        "memalign",
        "mincore",
        "mlock",
        "mlock2",
        "mlockall",
        "mmap",
        "mmap64",
        "mprotect",
        "mremap",
        "mseal",
        "msync",
        "munlock",
        "munmap",
        "pivot_root",
        "pkey_mprotect",
        "posix_madvise",
        "posix_memalign",
        "prctl",
        "prlimit",
        "prlimit64",
        "process_madvise",
        "pvalloc",
        "realloc",
        "reallocarray",
        "remap_file_pages",
        "setegid",
        "seteuid",
        "setfsgid",
        "setfsuid",
        "setgid",
        "setgroups",
        "setns",
        "setregid",
        "setresgid",
        "setresuid",
        "setreuid",
        "setrlimit",
        "setrlimit64",
        "setsockopt",
        "send",
        "sendto",
        "sendmsg",
        "sendmmsg",
        "iopl",
        "ioperm",
        "setuid",
        "shmat",
        "shmdt",
        "syscall",
        "unshare",
        "valloc",
        "vmsplice",
    ];
    assert_eq!(exported, interposed.map(String::from).into());
}

#[test]
fn it_has_no_thread_local_storage_and_no_code_that_can_be_written() {
    let segments = Elf::of_shim().segments();
    for segment in &segments {
        assert!(segment.kind != PT_TLS && segment.kind != PT_INTERP);
        assert!(segment.flags & (PF_W | PF_X) != PF_W | PF_X, "writable and executable");
    }
    assert!(segments.iter().any(|segment| segment.kind == PT_GNU_STACK), "a stack without code");
}

#[test]
fn the_library_between_brings_operators_and_functions_of_jemalloc_and_needs_a_c_library() {
    let elf = Elf::of(&crate::shim::small_file());
    assert!(!elf.dynamic_tags().contains(&DT_NEEDED));
    assert!(!elf.sections().iter().any(|section| section.kind == SHT_INIT_ARRAY));
    let symbols = elf.symbols();
    let wanted = symbols.iter().filter(|symbol| !symbol.is_defined && !symbol.is_weak);
    let wanted: BTreeSet<_> = wanted.map(|symbol| &*symbol.name).collect();
    let of_libc = ["abort", "free", "malloc", "malloc_usable_size", "posix_memalign", "realloc"];
    assert_eq!(wanted, of_libc.into());
    let exported = symbols.iter().filter(|symbol| symbol.is_defined).map(|symbol| &*symbol.name);
    let (operators, others): (Vec<_>, Vec<_>) = exported.partition(|name| name.starts_with("_Z"));
    assert_eq!(operators.len(), 8 + 12, "forms of new, and of delete: {operators:?}");
    let others: BTreeSet<_> = others.into_iter().collect();
    let of_jemalloc = ["dallocx", "rallocx", "sallocx", "sdallocx", "xallocx"];
    assert_eq!(others, of_jemalloc.into_iter().chain(["pumice_small"]).collect());
}
