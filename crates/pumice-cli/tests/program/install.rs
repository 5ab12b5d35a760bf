//! `make install-program`: the program with all that belongs to it.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::folder;

#[test]
fn the_program_is_installed_with_its_shim_and_manual() {
    if Command::new("make").arg("--version").output().is_err() {
        println!("make is not installed: skipped");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a workspace");
    let built = Path::new(env!("CARGO_BIN_EXE_pumice")).parent().expect("a folder");
    let folder = folder("make-install");
    let set = |name: &str, value: &Path| format!("{name}={}", value.display());
    let output = Command::new("make")
        .args(["-C".as_ref(), root.as_os_str(), "install-program".as_ref()])
        .args([set("DESTDIR", &folder), set("BUILT", built), "PREFIX=/usr".to_owned()])
        .env_remove("MAKEFLAGS")
        .output()
        .expect("make starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for (file, part) in [
        ("bin/pumice", "ELF"),
        ("lib/pumice/libpumice-preload.so", "ELF"),
        ("share/man/man1/pumice.1", ".TH"),
        ("share/bash-completion/completions/pumice", "_pumice"),
        ("share/zsh/site-functions/_pumice", "#compdef pumice"),
        ("share/fish/vendor_completions.d/pumice.fish", "complete"),
    ] {
        let bytes = fs::read(folder.join("usr").join(file)).expect(file);
        assert!(String::from_utf8_lossy(&bytes).contains(part), "{file} lacks {part}");
    }
}
