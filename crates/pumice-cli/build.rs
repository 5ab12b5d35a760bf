//! Builds the shim and hands it to the program, which embeds it.
//!
//! The shim is a program's `malloc`, so it must not be linked into ours: it is no dependency but
//! a build of its own, by a nested cargo that sees nothing of this build's flags (a `--cfg loom`
//! or a clippy wrapper meant for us would break it). Its target directory is under `OUT_DIR`: the
//! outer cargo holds the lock of the other one. All it needs is in the workspace's `Cargo.lock`
//! and was fetched with our own dependencies, so it builds offline whenever we do.
//!
//! With `PUMICE_WITHOUT_SHIM` in the environment the code is only checked (`.ci/run`: clippy,
//! documentation): nothing is built, the program embeds empty files, and does not link.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Variables of the outer build that must not reach the nested one.
const NOT_INHERITED: [&str; 16] = [
    "CARGO_BUILD_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_INCREMENTAL",
    "CARGO_TARGET_DIR",
    "CLIPPY_ARGS",
    "CLIPPY_CONF_DIR",
    "LLVM_PROFILE_FILE",
    "MAKEFLAGS",
    "MFLAGS",
    "OUT_DIR",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTDOCFLAGS",
    "RUSTFLAGS",
    "TARGET",
];

/// The same, by their prefixes: cargo's variables about the crate at hand, and profiles.
const NOT_INHERITED_PREFIXES: [&str; 6] = [
    "CARGO_BUILD_RUSTC_WORKSPACE",
    "CARGO_CFG_",
    "CARGO_FEATURE_",
    "CARGO_MANIFEST_",
    "CARGO_PKG_",
    "CARGO_PROFILE_",
];

fn main() {
    let workspace = workspace();
    for source in [
        "Cargo.lock",
        "Cargo.toml",
        "crates/pumice-accel",
        "crates/pumice-frames",
        "crates/pumice-heap",
        "crates/pumice-preload",
    ] {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }
    if env_of_cargo("CARGO_CFG_TARGET_ENV") == "gnu" {
        // The program lies where it was linked for. Else the loader writes 8,000 addresses into 36 pages at every start
        // of `pumice run`, for 130 µs. Stacks, libraries and mappings lie elsewhere each time all the same.
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
    println!("cargo::rerun-if-env-changed=PUMICE_WITHOUT_SHIM");
    let built = match env::var_os("PUMICE_WITHOUT_SHIM") {
        None => [build_shim(&workspace), build_small(&workspace)],
        Some(_) => {
            println!("cargo::rustc-link-arg=--pumice-was-built-without-its-shim");
            [empty_file("no-shim"), empty_file("no-small")]
        }
    };
    for (name, built) in ["SHIM", "SMALL"].into_iter().zip(built) {
        let bytes = fs::read(&built)
            .unwrap_or_else(|error| panic!("nothing came out at {}: {error}", built.display()));
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        // The hash names the file that `pumice run` writes, so that it need not be computed there.
        println!("cargo::rustc-env=PUMICE_{name}_FILE={}", built.display());
        println!("cargo::rustc-env=PUMICE_{name}_HASH={:016x}", hasher.finish());
    }
    link_unwinder_statically();
}

/// Has the unwinder linked statically, where the C compiler has it so. A program that aborts on
/// panic hardly needs one, and the loader would spend 150 µs on `libgcc_s.so` at every start of
/// `pumice run`, which may take 1 ms in all. Rust asks the linker for `-lgcc_s`; a linker script of
/// that name answers.
fn link_unwinder_statically() {
    println!("cargo::rerun-if-env-changed=CC");
    let folder = PathBuf::from(env_of_cargo("OUT_DIR")).join("unwinder");
    if env_of_cargo("TARGET") == env_of_cargo("HOST")
        && compiler_has("libgcc_eh.a")
        && fs::create_dir_all(&folder).is_ok()
        && fs::write(folder.join("libgcc_s.so"), "INPUT(-lgcc_eh)\n").is_ok()
    {
        println!("cargo::rustc-link-search=native={}", folder.display());
    }
}

fn compiler_has(library: &str) -> bool {
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let asked = Command::new(compiler).arg(format!("-print-file-name={library}")).output();
    // A compiler that does not have it prints the bare name.
    asked.is_ok_and(|answer| answer.stdout.starts_with(b"/"))
}

fn workspace() -> PathBuf {
    let here = PathBuf::from(env_of_cargo("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().nth(2).unwrap_or(&here).to_owned();
    assert!(
        root.join("crates/pumice-preload/Cargo.toml").is_file(),
        "pumice-cli embeds crates/pumice-preload and builds only inside its workspace; \
         use `cargo install --git` or `cargo install --path`"
    );
    root
}

/// A file to embed where the code is only checked.
fn empty_file(name: &str) -> PathBuf {
    let file = PathBuf::from(env_of_cargo("OUT_DIR")).join(name);
    fs::write(&file, "").unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    file
}

/// Builds the shim for the target at hand and returns where it lies.
fn build_shim(workspace: &Path) -> PathBuf {
    let target = env_of_cargo("TARGET");
    let target_dir = PathBuf::from(env_of_cargo("OUT_DIR")).join("shim");
    let mut cargo = Command::new(env_of_cargo("CARGO"));
    cargo
        .args(["build", "--profile", "shim", "--quiet", "--package", "pumice-preload"])
        .args(["--features", "freestanding"])
        .arg("--manifest-path")
        .arg(workspace.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target_dir)
        .arg("--target")
        .arg(&target)
        .current_dir(workspace);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let named = NOT_INHERITED.contains(&&*text);
        if named || NOT_INHERITED_PREFIXES.iter().any(|prefix| text.starts_with(prefix)) {
            cargo.env_remove(&name);
        }
    }
    let output = cargo.output().unwrap_or_else(|error| panic!("cargo can't be run: {error}"));
    assert!(
        output.status.success(),
        "the shim (crates/pumice-preload) does not build:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    target_dir.join(target).join("shim/libpumice_preload.so")
}

/// Builds the library that stands between the shim and an allocator that was asked for, and returns where it lies.
fn build_small(workspace: &Path) -> PathBuf {
    println!("cargo::rerun-if-env-changed=CC");
    let library = PathBuf::from(env_of_cargo("OUT_DIR")).join("libpumice_small.so");
    // The linker that cargo was told of for another processor is a C compiler of that processor.
    let is_native = env_of_cargo("TARGET") == env_of_cargo("HOST");
    let linker = env::var_os("RUSTC_LINKER").filter(|_| !is_native);
    let compiler = linker.or_else(|| env::var_os("CC")).unwrap_or_else(|| "cc".into());
    let mut command = Command::new(&compiler);
    command
        .args([
            "-std=gnu11",
            "-O2",
            "-fPIC",
            "-fexceptions",
            "-fsemantic-interposition",
            "-fno-builtin",
            "-fvisibility=hidden",
        ])
        .args([
            "-shared",
            "-nostdlib",
            "-s",
            "-Wl,-soname,libpumice_small.so",
            "-Wl,-z,noexecstack",
        ])
        .arg("-o")
        .arg(&library)
        .arg(workspace.join("crates/pumice-preload/small/small.c"));
    let status =
        command.status().unwrap_or_else(|error| panic!("{compiler:?} can't be run: {error}"));
    assert!(status.success(), "small.c (crates/pumice-preload/small) does not compile");
    library
}

fn env_of_cargo(name: &str) -> OsString {
    env::var_os(name).unwrap_or_else(|| panic!("{name} is set by cargo for build scripts"))
}
