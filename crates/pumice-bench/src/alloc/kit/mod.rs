//! The folder of inputs, and the parts of the machine that the loads use: interpreter, modules, compilers.
//!
//! | module | contents |
//! |---|---|
//! | [`inputs`] | generated files |
//! | [`tools`] | programs of the machine, and what they make: compiled programs, a database |

mod inputs;
mod tools;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::loads::{Clock, Input, Load, Need};
use crate::c_program;
use crate::team::folder::Folder;
use pumice_command::Failure;

const MALLOC_SOURCE: &str = include_str!("../loads/malloc.c");
const HASH_TABLE_SOURCE: &str = include_str!("../loads/hash_table.c");

/// How large the loads are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// As they are meant.
    Full,
    /// As small as they still say something.
    Small,
}

/// The parts that loads are made of. Its folder goes with it.
#[derive(Debug)]
pub struct Kit {
    folder: Folder,
    size: Size,
    python: Option<OsString>,
}

/// A load that can run: its inputs are there.
#[derive(Debug)]
pub struct Ready {
    /// The program and its arguments.
    pub line: Vec<OsString>,
    /// How its time is taken.
    pub clock: Clock,
}

impl Kit {
    /// Makes the folder.
    pub fn new(size: Size) -> Result<Kit, Failure> {
        Ok(Kit { folder: Folder::make(None, "alloc")?, size, python: tools::find_python() })
    }

    /// Where the inputs lie, and where programs may write.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Makes the inputs of a load. `Err` says what is missing.
    pub fn ready(&self, load: &Load) -> Result<Ready, String> {
        for need in load.needs {
            self.check(need)?;
        }
        let amount = match self.size {
            Size::Full => load.amount.full,
            Size::Small => load.amount.quick,
        };
        let words = load.line.iter().map(|&word| self.word(word, load.input, amount));
        Ok(Ready { line: words.collect::<Result<_, _>>()?, clock: load.clock })
    }

    fn check(&self, need: &Need) -> Result<(), String> {
        match *need {
            Need::Program(name, install) if !tools::is_installed(name) => {
                Err(format!("{name} is not installed: {install}"))
            }
            Need::Module(name, install) if !tools::has_module(self.python()?, name) => {
                Err(format!("Python has no module {name}: {install}"))
            }
            Need::Program(..) | Need::Module(..) => Ok(()),
        }
    }

    fn python(&self) -> Result<&OsString, String> {
        let missing = || "python3 is not installed: apt-get install python3".to_owned();
        self.python.as_ref().ok_or_else(missing)
    }

    /// The meaning of a word of a load's line.
    fn word(&self, word: &str, input: Input, amount: u64) -> Result<OsString, String> {
        match word {
            "{python}" => self.python().cloned(),
            "{folder}" => Ok(self.folder().into()),
            "{amount}" => Ok(amount.to_string().into()),
            "{input}" if input == Input::Database => {
                tools::database(self.folder()).map(OsString::from)
            }
            "{input}" => self
                .input(input, amount)
                .map(OsString::from)
                .map_err(|error| format!("no input in {}: {error}", self.folder().display())),
            "{malloc}" => self.compiled("malloc", MALLOC_SOURCE),
            "{hash-table}" => self.compiled("hash-table", HASH_TABLE_SOURCE),
            "{cgo}" => tools::go_program(self.folder()).map(OsString::from),
            "{classes}" => tools::java_classes(self.folder()).map(OsString::from),
            word => Ok(word.into()),
        }
    }

    fn input(&self, input: Input, amount: u64) -> io::Result<PathBuf> {
        inputs::write(self.folder(), input, amount)
    }

    fn compiled(&self, name: &str, source: &str) -> Result<OsString, String> {
        let program = self.folder().join(name);
        if !program.exists() {
            c_program::compile(name, source, self.folder())?;
        }
        Ok(program.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_goes_with_the_kit() {
        let kit = Kit::new(Size::Small).expect("a folder");
        let folder = kit.folder().to_owned();
        let input = kit.input(Input::Source, 2).expect("a file");
        assert!(input.starts_with(&folder) && input.is_file());
        drop(kit);
        assert!(!folder.exists());
    }
}
