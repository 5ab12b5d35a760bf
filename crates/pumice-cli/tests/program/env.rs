//! The output of `pumice env` does what `pumice run` would, wherever it is put.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{folder, pumice, safe_folder, stderr, stdout};

/// Runs it and returns what it prints; it must succeed.
fn print(arguments: &[&str]) -> String {
    let output = pumice(&[&["env"], arguments].concat()).output().expect("pumice starts");
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    stdout(&output)
}

/// A shell script in a clean environment.
fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).env_clear().env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
    command
}

#[test]
fn a_shell_that_evaluates_it_is_served() {
    let Some(folder) = safe_folder("env-shell") else { return };
    let shown = folder.to_str().expect("UTF-8");
    let said = print(&["--install-shim", shown, "--threshold", "1M", "--only", "it's,$x"]);
    let script = format!("{said}\nexec env");
    let output = shell(&script).env("LD_PRELOAD", "/no/such/library.so").output();
    let variables = stdout(&output.expect("sh starts"));
    let shim = format!("{shown}/libpumice-preload.so");
    for line in [
        &format!("LD_PRELOAD={shim}:/no/such/library.so"),
        "PUMICE_THRESHOLD=1048576",
        "PUMICE_ONLY=it's,$x",
    ] {
        assert!(variables.lines().any(|variable| variable == line), "no {line} in:\n{variables}");
    }
    let output = shell(&format!("{said}\nexec cat /proc/self/maps")).output().expect("sh starts");
    assert!(stdout(&output).contains(&shim), "the loader has loaded it");
}

#[test]
fn the_shim_is_installed_over_a_former_one() {
    let Some(folder) = safe_folder("env-install") else { return };
    let inner = folder.join("a/b");
    let path = inner.join("libpumice-preload.so");
    for _ in 0..2 {
        let output = pumice(&["env", "--install-shim", inner.to_str().expect("UTF-8")]).output();
        let output = output.expect("pumice starts");
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stderr(&output), format!("pumice: the shim is at {}\n", path.display()));
        let embedded = fs::read(env!("PUMICE_SHIM_FILE")).expect("the shim");
        assert!(fs::read(&path).expect("installed") == embedded);
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o7777, 0o644);
        assert_eq!(fs::read_dir(&inner).expect("a folder").count(), 1, "no draft is left");
        fs::write(&path, "a former shim").expect("writable");
    }
}

/// Where others can put another, nothing is installed that is to be loaded from there; for an image it is.
#[test]
fn a_shim_that_others_can_replace_is_for_elsewhere() {
    let folder = folder("env-open");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("ours");
    let inner = folder.join("a");
    let arguments = ["env", "--install-shim", inner.to_str().expect("UTF-8")];
    for form in ["shell", "systemd"] {
        let output = pumice(&arguments).args(["--format", form]).output().expect("pumice starts");
        assert_eq!(output.status.code(), Some(2));
        let said = stderr(&output);
        assert!(said.lines().count() == 1 && said.contains("writable"), "{said}");
        assert!(!inner.exists());
    }
    print(&[&arguments[1..], &["--format", "docker"]].concat());
    let shim = inner.join("libpumice-preload.so");
    assert!(shim.exists());
    let shim = shim.to_str().expect("UTF-8");
    let named = pumice(&["env", "--shim", shim]).output().expect("pumice starts");
    assert!(stderr(&named).contains("replaced by others"), "{}", stderr(&named));
    let ran = pumice(&["run", "--", "true"]).env("PUMICE_SHIM", shim).output();
    let ran = ran.expect("pumice starts");
    assert_eq!(ran.status.code(), Some(2));
    assert!(stderr(&ran).contains("replaced by others"), "{}", stderr(&ran));
}

#[test]
fn without_a_place_it_says_where_the_shim_is() {
    let output = pumice(&["env"]).output().expect("pumice starts");
    let (said, hint) = (stdout(&output), stderr(&output));
    let path = said.strip_prefix("export LD_PRELOAD='").and_then(|rest| rest.split('\'').next());
    let path = path.expect("a path");
    assert!(Path::new(path).is_file(), "{path}");
    assert!(hint.contains(path) && hint.contains("--install-shim"), "{hint}");
    assert_eq!(hint.lines().count(), 1);
}

#[test]
fn every_form_has_every_variable() {
    const OPTIONS: [&str; 18] = [
        "--shim",
        "/usr/lib/shim.so",
        "--ready",
        "2M",
        "--pool-max",
        "8M",
        "--threshold",
        "128K",
        "--decay",
        "2s",
        "--only",
        "a,b",
        "--skip=c",
        "--verify",
        "--scrub-load",
        "1.5",
        "--engine",
        "portable",
    ];
    const EXPECTED: [(&str, &str); 10] = [
        ("LD_PRELOAD", "/usr/lib/shim.so"),
        ("PUMICE_READY", "2097152"),
        ("PUMICE_POOL_MAX", "8388608"),
        ("PUMICE_THRESHOLD", "131072"),
        ("PUMICE_ONLY", "a,b"),
        ("PUMICE_SKIP", "c"),
        ("PUMICE_CLEAR", "portable/cpu"),
        ("PUMICE_VERIFY", "1"),
        ("PUMICE_SCRUB_LOAD", "1.5"),
        ("PUMICE_DECAY_MS", "2000"),
    ];
    let said = |form| print(&[&["--format", form], &OPTIONS[..]].concat());

    let json: serde_json::Value = serde_json::from_str(&said("json")).expect("JSON");
    assert_eq!(json.as_object().expect("an object").len(), EXPECTED.len());
    for (name, value) in EXPECTED {
        assert_eq!(json[name], value);
    }
    let lines = |start: &str, line: fn(&str, &str) -> String| {
        let lines = EXPECTED.map(|(name, value)| line(name, value));
        format!("{start}{}", lines.join("\n"))
    };
    assert_eq!(said("docker"), lines("", |name, value| format!("ENV {name}=\"{value}\"")));
    let environment = |name: &str, value: &str| format!("Environment=\"{name}={value}\"");
    if let Some(folder) = safe_folder("env-forms") {
        let path = folder.join("shim.so");
        fs::copy(env!("PUMICE_SHIM_FILE"), &path).expect("the folder is ours");
        let shim = path.to_str().expect("UTF-8");
        let systemd = print(&[&["--format", "systemd"], &["--shim", shim], &OPTIONS[2..]].concat());
        let expected = lines("[Service]\n", environment);
        assert_eq!(systemd, expected.replace("/usr/lib/shim.so", shim));
    }
    let item = |name: &str, value: &str| format!("- name: {name}\n  value: \"{value}\"");
    assert_eq!(said("k8s"), lines("env:\n", item));
}

#[test]
fn only_what_is_typed_is_printed() {
    let output = pumice(&["env", "--format=json", "--shim", "/a.so"])
        .env("PUMICE_READY", "1G")
        .output()
        .expect("pumice starts");
    assert_eq!(stdout(&output), r#"{"LD_PRELOAD":"/a.so"}"#);
}

/// The variables that the sources name.
fn variables() -> Vec<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pumice-heap/src/config.rs");
    let text = fs::read_to_string(source).expect("a source");
    let is_name = |text: &&str| {
        let is_letter = |byte: u8| byte.is_ascii_uppercase() || byte == b'_';
        text.starts_with("PUMICE") && text.bytes().all(is_letter)
    };
    let names = text.split('"').skip(1).step_by(2).filter(is_name);
    names.map(str::to_owned).chain(["PUMICE_SHIM".to_owned()]).collect()
}

#[test]
fn every_variable_is_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a workspace");
    let text = fs::read_to_string(root.join("docs/environment.md")).expect("the document");
    let names = variables();
    assert!(names.len() >= 18, "{names:?}");
    for name in names {
        assert!(text.contains(&format!("\n| `{name}` |")), "docs/environment.md lacks {name}");
    }
}
