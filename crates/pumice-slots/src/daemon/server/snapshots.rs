//! Snapshots: slots that have a file's content. Only the daemon's configuration names files.
//!
//! A slot of a snapshot is granted in answer to a look at the file that began after the request (`daemon/watch.rs`).
//! So a request that comes after a change gets the new content, and the event loop waits for no file system. Each look
//! drops the ready slots that have other content. One comes every two seconds, too, so that slots are filled anew ahead
//! of need.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::message::{FileState, LeaseRequest, SnapshotRow};
use crate::refusal::Reason;
use crate::stat::Counter;
use crate::{Charge, ServeError, SnapshotName};

use super::super::connection::{ConnectionState, Wait};
use super::super::plan::SnapshotPlan;
use super::super::pool::{Key, Token};
use super::super::source::Version;
use super::super::watch::{Look, Watch};
use super::{Event, Server};

/// How often files are looked at where nobody asks.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long a request that does not wait for a slot waits for a look.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);

/// All snapshots, and the threads that look at their files.
#[derive(Debug)]
pub struct Snapshots {
    all: Vec<Snapshot>,
    next_watch: u64,
    look_at: Instant,
    events: Sender<Event>,
    waker: Arc<OwnedFd>,
}

#[derive(Debug)]
struct Snapshot {
    plan: SnapshotPlan,
    /// As last seen.
    version: Version,
    watch: Watch,
    /// The last look that came.
    answered: u64,
    failing: Option<Step>,
}

/// The step that failed last, and did not succeed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Look,
    Fill,
}

impl Snapshots {
    /// None. The threads' answers go to `events`, and `waker` is rung.
    pub fn new(events: &Sender<Event>, waker: &Arc<OwnedFd>) -> Snapshots {
        let (events, waker) = (events.clone(), Arc::clone(waker));
        Snapshots { all: Vec::new(), next_watch: 0, look_at: Instant::now(), events, waker }
    }

    /// Changes the snapshots to these, and returns their classes and how many slots of each. An error changes nothing.
    pub fn configure(&mut self, plans: &[SnapshotPlan]) -> Result<Vec<(Key, u32)>, ServeError> {
        let (mut all, mut classes) = (Vec::new(), Vec::new());
        for plan in plans {
            let (version, key) = plan.look()?;
            classes.push((key, plan.count));
            self.next_watch += 1;
            let path = Arc::clone(&plan.path);
            let watch = Watch::start(self.next_watch, path, &self.events, &self.waker);
            let watch = watch.map_err(|error| ServeError::system(format!("no thread: {error}")))?;
            all.push(Snapshot { plan: plan.clone(), version, watch, answered: 0, failing: None });
        }
        self.all = all;
        Ok(classes)
    }

    /// The file that slots of a class get their content from.
    pub fn path(&self, key: Key) -> Option<Arc<Path>> {
        self.of(key.snapshot?).map(|snapshot| Arc::clone(&snapshot.plan.path))
    }

    /// A slot of the class has its content.
    pub fn filled(&mut self, key: Key) {
        if let Some(snapshot) = self.of_mut(key.snapshot) {
            snapshot.failing = None;
        }
    }

    /// A slot of the class could not be filled. The file's size may have changed.
    pub fn failed(&mut self, key: Key) {
        if let Some(snapshot) = self.of_mut(key.snapshot) {
            snapshot.failing = Some(Step::Fill);
            snapshot.watch.ask();
        }
    }

    /// When files are looked at next.
    pub fn next_look(&self) -> Option<Instant> {
        (!self.all.is_empty()).then_some(self.look_at)
    }

    /// Looks at files if it is time.
    pub fn look_around(&mut self, now: Instant) {
        if self.look_at <= now {
            self.look_at = now + LOOK_EVERY;
            for snapshot in &self.all {
                snapshot.watch.ask();
            }
        }
    }

    fn of(&self, name: SnapshotName) -> Option<&Snapshot> {
        self.all.iter().find(|snapshot| snapshot.plan.name == name)
    }

    fn of_mut(&mut self, name: Option<SnapshotName>) -> Option<&mut Snapshot> {
        self.all.iter_mut().find(|snapshot| Some(snapshot.plan.name) == name)
    }
}

impl Server {
    pub(super) fn lease_snapshot(&mut self, token: Token, name: SnapshotName, wait_ms: u32) {
        let Some(connection) = self.connections.get(&token) else { return };
        if !matches!(connection.state, ConnectionState::Idle) {
            return self.refuse_and_close(token, Reason::OutOfTurn);
        }
        if self.drain_until.is_some() {
            return self.refuse(token, Reason::Draining, 0);
        }
        let found = self.pool.find_snapshot(name).zip(self.snapshots.of(name));
        let Some((key, snapshot)) = found else {
            return self.refuse(token, Reason::NoSuchSnapshot, 0);
        };
        let quota_bytes = self.plan.allowed.quota_bytes(&connection.peer).unwrap_or(0);
        if self.used_bytes(connection.account).saturating_add(key.bytes) > quota_bytes {
            return self.refuse(token, Reason::Quota, quota_bytes);
        }
        let (since, look) = (Instant::now(), snapshot.watch.ask());
        let patience = match wait_ms {
            0 => LOOK_PATIENCE,
            _ => Duration::from_millis(wait_ms.into()),
        };
        let request = LeaseRequest { wait_ms, ..LeaseRequest::new(key.bytes) };
        self.wait(token, Wait { key, request, since, until: since + patience, look });
    }

    /// Has the snapshot's clients that wait served after a look, if there is a slot for one.
    pub(super) fn look_and_serve(&mut self, key: Key) {
        let snapshot = key.snapshot.and_then(|name| self.snapshots.of(name));
        if let Some(snapshot) = snapshot.filter(|_| self.pool.served_next(key).is_some()) {
            snapshot.watch.ask();
        }
    }

    /// After a change of the configuration: looks have new numbers then.
    pub(super) fn look_again(&mut self) {
        for connection in self.connections.values_mut() {
            let ConnectionState::Waiting(wait) = &mut connection.state else { continue };
            let name = wait.key.snapshot;
            if let Some(snapshot) = name.and_then(|name| self.snapshots.of(name)) {
                wait.look = snapshot.watch.ask();
            }
        }
    }

    /// A look at a snapshot's file: old slots go, and clients that asked before it are answered.
    pub(super) fn take_look(&mut self, look: Look) {
        let mut all = self.snapshots.all.iter_mut();
        let Some(snapshot) = all.find(|snapshot| snapshot.watch.id == look.watch) else { return };
        let answered = std::mem::replace(&mut snapshot.answered, look.number);
        let (name, path) = (snapshot.plan.name, Arc::clone(&snapshot.plan.path));
        let Some(before) = self.pool.find_snapshot(name) else { return };
        let path = path.display();
        let seen = look.seen.and_then(|version| {
            let key = snapshot.plan.key(&version);
            key.map(|key| (version, key)).ok_or_else(|| format!("can't read {path}: too large"))
        });
        let (key, stale) = match seen {
            Ok((version, key)) => {
                snapshot.version = version;
                snapshot.failing = snapshot.failing.filter(|&step| step != Step::Look);
                (key, self.pool.renew(key, Some(version)))
            }
            Err(problem) => {
                snapshot.failing = Some(Step::Look);
                self.say_failure(before, problem);
                (before, self.pool.renew(before, None))
            }
        };
        if !stale.is_empty() {
            let count = stale.len();
            self.host
                .say(&format!("snapshot {name}: {path} has changed, {count} slots are dropped"));
        }
        stale.into_iter().for_each(|slot| self.reaper.discard(slot.file));
        if key != before {
            let classes: Vec<_> = self.pool.classes().iter().map(|class| class.key).collect();
            self.populator.keep_only(|job| classes.contains(&job));
            self.resize_waits(key);
        }
        self.serve_looked(key, look.number);
        self.refuse_looked(key, answered, look.number);
    }

    /// The slots that clients wait for are of another size.
    fn resize_waits(&mut self, key: Key) {
        for token in self.waits_for(key, |_| true) {
            let Some(connection) = self.connections.get_mut(&token) else { continue };
            if let ConnectionState::Waiting(wait) = &mut connection.state {
                wait.key = key;
            }
            let quota_bytes = self.plan.allowed.quota_bytes(&connection.peer).unwrap_or(0);
            let account = connection.account;
            if self.used_bytes(account) > quota_bytes {
                self.set_idle(token);
                self.pool.forget(key, token);
                self.refuse(token, Reason::Quota, quota_bytes);
            }
        }
    }

    fn set_idle(&mut self, token: Token) {
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.state = ConnectionState::Idle;
        }
    }

    /// Grants ready slots in turn, up to the first client that asked after the look began.
    fn serve_looked(&mut self, key: Key, number: u64) {
        while let Some(token) = self.pool.served_next(key) {
            let waits = self.connections.get(&token);
            let waits = waits.and_then(|connection| match connection.state {
                ConnectionState::Waiting(wait) => Some((wait, connection.taker())),
                _ => None,
            });
            let Some((wait, taker)) = waits else {
                self.pool.forget(key, token);
                continue;
            };
            if wait.look > number {
                return;
            }
            let Some(slot) = self.pool.take(key, token, taker) else { return };
            self.grant(token, key, slot.file, Charge::Daemon, wait.since);
        }
    }

    /// Requests that this look was the first for, and that do not wait for a slot.
    fn refuse_looked(&mut self, key: Key, answered: u64, number: u64) {
        let is_new = |wait: &Wait| wait.look > answered && wait.look <= number;
        for token in self.waits_for(key, is_new) {
            let Some(connection) = self.connections.get(&token) else { continue };
            if self.pool.holds_back(key, connection.taker()) {
                self.census.add(Counter::HeldBack, 1);
            }
        }
        let is_at_once = |wait: &Wait| wait.look <= number && wait.request.wait_ms == 0;
        for token in self.waits_for(key, is_at_once) {
            self.stop_waiting(token, Reason::NoneReady);
        }
    }

    fn waits_for(&self, key: Key, is_meant: impl Fn(&Wait) -> bool) -> Vec<Token> {
        let waits = self.connections.iter().filter(|(_, connection)| match &connection.state {
            ConnectionState::Waiting(wait) => wait.key.is_of(&key) && is_meant(wait),
            _ => false,
        });
        waits.map(|(&token, _)| token).collect()
    }

    /// The snapshots as clients see them.
    pub(super) fn snapshot_rows(&self) -> Vec<SnapshotRow> {
        let classes = self.pool.classes().iter().filter(|class| class.key.snapshot.is_some());
        let rows = classes.filter_map(|class| {
            // One that is configured no more may still have leases.
            let name = class.key.snapshot?;
            let snapshot = self.snapshots.of(name);
            let is_failing = snapshot.is_none_or(|snapshot| snapshot.failing.is_some());
            Some(SnapshotRow {
                name,
                file_bytes: snapshot.map_or(0, |snapshot| snapshot.version.bytes()),
                file: if is_failing { FileState::Failing } else { FileState::Good },
                class: self.class_row(class),
            })
        });
        rows.collect()
    }
}
