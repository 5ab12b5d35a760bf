//! Just enough HTTP for Prometheus: a request's head is read and dropped, and one page is the answer to all.
//!
//! Each client has a thread and a second to send its request, and another to take the answer, so that a
//! client that is slow or says nothing holds up no other. There are [`CLIENTS`] at a time; more wait until one
//! of them goes.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::net::SocketType;

use super::bound::{Bound, Neighbours};
use crate::ServeError;

/// How long a client may take to send, and again to receive.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest head of a request.
const MOST_HEAD: usize = 8 << 10;
/// Clients at a time.
const CLIENTS: usize = 16;

/// Where metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A unix socket.
    Unix(PathBuf),
    /// A port of this machine, for this machine.
    Loopback(SocketAddr),
}

impl Address {
    /// Reads `unix:PATH` or an address with its port.
    pub fn parse(text: &str) -> Result<Address, String> {
        const EXPECTED: &str =
            "metrics are served at unix:PATH or a loopback address and port such as \
                                127.0.0.1:9464";
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Address::Unix(path.into()));
        }
        let address = text.parse::<SocketAddr>().ok();
        let address = address.filter(|address| address.ip().is_loopback());
        address.map(Address::Loopback).ok_or_else(|| EXPECTED.into())
    }
}

enum Listening {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listening {
    fn accept(&self) -> io::Result<Box<dyn Client>> {
        Ok(match self {
            Listening::Unix(listener) => Box::new(listener.accept()?.0),
            Listening::Tcp(listener) => Box::new(listener.accept()?.0),
        })
    }
}

/// A connected client.
trait Client: Read + Write + Send {
    /// The next read or write waits so long at most.
    fn wait_at_most(&self, left: Duration) -> io::Result<()>;
}

impl Client for UnixStream {
    fn wait_at_most(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left))?;
        self.set_write_timeout(Some(left))
    }
}

impl Client for TcpStream {
    fn wait_at_most(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left))?;
        self.set_write_timeout(Some(left))
    }
}

/// Places for clients that are being served.
struct Places {
    taken: Mutex<usize>,
    left: Condvar,
}

/// One of them, until it is dropped.
struct Place(Arc<Places>);

impl Places {
    /// Waits until there is one.
    fn take(self: &Arc<Places>) -> Place {
        // The number is right also after a panic.
        let mut taken = self.taken.lock();
        self.left.wait_while(&mut taken, |taken| *taken >= CLIENTS);
        *taken += 1;
        Place(Arc::clone(self))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.taken.lock() -= 1;
        self.0.left.notify_one();
    }
}

/// An address at which pages are served.
#[derive(Debug)]
pub struct Serving {
    /// The address, whose port may have been 0 in what was asked for.
    pub at: String,
    bound: Option<Bound>,
}

impl Serving {
    /// Removes the socket, if there is one in the file system.
    pub fn clear(&self) {
        if let Some(bound) = &self.bound {
            bound.remove();
        }
    }
}

/// Listens, and starts the threads. `option` is what the address was given with; `page` makes the answer,
/// `None` when its source is gone.
pub fn start(
    address: &Address,
    option: &'static str,
    page: impl Fn() -> Option<String> + Send + Sync + 'static,
) -> Result<Serving, ServeError> {
    let refused = |at: &dyn std::fmt::Display, error: &io::Error| {
        ServeError::usage(format!(
            "can't serve metrics at {at}: {error}; name another with {option}"
        ))
    };
    // SAFETY: a plain call; a client that goes away while it is answered must not end this process.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let (listening, serving) = match address {
        Address::Unix(path) => {
            let kind = SocketType::STREAM;
            let (socket, bound) = Bound::listen(path, kind, Neighbours::Any, option)?;
            let listener = UnixListener::from(socket);
            let blocks = listener.set_nonblocking(false);
            blocks.map_err(|error| refused(&path.display(), &error))?;
            let at = format!("unix:{}", path.display());
            (Listening::Unix(listener), Serving { at, bound: Some(bound) })
        }
        Address::Loopback(wanted) => {
            let bound = TcpListener::bind(wanted);
            let listener = bound.map_err(|error| refused(wanted, &error))?;
            let at = listener.local_addr().unwrap_or(*wanted);
            let at = format!("http://{at}/metrics");
            (Listening::Tcp(listener), Serving { at, bound: None })
        }
    };
    let page = Arc::new(page);
    let places = Arc::new(Places { taken: Mutex::new(0), left: Condvar::new() });
    let serve = move || loop {
        let place = places.take();
        let page = Arc::clone(&page);
        let served = listening.accept().and_then(|client| {
            let serve = move || {
                // A client that does not read the answer gets none.
                let _ = answer(client, &*page);
                drop(place);
            };
            thread::Builder::new().name("pumice-metrics".into()).spawn(serve)
        });
        if served.is_err() {
            // Out of descriptors or threads, perhaps: no reason to spin.
            thread::sleep(Duration::from_millis(20));
        }
    };
    let started = thread::Builder::new().name("pumice-metrics".into()).spawn(serve);
    started.map_err(|error| ServeError::system(format!("no thread for metrics: {error}")))?;
    Ok(serving)
}

fn answer(mut client: Box<dyn Client>, page: &impl Fn() -> Option<String>) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        client.wait_at_most(left(until)?)?;
        let read = client.read(&mut piece)?;
        if read == 0 || head.len() > MOST_HEAD {
            return Ok(());
        }
        head.extend(&piece[..read]);
    }
    let Some(page) = page() else { return Ok(()) };
    let is_get = head.starts_with(b"GET ");
    let (status, body) = if is_get { ("200 OK", &*page) } else { ("405 Method Not Allowed", "") };
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    let until = Instant::now() + PATIENCE;
    let mut rest = answer.as_bytes();
    while !rest.is_empty() {
        client.wait_at_most(left(until)?)?;
        match client.write(rest)? {
            0 => return Ok(()),
            written => rest = &rest[written..],
        }
    }
    Ok(())
}

/// How long it still is; an error if it is no longer.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    Some(left).filter(|left| !left.is_zero()).ok_or_else(|| io::ErrorKind::TimedOut.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_served() {
        assert_eq!(Address::parse("unix:/a"), Ok(Address::Unix("/a".into())));
        assert!(Address::parse("127.0.0.1:9464").is_ok());
        assert!(Address::parse("[::1]:9464").is_ok());
        for bad in ["", "unix:", "0.0.0.0:9464", "10.0.0.1:9464", "localhost", ":9464"] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
    }
}
