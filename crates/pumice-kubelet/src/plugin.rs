//! A resource: its socket in the kubelet's folder, and its registration with the kubelet.
//!
//! A kubelet that starts removes all sockets of plugins, and makes its own anew. So both files are looked at again and
//! again ([`Plugin::tend`]), by device, inode and time of change.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::StreamExt;
use tonic::transport::Server;
use tonic::Status;

use crate::answers::{self, Answers, Mounted};
use crate::api;
use crate::devices::Inventory;
use crate::grpc::{self, DevicePluginServer};
use crate::ledger::Ledger;

/// How long the kubelet may take to answer. It connects to the plugin before it does.
const PATIENCE: Duration = Duration::from_secs(10);
/// A registered plugin whose devices the kubelet does not watch is registered again after so many looks.
const UNWATCHED_LOOKS: u32 = 10;

/// The parts that all plugins share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The kubelet's folder.
    pub kubelet_dir: PathBuf,
    /// The devices.
    pub inventory: watch::Receiver<Inventory>,
    /// The tickets.
    pub ledger: Arc<Ledger>,
    /// The mount that containers get.
    pub mounted: Mounted,
}

/// See the module's text.
#[derive(Debug)]
pub struct Plugin {
    shared: Shared,
    resource: String,
    size: String,
    serving: Option<Serving>,
    registration: Registration,
    watchers: Arc<AtomicUsize>,
    unwatched_looks: u32,
    /// The last line of the log.
    said: String,
}

/// A file: its device, its inode and its time of change.
type Identity = (u64, u64, i64, i64);

/// A bound socket. Dropping it ends its streams, and removes its file.
#[derive(Debug)]
struct Serving {
    path: PathBuf,
    identity: Identity,
    task: JoinHandle<()>,
    /// Dropped, it closes the streams.
    _open: watch::Sender<()>,
}

/// A registration goes down this list, and back to the top when the kubelet is another one.
#[derive(Debug)]
enum Registration {
    /// Not asked for.
    None,
    /// The kubelet with this socket was asked.
    Asked(Identity, JoinHandle<Result<(), Status>>),
    /// It said yes.
    Done(Identity),
}

impl Plugin {
    /// A plugin that is not there yet.
    pub fn new(shared: Shared, resource: String, size: String) -> Plugin {
        Plugin {
            shared,
            resource,
            size,
            serving: None,
            registration: Registration::None,
            watchers: Arc::default(),
            unwatched_looks: 0,
            said: String::new(),
        }
    }

    /// The resource.
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// Sees to it that it listens and that the kubelet knows. It waits for nothing.
    pub async fn tend(&mut self) {
        let is_there = self.serving.as_ref().is_some_and(Serving::is_there);
        if !is_there {
            self.serving = None;
            self.forget();
            match self.serve() {
                Ok(serving) => self.serving = Some(serving),
                Err(error) => {
                    let path = self.path();
                    return self.say(format!("can't listen at {}: {error}", path.display()));
                }
            }
        }
        let kubelet = self.kubelet();
        let Some(now) = identity(&kubelet) else {
            self.forget();
            return self.say(format!("no kubelet at {}", kubelet.display()));
        };
        self.hear().await;
        match &self.registration {
            Registration::Done(with) if *with == now => self.count_watchers(),
            Registration::Asked(with, _) if *with == now => {}
            _ => self.register(now),
        }
    }

    /// Takes the kubelet's answer, if there is one.
    async fn hear(&mut self) {
        let Registration::Asked(with, task) = &mut self.registration else { return };
        if !task.is_finished() {
            return;
        }
        let (with, answer) = (*with, task.await);
        let answer = answer.unwrap_or_else(|error| Err(Status::internal(error.to_string())));
        match answer {
            Ok(()) => {
                self.registration = Registration::Done(with);
                self.say("registered with the kubelet".to_owned());
            }
            Err(status) => {
                self.registration = Registration::None;
                let (code, message) = (status.code(), status.message());
                self.say(format!("not registered with the kubelet: {code}: {message}"));
            }
        }
    }

    fn count_watchers(&mut self) {
        match self.watchers.load(Ordering::Relaxed) {
            0 => self.unwatched_looks += 1,
            _ => self.unwatched_looks = 0,
        }
        if self.unwatched_looks >= UNWATCHED_LOOKS {
            self.say("the kubelet watches no devices; registering again".to_owned());
            self.forget();
        }
    }

    fn register(&mut self, kubelet: Identity) {
        self.forget();
        let request = api::RegisterRequest {
            version: api::VERSION.to_owned(),
            endpoint: self.endpoint(),
            resource_name: self.resource.clone(),
            options: Some(answers::options()),
        };
        let socket = self.kubelet();
        let asked = tokio::spawn(async move { grpc::register(&socket, request, PATIENCE).await });
        self.registration = Registration::Asked(kubelet, asked);
    }

    fn forget(&mut self) {
        self.unwatched_looks = 0;
        let before = std::mem::replace(&mut self.registration, Registration::None);
        if let Registration::Asked(_, task) = before {
            task.abort();
        }
    }

    fn serve(&self) -> io::Result<Serving> {
        let path = self.path();
        remove_socket(&path)?;
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        let identity = identity(&path).ok_or(io::ErrorKind::NotFound)?;
        let (open, closing) = watch::channel(());
        let answers = Answers {
            size: self.size.clone(),
            inventory: self.shared.inventory.clone(),
            ledger: Arc::clone(&self.shared.ledger),
            mounted: self.shared.mounted.clone(),
            watchers: Arc::clone(&self.watchers),
            closing,
        };
        let service = DevicePluginServer::new(Arc::new(answers));
        let incoming = UnixListenerStream::new(listener);
        let trusted = incoming.filter(|it| it.as_ref().map_or(true, is_trusted));
        let task = tokio::spawn(async move {
            // An error ends it, and the next look begins anew.
            let _ = Server::builder().serve_with_incoming(service, trusted).await;
        });
        Ok(Serving { path, identity, task, _open: open })
    }

    fn endpoint(&self) -> String {
        format!("pumice-slot-{}.sock", self.size)
    }

    fn path(&self) -> PathBuf {
        self.shared.kubelet_dir.join(self.endpoint())
    }

    fn kubelet(&self) -> PathBuf {
        self.shared.kubelet_dir.join(api::KUBELET_SOCKET)
    }

    /// Writes a line to the log, unless it was the last one.
    fn say(&mut self, line: String) {
        if self.said != line {
            eprintln!("pumice-kubelet: {}: {line}", self.resource);
            self.said = line;
        }
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.forget();
    }
}

impl Serving {
    fn is_there(&self) -> bool {
        !self.task.is_finished() && identity(&self.path) == Some(self.identity)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
        if identity(&self.path) == Some(self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<Identity> {
    let status = fs::symlink_metadata(path).ok()?;
    Some((status.dev(), status.ino(), status.ctime(), status.ctime_nsec()))
}

/// Removes a socket that a plugin before has left. Other files stay.
fn remove_socket(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(status) if status.file_type().is_socket() => fs::remove_file(path),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is no socket")),
    }
}

/// Tickets are for root, whose the kubelet is, and for this process's user.
fn is_trusted(connection: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    connection.peer_cred().is_ok_and(|peer| [0, own].contains(&peer.uid()))
}
