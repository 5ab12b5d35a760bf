//! Generated files and folders: texts, C, C++ and Rust, JavaScript modules. They are the same each time.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::alloc::loads::Input;
use pumice_command::random::Random;

/// Functions of a file of a project.
const PROJECT_FUNCTIONS: u64 = 12;
/// Functions of a module of Rust, which take long to compile, and of JavaScript.
const RUST_FUNCTIONS: u64 = 3;
const SCRIPT_FUNCTIONS: u64 = 12;
/// Words that texts are made of.
const WORDS: usize = 4096;

/// Writes an input in `folder`: its path.
pub fn write(folder: &Path, input: Input, amount: u64) -> io::Result<PathBuf> {
    let name = match input {
        Input::None | Input::Database => return Err(io::ErrorKind::InvalidInput.into()),
        Input::Text => format!("{amount}.txt"),
        Input::Source => format!("{amount}.c"),
        Input::Cxx => format!("{amount}.cpp"),
        Input::Rust => format!("{amount}.rs"),
        Input::Project => format!("project-{amount}"),
        Input::Modules => format!("modules-{amount}"),
    };
    let path = folder.join(name);
    match input {
        Input::Project => write_project(&path, amount)?,
        Input::Modules => return write_modules(&path, amount),
        _ => {
            // Piece by piece: this process's allocations are a lower limit to the resident memory that its children are
            // said to have had.
            let mut out = BufWriter::new(File::create(&path)?);
            match input {
                Input::Source => write_source(&mut out, "f", amount, 2)?,
                Input::Cxx => write_cxx(&mut out, amount)?,
                Input::Rust => write_rust(&mut out, amount)?,
                _ => write_text(&mut out, amount)?,
            }
            out.flush()?;
        }
    }
    Ok(path)
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

/// C++ functions, each with containers and algorithms of the library for a type of its own.
fn write_cxx(out: &mut impl Write, functions: u64) -> io::Result<()> {
    for header in ["algorithm", "map", "regex", "string", "unordered_map", "vector"] {
        writeln!(out, "#include <{header}>")?;
    }
    for index in 0..functions {
        writeln!(
            out,
            "struct s{index} {{ int key; bool operator<(const s{index} &o) const {{ return key < o.key; }} }};\n\
             int f{index}(int n) {{\n\
             \x20   std::map<std::string, std::vector<s{index}>> m; m[\"a\"] = {{{{3}}, {{n}}}};\n\
             \x20   std::unordered_map<int, std::vector<s{index}>> u; u[n] = m[\"a\"];\n\
             \x20   std::sort(u[n].begin(), u[n].end());\n\
             \x20   return std::regex_match(\"abc\", std::regex(\"a.c\")) + u[n][0].key;\n}}"
        )?;
    }
    Ok(())
}

/// Rust modules: each has a type of its own, for which code that is generic is compiled anew.
fn write_rust(out: &mut impl Write, modules: u64) -> io::Result<()> {
    let mut random = Random::new(3);
    for module in 0..modules {
        writeln!(out, "pub mod m{module} {{\n    use std::collections::BTreeMap;")?;
        writeln!(out, "    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]")?;
        writeln!(
            out,
            "    pub struct Key {{ pub name: String, pub parts: Vec<u{}> }}",
            8 << (module % 4)
        )?;
        for function in 0..RUST_FUNCTIONS {
            let [a, b] = [3, 7].map(|least| least + random.below(1000));
            writeln!(
                out,
                "    pub fn f{function}(keys: &[Key], by: u64) -> BTreeMap<Key, u64> {{"
            )?;
            writeln!(out, "        let mut found = BTreeMap::new();")?;
            writeln!(out, "        for (at, key) in keys.iter().enumerate().filter(|(at, _)| at % {a} != 1) {{")?;
            writeln!(
                out,
                "            let sum = key.parts.iter().map(|&it| it as u64 ^ by).sum::<u64>();"
            )?;
            writeln!(
                out,
                "            *found.entry(key.clone()).or_insert({b}) += sum * at as u64;"
            )?;
            writeln!(
                out,
                "        }}\n        found.retain(|key, sum| key.name.len() as u64 != *sum);"
            )?;
            writeln!(out, "        found\n    }}")?;
        }
        writeln!(out, "}}")?;
    }
    Ok(())
}

/// JavaScript modules, of which each imports some before it: the path of the last, which needs them all.
fn write_modules(folder: &Path, modules: u64) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let mut random = Random::new(4);
    let mut path = folder.to_owned();
    for module in 0..modules {
        path = folder.join(format!("m{module}.js"));
        let mut out = BufWriter::new(File::create(&path)?);
        if module > 0 {
            let earlier = random.below(module as usize);
            writeln!(out, "import * as last from './m{}.js';", module - 1)?;
            writeln!(
                out,
                "import {{ f{module} as other }} from './m{earlier}.js';",
                module = module % 2
            )?;
        }
        for function in 0..SCRIPT_FUNCTIONS {
            let [a, b] = [3, 7].map(|least| least + random.below(1000));
            writeln!(out, "export function f{function}(list, by = {a}) {{")?;
            writeln!(out, "    const sums = new Map();")?;
            writeln!(
                out,
                "    for (const {{ key, value }} of list.filter((it) => it.value % {b} !== 0)) {{"
            )?;
            writeln!(out, "        sums.set(key, (sums.get(key) ?? by) + (value > {a} ? value * by : value));")?;
            writeln!(out, "    }}")?;
            if module > 0 {
                writeln!(out, "    if (by > {b}) return last.f{function}(other(list, by - 1));")?;
            }
            writeln!(out, "    return [...sums].map(([key, value]) => ({{ key, value }}));\n}}")?;
        }
        out.flush()?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_always_the_same() {
        type Writer = fn(&mut Vec<u8>, u64) -> io::Result<()>;
        let writers: [(Writer, u64); 3] = [(write_text, 10_000), (write_rust, 3), (write_cxx, 2)];
        for (write, amount) in writers {
            let texts: [Vec<u8>; 2] = std::array::from_fn(|_| {
                let mut text = Vec::new();
                write(&mut text, amount).expect("memory");
                text
            });
            assert_eq!(texts[0], texts[1]);
        }
        let mut text = Vec::new();
        write_text(&mut text, 10_000).expect("memory");
        assert!((10_000..11_000).contains(&text.len()));
    }

    #[test]
    fn modules_import_those_before_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let last = write(folder.path(), Input::Modules, 3).expect("files");
        assert!(last.ends_with("modules-3/m2.js"));
        let text = fs::read_to_string(last).expect("a file");
        assert!(text.starts_with("import * as last from './m1.js';"), "{text}");
    }
}
