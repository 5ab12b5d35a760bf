//! The answers to the kubelet about the devices of one resource.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use pumice_slots::client::ENV_SOCKET;
use pumice_slots::ticket::ENV_TICKET;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::Stream;
use tonic::Status;

use crate::api;
use crate::devices::{Device, Inventory};
use crate::grpc::DevicePlugin;
use crate::ledger::Ledger;

/// The daemon's socket for tickets, as pods see it.
#[derive(Clone, Debug)]
pub struct Mounted {
    /// Its folder on this machine.
    pub folder: PathBuf,
    /// The folder in containers.
    pub at: PathBuf,
    /// The socket's name there.
    pub name: PathBuf,
}

/// See the module's text.
#[derive(Debug)]
pub struct Answers {
    /// The size that the resource is named after.
    pub size: String,
    /// The devices, of other resources, too.
    pub inventory: watch::Receiver<Inventory>,
    /// The tickets.
    pub ledger: Arc<Ledger>,
    /// The mount that containers get.
    pub mounted: Mounted,
    /// Streams of lists that the kubelet reads.
    pub watchers: Arc<AtomicUsize>,
    /// Its sender is gone when the streams are to end.
    pub closing: watch::Receiver<()>,
}

/// Counts a stream as long as it lives. The count is only looked at.
struct Watcher(Arc<AtomicUsize>);

impl Watcher {
    fn new(count: &Arc<AtomicUsize>) -> Watcher {
        count.fetch_add(1, Ordering::Relaxed);
        Watcher(Arc::clone(count))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl DevicePlugin for Answers {
    type Lists = Pin<Box<dyn Stream<Item = Result<api::ListAndWatchResponse, Status>> + Send>>;

    fn options(&self) -> api::DevicePluginOptions {
        options()
    }

    fn list_and_watch(&self) -> Self::Lists {
        let (send, lists) = mpsc::channel(1);
        let (mut inventory, mut closing) = (self.inventory.clone(), self.closing.clone());
        let (size, watcher) = (self.size.clone(), Watcher::new(&self.watchers));
        tokio::spawn(async move {
            let _watcher = watcher;
            let mut last = None;
            loop {
                let list = inventory.borrow_and_update().list(&size);
                if last.as_ref() != Some(&list) {
                    last = Some(list.clone());
                    if send.send(Ok(list)).await.is_err() {
                        return;
                    }
                }
                tokio::select! {
                    changed = inventory.changed() => if changed.is_err() { return },
                    () = send.closed() => return,
                    _ = closing.changed() => return,
                }
            }
        });
        Box::pin(ReceiverStream::new(lists))
    }

    fn preferred(
        &self,
        asked: api::PreferredAllocationRequest,
    ) -> Result<api::PreferredAllocationResponse, Status> {
        let inventory = self.inventory.borrow();
        let prefer = |asked: &api::ContainerPreferredAllocationRequest| {
            let (available, must) = (&asked.available_device_ids, &asked.must_include_device_ids);
            let count = usize::try_from(asked.allocation_size).unwrap_or(0);
            let device_ids = inventory.preferred(available, must, count);
            api::ContainerPreferredAllocationResponse { device_ids }
        };
        let container_responses = asked.container_requests.iter().map(prefer).collect();
        Ok(api::PreferredAllocationResponse { container_responses })
    }

    async fn allocate(&self, asked: api::AllocateRequest) -> Result<api::AllocateResponse, Status> {
        let mut containers = Vec::new();
        for container in &asked.container_requests {
            containers.push(self.find(&container.devices_ids)?);
        }
        let (ledger, size, mounted) =
            (Arc::clone(&self.ledger), self.size.clone(), self.mounted.clone());
        // The daemon's answer is waited for, which must not hold up other calls. A kubelet that has gone meanwhile
        // gives the same devices out again, and gets other tickets.
        let given = tokio::task::spawn_blocking(move || give(&ledger, &containers));
        let given = given.await.map_err(|error| Status::internal(error.to_string()))?;
        let given = given.map_err(Status::unavailable)?;
        let container_responses =
            given.iter().map(|tickets| response(&size, &mounted, tickets)).collect();
        Ok(api::AllocateResponse { container_responses })
    }
}

impl Answers {
    fn find(&self, names: &[String]) -> Result<Vec<Device>, Status> {
        let inventory = self.inventory.borrow();
        let find = |name: &String| {
            let device = inventory.find(name).filter(|device| device.kind.size() == self.size);
            device.cloned().ok_or_else(|| Status::invalid_argument(format!("no device {name}")))
        };
        names.iter().map(find).collect()
    }
}

/// The calls that there are.
pub fn options() -> api::DevicePluginOptions {
    api::DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true }
}

/// A ticket for each device, or none for any.
fn give(ledger: &Ledger, containers: &[Vec<Device>]) -> Result<Vec<Vec<String>>, String> {
    let mut given = Vec::new();
    for container in containers {
        let mut tickets = Vec::new();
        for device in container {
            match ledger.give(device) {
                Ok(ticket) => tickets.push(ticket.to_string()),
                Err(problem) => {
                    // Those before it, and it had none before.
                    let before = containers.iter().flatten().take_while(|it| *it != device);
                    before.for_each(|device| ledger.take_back(device));
                    return Err(problem);
                }
            }
        }
        given.push(tickets);
    }
    Ok(given)
}

fn response(size: &str, mounted: &Mounted, tickets: &[String]) -> api::ContainerAllocateResponse {
    let (tickets, size) = (tickets.join(","), size.to_uppercase());
    let socket = mounted.at.join(&mounted.name);
    let envs = [
        (ENV_TICKET.to_owned(), tickets.clone()),
        (format!("{ENV_TICKET}_{size}"), tickets),
        (ENV_SOCKET.to_owned(), socket.display().to_string()),
    ];
    let mount = api::Mount {
        container_path: mounted.at.display().to_string(),
        host_path: mounted.folder.display().to_string(),
        read_only: true,
    };
    api::ContainerAllocateResponse {
        envs: envs.into(),
        mounts: vec![mount],
        ..api::ContainerAllocateResponse::default()
    }
}
