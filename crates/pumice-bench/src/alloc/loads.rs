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

const fn amount(full: u64, quick: u64) -> Amount {
    Amount { full, quick }
}

const CC: Need = Need::Program("cc", "apt-get install gcc libc6-dev");
const NUMPY: Need = Need::Module("numpy", "pip install numpy");
const SKLEARN: Need = Need::Module("sklearn", "pip install scikit-learn");
const REDIS: [Need; 3] = [
    Need::Program("redis-server", "apt-get install redis-server"),
    Need::Program("redis-benchmark", "apt-get install redis-tools"),
    Need::Program("redis-cli", "apt-get install redis-tools"),
];

/// A load that is a script for Python, given its amount.
const fn python(
    name: &'static str,
    about: &'static str,
    needs: &'static [Need],
    line: &'static [&'static str],
    amount: Amount,
) -> Load {
    Load { name, about, needs, input: Input::None, line, amount }
}

/// `loads/malloc.c` with these arguments and the amount.
const fn malloc(
    name: &'static str,
    about: &'static str,
    line: &'static [&'static str],
    amount: Amount,
) -> Load {
    Load { name, about, needs: &[CC], input: Input::None, line, amount }
}

macro_rules! script {
    ($file:literal) => {
        &["{python}", "-c", include_str!(concat!("loads/", $file)), "{amount}"]
    };
}

/// All loads, in the order of the tables.
pub const LOADS: [Load; 19] = [
    python(
        "numpy-arithmetic",
        "expressions on arrays of 32 MiB",
        &[NUMPY],
        script!("numpy_arithmetic.py"),
        amount(16, 4),
    ),
    python(
        "numpy-zeros-sparse",
        "128 MiB of zeros, one page in eight touched",
        &[NUMPY],
        script!("numpy_zeros_sparse.py"),
        amount(30, 8),
    ),
    python(
        "sklearn-forest",
        "scikit-learn fits a random forest",
        &[SKLEARN],
        script!("sklearn_forest.py"),
        amount(24, 4),
    ),
    python(
        "sklearn-kmeans",
        "scikit-learn groups points by k-means",
        &[SKLEARN],
        script!("sklearn_kmeans.py"),
        amount(2, 1),
    ),
    python(
        "torch-training",
        "PyTorch trains a small network on the processor",
        &[Need::Module("torch", "pip install torch")],
        script!("torch_training.py"),
        amount(12, 2),
    ),
    python(
        "polars-group-by",
        "Polars groups and joins two million rows",
        &[Need::Module("polars", "pip install polars"), NUMPY],
        script!("polars_group_by.py"),
        amount(2, 1),
    ),
    python(
        "duckdb-group-by",
        "DuckDB groups and joins two million rows",
        &[Need::Module("duckdb", "pip install duckdb")],
        script!("duckdb_group_by.py"),
        amount(4, 1),
    ),
    python(
        "sqlite",
        "SQLite inserts, indexes and queries in memory",
        &[Need::Module("sqlite3", "apt-get install libpython3-stdlib")],
        script!("sqlite.py"),
        amount(300_000, 60_000),
    ),
    Load {
        name: "sort",
        about: "GNU sort sorts lines",
        needs: &[Need::Program("sort", "apt-get install coreutils")],
        input: Input::Text,
        line: &["sort", "{input}"],
        amount: amount(64 << 20, 8 << 20),
    },
    Load {
        name: "cc",
        about: "a C compile, -O2",
        needs: &[CC],
        input: Input::Source,
        line: &["cc", "-O2", "-c", "{input}", "-o", "/dev/null"],
        amount: amount(200, 40),
    },
    Load {
        name: "c-project",
        about: "make builds a C program of many files, -O2, two at a time",
        needs: &[CC, Need::Program("make", "apt-get install make")],
        input: Input::Project,
        line: &["make", "-s", "-B", "-j2", "-C", "{input}"],
        amount: amount(40, 5),
    },
    Load {
        name: "gzip",
        about: "gzip packs text",
        needs: &[Need::Program("gzip", "apt-get install gzip")],
        input: Input::Text,
        line: &["gzip", "-c", "{input}"],
        amount: amount(16 << 20, 2 << 20),
    },
    Load {
        name: "zstd",
        about: "zstd -19 packs text",
        needs: &[Need::Program("zstd", "apt-get install zstd")],
        input: Input::Text,
        line: &["zstd", "-19", "-q", "-c", "{input}"],
        amount: amount(4 << 20, 1 << 20),
    },
    Load {
        name: "redis",
        about: "redis-server with redis-benchmark, values of 1 kB and 200 kB",
        needs: &REDIS,
        input: Input::None,
        line: &["sh", "-c", include_str!("loads/redis.sh"), "sh", "{folder}", "{amount}"],
        amount: amount(100_000, 20_000),
    },
    Load {
        name: "bash-forks",
        about: "subshells of a bash that holds 3 MB",
        needs: &[Need::Program("bash", "apt-get install bash")],
        input: Input::None,
        line: &["bash", "-c", include_str!("loads/bash_forks.sh"), "bash", "{amount}"],
        amount: amount(100, 20),
    },
    Load {
        name: "hash-table",
        about: "a hash table that doubles as it fills, in C",
        needs: &[CC],
        input: Input::None,
        line: &["{hash-table}", "{amount}"],
        amount: amount(6_000_000, 1_500_000),
    },
    malloc(
        "malloc-all",
        "64 KiB to 64 MiB, all of it written",
        &["{malloc}", "1", "1", "{amount}"],
        amount(300, 60),
    ),
    malloc(
        "malloc-sparse",
        "64 KiB to 64 MiB, one page in 16 written",
        &["{malloc}", "1", "16", "{amount}"],
        amount(4000, 400),
    ),
    malloc(
        "malloc-threads",
        "64 KiB to 64 MiB, all of it written, by four threads",
        &["{malloc}", "4", "1", "{amount}"],
        amount(100, 20),
    ),
];

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
