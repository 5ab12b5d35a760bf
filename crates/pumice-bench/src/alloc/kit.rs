//! The folder of inputs, and the parts of the machine that the loads use: interpreter, modules, compiler.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::loads::{Input, Load, Need};
use crate::c_program;
use crate::team::folder::Folder;
use pumice_command::random::Random;
use pumice_command::Failure;

const MALLOC_SOURCE: &str = include_str!("loads/malloc.c");
const HASH_TABLE_SOURCE: &str = include_str!("loads/hash_table.c");
/// Functions of a file of a project.
const PROJECT_FUNCTIONS: u64 = 12;
/// Words that texts are made of.
const WORDS: usize = 4096;

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
    /// The interpreter itself: what is called `python3` may be a script that looks for it.
    python: Option<OsString>,
}

impl Kit {
    /// Makes the folder.
    pub fn new(size: Size) -> Result<Kit, Failure> {
        Ok(Kit { folder: Folder::make(None, "alloc")?, size, python: find_python() })
    }

    /// Where the inputs lie, and where programs may write.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The program and arguments of a load, whose inputs are there from now on. `Err` says what is
    /// missing.
    pub fn line(&self, load: &Load) -> Result<Vec<OsString>, String> {
        for need in load.needs {
            self.check(need)?;
        }
        let amount = match self.size {
            Size::Full => load.amount.full,
            Size::Small => load.amount.quick,
        };
        load.line.iter().map(|&word| self.word(word, load.input, amount)).collect()
    }

    fn check(&self, need: &Need) -> Result<(), String> {
        match *need {
            Need::Program(name, install) if !is_in_path(name) => {
                Err(format!("{name} is not installed: {install}"))
            }
            Need::Module(name, install) => match &self.python {
                None => Err("python3 is not installed: apt-get install python3".to_owned()),
                Some(python) if !has_module(python, name) => {
                    Err(format!("Python has no module {name}: {install}"))
                }
                Some(_) => Ok(()),
            },
            Need::Program(..) => Ok(()),
        }
    }

    /// The meaning of a word of a load's line.
    fn word(&self, word: &str, input: Input, amount: u64) -> Result<OsString, String> {
        match word {
            "{python}" => self.python.clone().ok_or_else(|| "there is no python3".to_owned()),
            "{folder}" => Ok(self.folder().into()),
            "{amount}" => Ok(amount.to_string().into()),
            "{input}" => self
                .input(input, amount)
                .map(OsString::from)
                .map_err(|error| format!("no input in {}: {error}", self.folder().display())),
            "{malloc}" => self.compiled("malloc", MALLOC_SOURCE),
            "{hash-table}" => self.compiled("hash-table", HASH_TABLE_SOURCE),
            word => Ok(word.into()),
        }
    }

    fn input(&self, input: Input, amount: u64) -> io::Result<PathBuf> {
        let name = match input {
            Input::None => return Err(io::ErrorKind::InvalidInput.into()),
            Input::Text => format!("{amount}.txt"),
            Input::Source => format!("{amount}.c"),
            Input::Project => format!("project-{amount}"),
        };
        let path = self.folder().join(name);
        if input == Input::Project {
            write_project(&path, amount)?;
            return Ok(path);
        }
        // Piece by piece: what this process has allocated is a lower limit to what its children
        // are said to have had resident.
        let mut out = BufWriter::new(File::create(&path)?);
        match input {
            Input::Source => write_source(&mut out, "f", amount, 2)?,
            _ => write_text(&mut out, amount)?,
        }
        out.flush()?;
        Ok(path)
    }

    fn compiled(&self, name: &str, source: &str) -> Result<OsString, String> {
        let program = self.folder().join(name);
        if !program.exists() {
            c_program::compile(name, source, self.folder())?;
        }
        Ok(program.into())
    }
}

fn find_python() -> Option<OsString> {
    let printing = "import sys; print(sys.executable, end='')";
    let output = quiet("python3").args(["-c", printing]).output().ok()?;
    (output.status.success() && !output.stdout.is_empty())
        .then(|| OsString::from_vec(output.stdout))
}

fn has_module(python: &OsStr, module: &str) -> bool {
    let looking = "import sys; from importlib.util import find_spec\n\
                   sys.exit(find_spec(sys.argv[1]) is None)";
    let status = quiet(python).args(["-c", looking, module]).status();
    status.is_ok_and(|status| status.success())
}

/// A command that neither reads nor complains.
fn quiet(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command
}

fn is_in_path(program: &str) -> bool {
    let paths = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&paths).any(|path| path.join(program).is_file());
    found
}

/// Lines of words, of which some are far more frequent than others.
fn write_text(out: &mut impl Write, bytes: u64) -> io::Result<()> {
    let mut random = Random::new(1);
    let words: Vec<String> = (0..WORDS)
        .map(|_| {
            let letters = 2 + random.below(9);
            (0..letters).map(|_| char::from(b'a' + random.below(26) as u8)).collect()
        })
        .collect();
    let mut written = 0;
    while written < bytes {
        for _ in 0..4 + random.below(10) {
            let word = &words[random.below(WORDS) * random.below(WORDS) / WORDS];
            write!(out, "{word} ")?;
            written += word.len() as u64 + 1;
        }
        writeln!(out, "{}", random.below(100_000))?;
        written += 6;
    }
    Ok(())
}

/// A program of so many files, each of which includes what programs include, and a Makefile.
fn write_project(folder: &Path, files: u64) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut main = BufWriter::new(File::create(folder.join("main.c"))?);
    writeln!(main, "#include <stdio.h>")?;
    for file in 0..files {
        let name = format!("part{file}_f");
        let mut out = BufWriter::new(File::create(folder.join(format!("part{file}.c")))?);
        for header in ["stdio.h", "stdlib.h", "string.h", "math.h", "errno.h", "time.h"] {
            writeln!(out, "#include <{header}>")?;
        }
        write_source(&mut out, &name, PROJECT_FUNCTIONS, file)?;
        out.flush()?;
        writeln!(main, "int {name}0(void *, const int *, int);")?;
    }
    writeln!(main, "int main(void) {{ int sum = 0, x[1] = {{1}};")?;
    for file in 0..files {
        writeln!(main, "    sum += part{file}_f0(NULL, x, 0);")?;
    }
    writeln!(main, "    return printf(\"%d\\n\", sum) < 0;\n}}")?;
    main.flush()?;
    let makefile = "parts := $(patsubst %.c,%.o,$(wildcard *.c))\nall: program\n\
                    program: $(parts)\n\tcc -o $@ $^\n\
                    %.o: %.c\n\tcc -O2 -g -Wno-all -c -o $@ $<\n";
    fs::write(folder.join("Makefile"), makefile)
}

/// C functions that an optimiser finds something to do in, whose names begin so.
fn write_source(out: &mut impl Write, name: &str, functions: u64, seed: u64) -> io::Result<()> {
    let mut random = Random::new(seed);
    for index in 0..functions {
        let [a, b, c] = [3, 5, 7].map(|least| least + random.below(1000));
        writeln!(out, "struct s{index} {{ int key; double value[{}]; }};", 1 + a % 7)?;
        writeln!(out, "int {name}{index}(struct s{index} *s, const int *x, int n) {{")?;
        writeln!(out, "    int sum = {a}, most = 0;")?;
        writeln!(out, "    for (int i = 0; i < n; i++) {{")?;
        writeln!(out, "        switch ((x[i] ^ sum) % {}) {{", 3 + b % 5)?;
        writeln!(out, "        case 0: sum += x[i] * {b}; break;")?;
        writeln!(out, "        case 1: sum ^= s[i % {c}].key >> 2; break;")?;
        writeln!(out, "        default: s[i].value[0] += sum / {c}.0;")?;
        writeln!(out, "        }}")?;
        writeln!(out, "        if (sum > most) most = sum - i * {a};")?;
        writeln!(out, "    }}")?;
        if index > 0 {
            let earlier = random.below(index as usize);
            writeln!(out, "    if (n > {b}) most += {name}{earlier}((void *)s, x + 1, n / 2);")?;
        }
        writeln!(out, "    return sum - most;\n}}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_always_the_same() {
        let texts: [Vec<u8>; 2] = std::array::from_fn(|_| {
            let mut text = Vec::new();
            write_text(&mut text, 10_000).expect("memory");
            text
        });
        assert_eq!(texts[0], texts[1]);
        assert!((10_000..11_000).contains(&texts[0].len()));
    }

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
