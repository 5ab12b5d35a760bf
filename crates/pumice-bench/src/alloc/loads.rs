//! The loads. Most take half a second to one on the machine they were written on: a program's start does not hide the
//! effect of its memory, and nine rounds of all end within twenty minutes.
//!
//! [`LOADS`] run where nobody names loads. [`NAMED`] and [`OPERATIONS`] run when a part of their names is given: they
//! take long, or look closer at one question.

/// A program and its input.
#[derive(Debug)]
pub struct Load {
    /// The name in tables and JSON, and for `--only`.
    pub name: &'static str,
    /// Its work, in words for people.
    pub about: &'static str,
    /// Without these it is skipped.
    pub needs: &'static [Need],
    /// The meaning of `{input}`.
    pub input: Input,
    /// The program and its arguments. Whole words stand for something else: `{python}` for the
    /// interpreter, `{malloc}` and `{hash-table}` for C programs of `loads/`, compiled, `{cgo}` for its Go program,
    /// `{classes}` for the folder of its Java classes, `{input}` for the file or folder, `{folder}` for the folder of
    /// all files, `{amount}` for the amount.
    pub line: &'static [&'static str],
    /// How much of it: bytes or functions of the input, otherwise repetitions.
    pub amount: Amount,
    /// How its time is taken.
    pub clock: Clock,
}

/// Something that may not be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A program, and the command that installs it.
    Program(&'static str, &'static str),
    /// A module of Python, and the command that installs it.
    Module(&'static str, &'static str),
}

/// A generated file or folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// No file.
    None,
    /// Lines of made-up words, of `amount` bytes.
    Text,
    /// A C file of `amount` functions.
    Source,
    /// A folder with a C program of `amount` files, and how to make it.
    Project,
    /// A Rust file of `amount` modules.
    Rust,
    /// The first of `amount` JavaScript modules, which import each other.
    Modules,
    /// A C++ file.
    Cxx,
    /// A folder with a database of PostgreSQL, filled by pgbench.
    Database,
}

/// How the time of a load is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// From its start to its end.
    Whole,
    /// It prints the seconds of its own work last.
    Own,
}

/// The amount, and that for `--quick`.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Without `--quick`.
    pub full: u64,
    /// With it.
    pub quick: u64,
}

const CC: Need = Need::Program("cc", "apt-get install gcc libc6-dev");
const NUMPY: Need = Need::Module("numpy", "pip install numpy");
const SKLEARN: Need = Need::Module("sklearn", "pip install scikit-learn");
const DUCKDB: Need = Need::Module("duckdb", "pip install duckdb");
const POLARS: Need = Need::Module("polars", "pip install polars");
const SORT: Need = Need::Program("sort", "apt-get install coreutils");
const NODE: Need = Need::Program("node", "apt-get install nodejs");
const REDIS: [Need; 3] = [
    Need::Program("redis-server", "apt-get install redis-server"),
    Need::Program("redis-benchmark", "apt-get install redis-tools"),
    Need::Program("redis-cli", "apt-get install redis-tools"),
];
const REDIS_LINE: [&str; 6] =
    ["sh", "-c", include_str!("loads/redis.sh"), "sh", "{folder}", "{amount}"];
const JAVA: [Need; 2] = [
    Need::Program("java", "apt-get install default-jre-headless"),
    Need::Program("javac", "apt-get install default-jdk-headless"),
];
const POSTGRES: [Need; 3] = [
    Need::Program("postgres", "apt-get install postgresql"),
    Need::Program("pgbench", "apt-get install postgresql"),
    // PostgreSQL refuses to run as root.
    Need::Program("setpriv", "apt-get install util-linux"),
];

/// A script for Python, given its amount.
macro_rules! script {
    ($file:literal) => {
        ["{python}", "-c", include_str!(concat!("loads/", $file)), "{amount}"]
    };
}

/// A script for a shell that begins with `postgres.sh`, given its folder, the database and its amount.
macro_rules! postgres {
    ($file:literal) => {
        [
            "sh",
            "-c",
            concat!(include_str!("loads/postgres.sh"), include_str!(concat!("loads/", $file))),
            "sh",
            "{folder}",
            "{input}",
            "{amount}",
        ]
    };
}

/// As the script of a load; makes the database.
pub const DATABASE_SCRIPT: &str =
    concat!(include_str!("loads/postgres.sh"), include_str!("loads/postgres_init.sh"));

/// An operation of NumPy.
macro_rules! operation {
    ($name:literal) => {
        ["{python}", "-c", include_str!("loads/numpy_operation.py"), $name, "{amount}"]
    };
}

/// A line each: name, work in words, amount and that for `--quick`, needs, input, line.
macro_rules! loads {
    ($clock:ident;
     $($name:literal, $about:literal, $full:expr, $quick:expr, $needs:expr, $input:ident, $line:expr;)+) => {
        [$(Load {
            name: $name,
            about: $about,
            needs: &$needs,
            input: Input::$input,
            line: &$line,
            amount: Amount { full: $full, quick: $quick },
            clock: Clock::$clock,
        }),+]
    };
}

/// In the order of the tables. The last three are `loads/malloc.c`: threads, and the share of pages written.
pub const LOADS: [Load; 25] = loads! { Whole;
    "numpy-arithmetic", "expressions on arrays of 32 MiB", 6, 2, [NUMPY], None, script!("numpy_arithmetic.py");
    "numpy-zeros-sparse", "128 MiB of zeros, one page in eight touched", 10, 4, [NUMPY], None,
        script!("numpy_zeros_sparse.py");
    "sklearn", "scikit-learn fits a random forest and groups points by k-means", 10_000, 5_000, [SKLEARN], None,
        script!("sklearn.py");
    "torch-training", "PyTorch trains a small network on the processor", 12, 2,
        [Need::Module("torch", "pip install torch")], None, script!("torch_training.py");
    "polars-group-by", "Polars groups and joins rows", 300_000, 100_000, [POLARS, NUMPY], None,
        script!("polars_group_by.py");
    "duckdb-group-by", "DuckDB groups and joins a million rows", 3, 1, [DUCKDB], None,
        script!("duckdb_group_by.py");
    "r-matrices", "R solves, multiplies and sorts matrices", 2, 1,
        [Need::Program("Rscript", "apt-get install r-base-core")], None,
        ["Rscript", "--vanilla", "-e", include_str!("loads/matrices.R"), "{amount}"];
    "sqlite", "SQLite inserts, indexes and queries in memory", 60_000, 20_000,
        [Need::Module("sqlite3", "apt-get install libpython3-stdlib")], None, script!("sqlite.py");
    "postgres", "PostgreSQL with pgbench: short transactions and queries that sort", 8, 4, POSTGRES, Database,
        postgres!("pgbench.sh");
    "redis", "redis-server with redis-benchmark, values of 1 kB and 200 kB", 30_000, 10_000, REDIS, None,
        REDIS_LINE;
    "sort", "GNU sort sorts lines", 32 << 20, 8 << 20, [SORT], Text, ["sort", "-T", "{folder}", "{input}"];
    "cc", "a C compile, -O2", 32, 16, [CC], Source, ["cc", "-O2", "-c", "{input}", "-o", "/dev/null"];
    "c-project", "make builds a C program of many files, -O2, two at a time", 4, 2,
        [CC, Need::Program("make", "apt-get install make")], Project, ["make", "-s", "-B", "-j2", "-C", "{input}"];
    "rust-build", "rustc builds a library of many modules, -O", 2, 1,
        [Need::Program("rustc", "see https://rustup.rs, or apt-get install rustc")], Rust,
        ["rustc", "--edition", "2021", "--crate-type", "rlib", "--crate-name", "load", "-O", "--out-dir", "{folder}",
         "{input}"];
    "java", "Java fills and sorts large arrays", 2, 1, JAVA, None,
        ["java", "-XX:-UsePerfData", "-Xmx512m", "-cp", "{classes}", "LargeArrays", "{amount}"];
    "go-cgo", "Go calls C's malloc: buffers of 64 KiB to 16 MiB", 600, 200,
        [CC, Need::Program("go", "apt-get install golang-go")], None, ["{cgo}", "{amount}"];
    "rollup", "Rollup bundles JavaScript modules on node", 60, 20,
        [NODE, Need::Program("rollup", "npm install --global rollup")], Modules,
        ["rollup", "--silent", "--format", "es", "{input}"];
    "ffmpeg", "ffmpeg draws, scales and encodes 720p video", 60, 10,
        [Need::Program("ffmpeg", "apt-get install ffmpeg")], None,
        ["ffmpeg", "-nostdin", "-v", "error", "-xerror", "-f", "lavfi", "-i", "testsrc2=size=1920x1080:rate=25",
         "-frames:v", "{amount}", "-vf", "scale=1280:720", "-c:v", "mpeg4", "-q:v", "5", "-f", "null", "-"];
    "gzip", "gzip packs text", 12 << 20, 2 << 20,
        [Need::Program("gzip", "apt-get install gzip")], Text, ["gzip", "-c", "{input}"];
    "zstd", "zstd -19 packs text", 768 << 10, 384 << 10,
        [Need::Program("zstd", "apt-get install zstd")], Text, ["zstd", "-19", "-q", "-c", "{input}"];
    "bash-forks", "subshells of a bash that holds 3 MB", 40, 20, [Need::Program("bash", "apt-get install bash")], None,
        ["bash", "-c", include_str!("loads/bash_forks.sh"), "bash", "{amount}"];
    "hash-table", "a hash table that doubles as it fills, in C", 3_000_000, 1_500_000, [CC], None,
        ["{hash-table}", "{amount}"];
    "malloc-all", "64 KiB to 64 MiB, all of it written", 150, 60, [CC], None, ["{malloc}", "1", "1", "{amount}"];
    "malloc-sparse", "64 KiB to 64 MiB, one page in 16 written", 1500, 400, [CC], None,
        ["{malloc}", "1", "16", "{amount}"];
    "malloc-threads", "64 KiB to 64 MiB, all of it written, by four threads", 40, 20, [CC], None,
        ["{malloc}", "4", "1", "{amount}"];
};

/// A large one, and programs that map memory for themselves: `pumice-mmap` is of interest there.
pub const NAMED: [Load; 10] = loads! { Whole;
    "large-sort", "GNU sort sorts lines of 1 GB", 1_000_000_000, 100_000_000, [SORT], Text,
        ["sort", "-T", "{folder}", "{input}"];
    "map-duckdb", "DuckDB groups, joins and sorts rows", 3_000_000, 300_000, [DUCKDB], None,
        script!("duckdb_sort.py");
    "map-polars", "Polars groups, joins and sorts rows", 3_000_000, 300_000, [POLARS], None,
        script!("polars_sort.py");
    "map-python", "Python reads JSON into objects, in arenas of 1 MiB", 200_000, 20_000, [], None,
        script!("python_json.py");
    "map-java", "Java fills maps with byte arrays, parallel collector", 12, 2, JAVA, None,
        ["java", "-XX:-UsePerfData", "-XX:+UseParallelGC", "-Xmx512m", "-cp", "{classes}", "Objects", "{amount}"];
    "map-java-g1", "the same, G1", 12, 2, JAVA, None,
        ["java", "-XX:-UsePerfData", "-XX:+UseG1GC", "-Xmx512m", "-cp", "{classes}", "Objects", "{amount}"];
    "map-node", "node fills maps with objects, and buffers", 12, 2, [NODE], None,
        ["node", "-e", include_str!("loads/objects.js"), "{amount}"];
    "map-cxx", "a C++ compile, -O2", 2, 1, [Need::Program("c++", "apt-get install g++")], Cxx,
        ["c++", "-O2", "-c", "{input}", "-o", "/dev/null"];
    "map-redis", "redis-server, linked with jemalloc, with redis-benchmark", 60_000, 20_000, REDIS, None,
        REDIS_LINE;
    "map-postgres", "PostgreSQL alone groups, joins and sorts rows", 600_000, 60_000, POSTGRES, Database,
        postgres!("postgres_sort.sh");
};

/// Operations of NumPy on arrays of 128 and 256 MB, one after another. The time is that of the operations alone; the
/// processor time and memory are the whole program's.
pub const OPERATIONS: [Load; 5] = loads! { Own;
    "op-add", "NumPy: a + b", 4, 2, [NUMPY], None, operation!("add");
    "op-expression", "NumPy: (a * 2 + b * 3 - 1).sum()", 4, 2, [NUMPY], None, operation!("expression");
    "op-ones", "NumPy: ones", 4, 2, [NUMPY], None, operation!("ones");
    "op-zeros", "NumPy: zeros, one line of each page written", 4, 2, [NUMPY], None, operation!("zeros");
    "op-zeros-later", "NumPy: the same, each after 20 ms of other work", 4, 2, [NUMPY], None, operation!("zeros-later");
};

/// All of them.
pub fn all() -> impl Iterator<Item = &'static Load> {
    LOADS.iter().chain(&NAMED).chain(&OPERATIONS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_told_apart() {
        let names: BTreeSet<_> = all().map(|load| load.name).collect();
        assert_eq!(names.len(), all().count());
    }

    #[test]
    fn a_quick_run_does_less() {
        for load in all() {
            assert!(load.amount.quick < load.amount.full, "{}", load.name);
            let has_file = load.line.contains(&"{input}");
            assert_eq!(has_file, load.input != Input::None, "{}", load.name);
        }
    }

    #[test]
    fn what_a_load_runs_is_among_its_needs() {
        // The needs of these come with any system.
        let common = ["sh", "{python}", "{malloc}", "{hash-table}", "{cgo}"];
        for load in all() {
            let program = load.line[0];
            let is_need = |need: &Need| matches!(need, Need::Program(name, _) if *name == program);
            assert!(common.contains(&program) || load.needs.iter().any(is_need), "{}", load.name);
            let install = load.needs.iter().map(|need| match need {
                Need::Program(_, install) | Need::Module(_, install) => install,
            });
            assert!(install.into_iter().all(|how| how.contains("install") || how.contains("http")));
        }
    }
}
