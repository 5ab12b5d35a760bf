//! Just enough HTTP for Prometheus: a request's head is read and dropped, and one page is the answer to all.
//!
//! A thread of its own serves one client after the other, each for a second at most. It gets the page
//! from the event loop, so that a slow reader holds up other readers of metrics, and nobody else.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{sync_channel, Sender};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::SocketType;

use super::server::{ring, Event};
use super::{directory, listener};
use crate::args::Failure;

/// How long a client may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest head of a request.
const MOST_HEAD: usize = 8 << 10;

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

/// Listens, and starts the thread.
pub fn start(address: &Address, events: Sender<Event>, waker: Arc<OwnedFd>) -> Result<(), Failure> {
    let listening = match address {
        Address::Unix(path) => {
            directory::clear_socket(path)?;
            Listening::Unix(bind(path).map_err(|error| refused(&path.display(), &error))?)
        }
        Address::Loopback(address) => {
            Listening::Tcp(TcpListener::bind(address).map_err(|error| refused(address, &error))?)
        }
    };
    let serve = move || loop {
        let served = match &listening {
            Listening::Unix(listener) => {
                listener.accept().and_then(|(stream, _)| serve_unix(stream, &events, &waker))
            }
            Listening::Tcp(listener) => {
                listener.accept().and_then(|(stream, _)| serve_tcp(stream, &events, &waker))
            }
        };
        if let Err(error) = served {
            // Out of descriptors, perhaps: no reason to spin.
            if error.kind() != io::ErrorKind::WouldBlock
                && error.kind() != io::ErrorKind::BrokenPipe
            {
                thread::sleep(Duration::from_millis(20));
            }
        }
    };
    let started = thread::Builder::new().name("pumice-metrics".into()).spawn(serve);
    started.map_err(|error| Failure::system(format!("no thread for metrics: {error}")))?;
    Ok(())
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let socket = UnixListener::from(listener::bind_to(path, SocketType::STREAM)?);
    socket.set_nonblocking(false)?;
    Ok(socket)
}

fn refused(address: &dyn std::fmt::Display, error: &io::Error) -> Failure {
    Failure::usage(format!(
        "can't serve metrics at {address}: {error}; name another with --metrics"
    ))
}

/// Removes what was listened at.
pub fn clear(address: &Address) {
    if let Address::Unix(path) = address {
        let _ = fs::remove_file(path);
    }
}

fn serve_unix(stream: UnixStream, events: &Sender<Event>, waker: &OwnedFd) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    answer(stream, events, waker)
}

fn serve_tcp(stream: TcpStream, events: &Sender<Event>, waker: &OwnedFd) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    answer(stream, events, waker)
}

fn answer(
    mut stream: impl Read + Write,
    events: &Sender<Event>,
    waker: &OwnedFd,
) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = stream.read(&mut piece)?;
        if read == 0 || head.len() > MOST_HEAD || Instant::now() > until {
            return Ok(());
        }
        head.extend(&piece[..read]);
    }
    let (send, receive) = sync_channel(1);
    if events.send(Event::Metrics(send)).is_err() {
        return Ok(());
    }
    ring(waker);
    let Ok(page) = receive.recv() else { return Ok(()) };
    let is_get = head.starts_with(b"GET ");
    let (status, body) = if is_get { ("200 OK", &*page) } else { ("405 Method Not Allowed", "") };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
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
