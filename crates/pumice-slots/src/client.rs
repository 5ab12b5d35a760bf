//! The client: a blocking connection for each question, and one that a lease holds.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::retry_on_intr;

use super::error::Error;
use super::file::Populating;
use super::message::{
    ClassRow, Grant, LeaseRequest, LeaseRow, Malformed, Reply, Request, ReservationRow,
    SnapshotRow, MAX_WAIT_MS,
};
use super::pages::{Charge, PageKind};
use super::peer::Trusted;
use super::refusal::{Reason, Refusal};
use super::settings::PaceSetting;
use super::snapshot::{Sharing, SnapshotName};
use super::socket;
use super::ticket::{Reservation, ReservationName, Ticket};

/// Names a socket other than the default.
pub const ENV_SOCKET: &str = "PUMICE_SOCKET";
/// How long a daemon may take to answer, a wait that was asked for not counted.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a descriptor is sent again that a daemon does not take yet.
const ACCEPTED_SOON: Duration = Duration::from_millis(5);

/// Where a daemon of root's listens.
pub const SYSTEM_SOCKET: &str = "/run/pumice/slots.sock";

/// The socket that is meant where none is named: `PUMICE_SOCKET`, else that of a daemon of one's own
/// (`$XDG_RUNTIME_DIR/pumice/slots.sock`) if there is one, else the system's. A runtime folder of another user's is
/// none: `su` and `sudo -E` leave the variable as it was, and a listener there sees the slot's content.
pub fn default_socket() -> PathBuf {
    if let Some(path) = env::var_os(ENV_SOCKET).filter(|path| !path.is_empty()) {
        return path.into();
    }
    let is_own = |folder: &OsString| {
        let status = fs::metadata(folder);
        status.is_ok_and(|status| status.uid() == rustix::process::geteuid().as_raw())
    };
    let own = env::var_os("XDG_RUNTIME_DIR")
        .filter(is_own)
        .map(|folder| Path::new(&folder).join("pumice/slots.sock"))
        .filter(|path| path.exists());
    own.unwrap_or_else(|| SYSTEM_SOCKET.into())
}

/// A daemon, by its socket.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
}

impl Client {
    /// The daemon that listens there. Nothing is connected yet.
    pub fn new(path: impl Into<PathBuf>) -> Client {
        Client { path: path.into() }
    }

    /// Leases a slot, waiting as long as the request says.
    ///
    /// ```no_run
    /// use pumice::slots::{default_socket, Client, LeaseRequest};
    /// let lease = Client::new(default_socket()).lease(&LeaseRequest::new(1 << 30))?;
    /// println!("{} bytes at {}", lease.bytes(), lease.path().display());
    /// # Ok::<(), pumice::slots::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Refused`] with the reason; [`Error::Connect`] where nobody listens; [`Error::Stranger`] where
    /// the listener is neither root's, nor this process's user's, nor that of the owner of the socket's folder: it
    /// would see all that is written to the slot.
    pub fn lease(&self, request: &LeaseRequest) -> Result<Lease, Error> {
        self.lease_by(&Request::Lease(*request), request.wait_ms, None)
    }

    /// Leases a slot that has the content of a snapshot, and zeros up to the end of its last page. Nobody else has the
    /// slot's memory, and nothing that is written to it goes to the snapshot's file. If the daemon's configuration says
    /// that the snapshot is shared ([`Lease::is_shared`]), all have the same memory and none can write to it.
    ///
    /// # Errors
    /// As [`Client::lease`].
    pub fn lease_snapshot(&self, name: SnapshotName, wait: Duration) -> Result<Lease, Error> {
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX).min(MAX_WAIT_MS);
        self.lease_by(&Request::LeaseSnapshot(name, wait_ms), wait_ms, None)
    }

    /// Leases the slot that is reserved for a ticket, whatever size it has.
    ///
    /// # Errors
    /// As [`Client::lease`].
    pub fn lease_ticket(&self, ticket: Ticket, wait: Duration) -> Result<Lease, Error> {
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX).min(MAX_WAIT_MS);
        self.lease_by(&Request::LeaseTicket(ticket, wait_ms), wait_ms, Some(ticket))
    }

    fn lease_by(
        &self,
        request: &Request,
        wait_ms: u32,
        ticket: Option<Ticket>,
    ) -> Result<Lease, Error> {
        let connection = self.connect()?;
        let trusted = Trusted::of(&connection, &self.path)?;
        let wait = Duration::from_millis(wait_ms.into());
        socket::set_patience(&connection, PATIENCE + wait)?;
        let (reply, descriptor) = ask(&connection, request, None)?;
        let (Reply::Granted(grant), Some(descriptor)) = (reply, descriptor) else {
            return Err(Error::Protocol("a lease without a descriptor"));
        };
        // Only requests may wait for longer.
        socket::set_patience(&connection, PATIENCE)?;
        let (client, file) = (self.clone(), descriptor.into());
        Ok(Lease { client, trusted, ticket, connection, asked: None, file, grant })
    }

    /// The classes of slots that the daemon keeps.
    ///
    /// # Errors
    /// As [`Client::lease`].
    #[doc(hidden)]
    pub fn classes(&self) -> Result<Vec<ClassRow>, Error> {
        self.list(Request::Classes, |reply| match reply {
            Reply::Classes(all, rows) => Some((all, rows)),
            _ => None,
        })
    }

    /// The snapshots that the daemon keeps slots of; none where it is of a version that knows none.
    ///
    /// # Errors
    /// As [`Client::lease`].
    #[doc(hidden)]
    pub fn snapshots(&self) -> Result<Vec<SnapshotRow>, Error> {
        let rows = self.list(Request::Snapshots, |reply| match reply {
            Reply::Snapshots(all, rows) => Some((all, rows)),
            _ => None,
        });
        match rows {
            Err(Error::Refused(refusal)) if refusal.reason == Reason::Malformed => Ok(Vec::new()),
            rows => rows,
        }
    }

    /// The leases there are: all of them for root and the daemon's user, else one's own.
    ///
    /// # Errors
    /// As [`Client::lease`].
    #[doc(hidden)]
    pub fn leases(&self) -> Result<Vec<LeaseRow>, Error> {
        self.list(Request::Leases, |reply| match reply {
            Reply::Leases(all, rows) => Some((all, rows)),
            _ => None,
        })
    }

    /// Reserves a slot for a ticket, in place of a reservation of the same name. The same once more keeps it for as
    /// long from now on.
    ///
    /// # Errors
    /// As [`Client::lease`]; refused for anybody but root and the daemon's user, and where all such slots are leased
    /// or reserved, or a lease of the reservation before goes on.
    #[doc(hidden)]
    pub fn reserve(&self, asked: &Reservation) -> Result<(), Error> {
        match ask(&self.connect()?, &Request::Reserve(*asked), None)?.0 {
            Reply::Done => Ok(()),
            _ => Err(UNEXPECTED),
        }
    }

    /// Gives a reservation up, if there is one. A lease of it goes on until it ends.
    ///
    /// # Errors
    /// As [`Client::lease`]; refused for anybody but root and the daemon's user.
    #[doc(hidden)]
    pub fn release(&self, name: ReservationName) -> Result<(), Error> {
        match ask(&self.connect()?, &Request::Release(name), None)?.0 {
            Reply::Done => Ok(()),
            _ => Err(UNEXPECTED),
        }
    }

    /// The reservations there are.
    ///
    /// # Errors
    /// As [`Client::lease`]; refused for anybody but root and the daemon's user.
    #[doc(hidden)]
    pub fn reservations(&self) -> Result<Vec<ReservationRow>, Error> {
        self.list(Request::Reservations, |reply| match reply {
            Reply::Reservations(all, rows) => Some((all, rows)),
            _ => None,
        })
    }

    /// The daemon's counters, in the order of [`super::stat::Counter::ALL`], then the buckets of the wait
    /// times' histogram.
    ///
    /// # Errors
    /// As [`Client::lease`].
    #[doc(hidden)]
    pub fn stat(&self) -> Result<Vec<u64>, Error> {
        match ask(&self.connect()?, &Request::Stat, None)?.0 {
            Reply::Stat(values) => Ok(values),
            _ => Err(UNEXPECTED),
        }
    }

    /// The daemon's settings, raw, in the order of [`PaceSetting::ALL`].
    ///
    /// # Errors
    /// As [`Client::lease`].
    #[doc(hidden)]
    pub fn settings(&self) -> Result<Vec<u64>, Error> {
        match ask(&self.connect()?, &Request::Settings, None)?.0 {
            Reply::Settings(values) => Ok(values),
            _ => Err(UNEXPECTED),
        }
    }

    /// Changes a setting.
    ///
    /// # Errors
    /// As [`Client::lease`]; refused for anybody but root and the daemon's user.
    #[doc(hidden)]
    pub fn set(&self, setting: PaceSetting, raw: u64) -> Result<(), Error> {
        match ask(&self.connect()?, &Request::Set(setting, raw), None)?.0 {
            Reply::Done => Ok(()),
            _ => Err(UNEXPECTED),
        }
    }

    fn connect(&self) -> Result<OwnedFd, Error> {
        socket::connect_to(&self.path, PATIENCE)
            .map_err(|source| Error::Connect { path: self.path.clone(), source })
    }

    fn list<R>(
        &self,
        request: fn(u32) -> Request,
        rows_of: fn(Reply) -> Option<(u32, Vec<R>)>,
    ) -> Result<Vec<R>, Error> {
        let connection = self.connect()?;
        let mut rows = Vec::new();
        loop {
            let (reply, _) = ask(&connection, &request(rows.len() as u32), None)?;
            let (all, more) = rows_of(reply).ok_or(UNEXPECTED)?;
            let is_last = more.is_empty();
            rows.extend(more);
            if is_last || rows.len() >= all as usize {
                return Ok(rows);
            }
        }
    }
}

const UNEXPECTED: Error = Error::Protocol("another kind of answer than was asked for");

fn ask(
    connection: &OwnedFd,
    request: &Request,
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(Reply, Option<OwnedFd>), Error> {
    let bytes = request.encode();
    let until = Instant::now() + PATIENCE;
    // A daemon that refused the connection has said so already, and closed.
    let mut sent = socket::send(connection, &bytes, descriptor);
    // One that strangers flood takes descriptors of those only that it has accepted.
    let is_too_early = |sent: &io::Result<()>| {
        sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    };
    while descriptor.is_some() && is_too_early(&sent) && Instant::now() < until {
        thread::sleep(ACCEPTED_SOON);
        sent = socket::send(connection, &bytes, descriptor);
    }
    hear(connection, sent)
}

/// The answer to what was sent.
fn hear(connection: &OwnedFd, sent: io::Result<()>) -> Result<(Reply, Option<OwnedFd>), Error> {
    let mut received = socket::receive(connection);
    // It closed with the request unread: the kernel says so first, and the answer comes after.
    if received.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset) {
        received = socket::receive(connection);
    }
    let packet = match received {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(Error::NoAnswer),
        Err(error) => return Err(sent.err().unwrap_or(error).into()),
        Ok(None) => return Err(sent.err().map_or(Error::NoAnswer, Error::Io)),
        Ok(Some(packet)) => packet,
    };
    match Reply::decode(&packet.bytes) {
        Ok(Reply::Refused(refusal)) => Err(Error::Refused(refusal)),
        Ok(reply) => Ok((reply, packet.descriptors.into_iter().next())),
        Err(Malformed::Version(_)) => Err(Error::Refused(Refusal {
            reason: Reason::Version,
            limit_bytes: 0,
            sizes: Vec::new(),
        })),
        Err(_) => Err(Error::Protocol("not a message")),
    }
}

/// A leased slot. Dropping it ends the lease, as does the end of the process, however it comes: then pages of it that
/// are still mapped raise SIGBUS. (Where no daemon runs any more, dropping truncates the file; the end of the process
/// alone does not.)
#[derive(Debug)]
pub struct Lease {
    client: Client,
    /// The listeners that the slot may be shown to again.
    trusted: Trusted,
    /// The ticket that the slot was reserved for.
    ticket: Option<Ticket>,
    connection: OwnedFd,
    /// A connection to the next daemon that has not answered yet. Closing it could end the lease.
    asked: Option<OwnedFd>,
    file: File,
    grant: Grant,
}

impl Lease {
    /// Its number in lists.
    pub fn id(&self) -> u64 {
        self.grant.id
    }

    /// Bytes of the file: as many as were asked for, or more.
    pub fn bytes(&self) -> u64 {
        self.grant.bytes
    }

    /// The kind of pages that its memory is made of.
    pub fn pages(&self) -> PageKind {
        self.grant.pages
    }

    /// Whether others have the same memory: it can only be read, and is to be mapped privately. Pages that are written
    /// to are copied then.
    pub fn is_shared(&self) -> bool {
        self.grant.sharing == Sharing::Shared
    }

    /// Its file, to be mapped shared, or privately if it is shared itself. It can't grow.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// A path by which processes of the same user open the file while this process has the lease.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    /// Whether it is for the lessee to populate it ([`Lease::populate`]).
    pub fn is_empty(&self) -> bool {
        self.grant.charge == Charge::Lessee
    }

    /// Populates an empty slot from this process, which is charged for it. `progress` is told of
    /// the bytes that are done.
    ///
    /// # Errors
    /// As madvise(2).
    pub fn populate(&self, mut progress: impl FnMut(u64)) -> io::Result<()> {
        const BATCH_BYTES: usize = 64 << 20;
        let mut populating = Populating::begin(&self.file, self.grant.bytes, self.grant.pages)?;
        while populating.step(BATCH_BYTES)? > 0 {
            progress(populating.done_bytes());
        }
        Ok(())
    }

    /// Ends the lease and returns when its memory is gone.
    ///
    /// # Errors
    /// [`Error::NoAnswer`] and [`Error::Io`] where the daemon is gone; the file is truncated all the same.
    pub fn end(self) -> Result<(), Error> {
        match ask(&self.connection, &Request::End, None) {
            Ok((Reply::Done, _)) => Ok(()),
            Ok(_) => Err(UNEXPECTED),
            Err(error) => {
                self.truncate()?;
                Err(error)
            }
        }
    }

    /// Gives the memory back without a daemon. That of a shared snapshot goes when nobody has it open or mapped.
    fn truncate(&self) -> io::Result<()> {
        match self.is_shared() {
            true => Ok(()),
            false => self.file.set_len(0),
        }
    }

    /// The connection. It becomes readable when the daemon is gone.
    #[doc(hidden)]
    pub fn connection(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }

    /// Tells a daemon that was started anew on the same socket of this lease, so that it ends when it
    /// would have.
    ///
    /// The slot's descriptor goes there. So the listener must be root or the user that gave the slot, and nobody else
    /// may be able to write in the socket's folder.
    ///
    /// # Errors
    /// As [`Client::lease`], and [`Error::Stranger`] for all others; the lease is as it was then, and this can be
    /// tried again. After [`Error::NoAnswer`] it waits on for the same answer.
    #[doc(hidden)]
    pub fn resume(&mut self) -> Result<(), Error> {
        let (asked, heard) = match self.asked.take() {
            Some(asked) => {
                let heard = hear(&asked, Ok(()));
                (asked, heard)
            }
            None => {
                let request = self.ticket.map_or(Request::Resume, Request::ResumeTicket);
                let asked = self.trusted.connect(&self.client.path, PATIENCE)?;
                let heard = ask(&asked, &request, Some(self.file.as_fd()));
                (asked, heard)
            }
        };
        match heard {
            Ok((Reply::Granted(grant), _)) => {
                self.grant.id = grant.id;
                self.connection = asked;
                Ok(())
            }
            // It has not taken the lease, or is gone itself.
            Err(error) if matches!(error, Error::Refused(_)) || is_closed(&asked) => Err(error),
            // It may take it yet, and would take a closed connection for the lease's end.
            Ok(_) => {
                self.asked = Some(asked);
                Err(UNEXPECTED)
            }
            Err(error) => {
                self.asked = Some(asked);
                Err(error)
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A daemon sees to it when the connection closes, but for one that may not have it yet.
        if self.asked.is_some() || is_closed(&self.connection) {
            let _ = self.truncate();
        }
    }
}

/// Whether the daemon's end is.
fn is_closed(connection: &OwnedFd) -> bool {
    let mut events = [PollFd::new(connection, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // Neither the contents nor a signal matter.
    let asked = retry_on_intr(|| poll(&mut events, Some(&now)));
    asked.is_ok_and(|count| count > 0)
}
