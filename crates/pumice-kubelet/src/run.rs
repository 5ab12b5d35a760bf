//! The program: a thread that watches the daemon, and a loop that keeps a plugin for each resource registered.

use std::collections::HashSet;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use pumice_slots::Client;
use tokio::sync::watch;
use tokio::time::{interval, Instant, MissedTickBehavior};

use crate::answers::Mounted;
use crate::devices::Inventory;
use crate::grpc;
use crate::ledger::Ledger;
use crate::plugin::{Plugin, Shared};
use crate::store::Store;

/// How long the kubelet may take to list its pods.
const PODS_PATIENCE: Duration = Duration::from_secs(10);

/// The program's options.
#[derive(Clone, Debug)]
pub struct Options {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// Its socket for tickets, whose folder containers get.
    pub ticket_socket: PathBuf,
    /// The folder in containers that it is mounted at.
    pub mount: PathBuf,
    /// The kubelet's folder for device plugins.
    pub kubelet_dir: PathBuf,
    /// The kubelet's socket that lists pods.
    pub pod_resources: PathBuf,
    /// The file of the tickets that were given out.
    pub state: PathBuf,
    /// The first part of the resources' names.
    pub domain: String,
    /// For how long a slot is kept for a ticket while nobody has it.
    pub limit: Duration,
    /// How long a device may be missing from the kubelet's list of pods before its ticket is released.
    pub grace: Duration,
    /// How often the daemon and the kubelet are looked at.
    pub every: Duration,
}

/// Runs until `end` is there. The sockets are removed then; the tickets stay good.
///
/// # Errors
/// The options can't be used.
pub async fn run(options: Options, end: impl Future<Output = ()>) -> io::Result<()> {
    let unusable = || io::Error::new(io::ErrorKind::InvalidInput, "a socket is a file in a folder");
    let folder = options.ticket_socket.parent().ok_or_else(unusable)?.to_owned();
    let name = options.ticket_socket.file_name().ok_or_else(unusable)?.into();
    let mounted = Mounted { folder, at: options.mount.clone(), name };
    let (client, store) = (Client::new(&options.socket), Store::new(&options.state));
    let unread = |error: io::Error| {
        let path = options.state.display();
        io::Error::new(error.kind(), format!("can't read {path}: {error}; remove it, or see to it"))
    };
    let ledger = Arc::new(Ledger::new(client, store, options.limit).map_err(unread)?);
    let (send, mut inventory) = watch::channel(Inventory::default());
    watch_daemon(Arc::clone(&ledger), send, options.every)?;
    let shared = Shared {
        kubelet_dir: options.kubelet_dir.clone(),
        inventory: inventory.clone(),
        ledger: Arc::clone(&ledger),
        mounted,
    };
    let mut plugins: Vec<Plugin> = Vec::new();
    let mut ticks = interval(options.every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut end, mut pods_at) = (pin!(end), Instant::now());
    let mut listing = None;
    loop {
        tokio::select! {
            () = &mut end => return Ok(()),
            _ = ticks.tick() => {}
            // The thread has its sender until this ends.
            _ = inventory.changed() => {}
        }
        for (resource, size) in inventory.borrow_and_update().resources(&options.domain) {
            if !plugins.iter().any(|plugin| plugin.resource() == resource) {
                plugins.push(Plugin::new(shared.clone(), resource, size));
            }
        }
        for plugin in &mut plugins {
            plugin.tend().await;
        }
        let is_listing =
            listing.as_ref().is_some_and(|task: &tokio::task::JoinHandle<()>| !task.is_finished());
        if !is_listing && Instant::now() >= pods_at {
            pods_at = Instant::now() + (options.grace / 3).max(options.every);
            listing = Some(tokio::spawn(release_unlisted(options.clone(), Arc::clone(&ledger))));
        }
    }
}

/// Releases the tickets of devices that no pod has any more. Where the kubelet lists no pods, time does it alone.
async fn release_unlisted(options: Options, ledger: Arc<Ledger>) {
    let Ok(pods) = grpc::pods(&options.pod_resources, PODS_PATIENCE).await else { return };
    let prefix = format!("{}/slot-", options.domain);
    let containers = pods.pod_resources.into_iter().flat_map(|pod| pod.containers);
    let devices = containers.flat_map(|container| container.devices);
    let ours = devices.filter(|devices| devices.resource_name.starts_with(&prefix));
    let listed: HashSet<String> = ours.flat_map(|devices| devices.device_ids).collect();
    let grace = options.grace;
    let released = tokio::task::spawn_blocking(move || ledger.release_unlisted(&listed, grace));
    if let Ok(count @ 1..) = released.await {
        eprintln!("pumice-kubelet: {count} tickets released, whose pods have ended");
    }
}

/// Starts the thread that watches the daemon. It ends when nobody hears it any more.
fn watch_daemon(
    ledger: Arc<Ledger>,
    send: watch::Sender<Inventory>,
    every: Duration,
) -> io::Result<()> {
    let watching = thread::Builder::new().name("pumice-daemon".into());
    watching.spawn(move || {
        let mut said = String::new();
        while !send.is_closed() {
            let (seen, line) = match ledger.look() {
                Ok(inventory) => {
                    let count = inventory.devices.len();
                    (inventory, format!("the daemon has {count} slots"))
                }
                Err(error) => (ledger.last_seen().without_daemon(), error.to_string()),
            };
            if said != line {
                eprintln!("pumice-kubelet: {line}");
                said = line;
            }
            send.send_if_modified(|before| {
                let is_new = *before != seen;
                *before = seen;
                is_new
            });
            thread::sleep(every);
        }
    })?;
    Ok(())
}
