//! `make install-library`, and the C example against what it installs, shared and static. Cargo has
//! already built for this test what make would build.

use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use object::{Object, ObjectSymbol};

const PREFIX: &str = "/opt/pumice";

fn crate_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo has put the libraries: beside this program.
fn built() -> PathBuf {
    let program = std::env::current_exe().expect("a path");
    program.parent().expect("a folder").to_owned()
}

fn have(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("{program} is not installed: skipped");
    }
    found
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    output
}

/// Installs into a folder of this test's and returns it.
fn install(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // Left by an earlier run.
    let _ = fs::remove_dir_all(&folder);
    let workspace = crate_root().ancestors().nth(2).expect("a workspace");
    let set = |name: &str, value: &Path| format!("{name}={}", value.display());
    run(Command::new("make")
        .args(["-C".as_ref(), workspace.as_os_str(), "install-library".as_ref()])
        .args([set("DESTDIR", &folder), set("BUILT", &built()), format!("PREFIX={PREFIX}")])
        .env_remove("MAKEFLAGS"));
    folder
}

/// The example, compiled with these arguments behind it, says what it should.
fn compile_and_run(installed: &Path, name: &str, link: &[String]) {
    let program = installed.join(name);
    run(Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"])
        .arg(&program)
        .arg(crate_root().join("examples/frames.c"))
        .args(link));
    let library = installed.join(format!("{}/lib", &PREFIX[1..]));
    for verify in ["0", "1"] {
        let mut command = Command::new(&program);
        command.env("LD_LIBRARY_PATH", &library).env("PUMICE_VERIFY", verify);
        let output = run(&mut command);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains(&format!("pumice {}\n", env!("CARGO_PKG_VERSION"))), "{said}");
        assert!(said.contains("scrub_load=1.50\n") && !said.contains("\nrequests 0\n"), "{said}");
        assert!(!said.contains("\nhits 0\n"), "arrays are served from ready memory: {said}");
    }
}

/// The flags of the installed pkg-config file, as arguments for the compiler.
fn flags(installed: &Path, more: &[&str]) -> Vec<String> {
    let folder = installed.join(&PREFIX[1..]).join("lib/pkgconfig");
    let output = run(Command::new("pkg-config")
        .args(["--cflags", "--libs", "pumice"])
        .args(more)
        .env("PKG_CONFIG_SYSROOT_DIR", installed)
        .env("PKG_CONFIG_PATH", folder));
    String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect()
}

fn can_link() -> bool {
    ["make", "cc", "pkg-config"].into_iter().all(have)
}

#[test]
fn the_example_with_the_shared_library() {
    if can_link() {
        let installed = install("install-shared");
        compile_and_run(&installed, "shared", &flags(&installed, &[]));
    }
}

#[test]
fn the_example_with_the_static_library() {
    if !can_link() {
        return;
    }
    let installed = install("install-static");
    // The linker prefers a shared library; a program that wants this one only names it.
    let name = |flag: String| if flag == "-lpumice" { "-l:libpumice.a".to_owned() } else { flag };
    let link: Vec<_> = flags(&installed, &["--static"]).into_iter().map(name).collect();
    compile_and_run(&installed, "partly", &link);
    let found = run(Command::new("cc").arg("-print-file-name=libc.a"));
    if found.stdout == b"libc.a\n" {
        println!("there is no static libc: skipped in part");
        return;
    }
    let link = [vec!["-static".to_owned()], flags(&installed, &["--static"])].concat();
    compile_and_run(&installed, "wholly", &link);
}

/// Helper threads run in it, and memory it handed out is the program's still.
#[test]
fn it_stays_when_it_is_closed() {
    let path = built().join("libpumice_c.so").into_os_string().into_encoded_bytes();
    let path = CString::new(path).expect("a path");
    // SAFETY: the function is what pumice.h says.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null());
        let allocate = libc::dlsym(library, c"pumice_alloc".as_ptr());
        assert!(!allocate.is_null());
        let allocate: extern "C" fn(usize, usize, u32) -> *mut u8 = std::mem::transmute(allocate);
        let at = allocate(16 << 20, 0, 0);
        assert_eq!(libc::dlclose(library), 0);
        assert!(!libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD).is_null());
        at.write_bytes(1, 16 << 20);
    }
}

#[test]
fn only_our_names_are_exported() {
    let bytes = fs::read(built().join("libpumice_c.so")).expect("cargo builds it");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let exported = file.dynamic_symbols().filter(|symbol| symbol.is_definition());
    let names: Vec<_> = exported.map(|symbol| symbol.name().expect("text").to_owned()).collect();
    assert!(names.iter().any(|name| name == "pumice_alloc"), "{names:?}");
    for name in names {
        assert!(name.starts_with("pumice_"), "{name} is exported");
    }
}

#[test]
fn the_static_library_is_nobodys_malloc() {
    if !have("nm") {
        return;
    }
    let library = built().join("libpumice_c.a");
    let output = run(Command::new("nm").args(["-g", "--defined-only"]).arg(library));
    let said = String::from_utf8_lossy(&output.stdout);
    let names: Vec<_> = said.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert!(names.contains(&"pumice_alloc"));
    for taken in ["malloc", "calloc", "realloc", "free", "posix_memalign", "mmap", "main"] {
        assert!(!names.contains(&taken), "{taken} is defined");
    }
}
