//! Allocators that can serve the requests which are too small for the shim.
//!
//! The shim hands small requests to whichever allocator comes next. That is the C library's, unless `LD_PRELOAD` names
//! another one behind the shim. glibc's uses huge pages for its heap if it is told to.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use crate::Failure;

/// The allocators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Small {
    /// Microsoft's
    Mimalloc,
    /// that of FreeBSD
    Jemalloc,
    /// Google's, from gperftools
    Tcmalloc,
    /// glibc's own, with its heap in huge pages
    GlibcHuge,
}

/// The variable that tells glibc, a list with colons between...
pub const ENV_TUNABLES: &str = "GLIBC_TUNABLES";
/// ... to advise the kernel to use huge pages: glibc(3) from 2.35 on, others pass it over.
pub const HUGE_HEAP: &str = "glibc.malloc.hugetlb=1";

impl Small {
    /// Its library; `None` where it is the C library's.
    pub const fn library(self) -> Option<SmallLibrary> {
        let (names, package): (&[_], _) = match self {
            Small::Mimalloc => (&["libmimalloc.so"], "libmimalloc2.0"),
            Small::Jemalloc => (&["libjemalloc.so"], "libjemalloc2"),
            Small::Tcmalloc => {
                (&["libtcmalloc_minimal.so", "libtcmalloc.so"], "libtcmalloc-minimal4")
            }
            Small::GlibcHuge => return None,
        };
        Some(SmallLibrary { names, package })
    }

    /// Where its library is, if it has one.
    ///
    /// # Errors
    /// Names the package to install where there is none.
    pub fn find_or_explain(self) -> Result<Option<PathBuf>, Failure> {
        let Some(library) = self.library() else { return Ok(None) };
        library.find().map(Some).ok_or_else(|| {
            let name = self.to_possible_value().map_or(String::new(), |it| it.get_name().to_owned());
            let package = library.package;
            Failure::usage(format!(
                "--small {name}: it is not installed; apt-get install {package}, or name the folder of its library \
                 in LD_LIBRARY_PATH"
            ))
        })
    }
}

/// An allocator's library.
#[derive(Clone, Copy, Debug)]
pub struct SmallLibrary {
    /// The starts of its file name, the best one first.
    names: &'static [&'static str],
    /// Debian's package.
    pub package: &'static str,
}

impl SmallLibrary {
    /// Where it is for this processor: the newest in the first folder that has one. The folders are those of
    /// `LD_LIBRARY_PATH` and the loader's usual ones.
    pub fn find(self) -> Option<PathBuf> {
        let of_debian = format!("/usr/lib/{}-linux-gnu", env::consts::ARCH);
        let usual = ["/usr/local/lib", "/usr/local/lib64", &of_debian, "/usr/lib64", "/usr/lib"];
        let asked = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let folders: Vec<PathBuf> = env::split_paths(&asked)
            .filter(|folder| folder.is_absolute())
            .chain(usual.into_iter().map(PathBuf::from))
            .collect();
        self.names
            .iter()
            .flat_map(|name| folders.iter().map(move |folder| newest(folder, name)))
            .find_map(|it| it)
    }
}

/// The library of the highest version in a folder that `LD_PRELOAD` can name.
fn newest(folder: &Path, name: &str) -> Option<PathBuf> {
    let separates = |byte: &u8| b" :".contains(byte);
    if folder.as_os_str().as_bytes().iter().any(separates) {
        return None;
    }
    let found = folder.read_dir().ok()?.filter_map(|entry| {
        let path = entry.ok()?.path();
        let version = version(path.file_name()?, name)?;
        is_for_this_processor(&path).then_some((version, path))
    });
    found.max().map(|(_, path)| path)
}

/// The numbers behind a library's name: none for `libx.so`, `[2, 0]` for `libx.so.2.0`. `None`: another library.
fn version(file: &OsStr, name: &str) -> Option<Vec<u32>> {
    match file.to_str()?.strip_prefix(name)? {
        "" => Some(Vec::new()),
        rest => rest.strip_prefix('.')?.split('.').map(|number| number.parse().ok()).collect(),
    }
}

/// Whether a file starts as this program does: as ELF of the same class, byte order and machine.
fn is_for_this_processor(path: &Path) -> bool {
    let kind = |path: &Path| {
        let mut header = [0; 20];
        File::open(path).ok()?.read_exact(&mut header).ok()?;
        Some((header[..6].to_owned(), header[18..].to_owned()))
    };
    kind(path).is_some_and(|it| Some(it) == kind(Path::new("/proc/self/exe")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers_behind_the_name() {
        let of = |file: &str| version(OsStr::new(file), "libtcmalloc_minimal.so");
        assert_eq!(of("libtcmalloc_minimal.so"), Some(vec![]));
        assert_eq!(of("libtcmalloc_minimal.so.4.5.10"), Some(vec![4, 5, 10]));
        assert!(of("libtcmalloc_minimal.so.4.5.10") > of("libtcmalloc_minimal.so.4"));
        assert!(of("libtcmalloc_minimal.so.10") > of("libtcmalloc_minimal.so.9.9"));
        for other in ["libtcmalloc_minimal_debug.so.4", "libtcmalloc_minimal.so.4.old", "libc.so"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_no_library_of_this_processor_is_passed_over() {
        assert!(is_for_this_processor(Path::new("/proc/self/exe")));
        assert!(!is_for_this_processor(Path::new("/etc/passwd")));
        assert!(!is_for_this_processor(Path::new("/nonexistent")));
    }
}
