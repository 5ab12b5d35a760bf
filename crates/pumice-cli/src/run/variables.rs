//! `pumice env`: the variables that give programs the shim without `pumice run`.
//!
//! Where nobody leads the tree of processes, each has counters and a pool of its own, and reads
//! its variables itself. So the settings that `pumice run` would compute for this machine (the pool's limit, the
//! clearing plan) are left to each of them, and only the given options are printed.

use std::ffi::OsStr;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::{Parser, ValueEnum};

use super::options::{check_pool, variables, PoolArgs, ScrubArgs};
use super::shim_file::{self, LoadedFrom};
use pumice_command::engines::{self, Choice};
use pumice_command::safe_path;
use pumice_command::small::{Small, ENV_TUNABLES};
use pumice_command::{print, Failure};

/// Print the variables that give programs the shim without 'pumice run', for a service or an image
///
/// Each process then has a pool of its own. docs/environment.md says where to put them, and what
/// does not work.
#[derive(Parser, Debug)]
#[command(name = "env", bin_name = "pumice env")]
pub struct EnvArgs {
    /// How to write them
    #[arg(long, value_enum, value_name = "FORM", default_value = "shell")]
    format: Form,
    /// Where the shim is, or will be: an absolute path
    #[arg(long, value_name = "PATH", conflicts_with = "install_shim")]
    shim: Option<PathBuf>,
    /// Copy the shim into this folder first, as libpumice-preload.so
    #[arg(long, value_name = "DIR")]
    install_shim: Option<PathBuf>,
    #[command(flatten)]
    pool: PoolArgs,
    // Last, since its heading holds for all that follows.
    #[command(flatten)]
    scrub: ScrubArgs,
}

/// The reader of the variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// export lines, for eval
    Shell,
    /// a drop-in file for a service
    Systemd,
    /// ENV lines of a Dockerfile
    Docker,
    /// the env list of a container in Kubernetes
    K8s,
    /// one object
    Json,
}

impl Form {
    /// Whether they are meant for another machine's files, or another root's.
    fn is_for_elsewhere(self) -> bool {
        matches!(self, Form::Docker | Form::K8s | Form::Json)
    }
}

/// Prints them, and says on stderr where the shim is if it chose the place.
pub fn print_variables(arguments: &EnvArgs) -> Result<(), Failure> {
    check_pool(&arguments.pool)?;
    check_engine(&arguments.pool, arguments.format)?;
    let small = arguments.pool.small.map_or(Ok(None), Small::find_or_explain)?;
    let typed = variables(&arguments.pool, &arguments.scrub);
    let mut pairs = Vec::new();
    for (name, value) in typed {
        pairs.push((name, text(name, &value)?));
    }
    let preload = shim_file::preload_list(&libraries(arguments, small)?, None);
    pairs.insert(0, ("LD_PRELOAD", text("LD_PRELOAD", &preload)?));
    print(write(arguments.format, &pairs).as_bytes())
}

/// As `pumice run` does. Of an engine for another machine, only whether programs can have it on any.
fn check_engine(pool: &PoolArgs, form: Form) -> Result<(), Failure> {
    match pool.engine {
        Some(Choice::Kind(kind)) if form.is_for_elsewhere() => engines::check_for_any_machine(kind),
        Some(Choice::Kind(kind)) => engines::check_for_programs(kind),
        None | Some(Choice::Auto | Choice::Processor(_)) => Ok(()),
    }
}

/// A value as text that every form can hold.
fn text(name: &str, value: &OsStr) -> Result<String, Failure> {
    let text = value.to_str().filter(|text| !text.contains(char::is_control));
    text.map(str::to_owned).ok_or_else(|| {
        let shown = value.to_string_lossy();
        Failure::usage(format!("{name} can't be written down: '{}'", shown.escape_debug()))
    })
}

/// The shim, and the libraries preloaded with it.
fn libraries(arguments: &EnvArgs, small: Option<PathBuf>) -> Result<Vec<PathBuf>, Failure> {
    if let Some(path) = &arguments.shim {
        let libraries = shim_file::beside(path, small);
        for library in &libraries {
            checked(library, arguments.format)?;
        }
        return Ok(libraries);
    }
    if let Some(folder) = &arguments.install_shim {
        // Before anything is written.
        text("--install-shim", folder.as_os_str())?;
        let loaded_from = match arguments.format.is_for_elsewhere() {
            true => LoadedFrom::Elsewhere,
            false => LoadedFrom::There,
        };
        let libraries = shim_file::install(folder, small, loaded_from)?;
        eprintln!("pumice: the shim is at {}", libraries[0].display());
        return Ok(libraries);
    }
    let libraries = shim_file::find_or_write(small)?;
    let hint = match arguments.format.is_for_elsewhere() {
        true => "it must be at the same path there, or give --shim PATH",
        false => "a restart may remove it; --install-shim DIR puts it where it stays",
    };
    eprintln!("pumice: the shim is at {}; {hint}", libraries[0].display());
    Ok(libraries)
}

fn checked(path: &Path, form: Form) -> Result<(), Failure> {
    let shown = path.display();
    if !shim_file::is_nameable(path) {
        return Err(Failure::usage(format!(
            "--shim {shown} must be an absolute path without spaces and colons, \
             since LD_PRELOAD names it"
        )));
    }
    if !form.is_for_elsewhere() && !shim_file::starts_as_elf(path) {
        return Err(Failure::usage(format!(
            "no shared library at --shim {shown}; --install-shim DIR puts one into DIR"
        )));
    }
    if let Some(why) = safe_path::check(path).err().filter(|_| !form.is_for_elsewhere()) {
        return Err(Failure::usage(format!(
            "--shim {shown} can be replaced by others: {why}; see chmod go-w, or move it"
        )));
    }
    Ok(())
}

/// The variables in a form; no value has a control character.
fn write(form: Form, pairs: &[(&str, String)]) -> String {
    let mut text = String::new();
    let mut line = |line: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{line}");
    };
    match form {
        Form::Shell => {
            for (name, value) in pairs {
                let value = value.replace('\'', r"'\''");
                let behind = match *name {
                    list @ ("LD_PRELOAD" | ENV_TUNABLES) => format!("${{{list}:+:${list}}}"),
                    _ => String::new(),
                };
                line(format!("export {name}='{value}'{behind}"));
            }
        }
        Form::Systemd => {
            line("[Service]".to_owned());
            for (name, value) in pairs {
                let value = escaped(value, &['\\', '"']).replace('%', "%%");
                line(format!("Environment=\"{name}={value}\""));
            }
        }
        Form::Docker => {
            for (name, value) in pairs {
                line(format!("ENV {name}=\"{}\"", escaped(value, &['\\', '"', '$'])));
            }
        }
        Form::K8s => {
            line("env:".to_owned());
            for (name, value) in pairs {
                // $(NAME) would be replaced, and $$ is how to write $. A string in JSON is one in
                // YAML too.
                let value = serde_json::Value::from(value.replace('$', "$$"));
                line(format!("- name: {name}\n  value: {value}"));
            }
        }
        Form::Json => {
            let object: serde_json::Map<_, _> = pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.as_str().into()))
                .collect();
            line(serde_json::Value::from(object).to_string());
        }
    }
    text
}

/// With a backslash before each of `special`.
fn escaped(value: &str, special: &[char]) -> String {
    value.chars().fold(String::new(), |mut text, character| {
        if special.contains(&character) {
            text.push('\\');
        }
        text.push(character);
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AWKWARD: &str = r#"it's a "50%" \ $(x) $y"#;

    fn line(form: Form) -> String {
        let text = write(form, &[("N", AWKWARD.to_owned())]);
        text.lines().last().expect("a line").to_owned()
    }

    #[test]
    fn values_are_quoted_as_each_reader_wants_it() {
        assert_eq!(line(Form::Shell), r#"export N='it'\''s a "50%" \ $(x) $y'"#);
        assert_eq!(line(Form::Systemd), r#"Environment="N=it's a \"50%%\" \\ $(x) $y""#);
        assert_eq!(line(Form::Docker), r#"ENV N="it's a \"50%\" \\ \$(x) \$y""#);
        assert_eq!(line(Form::K8s), r#"  value: "it's a \"50%\" \\ $$(x) $$y""#);
        assert_eq!(line(Form::Json), r#"{"N":"it's a \"50%\" \\ $(x) $y"}"#);
    }
}
