//! Small C programs that stand for others: they know nothing of pumice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Compiles `source` to `folder/name`. `Err` says what is missing.
pub fn compile(name: &str, source: &str, folder: &Path) -> Result<PathBuf, String> {
    let program = folder.join(name);
    let file = program.with_extension("c");
    fs::write(&file, source).map_err(|error| format!("{}: {error}", file.display()))?;
    // The compiler must not know what malloc does, or it would leave calls out.
    let compiled = Command::new("cc")
        .args(["-O2", "-fno-builtin-malloc", "-fno-builtin-free", "-pthread", "-o"])
        .args([&program, &file])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    match compiled {
        true => Ok(program),
        false => Err(format!("cc can't compile {name}.c: apt-get install gcc libc6-dev")),
    }
}
