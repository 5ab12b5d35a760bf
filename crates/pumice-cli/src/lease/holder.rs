//! The lease while the program runs. A daemon that ends leaves leases with their holders; a thread here
//! waits for the next daemon on the same socket, and tells it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use pumice_slots::refusal::Reason;
use pumice_slots::{Error, Lease};
use rustix::event::{poll, PollFd, PollFlags};

use crate::run::spawn;

/// How often a daemon is looked for where there is none.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// See the module's text.
#[derive(Debug)]
pub struct Holder {
    lease: Arc<Mutex<Option<Lease>>>,
}

impl Holder {
    /// Starts the thread. Without one the lease is held all the same, by one daemon only. A shared slot is the next
    /// daemon's no more: nobody has to give it back.
    pub fn start(lease: Lease) -> Holder {
        let is_kept = !lease.is_shared();
        let connection = lease.connection().try_clone_to_owned().ok().filter(|_| is_kept);
        let lease = Arc::new(Mutex::new(Some(lease)));
        let shared = Arc::clone(&lease);
        if let Some(connection) = connection {
            // Signals are the main thread's business.
            let before = spawn::block_all();
            let watch = thread::Builder::new().name("pumice-lease".into());
            let _ = watch.spawn(move || keep(&shared, connection));
            spawn::unblock(&before);
        }
        Holder { lease }
    }

    /// Ends the lease; its memory is gone then.
    pub fn end(self) {
        let lease = self.lease.lock().take();
        if let Some(lease) = lease {
            // Without a daemon the client has truncated the file itself.
            let _ = lease.end();
        }
    }
}

fn is_passing(reason: Reason) -> bool {
    matches!(reason, Reason::Busy | Reason::NoSuchTicket)
}

fn keep(shared: &Mutex<Option<Lease>>, mut connection: OwnedFd) {
    loop {
        // The daemon says nothing unasked: only its end can be read.
        let _ = poll(&mut [PollFd::new(&connection, PollFlags::IN)], None);
        let mut lease = shared.lock();
        let Some(held) = lease.as_mut() else { return };
        match held.resume() {
            Ok(()) => match held.connection().as_fd().try_clone_to_owned() {
                Ok(new) => connection = new,
                Err(_) => return,
            },
            // It will not change its mind, unless it has no time now, or has not been told of the ticket yet.
            Err(Error::Refused(refusal)) if !is_passing(refusal.reason) => return,
            Err(_) => {
                drop(lease);
                thread::sleep(LOOK_AGAIN);
            }
        }
    }
}
