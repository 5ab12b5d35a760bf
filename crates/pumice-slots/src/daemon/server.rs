//! The event loop: it has all state, and waits only for all of its clients at once.

mod answer;
mod lifecycle;
mod snapshots;
mod tickets;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{channel, sync_channel, Receiver, Sender, SyncSender};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::message::Reply;
use crate::refusal::{Reason, Refusal};
use rustix::buffer::spare_capacity;
use rustix::event::{epoll, eventfd, EventfdFlags};

use super::allow::Peer;
use super::census::Census;
use super::connection::{Connection, ConnectionState, Door};
use super::directory::Directory;
use super::listener::{rights, set_rights, Listener, Rights};
use super::log::Said;
use super::notify::Notify;
use super::plan::Plan;
use super::pool::{Key, Pool, Token};
use super::populator::{Job, Outcome, Populator, WorkerId};
use super::reaper::Reaper;
use super::signals::{Signals, Wish};
use super::tickets::Tickets;
use super::watch::Look;
use super::Host;
use crate::serving::folder::{split, Folder, Missing};
use crate::serving::http::{self, Serving};
use crate::ServeError;
use snapshots::Snapshots;

/// Tokens that are no connections.
const LISTENER: Token = 0;
const SIGNALS: Token = 1;
const WAKER: Token = 2;
const TICKETS: Token = 3;
const FIRST_CONNECTION: Token = 16;
/// Connections accepted between two looks at other clients.
const ACCEPTED_AT_ONCE: usize = 16;
/// Connections that one user may have; root and the daemon's user have as many as there are.
const CONNECTIONS_OF_A_USER: usize = 256;
/// Descriptors and connections of one user that are yet to be closed, above which nothing more is taken from it.
const UNCLOSED_OF_A_USER: usize = 1024;
/// The same of a user that is refused, above which no connection may send descriptors before it is accepted: those
/// that no thread can close would use up the daemon's limit.
const UNCLOSED_OF_A_STRANGER: usize = 64;
/// Descriptors left for all else.
const SPARE_DESCRIPTORS: u64 = 64;
/// Descriptors of a look at a snapshot's file: a step of its path, and the next one.
const LOOK_DESCRIPTORS: u64 = 4;
/// Descriptors of a snapshot's slot in the making: its own, and the file's two.
const JOB_DESCRIPTORS: u64 = 3;
/// The pause in accepting after the kernel had no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often the bar on a terminal moves.
const PROGRESS_TICK: Duration = Duration::from_millis(200);

/// Reports of other threads.
#[derive(Debug)]
pub enum Event {
    /// A thread that populates is done with its job, and the outcome.
    Worked(WorkerId, Arc<Job>, Outcome),
    /// A lease's memory is gone, or the error if it is not.
    Ended(u64, Option<io::Error>),
    /// A thread has looked at a snapshot's file.
    Looked(Look),
    /// A client asks for the metrics.
    Metrics(SyncSender<String>),
}

/// Makes the event loop look at its channel.
pub fn ring(waker: &OwnedFd) {
    // It can only fail where the loop has not looked for 2^64 rings.
    let _ = rustix::io::write(waker, &1u64.to_ne_bytes());
}

/// Has the event loop make the page of metrics; `None` at its end.
fn ask_for_metrics(events: &Sender<Event>, waker: &OwnedFd) -> Option<String> {
    let (send, receive) = sync_channel(1);
    events.send(Event::Metrics(send)).ok()?;
    ring(waker);
    receive.recv().ok()
}

/// See the module's text.
pub struct Server {
    host: Box<dyn Host>,
    plan: Plan,
    /// Held until the end: it is the lock.
    directory: Directory,
    listener: Option<Listener>,
    /// For clients with tickets.
    door: Option<Listener>,
    metrics: Option<Serving>,
    /// Whether the listener takes descriptors.
    rights: Rights,
    signals: Signals,
    waker: Arc<OwnedFd>,
    events: Receiver<Event>,
    poll: OwnedFd,
    pool: Pool,
    tickets: Tickets,
    snapshots: Snapshots,
    populator: Populator,
    reaper: Reaper,
    notify: Notify,
    census: Census,
    connections: HashMap<Token, Connection>,
    /// Leases whose memory is going: their class if one counts it, and the client to be told.
    ending: HashMap<u64, Ending>,
    next_token: Token,
    next_lease: u64,
    most_descriptors: u64,
    most_connections: usize,
    accept_again: Option<Instant>,
    /// When to stop waiting for leases, once told to end.
    drain_until: Option<Instant>,
    started: Instant,
    all_ready_said: bool,
    said: Said,
}

/// See [`Server::ending`].
struct Ending {
    key: Key,
    charge: crate::Charge,
    told: Option<Token>,
    /// The user that it counts for.
    account: Option<u32>,
}

impl Server {
    /// Opens everything; errors are found now.
    pub fn start(
        plan: Plan,
        host: Box<dyn Host>,
        socket: Option<OwnedFd>,
    ) -> Result<Server, ServeError> {
        let system = |what: &'static str| {
            move |error: io::Error| ServeError::system(format!("no {what}: {error}"))
        };
        let signals = Signals::take_over().map_err(system("signals"))?;
        // Others of the same user could open what it has by /proc.
        let private = rustix::process::DumpableBehavior::NotDumpable;
        let _ = rustix::process::set_dumpable_behavior(private);
        let directory = Directory::open(plan.dir.as_deref())?;
        let path = plan.socket.clone().unwrap_or_else(|| directory.socket());
        let listener = Listener::open(&path, socket)?;
        let door = plan.ticket_socket.as_deref().map(open_door).transpose()?;
        let most_descriptors = raise_descriptor_limit();
        let most_connections = most_connections(most_descriptors, &plan);

        let poll = epoll::create(epoll::CreateFlags::CLOEXEC);
        let poll = poll.map_err(|error| system("epoll")(error.into()))?;
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let waker = Arc::new(waker.map_err(|error| system("eventfd")(error.into()))?);
        let (send, events): (Sender<Event>, _) = channel();
        let mut metrics = None;
        if let Some(address) = &plan.metrics {
            let (send, waker) = (send.clone(), Arc::clone(&waker));
            let page = move || ask_for_metrics(&send, &waker);
            metrics = Some(http::start(address, "--metrics", page)?);
        }
        let populator = Populator::start(plan.threads, plan.pace, &send, &waker);
        let populator = populator.map_err(system("thread"))?;
        let reaper = Reaper::start(&send, &waker).map_err(system("thread"))?;
        let mut snapshots = Snapshots::new(&send, &waker);
        let mut classes = snapshots.configure(&plan.snapshots)?;
        classes.extend(&plan.classes);
        let mut pool = Pool::default();
        pool.configure(&classes);
        pool.set_share(plan.share_percent);
        let server = Server {
            host,
            plan,
            directory,
            listener: Some(listener),
            door,
            metrics,
            rights: Rights::Passed,
            signals,
            waker,
            events,
            poll,
            pool,
            tickets: Tickets::default(),
            snapshots,
            populator,
            reaper,
            notify: Notify::find(),
            census: Census::default(),
            connections: HashMap::new(),
            ending: HashMap::new(),
            next_token: FIRST_CONNECTION,
            next_lease: 1,
            most_descriptors,
            most_connections,
            accept_again: None,
            drain_until: None,
            started: Instant::now(),
            all_ready_said: false,
            said: Said::default(),
        };
        server.watch(&server.signals, SIGNALS).map_err(system("epoll"))?;
        server.watch(&*server.waker, WAKER).map_err(system("epoll"))?;
        if let Some(listener) = &server.listener {
            server.watch(listener, LISTENER).map_err(system("epoll"))?;
        }
        if let Some(door) = &server.door {
            server.watch(door, TICKETS).map_err(system("epoll"))?;
        }
        server.host.say(&format!("listening at {}", path.display()));
        server.notify.say("READY=1");
        Ok(server)
    }

    /// Serves until it is told to end.
    pub fn run(mut self) -> Result<(), ServeError> {
        let mut ready = Vec::with_capacity(64);
        loop {
            self.populate();
            self.show_progress();
            if self.is_done() {
                self.close();
                return Ok(());
            }
            let timeout = self.next_deadline().map(|deadline| {
                let left = deadline.saturating_duration_since(Instant::now());
                // Rounded up: to wake a little early is to wake twice.
                rustix::event::Timespec::try_from(left + Duration::from_micros(50))
            });
            let timeout = timeout.and_then(Result::ok);
            match epoll::wait(&self.poll, spare_capacity(&mut ready), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(ServeError::system(format!("epoll: {error}"))),
            }
            for event in ready.drain(..) {
                match event.data.u64() {
                    LISTENER => self.accept(Door::Main),
                    TICKETS => self.accept(Door::Tickets),
                    SIGNALS => self.heed_signals(),
                    WAKER => self.hear(),
                    token => self.read(token),
                }
            }
            self.pass_deadlines(Instant::now());
        }
    }

    fn watch(&self, what: impl AsFd, token: Token) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.poll, what, data, epoll::EventFlags::IN)?)
    }

    fn accept(&mut self, door: Door) {
        for _ in 0..ACCEPTED_AT_ONCE {
            let listener = match door {
                Door::Main => &self.listener,
                Door::Tickets => &self.door,
            };
            let Some(listener) = listener else { return };
            match listener.accept() {
                Ok(Some((socket, peer))) => self.welcome(door, socket, peer),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // No descriptor or memory: the socket stays readable, and would be asked forever.
                    for listener in self.listener.iter().chain(&self.door) {
                        let _ = epoll::delete(&self.poll, listener);
                    }
                    self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, door: Door, socket: OwnedFd, peer: Peer) {
        if door == Door::Tickets {
            self.close_idlest();
        }
        let account = self.plan.allowed.account(&peer);
        let connection = Connection { door, socket, peer, account, state: ConnectionState::Idle };
        // There are no more clients with tickets than reservations, and few without.
        let has_all = connection.is_master() || door == Door::Tickets;
        let is_theirs = |it: &&Connection| it.door == door && it.account == account;
        let theirs = || self.connections.values().filter(is_theirs).count();
        let is_let_in =
            door == Door::Tickets || self.plan.allowed.quota_bytes(&connection.peer).is_some();
        let refused = if !is_let_in {
            Some(Reason::NotAllowed)
        } else if self.connections.len() >= self.most_connections
            || (!has_all && theirs() >= CONNECTIONS_OF_A_USER)
            || (!connection.is_master() && self.reaper.unclosed(account) >= UNCLOSED_OF_A_USER)
        {
            Some(Reason::Busy)
        } else {
            None
        };
        if let Some(reason) = refused {
            self.census.refused(reason);
            // Whether it hears or not, it is closed now.
            let _ = connection.reply(&refusal(reason));
            return self.turn_away(account, connection.socket);
        }
        if rights(&connection.socket) == Rights::Refused {
            set_rights(&connection.socket, Rights::Passed);
        }
        let token = self.next_token;
        self.next_token += 1;
        if self.watch(&connection.socket, token).is_err() {
            return self.reaper.hang_up(account, connection.socket);
        }
        self.connections.insert(token, connection);
        // Most have asked by now.
        self.read(token);
    }

    /// Closes the connection of a refused client.
    fn turn_away(&mut self, account: u32, socket: OwnedFd) {
        if rights(&socket) == Rights::Refused {
            // There is nothing in it that could be slow to close.
            return drop(socket);
        }
        self.reaper.hang_up(account, socket);
        if self.reaper.unclosed(account) >= UNCLOSED_OF_A_STRANGER {
            self.set_rights(Rights::Refused);
        }
    }

    fn set_rights(&mut self, rights: Rights) {
        if self.rights != rights {
            self.listener.iter().chain(&self.door).for_each(|it| it.set_rights(rights));
            self.rights = rights;
        }
    }

    fn heed_signals(&mut self) {
        while let Some(wish) = self.signals.next() {
            match wish {
                Wish::Reload => self.reload(),
                Wish::End => self.drain(),
            }
        }
    }

    /// Handles the reports of other threads.
    fn hear(&mut self) {
        let mut rings = [0; 8];
        let _ = rustix::io::read(&*self.waker, &mut rings);
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::Worked(worker, job, outcome) => self.take_worked(worker, &job, outcome),
                Event::Ended(lease, error) => self.take_ended(lease, error),
                Event::Looked(look) => self.take_look(look),
                Event::Metrics(reply) => {
                    self.refresh_gauges();
                    let classes: Vec<_> = self.class_rows().collect();
                    let snapshots = self.snapshot_rows();
                    let tickets = (self.pool.reserved(), self.tickets.counts());
                    let page = super::metrics::page(&self.census, &classes, &snapshots, tickets);
                    let _ = reply.try_send(page);
                }
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let waits = self.connections.values().filter_map(|connection| match &connection.state {
            ConnectionState::Waiting(wait) => Some(wait.until),
            _ => None,
        });
        let retry = self.pool.next_retry().filter(|_| self.drain_until.is_none());
        let is_moving = self.host.shows_progress() && self.populator.jobs().len() > 0;
        let tick = is_moving.then(|| Instant::now() + PROGRESS_TICK);
        let look = self.snapshots.next_look().filter(|_| self.drain_until.is_none());
        let own = waits.chain(retry).chain(tick).chain(look);
        own.chain(self.tickets.next_end()).chain(self.accept_again).chain(self.drain_until).min()
    }

    fn pass_deadlines(&mut self, now: Instant) {
        let is_flooded = self.rights == Rights::Refused;
        if is_flooded && self.reaper.unclosed_in_all() < UNCLOSED_OF_A_STRANGER {
            self.set_rights(Rights::Passed);
        }
        if self.accept_again.is_some_and(|again| again <= now) {
            self.accept_again = None;
            if let Some(listener) = &self.listener {
                let _ = self.watch(listener, LISTENER);
            }
            if let Some(door) = &self.door {
                let _ = self.watch(door, TICKETS);
            }
        }
        self.end_waits(now);
        self.expire_tickets(now);
        self.look_around(now);
    }
}

/// The socket for tickets, in a folder that is made if there is none.
fn open_door(path: &std::path::Path) -> Result<Listener, ServeError> {
    const OPTION: &str = "--ticket-socket";
    if let Some((folder, _)) = split(path) {
        Folder::open(folder, Missing::Make, OPTION)?;
    }
    Listener::open_named(path, OPTION)
}

/// A refusal without more to say.
fn refusal(reason: Reason) -> Reply {
    Reply::Refused(Refusal { reason, limit_bytes: 0, sizes: Vec::new() })
}

/// Allows as many descriptors as the user may have; how many that is.
fn raise_descriptor_limit() -> u64 {
    use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(1 << 20).min(1 << 20);
    let raised = Rlimit { current: Some(most), maximum: limit.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => most,
        Err(_) => limit.current.unwrap_or(1024),
    }
}

/// How many connections there may be with so many descriptors: each may have a slot.
fn most_connections(descriptors: u64, plan: &Plan) -> usize {
    let snapshots = plan.snapshots.iter();
    let own = snapshots.map(|it| LOOK_DESCRIPTORS + u64::from(it.count) * JOB_DESCRIPTORS);
    (descriptors.saturating_sub(SPARE_DESCRIPTORS + own.sum::<u64>()) / 2).max(8) as usize
}

#[cfg(test)]
mod tests {
    use super::super::allow::Allowed;
    use super::super::plan::SnapshotPlan;
    use super::*;
    use crate::PageKind;

    #[test]
    fn snapshots_leave_descriptors_for_their_files() {
        let mut plan = Plan {
            classes: Vec::new(),
            snapshots: Vec::new(),
            dir: None,
            socket: None,
            ticket_socket: None,
            allowed: Allowed::default(),
            share_percent: None,
            metrics: None,
            grow_hugetlb: false,
            drain: Duration::ZERO,
            threads: 1,
            pace: Default::default(),
        };
        assert_eq!(most_connections(1024, &plan), 480);
        plan.snapshots.push(SnapshotPlan {
            name: "web".parse().expect("a name"),
            path: std::path::Path::new("/web").into(),
            count: 100,
            sharing: crate::Sharing::Alone,
            pages: PageKind::Small,
            node: None,
        });
        // Three of each slot in the making, and four of a look.
        assert_eq!(most_connections(1024, &plan), (1024 - 64 - 304) / 2);
        assert_eq!(most_connections(64, &plan), 8);
    }
}
