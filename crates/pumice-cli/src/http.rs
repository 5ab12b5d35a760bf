//! Just enough HTTP for Prometheus: a request's head is read and dropped, and one page is the answer to all.
//!
//! A thread of its own serves one client after the other, each for a second at most, so that a slow reader
//! holds up other readers of metrics, and nobody else.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::SocketType;

use crate::args::Failure;
use crate::serve::{bind_to, clear_socket};

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

/// Listens, and starts the thread. `option` is what the address was given with; `page` makes the answer,
/// `None` when there is nobody any more who knows it. Returns the address, whose port may have been 0.
pub fn start(
    address: &Address,
    option: &'static str,
    page: impl Fn() -> Option<String> + Send + 'static,
) -> Result<String, Failure> {
    let refused = |at: &dyn std::fmt::Display, error: &io::Error| {
        Failure::usage(format!("can't serve metrics at {at}: {error}; name another with {option}"))
    };
    // SAFETY: a plain call; who goes away while it is answered must not end this process.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let (listening, shown) = match address {
        Address::Unix(path) => {
            clear_socket(path, option)?;
            let listener = bind(path).map_err(|error| refused(&path.display(), &error))?;
            (Listening::Unix(listener), format!("unix:{}", path.display()))
        }
        Address::Loopback(wanted) => {
            let bound = TcpListener::bind(wanted);
            let listener = bound.map_err(|error| refused(wanted, &error))?;
            let at = listener.local_addr().unwrap_or(*wanted);
            (Listening::Tcp(listener), format!("http://{at}/metrics"))
        }
    };
    let serve = move || loop {
        let served = match &listening {
            Listening::Unix(listener) => {
                listener.accept().and_then(|(stream, _)| serve_unix(stream, &page))
            }
            Listening::Tcp(listener) => {
                listener.accept().and_then(|(stream, _)| serve_tcp(stream, &page))
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
    Ok(shown)
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let socket = UnixListener::from(bind_to(path, SocketType::STREAM)?);
    socket.set_nonblocking(false)?;
    Ok(socket)
}

/// Removes what was listened at.
pub fn clear(address: &Address) {
    if let Address::Unix(path) = address {
        let _ = fs::remove_file(path);
    }
}

fn serve_unix(stream: UnixStream, page: &impl Fn() -> Option<String>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    answer(stream, page)
}

fn serve_tcp(stream: TcpStream, page: &impl Fn() -> Option<String>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    answer(stream, page)
}

fn answer(mut stream: impl Read + Write, page: &impl Fn() -> Option<String>) -> io::Result<()> {
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
    let Some(page) = page() else { return Ok(()) };
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
