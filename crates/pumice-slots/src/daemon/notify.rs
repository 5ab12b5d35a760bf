//! Messages for systemd: sd_notify(3), without its library.

use std::env;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The service manager, if there is one.
#[derive(Debug)]
pub struct Notify {
    to: Option<(UnixDatagram, SocketAddr)>,
}

impl Notify {
    /// Finds it, and keeps it from programs that this one might start.
    pub fn find() -> Notify {
        let name = env::var_os("NOTIFY_SOCKET");
        env::remove_var("NOTIFY_SOCKET");
        let address = name.and_then(|name| match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
            [b'/', ..] => SocketAddr::from_pathname(&name).ok(),
            _ => None,
        });
        let socket =
            UnixDatagram::unbound().ok().filter(|socket| socket.set_nonblocking(true).is_ok());
        Notify { to: socket.zip(address) }
    }

    /// Sends it a state. Errors are ignored.
    pub fn say(&self, state: &str) {
        if let Some((socket, address)) = &self.to {
            let _ = socket.send_to_addr(state.as_bytes(), address);
        }
    }
}
