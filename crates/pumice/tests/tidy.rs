//! Holds the sources to the rules of the house that neither rustfmt nor clippy checks.
//!
//! The rules look at what ships: a file's code ends where its `#[cfg(test)]` module starts. They
//! read lines, not syntax; code that fools them would not pass a review either. Rules that
//! clippy holds (no unsafe block without its SAFETY comment, no undocumented public item) are not
//! repeated here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Lines a file may have, its tests not counted.
const MAX_FILE_LINES: usize = 600;
/// Characters a line of Rust may have; rustfmt leaves comments and strings alone. A row of a table
/// in a comment can't be broken, and may be longer.
const MAX_LINE_CHARS: usize = 120;

/// A Rust source file of the workspace.
struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    fn read(path: &Path) -> Source {
        let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Source { path: path.to_owned(), text }
    }

    /// The path from the workspace's root.
    fn name(&self) -> String {
        let path = self.path.strip_prefix(root()).unwrap_or(&self.path);
        path.display().to_string()
    }

    /// The lines that ship, numbered from 1, comments included.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let is_test = |line: &str| line == "#[cfg(test)]" || line.starts_with("#[cfg(all(test");
        let next = self.text.lines().skip(1).chain([""]);
        let tests_start = |(line, next): (&str, &str)| is_test(line) && next.ends_with('{');
        let all = self.text.lines().count();
        let shipped = self.text.lines().zip(next).position(tests_start).unwrap_or(all);
        self.text.lines().take(shipped).enumerate().map(|(index, line)| (index + 1, line))
    }

    /// The lines that ship without those that are only comment.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines().filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/pumice").to_owned()
}

/// Every file under `folder` with one of the extensions (all files if there are none).
fn files_under(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for path in entries.map(|entry| entry.expect("a readable folder").path()) {
            let extension = path.extension().and_then(|extension| extension.to_str());
            if path.is_dir() {
                if path.file_name().is_some_and(|name| name != "target") {
                    folders.push(path);
                }
            } else if extensions.is_empty() || extension.is_some_and(|e| extensions.contains(&e)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn sources(folder: &str) -> Vec<Source> {
    let paths = files_under(&root().join(folder), &["rs"]);
    assert!(!paths.is_empty(), "no sources under {folder}");
    paths.iter().map(|path| Source::read(path)).collect()
}

fn report(rule: &str, offences: Vec<String>) {
    assert!(offences.is_empty(), "{rule}:\n  {}", offences.join("\n  "));
}

/// The layers of a crate, from the table at the top of its lib.rs: the order of the rows is the order of use.
fn layers(package: &str) -> Vec<String> {
    let map = Source::read(&root().join("crates").join(package).join("src/lib.rs"));
    let rows = map.text.lines().filter(|line| line.starts_with("//! | ") && line.contains('`'));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names.map(str::to_owned).collect()
}

/// The module of its crate that a file belongs to: `heap` for `heap/class.rs`.
fn module_of(package: &str, source: &Source) -> String {
    let folder = root().join("crates").join(package).join("src");
    let path = source.path.strip_prefix(folder).expect("a source of the crate");
    let first = path.components().next().expect("a path").as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

/// The identifiers that follow `prefix` in a line; `{a, b}` counts as both.
fn names_after(line: &str, prefix: &str) -> Vec<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut names = Vec::new();
    for (at, _) in line.match_indices(prefix) {
        let rest = &line[at + prefix.len()..];
        if let Some(group) = rest.strip_prefix('{') {
            let group = group.split('}').next().unwrap_or_default();
            let heads = group.split(',').map(|item| item.trim().split("::").next());
            names.extend(heads.flatten().map(str::to_owned));
        } else {
            names.push(rest.chars().take_while(|&c| is_name(c)).collect());
        }
    }
    names
}

/// Crates whose modules stand in layers.
const LAYERED: [&str; 5] =
    ["pumice-frames", "pumice-accel", "pumice-heap", "pumice-io", "pumice-paging"];

#[test]
fn layers_use_only_those_above_them() {
    let mut offences = Vec::new();
    for package in LAYERED {
        let layers = layers(package);
        let rank = |module: &str| layers.iter().position(|layer| layer == module);
        for source in sources(&format!("crates/{package}/src")) {
            let module = module_of(package, &source);
            let Some(own) = rank(&module) else {
                if module != "lib" {
                    offences.push(format!("{}: not in lib.rs's table", source.name()));
                }
                continue;
            };
            for (number, line) in source.code() {
                for used in names_after(line, "crate::") {
                    if rank(&used).is_some_and(|rank| rank > own) {
                        offences.push(format!("{}:{number}: {module} uses {used}", source.name()));
                    }
                }
            }
        }
    }
    report("a module uses only those above it in its crate's table", offences);
}

#[test]
fn every_layer_of_the_tables_exists() {
    for package in LAYERED {
        let sources = sources(&format!("crates/{package}/src"));
        let modules = sources.iter().map(|source| module_of(package, source));
        let modules: BTreeSet<String> = modules.filter(|name| name != "lib").collect();
        assert_eq!(layers(package).into_iter().collect::<BTreeSet<_>>(), modules, "{package}");
    }
}

/// Which crates each crate may use, beside those of others. Tests may use more.
const CRATES: [(&str, &[&str]); 15] = [
    ("pumice-frames", &[]),
    ("pumice-accel", &["pumice-frames"]),
    ("pumice-heap", &["pumice-accel", "pumice-frames"]),
    ("pumice-io", &["pumice-frames"]),
    ("pumice-paging", &["pumice-frames", "pumice-io"]),
    ("pumice-cache", &["pumice-frames", "pumice-io", "pumice-paging"]),
    ("pumice-slots", &["pumice-frames", "pumice-heap"]),
    (
        "pumice",
        &[
            "pumice-accel",
            "pumice-cache",
            "pumice-frames",
            "pumice-heap",
            "pumice-io",
            "pumice-paging",
            "pumice-slots",
        ],
    ),
    ("pumice-preload", &["pumice-frames", "pumice-heap"]),
    ("pumice-c", &["pumice", "pumice-frames", "pumice-heap"]),
    ("pumice-command", &["pumice-accel", "pumice-frames", "pumice-heap", "pumice-slots"]),
    (
        "pumice-bench",
        &[
            "pumice-accel",
            "pumice-command",
            "pumice-frames",
            "pumice-heap",
            "pumice-io",
            "pumice-paging",
            "pumice-slots",
        ],
    ),
    ("pumice-kubelet", &["pumice-slots"]),
    ("pumice-bench-io", &["pumice-bench", "pumice-cache", "pumice-command", "pumice-frames"]),
    (
        "pumice-cli",
        &[
            "pumice-bench",
            "pumice-bench-io",
            "pumice-command",
            "pumice-frames",
            "pumice-heap",
            "pumice-slots",
        ],
    ),
];

/// The workspace's crates as Cargo knows them: the name of each, and the names of those that it uses outside tests.
fn crate_graph() -> BTreeMap<String, BTreeSet<String>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let used = |package: &Value| {
        let all = list(&package["dependencies"]);
        let own = all.iter().filter(|used| used["kind"].is_null() && used["path"].is_string());
        own.map(|used| text(&used["name"])).collect()
    };
    let packages = list(&metadata["packages"]);
    packages.iter().map(|package| (text(&package["name"]), used(package))).collect()
}

#[test]
fn crates_use_only_those_below_them() {
    let allowed = CRATES.map(|(name, used)| {
        (name.to_owned(), used.iter().copied().map(str::to_owned).collect::<BTreeSet<_>>())
    });
    assert_eq!(crate_graph(), BTreeMap::from(allowed));
}

#[test]
fn every_crate_names_its_neighbours() {
    let mut offences = Vec::new();
    for (package, used) in CRATES {
        let folder = root().join("crates").join(package).join("src");
        let top = ["lib.rs", "main.rs"].map(|name| folder.join(name));
        let top = Source::read(top.iter().find(|path| path.is_file()).expect("a crate's root"));
        let said: String = top
            .text
            .lines()
            .take_while(|line| line.starts_with("//!"))
            .collect::<Vec<_>>()
            .join(" ");
        for neighbour in used {
            let name = neighbour.replace('-', "_");
            if !said.contains(neighbour) && !said.contains(&name) {
                offences.push(format!("{}: says nothing of {neighbour}", top.name()));
            }
        }
    }
    report("the top of each crate names those that it uses", offences);
}

#[test]
fn files_are_short() {
    let mut offences = Vec::new();
    for source in sources("crates") {
        let length = source.lines().count();
        if length > MAX_FILE_LINES {
            offences.push(format!("{}: {length} lines", source.name()));
        }
    }
    report(&format!("a file has at most {MAX_FILE_LINES} lines without its tests"), offences);
}

#[test]
fn lines_are_short() {
    let mut offences = Vec::new();
    for source in sources("crates") {
        for (number, line) in source.text.lines().enumerate() {
            let table_row = line.trim_start_matches(['/', '!', ' ']).starts_with('|');
            if !table_row && line.chars().count() > MAX_LINE_CHARS {
                offences.push(format!("{}:{}", source.name(), number + 1));
            }
        }
    }
    report(&format!("a line has at most {MAX_LINE_CHARS} characters"), offences);
}

#[test]
fn text_ends_cleanly() {
    let mut paths = files_under(&root().join("crates"), &["rs", "toml", "c", "h", "py", "sh"]);
    paths.extend(files_under(&root().join("ci"), &[]));
    paths.extend(files_under(&root().join("docs"), &["md"]));
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "Cargo.toml"] {
        paths.push(root().join(name));
    }
    paths.push(root().join("Makefile"));
    let mut offences = Vec::new();
    for source in paths.iter().map(|path| Source::read(path)) {
        for (number, line) in source.text.lines().enumerate() {
            if line.ends_with([' ', '\t', '\r']) {
                offences.push(format!("{}:{}: white space at the end", source.name(), number + 1));
            }
        }
        if !source.text.ends_with('\n') || source.text.ends_with("\n\n") {
            offences.push(format!("{}: does not end with one line break", source.name()));
        }
    }
    report("no stray white space", offences);
}

/// The paragraphs of a Markdown file, or of a source's comments, each with its first line's number. Tables, headings
/// and code are left out.
fn paragraphs(source: &Source) -> Vec<(usize, String)> {
    let is_markdown = source.path.extension().is_some_and(|extension| extension == "md");
    let (mut found, mut open, mut is_code) = (Vec::new(), None::<(usize, String)>, false);
    for (index, line) in source.text.lines().chain([""]).enumerate() {
        let text = if is_markdown {
            is_code ^= line.starts_with("```");
            Some(line).filter(|line| !is_code && !line.starts_with("```"))
        } else {
            let comment = line.trim_start().strip_prefix("//");
            comment.map(|text| text.strip_prefix(['/', '!']).unwrap_or(text))
        };
        let text = text.map(str::trim).filter(|text| {
            let is_prose = !text.starts_with(['#', '|']) && !text.starts_with("```");
            !text.is_empty() && is_prose
        });
        match (text, &mut open) {
            (Some(text), Some((_, paragraph))) => *paragraph = format!("{paragraph} {text}"),
            (Some(text), None) => open = Some((index + 1, text.to_owned())),
            (None, _) => found.extend(open.take()),
        }
    }
    found
}

/// The rows of tables in a Markdown file, or in a source's comments, each with its line's number.
fn table_rows(source: &Source) -> Vec<(usize, &str)> {
    let is_markdown = source.path.extension().is_some_and(|extension| extension == "md");
    let lines = source.text.lines().enumerate().filter_map(|(index, line)| {
        let comment = line.trim_start().strip_prefix("//");
        let comment = comment.map(|text| text.strip_prefix(['/', '!']).unwrap_or(text));
        let text = if is_markdown { Some(line) } else { comment };
        Some((index + 1, text?.trim()))
    });
    lines.filter(|(_, text)| text.starts_with('|')).collect()
}

/// Words that begin a clause as a subject.
const CLAUSES: [&str; 5] = ["who", "whoever", "what", "whatever", "whose"];

/// The first word of a text.
fn first_word(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("")
}

/// The part of a text up to the end of its sentence or cell, if it is no question.
fn statement(text: &str) -> Option<&str> {
    let end = text.find(['.', '!', '?', '|']).unwrap_or(text.len());
    (!text[end..].starts_with('?')).then_some(&text[..end])
}

/// The sentences of a paragraph that begin with a clause as a subject ("who", "what"). Questions may. After a colon or
/// a semicolon a small letter begins one too.
fn clause_subjects(paragraph: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let spaces = paragraph.match_indices(' ').map(|(at, _)| at);
    let starts = spaces.filter(|&at| paragraph[..at].ends_with(['.', '!', '?', ':', ';']));
    let starts = starts.map(|at| at + 1);
    let items = ["- ", "* "].iter().filter(|item| paragraph.starts_with(**item)).map(|_| 2);
    for start in [0].into_iter().chain(items).chain(starts) {
        let rest = &paragraph[start..];
        let word = first_word(rest);
        // A small letter begins no sentence after a full stop: "e.g. what".
        let may_be_small = start == 0 || paragraph[..start].trim_end().ends_with([':', ';']);
        let is_clause = CLAUSES.contains(&word.to_lowercase().as_str())
            && (may_be_small || word.starts_with(char::is_uppercase));
        found.extend(statement(rest).filter(|_| is_clause));
    }
    found
}

/// The cells of a table's row that begin with such a clause. A word alone is a name.
fn clause_cells(row: &str) -> Vec<&str> {
    let cells = row.split('|').map(str::trim).filter(|cell| cell.contains(' '));
    let clauses = cells.filter(|cell| CLAUSES.contains(&first_word(cell).to_lowercase().as_str()));
    clauses.filter_map(statement).collect()
}

/// The places of a text where "who" is short for "the one who": "the next who opens it", "kept for who asked".
fn elliptic_whos(text: &str) -> Vec<&str> {
    const BEFORE: [&str; 9] = ["of", "by", "for", "to", "from", "than", "next", "only", "as"];
    let mut found = Vec::new();
    for (at, _) in text.match_indices(" who") {
        let before = text[..at].rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or("");
        let is_who = ["who", "whoever"].contains(&first_word(&text[at + 1..]));
        if is_who && BEFORE.contains(&before.to_lowercase().as_str()) {
            found.extend(statement(&text[at - before.len()..]));
        }
    }
    found
}

#[test]
fn clauses_as_subjects_are_found() {
    for (text, count) in [
        ("Who pages at random looks entries up once.", 1),
        ("what comes first is small", 1),
        ("It is kept: Whatever comes is dropped. What else? Nobody knows what.", 1),
        ("- What is free is zero.", 1),
        ("A page: what it holds; who has it. But: who knows?", 2),
        ("Readers that know what comes. Whether it is so: where it is.", 0),
    ] {
        assert_eq!(clause_subjects(text).len(), count, "{text}");
    }
    assert_eq!(
        clause_cells("| `a` | what lives there | whose it is | who has it? | what |").len(),
        2
    );
    for (text, count) in [
        ("Errors that are kept for who asked, and the next who opens it.", 2),
        ("Only whoever has the lock writes it.", 1),
        ("Users who ask, the user of whom it is, and those who wait. Is it for who asks?", 0),
    ] {
        assert_eq!(elliptic_whos(text).len(), count, "{text}");
    }
}

/// The changes that no release has yet.
fn unreleased(changes: &Source) -> Source {
    let end = changes.text.match_indices("\n## ").nth(1).map_or(changes.text.len(), |(at, _)| at);
    Source { path: changes.path.clone(), text: changes.text[..end].to_owned() }
}

#[test]
fn no_clause_is_a_subject() {
    let mut texts = sources("crates");
    let mut pages = files_under(&root().join("docs"), &["md"]);
    pages.extend(files_under(&root().join("crates"), &["md"]));
    pages.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| root().join(name)));
    texts.extend(pages.iter().map(|path| Source::read(path)));
    texts.push(unreleased(&Source::read(&root().join("CHANGELOG.md"))));
    let mut offences = Vec::new();
    for source in texts.iter().filter(|source| !source.path.ends_with("tests/tidy.rs")) {
        let mut offend =
            |number, words: &str| offences.push(format!("{}:{number}: {words}", source.name()));
        for (number, paragraph) in paragraphs(source) {
            let clauses = clause_subjects(&paragraph).into_iter().chain(elliptic_whos(&paragraph));
            clauses.for_each(|clause| offend(number, clause));
        }
        for (number, row) in table_rows(source) {
            let clauses = clause_cells(row).into_iter().chain(elliptic_whos(row));
            clauses.for_each(|clause| offend(number, clause));
        }
    }
    report("a sentence has no clause as its subject", offences);
}

/// The imports of each folder of a crate's `src`. A file that lies in `src` itself counts as a folder.
fn folder_imports(package: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let sources = sources(&format!("crates/{package}/src"));
    let modules: BTreeSet<_> = sources.iter().map(|source| module_of(package, source)).collect();
    for source in &sources {
        let module = module_of(package, source);
        let mut used: BTreeSet<String> =
            source.code().flat_map(|(_, line)| names_after(line, "crate::")).collect();
        used.retain(|name| *name != module && modules.contains(name));
        imports.entry(module).or_default().extend(used);
    }
    // The root names what it re-exports.
    imports.retain(|module, _| !["lib", "main"].contains(&module.as_str()));
    imports
}

#[test]
fn folders_import_no_circle() {
    let mut found = BTreeSet::new();
    for (package, _) in CRATES {
        let imports = folder_imports(package);
        let reach = |from: &String| {
            let (mut seen, mut pending) = (BTreeSet::new(), vec![from.clone()]);
            while let Some(module) = pending.pop() {
                for used in imports.get(&module).into_iter().flatten() {
                    if seen.insert(used.clone()) {
                        pending.push(used.clone());
                    }
                }
            }
            seen
        };
        let reached: BTreeMap<_, _> = imports.keys().map(|from| (from, reach(from))).collect();
        for (one, ones) in reached.iter().filter(|(one, ones)| ones.contains(**one)) {
            let circle = ones.iter().filter(|other| reached[*other].contains(*one));
            let circle: Vec<_> = circle.map(String::as_str).collect();
            found.insert(format!("{package}: {}", circle.join(" ")));
        }
    }
    report("no folders of a crate import each other", found.into_iter().collect());
}

#[test]
fn nothing_is_left_to_do() {
    // In pieces, or this file would offend.
    let marks = ["todo", "unimplemented", "dbg"].map(|name| format!("{name}!("));
    let notes = ["TODO", "FIXME", "XXX"].map(|name| format!("// {name}"));
    let mut offences = Vec::new();
    for source in sources("crates") {
        for (number, line) in source.text.lines().enumerate() {
            if marks.iter().chain(&notes).any(|mark| line.contains(mark.as_str())) {
                offences.push(format!("{}:{}: {}", source.name(), number + 1, line.trim()));
            }
        }
    }
    report("nothing unfinished is checked in", offences);
}

/// The files that a crate's root reaches by `mod name;`, the root included.
fn reachable(crate_root: &Path) -> BTreeSet<PathBuf> {
    let mut reached = BTreeSet::new();
    let mut pending = vec![crate_root.to_owned()];
    while let Some(path) = pending.pop() {
        if !path.is_file() || !reached.insert(path.clone()) {
            continue;
        }
        let stem = path.file_stem().expect("a file name").to_string_lossy().into_owned();
        let folder = path.parent().expect("a folder");
        let children = match stem.as_str() {
            "mod" | "lib" | "main" => folder.to_owned(),
            _ => folder.join(&stem),
        };
        for line in Source::read(&path).text.lines() {
            let Some(declaration) = line.trim().strip_suffix(';') else { continue };
            let mut words = declaration.split_whitespace().skip_while(|&word| word != "mod");
            let (Some(_), Some(name), None) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            pending.push(children.join(format!("{name}.rs")));
            pending.push(children.join(name).join("mod.rs"));
        }
    }
    reached
}

#[test]
fn no_file_is_dead() {
    let mut offences = Vec::new();
    for package in fs::read_dir(root().join("crates")).expect("crates") {
        let folder = package.expect("a readable folder").path().join("src");
        let live: BTreeSet<PathBuf> =
            ["lib.rs", "main.rs"].iter().flat_map(|name| reachable(&folder.join(name))).collect();
        for path in files_under(&folder, &["rs"]) {
            if !live.contains(&path) {
                offences.push(path.display().to_string());
            }
        }
    }
    report("every source file is reached by a mod", offences);
}

/// The variants of an enum in a source of the crate, by the rows of its table.
fn variants(file: &str, name: &str) -> BTreeSet<String> {
    let source = Source::read(&root().join("crates/pumice-heap/src").join(file));
    let table = source.text.split(&format!("pub enum {name}: ")).nth(1).expect("a table");
    let rows = table.split("\n    }\n").next().expect("its end").lines();
    rows.filter_map(|row| Some(row.trim().split_once(" =>")?.0.to_owned())).collect()
}

/// Those that some code outside `file` names, in the crate or in the shim.
fn named_elsewhere(file: &str, name: &str) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    for source in
        sources("crates/pumice-heap/src").iter().chain(&sources("crates/pumice-preload/src"))
    {
        if !source.path.ends_with(file) {
            named.extend(
                source.code().flat_map(|(_, line)| names_after(line, &format!("{name}::"))),
            );
        }
    }
    named
}

#[test]
fn every_event_is_counted_and_every_setting_obeyed() {
    for (file, name) in [("stats/event.rs", "Event"), ("config.rs", "Setting")] {
        let idle: Vec<String> =
            variants(file, name).difference(&named_elsewhere(file, name)).cloned().collect();
        report(&format!("each {name} means something outside {file}"), idle);
    }
}
