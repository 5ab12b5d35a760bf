//! `pumice lease`: a program on a slot of ready memory, for as long as it runs.
//!
//! | module | contents |
//! |---|---|
//! | [`placeholders`] | `{path}`, `{fd}` and `{qemu}` in the program's arguments |
//! | [`tickets`] | the slots that are reserved for the program |
//! | [`holder`] | the lease while the program runs, over daemons that come and go |

mod holder;
mod placeholders;
mod tickets;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use pumice_heap::config::parse_size;
use pumice_slots::SnapshotName;
use pumice_slots::{default_socket, Charge, Client, Error, Lease, LeaseRequest, PageKind};
use rustix::io::{fcntl_setfd, FdFlags};
use rustix::stdio::dup2_stdout;

use crate::run::{self, spawn};
use crate::serve::{bar, duration, pages, snapshot_name};
use holder::Holder;
use placeholders::Values;
use pumice_command::Failure;
use tickets::Tickets;

/// The arguments of `pumice lease`.
#[derive(Args, Debug)]
pub struct LeaseArgs {
    /// Memory that is needed, such as 8G
    #[arg(value_parser = size)]
    size: Option<u64>,
    /// A slot that has the content of the daemon's snapshot NAME, instead of zeros
    #[arg(long, value_name = "NAME", value_parser = snapshot_name, conflicts_with_all = ["size", "pages", "charge"])]
    snapshot: Option<SnapshotName>,
    /// The ticket of a slot that is reserved for this program, or several with commas; PUMICE_SLOT_TICKET if not given
    #[arg(long, value_name = "TICKET", value_parser = tickets::parse, conflicts_with_all = ["snapshot", "charge"])]
    ticket: Option<Tickets>,
    /// Only slots of this kind of pages: 4k, thp, hugetlb-2m or hugetlb-1g
    #[arg(long, value_name = "KIND", value_parser = pages)]
    pages: Option<PageKind>,
    /// The daemon's socket; that of one's own or the system's daemon if not given
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// How long to wait for a slot to be ready, such as 5s; not at all if not given
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0")]
    wait: Duration,
    /// The side that populates the memory and is charged for it; the daemon if not given
    #[arg(long, value_name = "WHO")]
    charge: Option<Charged>,
    /// Print the slot as shell variables and keep it until SIGTERM, instead of running a program
    #[arg(long, conflicts_with = "program")]
    print: bool,
    /// The program and its arguments; {path}, {fd} and {qemu} in them stand for the slot
    #[arg(last = true, value_name = "PROGRAM", required_unless_present = "print")]
    program: Vec<OsString>,
}

/// As [`Charge`].
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Charged {
    /// The daemon, ahead of time
    Daemon,
    /// This process, before the program starts
    Lessee,
}

/// Leases, runs, and returns the program's exit status.
pub fn lease(options: LeaseArgs) -> Result<u8, Failure> {
    if !options.print {
        placeholders::check(&options.program)?;
    }
    let client = Client::new(options.socket.clone().unwrap_or_else(default_socket));
    let lease = match (options.snapshot, options.tickets()?) {
        (Some(name), _) => client.lease_snapshot(name, options.wait),
        (None, Some(tickets)) => tickets.lease(&client, options.wait),
        (None, None) => client.lease(&request(&options)?),
    };
    let lease = lease.map_err(|error| explain(&error))?;
    tickets::check(&lease, options.size, options.pages)?;
    if lease.is_shared() {
        placeholders::check_shared(&options.program)?;
    }
    if lease.is_empty() {
        populate(&lease)?;
    }
    if options.print {
        return print(lease);
    }
    // For `{fd}`; everything else that is open stays this process's.
    fcntl_setfd(lease.file(), FdFlags::empty())
        .map_err(|error| Failure::system(format!("the slot can't be handed on: {error}")))?;
    let slot = Values {
        path: lease.path(),
        descriptor: lease.file().as_raw_fd(),
        bytes: options.size.unwrap_or(lease.bytes()),
        pages: lease.pages(),
    };
    let line: Vec<_> = options.program.iter().map(|word| slot.fill_in(word)).collect();
    let holder = Holder::start(lease);
    let ended = spawn::run(&line);
    holder.end();
    match ended {
        Err(error) => Err(run::not_run(&line[0], &error)),
        Ok((spawn::End::Exited(status), _)) => Ok(status),
        Ok((spawn::End::Killed(signal), _)) => spawn::end_like(signal),
    }
}

impl LeaseArgs {
    /// The tickets to show. Those of the environment are not meant where a snapshot is, or an empty slot.
    fn tickets(&self) -> Result<Option<Tickets>, Failure> {
        match &self.ticket {
            Some(tickets) => Ok(Some(tickets.clone())),
            None if self.snapshot.is_some() || self.charge.is_some() => Ok(None),
            None => Tickets::of_environment(),
        }
    }
}

fn request(options: &LeaseArgs) -> Result<LeaseRequest, Failure> {
    let Some(bytes) = options.size else {
        return Err(Failure::usage("say how much memory is needed, such as 8G"));
    };
    Ok(LeaseRequest {
        pages: options.pages,
        charge: match options.charge {
            Some(Charged::Daemon) | None => Charge::Daemon,
            Some(Charged::Lessee) => Charge::Lessee,
        },
        wait_ms: u32::try_from(options.wait.as_millis()).unwrap_or(u32::MAX),
        ..LeaseRequest::new(bytes)
    })
}

/// An error of the client's as a failure of this program.
pub fn explain(error: &Error) -> Failure {
    Failure::system(error.to_string())
}

fn populate(lease: &Lease) -> Result<(), Failure> {
    let bar = io::stderr().is_terminal().then(|| bar(lease.bytes()));
    let done = lease.populate(|bytes| {
        if let Some(bar) = &bar {
            bar.set_position(bytes);
        }
    });
    if let Some(bar) = &bar {
        bar.finish_and_clear();
    }
    done.map_err(|error| Failure::system(format!("the slot can't be populated: {error}")))
}

/// Says where the slot is, lets go of stdout so that `$(...)` returns, and waits.
fn print(lease: Lease) -> Result<u8, Failure> {
    let signals = spawn::block_endings();
    let text = format!(
        "PUMICE_SLOT_PATH={}\nPUMICE_SLOT_BYTES={}\nPUMICE_SLOT_PAGES={}\nPUMICE_SLOT_PID={}\n",
        lease.path().display(),
        lease.bytes(),
        lease.pages(),
        std::process::id()
    );
    let written = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
    written.map_err(|error| Failure::system(format!("can't write: {error}")))?;
    let nothing = std::fs::OpenOptions::new().write(true).open("/dev/null");
    let _ = nothing.map(|nothing| dup2_stdout(&nothing));
    let holder = Holder::start(lease);
    spawn::wait_for(&signals);
    holder.end();
    Ok(0)
}

fn size(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).filter(|&bytes| bytes > 0);
    bytes
        .map(|bytes| bytes as u64)
        .ok_or_else(|| "a size is a number of bytes, or one with K, M, G or T, such as 8G".into())
}
