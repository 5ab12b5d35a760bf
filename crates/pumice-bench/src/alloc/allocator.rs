//! The providers of memory, and how a program is started under each.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;

use crate::names::named;
use crate::slot_daemon::own_program;
use pumice_command::Failure;

named! {
    /// The allocators.
    #[derive(ValueEnum)]
    pub enum Allocator {
        /// nothing preloaded
        Glibc = "glibc",
        /// glibc, advised to use huge pages
        GlibcHuge = "glibc-huge",
        /// Microsoft's, preloaded
        Mimalloc = "mimalloc",
        /// that of FreeBSD, preloaded
        Jemalloc = "jemalloc",
        /// Google's, from gperftools, preloaded
        Tcmalloc = "tcmalloc",
        /// `pumice run`
        Pumice = "pumice",
        /// `pumice run --mmap`, only when it is named
        PumiceMmap = "pumice-mmap",
    }
}

impl Allocator {
    /// Whether it is one of the settings that others are compared with.
    pub fn is_glibc(self) -> bool {
        matches!(self, Allocator::Glibc | Allocator::GlibcHuge)
    }

    /// Whether it runs where nobody names allocators.
    pub fn is_usual(self) -> bool {
        self != Allocator::PumiceMmap
    }

    /// Whether it is pumice, with or without mappings.
    pub fn is_pumice(self) -> bool {
        matches!(self, Allocator::Pumice | Allocator::PumiceMmap)
    }

    /// How a program is started under it; Debian's package if it is not installed.
    pub fn find(self) -> Result<Result<Preload, &'static str>, Failure> {
        let (mut before, mut variable) = (Vec::new(), None);
        match self {
            Allocator::Glibc => {}
            Allocator::GlibcHuge => {
                variable = Some(("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1".into()));
            }
            Allocator::Pumice => {
                before = vec![own_program()?.into(), "run".into(), "--".into()];
            }
            Allocator::PumiceMmap => {
                before = vec![own_program()?.into(), "run".into(), "--mmap".into(), "--".into()];
            }
            Allocator::Mimalloc | Allocator::Jemalloc | Allocator::Tcmalloc => {
                let (file, package) = self.library();
                let Some(path) = find_library(file) else { return Ok(Err(package)) };
                variable = Some(("LD_PRELOAD", path.into()));
            }
        }
        Ok(Ok(Preload { allocator: self, before, variable }))
    }

    /// How the name of the library's file starts, and Debian's package.
    fn library(self) -> (&'static str, &'static str) {
        match self {
            Allocator::Mimalloc => ("libmimalloc.so.2", "libmimalloc2.0"),
            Allocator::Jemalloc => ("libjemalloc.so.2", "libjemalloc2"),
            _ => ("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
        }
    }
}

/// How a program is started under an allocator.
#[derive(Debug)]
pub struct Preload {
    /// Which one.
    pub allocator: Allocator,
    /// Words before the program's own.
    before: Vec<OsString>,
    variable: Option<(&'static str, OsString)>,
}

impl Preload {
    /// The command for `line`, whose environment says nothing else about allocators.
    pub fn command(&self, line: &[OsString]) -> Command {
        let mut words = self.before.iter().chain(line);
        let mut command = Command::new(words.next().expect("a line has a program"));
        command.args(words);
        for (name, _) in env::vars_os().filter(|(name, _)| is_about_allocators(name)) {
            command.env_remove(name);
        }
        // The same words, numbers and order for everybody.
        command.env("LC_ALL", "C").env("PYTHONHASHSEED", "0");
        if let Some((name, value)) = &self.variable {
            command.env(name, value);
        }
        command
    }
}

fn is_about_allocators(name: &OsString) -> bool {
    const PREFIXES: [&str; 6] =
        ["PUMICE", "LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_", "MIMALLOC_", "TCMALLOC_"];
    PREFIXES.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
}

/// The first file in the linker's usual folders whose name starts so.
fn find_library(prefix: &str) -> Option<PathBuf> {
    let of_debian = format!("/usr/lib/{}-linux-gnu", env::consts::ARCH);
    let folders = [&*of_debian, "/usr/lib64", "/usr/lib", "/usr/local/lib"];
    folders.iter().find_map(|folder| {
        let entries = Path::new(folder).read_dir().ok()?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let is_it = |path: &PathBuf| {
            path.file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
        };
        paths.filter(is_it).min()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_command_lines_and_jsons() {
        for allocator in Allocator::ALL {
            let typed = allocator.to_possible_value().expect("it can be typed");
            assert_eq!(typed.get_name(), allocator.name());
        }
    }

    #[test]
    fn the_callers_allocator_is_left_out() {
        for name in ["LD_PRELOAD", "PUMICE_READY", "MALLOC_ARENA_MAX"] {
            assert!(is_about_allocators(&name.into()));
        }
        assert!(!is_about_allocators(&"PATH".into()));
    }
}
