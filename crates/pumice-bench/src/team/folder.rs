//! A folder for an experiment's files.

use std::fs;
use std::path::{Path, PathBuf};

use pumice_command::Failure;

/// A folder that is removed with its content when this is over.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes one of this experiment in another, or where temporary files are.
    pub fn make(parent: Option<&Path>, experiment: &str) -> Result<Folder, Failure> {
        let is_asked_for = parent.is_some();
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        let path = parent.join(format!("pumice-bench-{experiment}.{}", std::process::id()));
        let failure = if is_asked_for { Failure::usage } else { Failure::system };
        fs::create_dir(&path).map_err(|error| {
            failure(format!("can't make the folder {}: {error}", path.display()))
        })?;
        Ok(Folder(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{} is left behind: {error}", self.0.display());
        }
    }
}
