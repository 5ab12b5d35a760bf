//! `pumice serve`: keeps slots of ready memory and leases them.
//!
//! | module | what lives there |
//! |---|---|
//! | [`options`] | what may be typed, and the plan that it and a file become |
//! | [`config`] | the file |
//! | [`allow`] | who may lease, and how much |
//! | [`folder`] | folders that only this user and root can write in, opened step by step |
//! | [`bound`] | sockets in such folders; those that dead daemons left are removed |
//! | [`subordinate`] | whose a subordinate user number is |
//! | [`directory`] | the daemon's folder: one daemon in each |
//! | [`listener`] | the socket, or systemd's; who connects |
//! | [`pool`] | the slots: which are ready, leased, waited for, to be populated next |
//! | [`turns`] | whose turn it is among users that wait |
//! | [`populator`] | the threads that populate |
//! | [`room`] | whether there is memory for another slot |
//! | [`reaper`] | the threads that truncate what was leased and close what clients sent |
//! | [`server`] | the event loop |
//! | [`connection`] | one client: what it asks, waits for and has |
//! | [`census`] | what is counted |
//! | [`metrics`] | the same for Prometheus |
//! | [`signals`] | SIGHUP, SIGTERM and others as something to read |
//! | [`notify`] | what systemd is told |
//! | [`progress`] | a bar on a terminal |
//!
//! One thread has all state and never waits for a client: it reads what has come, a message of each
//! connection at a time, and who does not read its answer is disconnected. Whatever may take long
//! (populating, truncating, closing what a client sent) other threads do, and say so over a channel.

mod allow;
mod bound;
mod census;
mod config;
mod connection;
mod directory;
mod folder;
mod listener;
mod metrics;
mod notify;
mod options;
mod pool;
mod populator;
mod progress;
mod reaper;
mod room;
mod server;
mod signals;
mod subordinate;
mod turns;

pub use bound::{Bound, Neighbours};
pub use options::{duration, pages, ServeArgs};
pub use progress::bar;

use std::io::{self, Write};

use pumice_command::Failure;

/// Serves until it is told to end.
pub fn serve(arguments: ServeArgs) -> Result<(), Failure> {
    let plan = arguments.plan()?;
    server::Server::start(arguments, plan)?.run()
}

/// A line for whoever reads the daemon's log; that nobody does is no reason to end.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "pumice: {line}");
}
