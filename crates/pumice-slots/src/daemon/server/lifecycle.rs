//! The daemon's own actions: populating, reloading, ending.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{shutdown, Shutdown};

use crate::refusal::{size, Reason};
use crate::stat::Counter;

use super::super::connection::ConnectionState;
use super::super::pool::Key;
use super::super::populator::{Job, Outcome, WorkerId};
use super::super::room::Pool;
use super::snapshots::Snapshots;
use super::{most_connections, Server};

/// How long a class rests that could not be populated.
const RETRY: Duration = Duration::from_secs(2);

/// How long the end waits for ready slots to be given back. The kernel would take as long.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

impl Server {
    /// Gives threads jobs: first the slots that clients wait for, then others that there is room for.
    pub(super) fn populate(&mut self) {
        if self.drain_until.is_some() {
            return;
        }
        let now = Instant::now();
        self.pool.pass_retries(now);
        let pool = if self.plan.grow_hugetlb { Pool::Grows } else { Pool::Fixed };
        // Threads that read their files may never come back.
        self.populator.set_stuck(|job| self.snapshots.is_stuck(job));
        let job = |snapshots: &Snapshots, key| {
            let job = Job::new(key, pool).with_source(snapshots.source(key));
            job.set_stuck(snapshots.is_stuck(&job));
            job
        };
        while let Some(key) = self.pool.begin_urgent(now) {
            self.populator.begin(job(&self.snapshots, key));
        }
        for class in self.pool.classes() {
            self.populator.set_urgent(class.key, class.waited_for());
        }
        while self.populator.has_room() {
            let Some(key) = self.pool.begin(now) else { break };
            self.populator.begin(job(&self.snapshots, key));
        }
        self.populator.place();
    }

    /// A thread is done with a slot, or with its part in it.
    pub(super) fn take_worked(&mut self, worker: WorkerId, job: &Arc<Job>, outcome: Outcome) {
        self.populator.worked(worker, job, &outcome);
        let key = job.key;
        let surplus = match outcome {
            Outcome::LetGo => return,
            Outcome::Populated(slot) if !job.is_cancelled() => {
                self.census.add(Counter::Populated, 1);
                self.census.add(Counter::HugeBytes, slot.huge_bytes);
                self.said.succeeded(key);
                self.snapshots.filled(key);
                self.pool.populated(key, slot)
            }
            Outcome::Failed(message) if !job.is_cancelled() => {
                self.pool.failed(key, Instant::now() + RETRY);
                self.census.add(Counter::PopulateFailures, 1);
                self.snapshots.failed(key);
                self.say_failure(key, message);
                None
            }
            // It was wanted no more, and is counted no more.
            Outcome::Populated(slot) => Some(slot),
            Outcome::Failed(_) | Outcome::Cancelled => None,
        };
        if let Some(slot) = surplus {
            self.reaper.discard(slot.file);
        }
        self.serve_waiting(key);
        self.say_how_ready();
    }

    /// Says why there is no slot of a class.
    pub(super) fn say_failure(&mut self, key: Key, message: String) {
        let of = match key.snapshot {
            Some(name) => format!("snapshot {name}"),
            None => format!("{} ({} pages)", size(key.bytes), key.pages),
        };
        self.say_of(key, format!("no slot of {of} yet: {message}"));
    }

    /// Writes a line about a class to the log, unless it has enough of them.
    pub(super) fn say_of(&mut self, key: Key, line: String) {
        if self.said.takes(key, &line, Instant::now()) {
            self.host.say(&line);
        }
    }

    fn say_how_ready(&mut self) {
        let (ready, wanted) = self.pool.readiness();
        self.notify.say(&format!("STATUS={ready} of {wanted} slots ready"));
        if ready >= wanted && !self.all_ready_said {
            self.all_ready_said = true;
            self.host.clear_progress();
            let took_s = self.started.elapsed().as_secs_f64();
            self.host.say(&format!("all {ready} slots are ready after {took_s:.1} s"));
        }
    }

    pub(super) fn show_progress(&self) {
        if !self.host.shows_progress() || self.all_ready_said {
            return;
        }
        let (mut done, mut all) = (0u64, 0u64);
        for row in self.class_rows().chain(self.snapshot_rows().iter().map(|row| row.class)) {
            // A shared one is ready once and leased many times.
            let count = row.ready.saturating_add(row.leased).min(row.wanted);
            let there = row.bytes.saturating_mul(u64::from(count));
            done = row.populating_bytes.saturating_add(there).saturating_add(done);
            all = row.bytes.saturating_mul(u64::from(row.wanted)).saturating_add(all);
        }
        let (ready, wanted) = self.pool.readiness();
        self.host.show_progress(done, all, &format!("{ready} of {wanted} slots ready"));
    }

    /// Reads the configuration again. A bad one changes nothing.
    pub(super) fn reload(&mut self) {
        let read = self.host.plan();
        let checked = read.and_then(|plan| {
            let checked = plan.check(|snapshot| Ok(self.snapshots.key_of(snapshot)));
            checked.map(|()| plan).map_err(|error| error.to_string())
        });
        let plan = match checked {
            Ok(plan) => plan,
            Err(problem) => {
                return self.host.say(&format!("{problem}; everything stays as it was"));
            }
        };
        let is_fixed = |kept: bool, what: &str| {
            if !kept {
                self.host.say(&format!("{what} can only be changed by starting the daemon anew"));
            }
        };
        is_fixed(plan.dir == self.plan.dir && plan.socket == self.plan.socket, "folder and socket");
        is_fixed(plan.ticket_socket == self.plan.ticket_socket, "the socket for tickets");
        is_fixed(plan.metrics == self.plan.metrics, "the address of metrics");
        is_fixed(plan.threads == self.plan.threads, "the number of threads");
        let mut classes = match self.snapshots.configure(&plan.snapshots) {
            Ok(classes) => classes,
            Err(problem) => {
                return self.host.say(&format!("{problem}; everything stays as it was"));
            }
        };
        classes.extend(&plan.classes);
        for slot in self.pool.configure(&classes) {
            self.reaper.discard(slot.file);
        }
        self.pool.set_share(plan.share_percent);
        for (value, &raw) in self.populator.shared.pace.iter().zip(&plan.pace) {
            value.store(raw, Ordering::Relaxed);
        }
        self.keep_wanted();
        self.said.clear();
        self.refuse_unservable(&classes);
        self.release_overbooked();
        self.plan.allowed = plan.allowed;
        for &(key, _) in &classes {
            self.resize_waits(key);
            // Clients that were held back may be served now.
            self.serve_waiting(key);
        }
        self.plan.classes = plan.classes;
        self.plan.snapshots = plan.snapshots;
        self.plan.drain = plan.drain;
        self.plan.share_percent = plan.share_percent;
        self.plan.grow_hugetlb = plan.grow_hugetlb;
        self.most_connections = most_connections(self.most_descriptors, &self.plan);
        self.all_ready_said = false;
        self.started = Instant::now();
        self.host.say("the configuration was read again");
    }

    /// Refuses clients that wait for slots which are no longer offered.
    fn refuse_unservable(&mut self, offered: &[(Key, u32)]) {
        let mut lost = Vec::new();
        for (&token, connection) in &self.connections {
            if let ConnectionState::Waiting(wait) = &connection.state {
                // Of several of one size another may be chosen today; this one will do.
                if !offered.iter().any(|(key, _)| key.is_of(&wait.key)) {
                    let reason = match wait.key.snapshot {
                        Some(_) => Reason::NoSuchSnapshot,
                        None => Reason::NoSuchPages,
                    };
                    lost.push((token, reason));
                }
            }
        }
        for (token, reason) in lost {
            self.stop_waiting(token, reason);
        }
    }

    /// Grants nothing more, gives free slots back, and ends when leases have or the time is up; at
    /// once when told a second time.
    pub(super) fn drain(&mut self) {
        let now = Instant::now();
        if self.drain_until.is_some() {
            self.drain_until = Some(now);
            return;
        }
        self.drain_until = Some(now + self.plan.drain);
        self.notify.say("STOPPING=1");
        self.host.clear_progress();
        self.populator.end();
        for slot in self.pool.configure(&[]) {
            self.reaper.discard(slot.file);
        }
        let waiting: Vec<_> = self.connections.keys().copied().collect();
        for token in waiting {
            self.stop_waiting(token, Reason::Draining);
        }
        let leases = self.leases();
        if leases > 0 {
            let most_s = self.plan.drain.as_secs_f64();
            self.host
                .say(&format!("ending; waiting {most_s:.0} s at most for {leases} leases to end"));
        }
    }

    fn leases(&self) -> usize {
        let is_leased = |state: &ConnectionState| matches!(state, ConnectionState::Leased(_));
        self.connections.values().filter(|connection| is_leased(&connection.state)).count()
    }

    pub(super) fn is_done(&self) -> bool {
        self.drain_until.is_some_and(|until| {
            (self.leases() == 0 && self.ending.is_empty()) || until <= Instant::now()
        })
    }

    pub(super) fn close(self) {
        let left = self.leases();
        if left > 0 {
            self.host.say(&format!("{left} leases stay with their holders"));
        }
        self.listener.iter().chain(&self.door).for_each(|listener| listener.remove());
        if let Some(metrics) = &self.metrics {
            metrics.clear();
        }
        self.populator.shared.room.end();
        // A thread that reads a file whose server does not answer keeps this process, and all that it has open.
        self.reaper.finish(CLOSE_PATIENCE);
        // Holders of leases learn of the end by this, and tell the next daemon.
        for connection in self.connections.values() {
            let _ = shutdown(&connection.socket, Shutdown::Both);
        }
        self.directory.unlock();
        // Descriptors that clients have sent and nobody has read may take as long to close as the clients
        // please. The kernel closes them when the process ends, and does not wait then.
        std::mem::forget(self);
    }

    /// Numbers that are not counted as they change.
    pub(super) fn refresh_gauges(&mut self) {
        let shared = &self.populator.shared;
        let bytes = shared.bytes.load(Ordering::Relaxed);
        let cpu_ns = shared.cpu_ns.load(Ordering::Relaxed);
        let yields = shared.yields.load(Ordering::Relaxed);
        let is_waiting = |state: &ConnectionState| matches!(state, ConnectionState::Waiting(_));
        let states = self.connections.values().map(|connection| &connection.state);
        let waiting = states.filter(|state| is_waiting(state)).count();
        let leased_bytes = self.leased_bytes();
        for (counter, value) in [
            (Counter::PopulatedBytes, bytes),
            (Counter::PopulateCpuNs, cpu_ns),
            (Counter::Yields, yields),
            (Counter::Connections, self.connections.len() as u64),
            (Counter::Waiting, waiting as u64),
            (Counter::Leased, self.leases() as u64),
            (Counter::LeasedBytes, leased_bytes),
            (Counter::Ready, u64::from(self.pool.readiness().0)),
            (Counter::OutOfOrder, self.pool.out_of_order()),
            (Counter::ReadyBytes, self.pool.ready_bytes()),
            (Counter::Populating, self.populator.jobs().len() as u64),
        ] {
            self.census.set(counter, value);
        }
    }
}
