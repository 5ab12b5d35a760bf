//! The daemon: it keeps slots of ready memory and leases them. The program around it is a [`Host`].
//!
//! | module | contents |
//! |---|---|
//! | [`plan`] | the configuration |
//! | [`allow`] | the users and groups that may lease, and their quotas |
//! | [`subordinate`] | the owner of a subordinate user number |
//! | [`directory`] | the daemon's folder: one daemon in each |
//! | [`listener`] | the socket, or systemd's; the clients that connect |
//! | [`backing`] | the file behind a slot: one tenant's, or shared |
//! | [`pool`] | the slots: which are ready, leased, waited for, to be populated next |
//! | [`tickets`] | the slots that are reserved for tickets |
//! | [`turns`] | the order of users that wait |
//! | [`populator`] | the threads that populate |
//! | [`source`] | a snapshot's file, and its versions |
//! | [`watch`] | the threads that look whether it has changed |
//! | [`room`] | whether there is memory for another slot |
//! | [`reaper`] | the threads that truncate ended slots and close descriptors that clients sent |
//! | [`server`] | the event loop |
//! | [`connection`] | one client: its requests, its waits and its leases |
//! | [`census`] | the counts |
//! | [`log`] | which lines about slots are written, and how often |
//! | [`metrics`] | the same for Prometheus |
//! | [`signals`] | SIGHUP, SIGTERM and others as something to read |
//! | [`notify`] | messages to systemd |
//!
//! One thread has all state and never waits for a client. It reads what has come, a message of each connection at a
//! time, and disconnects clients that do not read their answers. Other threads do all work that may take long
//! (populating, truncating, closing descriptors that a client sent), and report over a channel.

mod allow;
mod backing;
mod census;
mod connection;
mod directory;
mod listener;
mod log;
mod metrics;
mod notify;
mod plan;
mod pool;
mod populator;
mod reaper;
mod room;
mod server;
mod signals;
mod source;
mod subordinate;
mod tickets;
mod turns;
mod watch;

pub use allow::{Allowed, Rule};
pub use listener::systemd_socket;
pub use plan::{Plan, SnapshotPlan};
pub use pool::Key;

use std::os::fd::OwnedFd;

use crate::ServeError;

/// The program around a daemon: its configuration, its log, and a display of its progress.
pub trait Host {
    /// Reads the configuration again; an error is a message for the log.
    fn plan(&mut self) -> Result<Plan, String>;

    /// Writes a line to the log. The daemon goes on if that fails.
    fn say(&self, line: &str);

    /// Whether anybody sees the progress.
    fn shows_progress(&self) -> bool;

    /// Shows how many bytes are ready, or populated on the way there.
    fn show_progress(&self, done_bytes: u64, all_bytes: u64, status: &str);

    /// Removes the display of the progress for good.
    fn clear_progress(&self);
}

/// Serves until a signal ends it, by systemd's socket where there is one ([`systemd_socket`]). To be called before the
/// process has other threads: it blocks the signals.
pub fn serve(plan: Plan, host: Box<dyn Host>, socket: Option<OwnedFd>) -> Result<(), ServeError> {
    plan.check(SnapshotPlan::look)?;
    server::Server::start(plan, host, socket)?.run()
}
