//! The loads. Each takes a third of a second to three on the machine it was written on, so that
//! what starting a program costs does not drown what its memory does.

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
    /// interpreter, `{malloc}` and `{hash-table}` for C programs of `loads/`, compiled, `{input}` for
    /// the file, `{folder}` for its folder, `{amount}` for the amount.
    pub line: &'static [&'static str],
    /// How much of it: bytes or functions of the input, otherwise repetitions.
    pub amount: Amount,
}

/// Something that may not be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A program, and the command that installs it.
    Program(&'static str, &'static str),
    /// A module of Python, and the command that installs it.
    Module(&'static str, &'static str),
}

/// A generated file.
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
const REDIS: [Need; 3] = [
    Need::Program("redis-server", "apt-get install redis-server"),
    Need::Program("redis-benchmark", "apt-get install redis-tools"),
    Need::Program("redis-cli", "apt-get install redis-tools"),
];

/// A script for Python, given its amount.
macro_rules! script {
    ($file:literal) => {
        ["{python}", "-c", include_str!(concat!("loads/", $file)), "{amount}"]
    };
}

/// A line each: name, work in words, amount and that for `--quick`, needs, input, line.
macro_rules! loads {
    ($($name:literal, $about:literal, $full:expr, $quick:expr, $needs:expr, $input:ident, $line:expr;)+) => {
        [$(Load {
            name: $name,
            about: $about,
            needs: &$needs,
            input: Input::$input,
            line: &$line,
            amount: Amount { full: $full, quick: $quick },
        }),+]
    };
}

/// All loads, in the order of the tables. The last three are `loads/malloc.c`: threads, and the share of pages written.
pub const LOADS: [Load; 19] = loads! {
    "numpy-arithmetic", "expressions on arrays of 32 MiB", 16, 4, [NUMPY], None, script!("numpy_arithmetic.py");
    "numpy-zeros-sparse", "128 MiB of zeros, one page in eight touched", 30, 8, [NUMPY], None,
        script!("numpy_zeros_sparse.py");
    "sklearn-forest", "scikit-learn fits a random forest", 24, 4, [SKLEARN], None, script!("sklearn_forest.py");
    "sklearn-kmeans", "scikit-learn groups points by k-means", 2, 1, [SKLEARN], None, script!("sklearn_kmeans.py");
    "torch-training", "PyTorch trains a small network on the processor", 12, 2,
        [Need::Module("torch", "pip install torch")], None, script!("torch_training.py");
    "polars-group-by", "Polars groups and joins two million rows", 2, 1,
        [Need::Module("polars", "pip install polars"), NUMPY], None, script!("polars_group_by.py");
    "duckdb-group-by", "DuckDB groups and joins two million rows", 4, 1,
        [Need::Module("duckdb", "pip install duckdb")], None, script!("duckdb_group_by.py");
    "sqlite", "SQLite inserts, indexes and queries in memory", 300_000, 60_000,
        [Need::Module("sqlite3", "apt-get install libpython3-stdlib")], None, script!("sqlite.py");
    "sort", "GNU sort sorts lines", 64 << 20, 8 << 20,
        [Need::Program("sort", "apt-get install coreutils")], Text, ["sort", "{input}"];
    "cc", "a C compile, -O2", 200, 40, [CC], Source, ["cc", "-O2", "-c", "{input}", "-o", "/dev/null"];
    "c-project", "make builds a C program of many files, -O2, two at a time", 40, 5,
        [CC, Need::Program("make", "apt-get install make")], Project, ["make", "-s", "-B", "-j2", "-C", "{input}"];
    "gzip", "gzip packs text", 16 << 20, 2 << 20,
        [Need::Program("gzip", "apt-get install gzip")], Text, ["gzip", "-c", "{input}"];
    "zstd", "zstd -19 packs text", 4 << 20, 1 << 20,
        [Need::Program("zstd", "apt-get install zstd")], Text, ["zstd", "-19", "-q", "-c", "{input}"];
    "redis", "redis-server with redis-benchmark, values of 1 kB and 200 kB", 100_000, 20_000, REDIS, None,
        ["sh", "-c", include_str!("loads/redis.sh"), "sh", "{folder}", "{amount}"];
    "bash-forks", "subshells of a bash that holds 3 MB", 100, 20, [Need::Program("bash", "apt-get install bash")], None,
        ["bash", "-c", include_str!("loads/bash_forks.sh"), "bash", "{amount}"];
    "hash-table", "a hash table that doubles as it fills, in C", 6_000_000, 1_500_000, [CC], None,
        ["{hash-table}", "{amount}"];
    "malloc-all", "64 KiB to 64 MiB, all of it written", 300, 60, [CC], None, ["{malloc}", "1", "1", "{amount}"];
    "malloc-sparse", "64 KiB to 64 MiB, one page in 16 written", 4000, 400, [CC], None,
        ["{malloc}", "1", "16", "{amount}"];
    "malloc-threads", "64 KiB to 64 MiB, all of it written, by four threads", 100, 20, [CC], None,
        ["{malloc}", "4", "1", "{amount}"];
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_told_apart() {
        let names: BTreeSet<_> = LOADS.iter().map(|load| load.name).collect();
        assert_eq!(names.len(), LOADS.len());
    }

    #[test]
    fn a_quick_run_does_less() {
        for load in &LOADS {
            assert!(load.amount.quick < load.amount.full, "{}", load.name);
            let has_file = load.line.contains(&"{input}");
            assert_eq!(has_file, load.input != Input::None, "{}", load.name);
        }
    }
}
