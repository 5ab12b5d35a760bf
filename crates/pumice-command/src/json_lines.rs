//! `--json FILE`: one object per row of the table, under the same names.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::Failure;

/// The values of each round, by the names of the fields of which a row has the median.
pub type Samples = BTreeMap<&'static str, Vec<f64>>;

/// A file of JSON Lines, or nothing where none was asked for.
#[derive(Debug)]
pub struct JsonLines {
    file: Option<(BufWriter<File>, PathBuf)>,
}

impl JsonLines {
    /// Made before the measurement, so that a bad path is told at once.
    pub fn create(path: Option<&Path>) -> Result<JsonLines, Failure> {
        let Some(path) = path else { return Ok(JsonLines { file: None }) };
        let file = File::create(path).map_err(|error| failure(path, &error))?;
        Ok(JsonLines { file: Some((BufWriter::new(file), path.to_owned())) })
    }

    /// Adds a row.
    pub fn write(&mut self, row: &impl Serialize) -> Result<(), Failure> {
        let Some((file, path)) = &mut self.file else { return Ok(()) };
        let line = serde_json::to_string(row).map_err(|error| failure(path, &error))?;
        // At once: a process that is ended meanwhile has written its rows.
        writeln!(file, "{line}").and_then(|()| file.flush()).map_err(|error| failure(path, &error))
    }

    /// Flushes the buffer into the file.
    pub fn finish(self) -> Result<(), Failure> {
        match self.file {
            Some((mut file, path)) => file.flush().map_err(|error| failure(&path, &error)),
            None => Ok(()),
        }
    }
}

fn failure(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::usage(format!("can't write {}: {error}", path.display()))
}
