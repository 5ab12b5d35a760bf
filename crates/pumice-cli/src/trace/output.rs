//! The trace's file. It is text that `bench replace` reads, and good at any time: if this
//! process is killed, the trace so far is there.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;

use pumice_command::share::Share;
use pumice_command::Failure;
use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};

use super::TraceArgs;

/// Pages of an interval, in the order of their numbers, after a comment that says when it ended.
#[derive(Debug)]
pub struct Output {
    file: BufWriter<File>,
    path: PathBuf,
    is_new: bool,
    error: Option<io::Error>,
}

impl Output {
    /// Makes the file.
    pub fn create(options: &TraceArgs) -> Result<Output, Failure> {
        let path = options.out.clone();
        if path.extension().is_some_and(|extension| extension == "zst") {
            let shown = path.display();
            return Err(Failure::usage(format!(
                "can't write {shown}: traces are written as text; name another file, and type zstd FILE afterwards"
            )));
        }
        let mut how = OpenOptions::new();
        // A pipe that nobody reads must not be waited for.
        how.write(true).custom_flags(libc::O_NONBLOCK);
        let opened = match how.clone().create_new(true).open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && options.overwrite => {
                how.truncate(true).open(&path).map(|file| (file, false))
            }
            opened => opened.map(|file| (file, true)),
        };
        let (file, is_new) = opened.map_err(|error| {
            let hint = match error.kind() {
                ErrorKind::AlreadyExists => "; type --overwrite, or --out with another file",
                _ if error.raw_os_error() == Some(libc::ENXIO) => {
                    ": it is a pipe that nobody reads, or a socket"
                }
                _ => "",
            };
            Failure::usage(format!("can't write {}: {error}{hint}", path.display()))
        })?;
        if let Err(error) = accept(&file) {
            return Err(Failure::usage(format!("can't write {}: {error}", path.display())));
        }
        let mut output = Output { file: BufWriter::new(file), path, is_new, error: None };
        output.line(format_args!(
            "# pumice trace: pages touched in each interval; in it, the order is unknown"
        ));
        output.line(format_args!("# page_bytes {}", options.pages));
        output.share(options.share);
        Ok(output)
    }

    /// From here on, and for the whole file, the trace has this share of the pages.
    pub fn share(&mut self, share: Share) {
        self.line(format_args!("# share {share}"));
    }

    /// Adds an interval that ended so long after the start.
    pub fn interval(&mut self, ended: Duration, pages: &[u64]) {
        self.line(format_args!("# until {:.6} s", ended.as_secs_f64()));
        for page in pages {
            self.line(format_args!("{page}"));
        }
        let flushed = self.file.flush();
        self.keep(flushed);
    }

    /// Whether all could be written so far.
    pub fn is_good(&self) -> bool {
        self.error.is_none()
    }

    /// The program could not be run: a file that was made for it goes.
    pub fn discard(self) {
        if self.is_new {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Ends the file.
    pub fn finish(mut self) -> Result<(), Failure> {
        let flushed = self.file.flush();
        self.keep(flushed);
        match self.error {
            Some(error) => {
                let path = self.path.display();
                Err(Failure::system(format!("{path} has a part of the trace only: {error}")))
            }
            None => Ok(()),
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        if self.error.is_none() {
            let written = writeln!(self.file, "{line}");
            self.keep(written);
        }
    }

    fn keep(&mut self, written: io::Result<()>) {
        if let Err(error) = written {
            self.error.get_or_insert(error);
        }
    }
}

/// Has writes wait for a slow reader again. Refuses a file that a trace would destroy.
fn accept(file: &File) -> io::Result<()> {
    if file.metadata()?.file_type().is_block_device() {
        return Err(io::Error::other("it is a block device"));
    }
    let flags = fcntl_getfl(file)?;
    Ok(fcntl_setfl(file, flags - OFlags::NONBLOCK)?)
}
