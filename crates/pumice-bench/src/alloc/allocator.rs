//! The providers of memory, and how a program is started under each.

use std::env;
use std::ffi::OsString;
use std::process::Command;

use clap::ValueEnum;

use crate::names::named;
use crate::slot_daemon::own_program;
use pumice_command::small::{Small, SmallLibrary, ENV_TUNABLES, HUGE_HEAP};
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
        /// `pumice run --small mimalloc`, only when it is named
        PumiceMimalloc = "pumice-mimalloc",
        /// `pumice run --small jemalloc`, only when it is named
        PumiceJemalloc = "pumice-jemalloc",
        /// `pumice run --small tcmalloc`, only when it is named
        PumiceTcmalloc = "pumice-tcmalloc",
        /// `pumice run --small glibc-huge`, only when it is named
        PumiceGlibcHuge = "pumice-glibc-huge",
    }
}

impl Allocator {
    /// Whether it is one of the settings that others are compared with.
    pub fn is_glibc(self) -> bool {
        matches!(self, Allocator::Glibc | Allocator::GlibcHuge)
    }

    /// Whether it runs where nobody names allocators.
    pub fn is_usual(self) -> bool {
        !self.is_pumice() || self == Allocator::Pumice
    }

    /// Whether it is pumice, with whatever flags.
    pub fn is_pumice(self) -> bool {
        self.flags().is_some()
    }

    /// The flags of `pumice run`, where it is pumice.
    fn flags(self) -> Option<&'static [&'static str]> {
        Some(match self {
            Allocator::Pumice => &[],
            Allocator::PumiceMmap => &["--mmap"],
            Allocator::PumiceMimalloc => &["--small", "mimalloc"],
            Allocator::PumiceJemalloc => &["--small", "jemalloc"],
            Allocator::PumiceTcmalloc => &["--small", "tcmalloc"],
            Allocator::PumiceGlibcHuge => &["--small", "glibc-huge"],
            _ => return None,
        })
    }

    /// The installed library that it needs.
    fn library(self) -> Option<SmallLibrary> {
        let small = match self {
            Allocator::Mimalloc | Allocator::PumiceMimalloc => Small::Mimalloc,
            Allocator::Jemalloc | Allocator::PumiceJemalloc => Small::Jemalloc,
            Allocator::Tcmalloc | Allocator::PumiceTcmalloc => Small::Tcmalloc,
            _ => return None,
        };
        small.library()
    }

    /// How a program is started under it; Debian's package if it is not installed.
    pub fn find(self) -> Result<Result<Preload, &'static str>, Failure> {
        let (mut before, mut variable) = (Vec::new(), None);
        if self == Allocator::GlibcHuge {
            variable = Some((ENV_TUNABLES, HUGE_HEAP.into()));
        }
        if let Some(library) = self.library() {
            let Some(path) = library.find() else { return Ok(Err(library.package)) };
            variable = Some(("LD_PRELOAD", path.into()));
        }
        if let Some(flags) = self.flags() {
            before.extend([own_program()?.into(), OsString::from("run")]);
            before.extend(flags.iter().map(OsString::from));
            before.push("--".into());
            variable = None;
        }
        Ok(Ok(Preload { allocator: self, before, variable }))
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
