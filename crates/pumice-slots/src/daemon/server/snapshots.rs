//! Snapshots: slots that have a file's content. Only the daemon's configuration names files.
//!
//! A slot of a snapshot is granted in answer to a look at the file that began after the request (`daemon/watch.rs`).
//! So a request that comes after a change gets the new content, and the event loop waits for no file system. Each look
//! drops the ready slots that have other content. One comes every two seconds, too, so that slots are filled anew ahead
//! of need.

use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::message::{FileState, LeaseRequest, SnapshotRow};
use crate::refusal::Reason;
use crate::stat::Counter;
use crate::{ServeError, SnapshotName};

use super::super::connection::{ConnectionState, Wait};
use super::super::plan::SnapshotPlan;
use super::super::pool::{Key, Token};
use super::super::populator::Job;
use super::super::source::{self, Source, Version};
use super::super::watch::{Look, Watch};
use super::{Event, Server};

/// How often files are looked at where nobody asks.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long a request that does not wait for a slot waits for a look, and a file system has to answer one.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);

/// All snapshots, and the threads that look at their files.
#[derive(Debug)]
pub struct Snapshots {
    all: Vec<Snapshot>,
    /// One for each path. Those that no snapshot needs stay until their file system has answered, so that a change back
    /// starts no other.
    watches: Vec<Watch>,
    next_watch: u64,
    /// The last question, of all watches.
    asked: u64,
    look_at: Instant,
    events: Sender<Event>,
    waker: Arc<OwnedFd>,
}

#[derive(Debug)]
struct Snapshot {
    plan: SnapshotPlan,
    /// The version that was seen last, and since when.
    seen: Option<(Version, Instant)>,
    failing: Option<Step>,
}

/// The step that failed last, and did not succeed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A look found no file that can be read.
    Look,
    /// A look has no answer: nothing is known, and slots in the making wait for it.
    Answer,
    /// A look could not tell, or saw a version that may still change without a trace.
    Unsure,
    Fill,
}

impl Snapshots {
    /// None. The threads' answers go to `events`, and `waker` is rung.
    pub fn new(events: &Sender<Event>, waker: &Arc<OwnedFd>) -> Snapshots {
        let (events, waker) = (events.clone(), Arc::clone(waker));
        let (all, watches, look_at) = (Vec::new(), Vec::new(), Instant::now());
        Snapshots { all, watches, next_watch: 0, asked: 0, look_at, events, waker }
    }

    /// Changes the snapshots to these, and returns their classes and how many slots of each. Files are looked at soon.
    /// An error changes nothing.
    pub fn configure(&mut self, plans: &[SnapshotPlan]) -> Result<Vec<(Key, u32)>, ServeError> {
        for SnapshotPlan { path, .. } in plans {
            if self.watches.iter().all(|watch| watch.path != *path) {
                self.next_watch += 1;
                let (id, path) = (self.next_watch, Arc::clone(path));
                let watch = Watch::start(id, path, &self.events, &self.waker);
                let no_thread = |error| ServeError::system(format!("no thread: {error}"));
                self.watches.push(watch.map_err(no_thread)?);
            }
        }
        let classes = plans.iter().map(|plan| (self.key_of(plan), plan.count)).collect();
        let snapshot_of = |plan: &SnapshotPlan| {
            let (seen, failing) = self.same(plan).map_or((None, None), |it| (it.seen, it.failing));
            Snapshot { plan: plan.clone(), seen, failing }
        };
        self.all = plans.iter().map(snapshot_of).collect();
        let all = &self.all;
        let is_used = |watch: &Watch| all.iter().any(|snapshot| snapshot.plan.path == watch.path);
        self.watches.retain(|watch| watch.waits().is_some() || is_used(watch));
        self.look_at = Instant::now();
        Ok(classes)
    }

    /// The class of a snapshot, as far as it is known without a look.
    pub fn key_of(&self, plan: &SnapshotPlan) -> Key {
        let seen = self.same(plan).and_then(|snapshot| snapshot.seen);
        seen.and_then(|(version, _)| plan.key(&version)).unwrap_or(plan.unseen_key())
    }

    /// The file that slots of a class get their content from.
    pub fn source(&self, key: Key) -> Option<Source> {
        let snapshot = self.of(key.snapshot?)?;
        let (version, since) = snapshot.seen?;
        Some(Source { path: Arc::clone(&snapshot.plan.path), version, since })
    }

    /// Whether a job's slot would be of use, as far as is known.
    fn is_current(&self, job: &Job) -> bool {
        let Some(source) = &job.source else { return true };
        let snapshot = job.key.snapshot.and_then(|name| self.of(name));
        let snapshot = snapshot.filter(|snapshot| snapshot.failing != Some(Step::Look));
        snapshot.and_then(|snapshot| snapshot.seen).is_some_and(|(it, _)| it == source.version)
    }

    /// Whether a job's file system does not answer.
    pub fn is_stuck(&self, job: &Job) -> bool {
        let snapshot = job.key.snapshot.and_then(|name| self.of(name));
        snapshot.is_some_and(|snapshot| snapshot.failing == Some(Step::Answer))
    }

    /// A slot of the class has its content.
    pub fn filled(&mut self, key: Key) {
        if let Some(snapshot) = self.of_mut(key.snapshot) {
            // Other steps may have failed since.
            snapshot.failing = snapshot.failing.filter(|&step| step != Step::Fill);
        }
    }

    /// A slot of the class could not be filled. The file may have changed.
    pub fn failed(&mut self, key: Key) {
        // That no look has an answer is known all the same.
        let snapshot = self.of_mut(key.snapshot);
        if let Some(snapshot) = snapshot.filter(|it| it.failing != Some(Step::Answer)) {
            snapshot.failing = Some(Step::Fill);
        }
        if let Some(name) = key.snapshot {
            self.ask(name);
        }
    }

    /// When files are looked at next.
    pub fn next_look(&self) -> Option<Instant> {
        (!self.all.is_empty()).then_some(self.look_at)
    }

    /// Looks at files if it is time. Returns the snapshots whose file systems do not answer, and what there is to say.
    fn look_around(&mut self, now: Instant) -> Vec<(SnapshotName, String)> {
        let mut stuck = Vec::new();
        if self.look_at > now {
            return stuck;
        }
        self.look_at = now + LOOK_EVERY;
        self.asked += 1;
        for watch in &mut self.watches {
            watch.ask(self.asked);
            if watch.waits().is_some_and(|waits| waits > LOOK_PATIENCE) {
                let theirs = self.all.iter_mut().filter(|it| it.plan.path == watch.path);
                stuck.extend(theirs.map(|snapshot| {
                    snapshot.failing = Some(Step::Answer);
                    let line = source::fails(&watch.path, "its file system does not answer");
                    (snapshot.plan.name, line)
                }));
            }
        }
        stuck
    }

    /// Asks for a look at a snapshot's file; the number of the question.
    fn ask(&mut self, name: SnapshotName) -> Option<u64> {
        let path = &self.all.iter().find(|snapshot| snapshot.plan.name == name)?.plan.path;
        let watch = self.watches.iter_mut().find(|watch| watch.path == *path)?;
        self.asked += 1;
        watch.ask(self.asked);
        Some(self.asked)
    }

    /// Notes an answer. Returns the number of the one before, and the snapshots that it is about.
    fn answered(&mut self, look: &Look) -> Option<(u64, Vec<SnapshotName>)> {
        let watch = self.watches.iter_mut().find(|watch| watch.id == look.watch)?;
        let before = watch.answer(look.number);
        let theirs = self.all.iter().filter(|snapshot| snapshot.plan.path == watch.path);
        let names: Vec<_> = theirs.map(|snapshot| snapshot.plan.name).collect();
        if names.is_empty() && watch.waits().is_none() {
            self.watches.retain(|watch| watch.id != look.watch);
        }
        Some((before, names))
    }

    fn of(&self, name: SnapshotName) -> Option<&Snapshot> {
        self.all.iter().find(|snapshot| snapshot.plan.name == name)
    }

    fn of_mut(&mut self, name: Option<SnapshotName>) -> Option<&mut Snapshot> {
        self.all.iter_mut().find(|snapshot| Some(snapshot.plan.name) == name)
    }

    /// The snapshot of the same name and file as a plan's.
    fn same(&self, plan: &SnapshotPlan) -> Option<&Snapshot> {
        self.of(plan.name).filter(|snapshot| snapshot.plan.path == plan.path)
    }
}

impl Snapshot {
    /// A look saw this version. Returns how long a slot must wait for it to settle, if that is to be known anew.
    fn saw(&mut self, version: Version, now: Instant) -> Option<Duration> {
        let before = self.seen.filter(|(seen, _)| *seen == version);
        let (_, since) = *self.seen.insert(before.unwrap_or((version, now)));
        let rest = version.settles_in(now.saturating_duration_since(since));
        let is_filling = self.failing == Some(Step::Fill);
        self.failing = match rest.is_zero() {
            true => self.failing.filter(|_| is_filling),
            false => Some(Step::Unsure),
        };
        (before.is_none() || !rest.is_zero()).then_some(rest)
    }
}

/// Where the fault of a look that failed may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The file's: it is gone, or another, or may change without a trace.
    Files,
    /// The machine's, for a while: nothing is known of the file, and ready slots may still have its content.
    Machines,
}

impl Fault {
    fn of(error: &ServeError) -> Fault {
        match error {
            ServeError::Usage(_) => Fault::Files,
            ServeError::System(_) => Fault::Machines,
        }
    }
}

impl Server {
    /// A client asks for a slot of a snapshot. It waits for a look at least.
    pub(super) fn lease_snapshot(&mut self, token: Token, name: SnapshotName, wait_ms: u32) {
        let Some(connection) = self.connections.get(&token) else { return };
        if !matches!(connection.state, ConnectionState::Idle) {
            return self.refuse_and_close(token, Reason::OutOfTurn);
        }
        if self.drain_until.is_some() {
            return self.refuse(token, Reason::Draining, 0);
        }
        let Some(key) = self.pool.find_snapshot(name) else {
            return self.refuse(token, Reason::NoSuchSnapshot, 0);
        };
        let quota_bytes = self.plan.allowed.quota_bytes(&connection.peer).unwrap_or(0);
        let account = connection.account;
        let more_bytes = if self.shares(account, key) { 0 } else { key.bytes };
        if self.used_bytes(account).saturating_add(more_bytes) > quota_bytes {
            return self.refuse(token, Reason::Quota, quota_bytes);
        }
        let Some(look) = self.snapshots.ask(name) else {
            return self.refuse(token, Reason::NoSuchSnapshot, 0);
        };
        let since = Instant::now();
        let patience = match wait_ms {
            0 => LOOK_PATIENCE,
            _ => Duration::from_millis(wait_ms.into()),
        };
        let request = LeaseRequest { wait_ms, ..LeaseRequest::new(key.bytes) };
        let wait = Wait { key, request, since, until: since + patience, look, reservation: None };
        self.wait(token, wait);
    }

    /// Has the snapshot's clients that wait served after a look, if there is a slot for one.
    pub(super) fn look_and_serve(&mut self, key: Key) {
        if let Some(name) = key.snapshot.filter(|_| self.pool.served_next(key).is_some()) {
            self.snapshots.ask(name);
        }
    }

    /// Looks at files if it is time.
    pub(super) fn look_around(&mut self, now: Instant) {
        for (name, line) in self.snapshots.look_around(now) {
            if let Some(key) = self.pool.find_snapshot(name) {
                // A slot that is begun now would wait for an answer too.
                self.pool.rest_until(key, now + 2 * LOOK_EVERY);
                self.say_failure(key, line);
            }
        }
    }

    /// A look at a file: old slots go, and clients that asked before it are answered.
    pub(super) fn take_look(&mut self, look: Look) {
        let Some((before, names)) = self.snapshots.answered(&look) else { return };
        for name in names {
            self.take_look_of(name, &look.seen);
            let Some(key) = self.pool.find_snapshot(name) else { continue };
            if look.seen.is_ok() {
                self.grant_waiting(key, |wait| wait.look <= look.number);
            }
            self.refuse_looked(key, before, look.number);
        }
    }

    fn take_look_of(&mut self, name: SnapshotName, seen: &Result<Version, ServeError>) {
        let Some(before) = self.pool.find_snapshot(name) else { return };
        let Some(snapshot) = self.snapshots.of_mut(Some(name)) else { return };
        let path = Arc::clone(&snapshot.plan.path);
        let seen = seen.as_ref().map_err(|error| (error.to_string(), Fault::of(error)));
        let seen = seen.and_then(|version| {
            let too_large = || (source::fails(&path, "it is too large"), Fault::Files);
            Ok((*version, snapshot.plan.key(version).ok_or_else(too_large)?))
        });
        let (key, stale) = match seen {
            Ok((version, key)) => {
                let now = Instant::now();
                let rest = snapshot.saw(version, now);
                let stale = self.pool.renew(key, Some(version));
                if let Some(rest) = rest {
                    self.pool.rest_until(key, now + rest);
                }
                (key, stale)
            }
            Err((problem, fault)) => {
                snapshot.failing = match fault {
                    Fault::Files => Some(Step::Look),
                    Fault::Machines => Some(Step::Unsure),
                };
                self.say_failure(before, problem);
                if fault == Fault::Machines {
                    return;
                }
                (before, self.pool.renew(before, None))
            }
        };
        if !stale.is_empty() {
            let (path, count) = (path.display(), stale.len());
            let line = format!("snapshot {name}: {path} has changed, {count} slots are dropped");
            self.say_of(key, line);
        }
        // A user that has a shared one of before waits for memory more, of the same size or another.
        let is_other = key != before || !stale.is_empty();
        stale.into_iter().for_each(|slot| self.reaper.discard(slot.file));
        self.keep_wanted();
        if is_other {
            self.resize_waits(key);
        }
    }

    /// Slots in the making go on only if they are of use.
    pub(super) fn keep_wanted(&mut self) {
        let classes = || self.pool.classes().iter().filter(|class| class.is_wanted());
        let given_up = self.populator.keep_only(|job| {
            classes().any(|class| class.key == job.key) && self.snapshots.is_current(job)
        });
        for key in given_up {
            self.pool.failed(key, Instant::now());
        }
    }

    /// The slots that clients wait for are of another size now, or quotas are.
    pub(super) fn resize_waits(&mut self, key: Key) {
        for token in self.waits_for(key, |wait| wait.reservation.is_none()) {
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
            let is_good = snapshot.is_some_and(|it| it.seen.is_some() && it.failing.is_none());
            Some(SnapshotRow {
                name,
                file_bytes: snapshot
                    .and_then(|it| it.seen)
                    .map_or(0, |(version, _)| version.bytes()),
                file: if is_good { FileState::Good } else { FileState::Failing },
                sharing: class.key.sharing,
                class: self.class_row(class),
            })
        });
        rows.collect()
    }
}
