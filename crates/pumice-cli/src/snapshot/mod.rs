//! `pumice snapshot`: the memory of a running slot into a file, of which `pumice serve --snapshot` makes others.
//!
//! | module | contents |
//! |---|---|
//! | [`slot`] | the slot, found by a process or a path |
//! | [`copy`] | its content: zeros become holes |
//! | [`target`] | the file, which has its name when it is whole |
//!
//! The slot is only read, and nobody is stopped. So the program that writes to it must be: a virtual machine is paused
//! by its own monitor.

mod copy;
mod slot;
mod target;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use pumice_command::{print, Failure};
use pumice_slots::refusal::size;
use serde_json::json;

use crate::serve::bar;
use slot::Slot;
use target::Target;

/// The arguments of `pumice snapshot`.
#[derive(Args, Debug)]
pub struct SnapshotArgs {
    /// The slot: the number of a process that has it open, of pumice lease or of the program on it, or a path such as
    /// /proc/PID/fd/N
    #[arg(value_name = "PID|PATH")]
    slot: PathBuf,
    /// The file that gets the content; it replaces one of that name when it is whole
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Copies, and says how much that was.
pub fn snapshot(options: &SnapshotArgs) -> Result<(), Failure> {
    let started = Instant::now();
    let slot = Slot::open(&options.slot)?;
    let failed = |error: io::Error| {
        Failure::system(format!("can't write {}: {error}", options.file.display()))
    };
    let target = Target::begin(&options.file, slot.bytes()).map_err(failed)?;
    let bar = io::stderr().is_terminal().then(|| bar(slot.bytes()));
    let copied = copy::copy(&slot, target.file(), |done_bytes| {
        if let Some(bar) = &bar {
            bar.set_position(done_bytes);
        }
    });
    let finished = match copied {
        Ok(data_bytes) => {
            if let Some(bar) = &bar {
                bar.set_message("writing to the disk");
            }
            target.finish().map(|()| data_bytes).map_err(failed)
        }
        Err(copy::Error::Slot(message)) => Err(Failure::system(message)),
        Err(copy::Error::Target(error)) => Err(failed(error)),
    };
    if let Some(bar) = &bar {
        bar.finish_and_clear();
    }
    let (data_bytes, took_s) = (finished?, started.elapsed().as_secs_f64());
    let text = if options.json {
        let file = options.file.display().to_string();
        let bytes = slot.bytes();
        json!({ "file": file, "bytes": bytes, "data_bytes": data_bytes, "wall_s": took_s })
            .to_string()
    } else {
        let (file, bytes) = (options.file.display(), size(slot.bytes()));
        let data_mib = data_bytes as f64 / f64::from(1 << 20);
        format!("{file}: {bytes}, {data_mib:.1} MiB of it data, written in {took_s:.1} s")
    };
    print(format!("{text}\n").as_bytes())
}
