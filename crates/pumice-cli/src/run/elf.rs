//! The kind of program that a file is, as far as it decides whether the shim can serve it.
//!
//! Any file may lie there: every read is checked, and a file that can't be understood is [`Kind::Other`]. See elf(5)
//! and ld.so(8).

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use object::elf::{FileHeader64, Machine, SectionHeader64, EM_AARCH64, EM_X86_64, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::read::StringTable;
use object::{Endianness, ReadCache, ReadRef};

/// Why a program can't be served, or that it can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The loader will load the shim.
    Dynamic,
    /// No loader is asked for.
    Static,
    /// The Go runtime takes its memory from the kernel by itself.
    Go,
    /// It gains privileges, so the loader loads nothing that its caller names.
    Privileged,
    /// It is for another kind of processor, or for 32 bits.
    Foreign,
    /// No ELF file that could be understood.
    Other,
}

impl Kind {
    /// The explanation in a report, to follow the program's path; `None` where the file is no
    /// reason.
    pub const fn explain(&self) -> Option<&'static str> {
        match self {
            Kind::Dynamic | Kind::Other => None,
            Kind::Static => Some("is linked statically, so no shim can be loaded into it"),
            Kind::Go => Some("is a Go program, and Go takes its memory from the kernel by itself"),
            Kind::Privileged => {
                Some("gains privileges (set-user-ID or capabilities), so no shim is loaded into it")
            }
            Kind::Foreign => Some("is for another processor or 32 bits, and the shim is not"),
        }
    }

    /// The name under which JSON shows it.
    pub const fn name(&self) -> &'static str {
        match self {
            Kind::Dynamic => "dynamic",
            Kind::Static => "static",
            Kind::Go => "go",
            Kind::Privileged => "privileged",
            Kind::Foreign => "foreign",
            Kind::Other => "other",
        }
    }
}

/// A program's file, with scripts followed to their interpreters.
#[derive(Clone, Debug)]
pub struct Program {
    /// The file that the kernel runs in the end.
    pub path: PathBuf,
    /// Its kind.
    pub kind: Kind,
}

/// Scripts whose interpreters are scripts: the kernel follows that many (`exec.c`).
const MAX_SCRIPTS: usize = 5;
/// The kernel looks at so much of a script's first line (`BINPRM_BUF_SIZE`).
const MAX_LINE: u64 = 256;

/// Finds `name` as `execvp` would, and tells its kind. `None` if there is no such program.
pub fn look_up(name: &OsStr) -> Option<Program> {
    let mut path = in_path(name)?;
    for _ in 0..MAX_SCRIPTS {
        match interpreter(&path) {
            Some(next) => path = next,
            None => break,
        }
    }
    let kind = kind_of_file(&path);
    Some(Program { path, kind })
}

fn in_path(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name));
    }
    let folders = env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.mode() & 0o111 != 0)
}

/// The program that interprets a script; for `#!/usr/bin/env NAME`, the program NAME.
fn interpreter(path: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    open(path)?.take(MAX_LINE).read_to_end(&mut start).ok()?;
    let words = shebang(&start)?;
    let mut words = words.split(|byte| b" \t".contains(byte)).filter(|word| !word.is_empty());
    let first = words.next()?;
    if first.rsplit(|&byte| byte == b'/').next() == Some(b"env") {
        let is_name = |word: &&[u8]| word[0] != b'-' && !word.contains(&b'=');
        return in_path(OsStr::from_bytes(words.find(is_name)?));
    }
    Some(PathBuf::from(OsString::from_vec(first.to_vec())))
}

/// Opens a plain file. A pipe of that name may have taken its place, and would be waited for.
fn open(path: &Path) -> Option<File> {
    let mut options = File::options();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.metadata().is_ok_and(|it| it.is_file()).then_some(file)
}

fn shebang(start: &[u8]) -> Option<&[u8]> {
    start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()
}

fn kind_of_file(path: &Path) -> Kind {
    let Ok(metadata) = fs::metadata(path) else {
        return Kind::Other;
    };
    if gains_privileges(path, &metadata) {
        return Kind::Privileged;
    }
    open(path).map_or(Kind::Other, |file| kind(&ReadCache::new(file)))
}

fn gains_privileges(path: &Path, metadata: &fs::Metadata) -> bool {
    const SET_USER_ID: u32 = 0o4000;
    const SET_GROUP_ID: u32 = 0o2000;
    let mode = metadata.mode();
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    // The loader compares: a set-user-ID program of one's own gains nothing.
    mode & SET_USER_ID != 0 && metadata.uid() != user.as_raw()
        || mode & SET_GROUP_ID != 0 && metadata.gid() != group.as_raw()
        || rustix::fs::getxattr(path, "security.capability", &mut [0u8; 0][..])
            .is_ok_and(|size| size > 0)
}

/// The kind of a program, from its bytes.
pub fn kind<'data, R: ReadRef<'data>>(data: R) -> Kind {
    let Ok(ident) = data.read_bytes_at(0, 5) else {
        return Kind::Other;
    };
    match ident {
        [0x7f, b'E', b'L', b'F', 2] => kind_64(data).unwrap_or(Kind::Other),
        [0x7f, b'E', b'L', b'F', 1] => Kind::Foreign,
        _ => Kind::Other,
    }
}

fn kind_64<'data, R: ReadRef<'data>>(data: R) -> object::read::Result<Kind> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    if !is_native(header.e_machine(endian)) {
        return Ok(Kind::Foreign);
    }
    // A program without sections' names is none that Go made.
    if is_go(header, endian, data).unwrap_or(false) {
        return Ok(Kind::Go);
    }
    let segments = header.program_headers(endian, data)?;
    let dynamic = segments.iter().any(|segment| segment.p_type(endian) == PT_INTERP);
    Ok(if dynamic { Kind::Dynamic } else { Kind::Static })
}

/// The names of all sections are read at once: one by one, they take two system calls each.
fn is_go<'data, R: ReadRef<'data>>(
    header: &FileHeader64<Endianness>,
    endian: Endianness,
    data: R,
) -> object::read::Result<bool> {
    let sections = header.sections(endian, data)?;
    let names = sections.section(header.section_strings_index(endian, data)?)?;
    let names = names.data(endian, data)?;
    let names = StringTable::new(names, 0, names.len() as u64);
    let is_gos = |section: &SectionHeader64<Endianness>| {
        let name = section.name(endian, names);
        matches!(name, Ok(b".go.buildinfo" | b".note.go.buildid" | b".gopclntab"))
    };
    Ok(sections.iter().any(is_gos))
}

const fn is_native(machine: Machine) -> bool {
    match machine {
        EM_X86_64 => cfg!(target_arch = "x86_64"),
        EM_AARCH64 => cfg!(target_arch = "aarch64"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn this_test() -> Vec<u8> {
        let mut start = Vec::new();
        let file = File::open(env::current_exe().expect("a path")).expect("readable");
        file.take(1 << 16).read_to_end(&mut start).expect("readable");
        start
    }

    #[test]
    fn this_program_is_dynamic() {
        assert_eq!(kind_of_file(&env::current_exe().expect("a path")), Kind::Dynamic);
    }

    #[test]
    fn strangers_are_other() {
        assert_eq!(kind(&b""[..]), Kind::Other);
        assert_eq!(kind(&b"#!/bin/sh"[..]), Kind::Other);
        assert_eq!(kind(&b"\x7fELF"[..]), Kind::Other);
        assert_eq!(kind(&b"\x7fELF\x01"[..]), Kind::Foreign);
        assert_eq!(kind_of_file(Path::new("/no/such/file")), Kind::Other);
        assert_eq!(kind_of_file(Path::new("/")), Kind::Other);
    }

    #[test]
    fn nothing_waits_for_a_pipe() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        let name = std::ffi::CString::new(pipe.as_os_str().as_bytes()).expect("no zero byte");
        // SAFETY: a plain system call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o700) }, 0);
        let found = look_up(pipe.as_os_str()).expect("a name is enough");
        assert_eq!(found.kind, Kind::Other);
    }

    #[test]
    fn scripts_lead_to_their_interpreter() {
        let path = tempfile::NamedTempFile::new().expect("a file").into_temp_path();
        fs::write(&path, "#!/usr/bin/env -S sh -e\n").expect("writable");
        assert_eq!(interpreter(&path), in_path(OsStr::new("sh")));
        fs::write(&path, "#! /bin/sh -e\n").expect("writable");
        assert_eq!(interpreter(&path), Some(PathBuf::from("/bin/sh")));
        fs::write(&path, "#!").expect("writable");
        assert_eq!(interpreter(&path), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
            kind(&bytes[..]);
            let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
            elf.extend(&bytes);
            kind(&elf[..]);
        }

        #[test]
        fn no_damage_makes_it_panic(
            cut in 0usize..1 << 16,
            damage in proptest::collection::vec((0usize..1024, any::<u8>()), 0..16),
        ) {
            let mut bytes = this_test();
            bytes.truncate(cut);
            for (at, byte) in damage {
                if let Some(there) = bytes.get_mut(at) {
                    *there = byte;
                }
            }
            kind(&bytes[..]);
        }
    }
}
