//! `pumice run --small`: an installed allocator serves small requests, and pumice the large ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::shim::{compile, have, scratch};
use crate::support::{folder, pumice, stderr, stdout};

const ALLOCATORS: [&str; 3] = ["mimalloc", "jemalloc", "tcmalloc"];

/// An allocator that lies in a folder that the loader is told of: small requests are its own, large ones pumice's.
#[test]
fn small_requests_go_to_the_allocator_that_was_asked_for() {
    const ALLOCATOR: &str = r#"
        #include <stddef.h>
        static char memory[1 << 22];
        static size_t used;
        static void *next(size_t size) {
            size_t at = (used + 31) & ~15ul;
            if (size > sizeof memory - at - 16) return 0;
            used = at + size;
            *(size_t *)(memory + at - 16) = size;
            return memory + at;
        }
        int owns_small(void *at) { return (char *)at >= memory && (char *)at < memory + sizeof memory; }
        void *malloc(size_t size) { return next(size); }
        void *calloc(size_t n, size_t size) { return next(n * size); }
        void free(void *at) { (void)at; }
        size_t malloc_usable_size(void *at) { return at ? *(size_t *)((char *)at - 16) : 0; }
        void *realloc(void *at, size_t size) {
            char *to = next(size);
            size_t old = malloc_usable_size(at);
            for (size_t i = 0; to && at && i < size && i < old; i++) to[i] = ((char *)at)[i];
            return to;
        }"#;
    const PROGRAM: &str = r#"
        #include <stdio.h>
        #include <stdlib.h>
        extern int owns_small(void *) __attribute__((weak));
        int main(void) {
            void *small = malloc(100), *large = malloc(2 << 20);
            printf("%d %d\n", owns_small && owns_small(small), owns_small && owns_small(large));
            return 0;
        }"#;
    let folder = folder("small-allocator");
    let compile = |name: &str, source: &str, options: &[&str]| {
        let file = folder.join(format!("{name}.c"));
        fs::write(&file, source).expect("room");
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-o"]).arg(folder.join(name)).arg(&file).args(options);
        assert!(cc.status().expect("cc is installed").success());
    };
    compile("libjemalloc.so.2", ALLOCATOR, &["-shared", "-fPIC", "-fno-builtin"]);
    compile("program", PROGRAM, &[]);
    // Another version, and files that are no library of this processor.
    fs::write(folder.join("libjemalloc.so.9"), "no library").expect("room");
    let run = |arguments: &[&str]| {
        let mut command = pumice(arguments);
        command.env("LD_LIBRARY_PATH", &*folder).arg("--").arg(folder.join("program"));
        let output = command.output().expect("pumice starts");
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    assert_eq!(run(&["run"]), "0 0");
    assert_eq!(run(&["run", "--small", "jemalloc"]), "1 0");
    let mut command = pumice(&["env", "--small", "jemalloc"]);
    let output = command.env("LD_LIBRARY_PATH", &*folder).output().expect("pumice starts");
    let said = stdout(&output);
    let library = folder.join("libjemalloc.so.2");
    assert!(said.contains(&format!(":{}'", library.display())), "{said}");
    let unknown = pumice(&["run", "--small", "dlmalloc", "true"]).output().expect("pumice starts");
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("tcmalloc"), "{}", stderr(&unknown));
}

/// The C library's allocator is told, beside what its caller told it. A setting of the caller's comes last, and counts.
#[test]
fn the_c_library_is_told_to_use_huge_pages() {
    let told = |mut command: Command, before: Option<&str>| {
        match before {
            Some(before) => command.env("GLIBC_TUNABLES", before),
            None => command.env_remove("GLIBC_TUNABLES"),
        };
        let output = command.output().expect("pumice starts");
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let run = || pumice(&["run", "--small", "glibc-huge", "--", "printenv", "GLIBC_TUNABLES"]);
    assert_eq!(told(run(), None), "glibc.malloc.hugetlb=1");
    let own = "glibc.malloc.arena_max=1:glibc.malloc.hugetlb=0";
    assert_eq!(told(run(), Some(own)), format!("glibc.malloc.hugetlb=1:{own}"));
    let exported = || {
        let script = r#"eval "$("$0" env --small glibc-huge)"; printenv GLIBC_TUNABLES"#;
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).arg(env!("CARGO_BIN_EXE_pumice"));
        shell
    };
    assert_eq!(told(exported(), None), "glibc.malloc.hugetlb=1");
    assert_eq!(told(exported(), Some(own)), format!("glibc.malloc.hugetlb=1:{own}"));
}

fn compile_cxx(name: &str) -> Option<PathBuf> {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/small").join(name).with_extension("cc");
    let program = scratch("small").join(name);
    if !have("c++") {
        return None;
    }
    let mut compiler = Command::new("c++");
    compiler.args(["-std=gnu++17", "-O1", "-w", "-fno-builtin", "-o"]).arg(&program).arg(source);
    assert!(compiler.status().expect("it is there").success());
    Some(program)
}

/// Runs a program with each allocator that is installed; `look` gets its output and the heap's count of requests.
fn with_each(program: &Path, mut look: impl FnMut(&str, Output, u64)) {
    let folder = folder("small-reports");
    for allocator in ALLOCATORS {
        let report = folder.join(allocator);
        let mut command = pumice(&["run", "--verify", "--threshold", "64K", "--small", allocator]);
        command.arg("--report=json").arg("--report-file").arg(&report).arg("--").arg(program);
        let output = command.output().expect("pumice starts");
        if output.status.code() == Some(2) && stderr(&output).contains("apt-get install") {
            println!("{allocator} is not installed: skipped");
            continue;
        }
        let report = fs::read(&report).expect("a report");
        let report: serde_json::Value = serde_json::from_slice(&report).expect("JSON");
        look(allocator, output, report["requests"].as_u64().expect("a number"));
    }
}

#[test]
fn operators_of_cxx_are_served_and_fail_as_they_should() {
    let Some(program) = compile_cxx("operators") else { return };
    let plain = Command::new(&program).output().expect("it starts");
    assert_eq!(stdout(&plain), "right");
    with_each(&program, |allocator, output, requests| {
        assert_eq!(stdout(&output), "right", "{allocator}: {}", stderr(&output));
        // Twelve pairs and two of malloc; the vector's growth comes on top.
        assert!(requests >= 14, "{allocator}: {requests}");
    });
}

#[test]
fn operators_that_a_program_replaces_are_its_own() {
    let Some(program) = compile_cxx("replaced") else { return };
    let plain = Command::new(&program).output().expect("it starts");
    assert_eq!(stdout(&plain), "right");
    with_each(&program, |allocator, output, _| {
        assert_eq!(stdout(&output), "right", "{allocator}: {}", stderr(&output));
    });
}

#[test]
fn functions_of_jemalloc_take_what_malloc_gave() {
    let program = compile("small/sized");
    with_each(&program, |allocator, output, requests| {
        if allocator == "jemalloc" {
            assert_eq!(stdout(&output), "right", "{}", stderr(&output));
            assert!(requests >= 4, "{requests}");
        }
    });
}
