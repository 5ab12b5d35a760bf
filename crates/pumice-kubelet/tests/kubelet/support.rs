//! A kubelet's side, a daemon and the program, each a test's own.

use std::convert::Infallible;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pumice_kubelet::api::{self, path};
use pumice_slots::daemon::{self, Allowed, Host, Key, Plan};
use pumice_slots::settings::PaceSetting;
use pumice_slots::{Client, Lease, PageKind, Ticket};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::codegen::{http, BoxFuture, Context, Poll, Service};
use tonic::server::UnaryService;
use tonic::transport::{self, Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

/// How long anything may take that should be done at once, on a machine that is busy.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The size of a test's slots.
pub const SMALL: u64 = 64 << 10;
/// Their resource.
pub const RESOURCE: &str = "pumice.dev/slot-64k";
/// The socket of its plugin.
pub const ENDPOINT: &str = "pumice-slot-64k.sock";

/// The folders of a test: the daemon's, and the kubelet's.
pub struct Place(TempDir);

impl Place {
    pub fn new() -> Place {
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("ours");
        for name in ["daemon", "kubelet", "pods"] {
            fs::create_dir(folder.path().join(name)).expect("ours");
        }
        Place(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn socket(&self) -> PathBuf {
        self.path("daemon/slots.sock")
    }

    pub fn ticket_socket(&self) -> PathBuf {
        self.path("daemon/tickets/slots.sock")
    }

    pub fn kubelet_dir(&self) -> PathBuf {
        self.path("kubelet")
    }

    pub fn endpoint(&self) -> PathBuf {
        self.path("kubelet").join(ENDPOINT)
    }

    pub fn pods_socket(&self) -> PathBuf {
        self.path("pods/kubelet.sock")
    }

    /// A client with the daemon's own rights.
    pub fn client(&self) -> Client {
        Client::new(self.socket())
    }

    /// A client as containers have it.
    pub fn pod(&self) -> Client {
        Client::new(self.ticket_socket())
    }
}

/// The names of the variables that make a test's program a daemon.
const DAEMON: &str = "PUMICE_TEST_DAEMON";
const SLOTS: &str = "PUMICE_TEST_SLOTS";

/// A daemon in a process of its own. Dropping it kills it.
pub struct Daemon(Child);

impl Daemon {
    pub fn start(place: &Place, slots: u32) -> Daemon {
        let own = std::env::current_exe().expect("a program");
        let child = Command::new(own)
            .args(["--exact", "a_daemon_of_a_test", "--nocapture", "--test-threads=1"])
            .env(DAEMON, place.path("daemon"))
            .env(SLOTS, slots.to_string())
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        let daemon = Daemon(child);
        until("a daemon listens", || place.client().classes().is_ok());
        daemon
    }

    pub fn kill(&mut self) {
        self.0.kill().expect("ours");
        self.0.wait().expect("ours");
    }

    pub fn open_files(&self) -> usize {
        open_files(self.0.id())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The other end of [`Daemon::start`]. It is no daemon where no test wants one.
pub fn serve() {
    struct Silent;
    impl Host for Silent {
        fn plan(&mut self) -> Result<Plan, String> {
            Err("there is one plan".to_owned())
        }
        fn say(&self, _: &str) {}
        fn shows_progress(&self) -> bool {
            false
        }
        fn show_progress(&self, _: u64, _: u64, _: &str) {}
        fn clear_progress(&self) {}
    }
    let Some(dir) = std::env::var_os(DAEMON).map(PathBuf::from) else { return };
    let slots = std::env::var(SLOTS).expect("given").parse().expect("a number");
    let plan = Plan {
        classes: vec![(Key::new(SMALL, PageKind::Small), slots)],
        snapshots: Vec::new(),
        ticket_socket: Some(dir.join("tickets/slots.sock")),
        dir: Some(dir),
        socket: None,
        allowed: Allowed::default(),
        share_percent: None,
        metrics: None,
        grow_hugetlb: false,
        drain: Duration::ZERO,
        threads: 1,
        pace: PaceSetting::ALL.map(PaceSetting::default_raw),
    };
    daemon::serve(plan, Box::new(Silent), None).expect("it serves");
}

/// The program. Dropping it kills it.
pub struct Program(Child);

impl Program {
    pub fn start(place: &Place, more: &[&str]) -> Program {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pumice-kubelet"));
        let child = command
            .args(["--every", "20ms", "--socket"])
            .arg(place.socket())
            .arg("--ticket-socket")
            .arg(place.ticket_socket())
            .arg("--kubelet-dir")
            .arg(place.kubelet_dir())
            .arg("--pod-resources")
            .arg(place.pods_socket())
            .arg("--state")
            .arg(place.path("tickets"))
            .args(more)
            .spawn()
            .expect("it starts");
        Program(child)
    }

    /// Sends SIGTERM; its status.
    pub fn end(mut self) -> Option<i32> {
        // SAFETY: a plain system call; the child is not reaped yet.
        unsafe { libc::kill(self.0.id() as libc::pid_t, libc::SIGTERM) };
        self.0.wait().expect("ours").code()
    }

    pub fn open_files(&self) -> usize {
        open_files(self.0.id())
    }

    /// Memory that it has, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kib << 10
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count()
}

/// Waits until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "not so: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The answers of a kubelet to plugins that register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// At once.
    Prompt,
    /// After this time.
    Late(Duration),
    /// Never.
    Mute,
    /// With an error.
    Rude,
}

/// A kubelet: it listens in its folder. Dropping it is its death: its connections end, and its socket stays.
pub struct Kubelet {
    _server: Server,
    registered: mpsc::UnboundedReceiver<api::RegisterRequest>,
}

/// A server on a thread of its own. Dropping it ends all of its connections.
struct Server(Option<(oneshot::Sender<()>, JoinHandle<()>)>);

impl Server {
    fn start<S>(socket: &Path, service: S) -> Server
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send,
    {
        let listener = std::os::unix::net::UnixListener::bind(socket).expect("free");
        listener.set_nonblocking(true).expect("a socket");
        let (end, ended) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener = UnixListener::from_std(listener).expect("a socket");
                let incoming = UnixListenerStream::new(listener);
                let serving = transport::Server::builder().serve_with_incoming(service, incoming);
                tokio::select! {
                    _ = serving => {}
                    _ = ended => {}
                }
            });
        });
        Server(Some((end, thread)))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some((end, thread)) = self.0.take() else { return };
        let _ = end.send(());
        let _ = thread.join();
    }
}

#[derive(Clone)]
struct Registry {
    manner: Manner,
    came: mpsc::UnboundedSender<api::RegisterRequest>,
}

impl Kubelet {
    /// As a kubelet that starts, it removes all sockets first.
    pub fn start(place: &Place, manner: Manner) -> Kubelet {
        for entry in fs::read_dir(place.kubelet_dir()).expect("a folder") {
            fs::remove_file(entry.expect("readable").path()).expect("ours");
        }
        let socket = place.kubelet_dir().join(api::KUBELET_SOCKET);
        let (came, registered) = mpsc::unbounded_channel();
        let server = Server::start(&socket, Registry { manner, came });
        Kubelet { _server: server, registered }
    }

    /// The next plugin that registers.
    pub async fn registered(&mut self) -> api::RegisterRequest {
        let next = tokio::time::timeout(PATIENCE, self.registered.recv()).await;
        next.expect("in time").expect("a registration")
    }

    /// Plugins that have registered and were not looked at.
    pub fn others(&mut self) -> usize {
        std::iter::from_fn(|| self.registered.try_recv().ok()).count()
    }
}

impl Service<http::Request<Body>> for Registry {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        assert_eq!(request.uri().path(), path::REGISTER);
        let registry = self.clone();
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::default());
            Ok(grpc.unary(registry, request).await)
        })
    }
}

impl UnaryService<api::RegisterRequest> for Registry {
    type Response = api::Empty;
    type Future = BoxFuture<Response<api::Empty>, Status>;

    fn call(&mut self, request: Request<api::RegisterRequest>) -> Self::Future {
        let _ = self.came.send(request.into_inner());
        let manner = self.manner;
        Box::pin(async move {
            match manner {
                Manner::Prompt => {}
                Manner::Late(time) => tokio::time::sleep(time).await,
                Manner::Mute => std::future::pending().await,
                Manner::Rude => return Err(Status::internal("no")),
            }
            Ok(Response::new(api::Empty {}))
        })
    }
}

/// A kubelet that lists pods. They are changed at will.
pub struct Pods {
    list: PodList,
    _server: Server,
}

#[derive(Clone, Default)]
struct PodList {
    devices: Arc<Mutex<Vec<String>>>,
    looks: Arc<AtomicU64>,
}

impl Pods {
    pub fn start(place: &Place) -> Pods {
        let list = PodList::default();
        Pods { list: list.clone(), _server: Server::start(&place.pods_socket(), list) }
    }

    /// Pods with these devices, one each.
    pub fn set(&self, devices: &[&str]) {
        *self.list.devices.lock().expect("whole") =
            devices.iter().map(|it| it.to_string()).collect();
    }

    /// How often they were listed.
    pub fn looks(&self) -> u64 {
        self.list.looks.load(Ordering::Relaxed)
    }
}

impl Service<http::Request<Body>> for PodList {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        assert_eq!(request.uri().path(), path::LIST_PODS);
        let pods = self.clone();
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::default());
            Ok(grpc.unary(pods, request).await)
        })
    }
}

impl UnaryService<api::Empty> for PodList {
    type Response = api::ListPodResourcesResponse;
    type Future = BoxFuture<Response<Self::Response>, Status>;

    fn call(&mut self, _: Request<api::Empty>) -> Self::Future {
        self.looks.fetch_add(1, Ordering::Relaxed);
        let devices = self.devices.lock().expect("whole").clone();
        let pod = |device| {
            let devices = api::ContainerDevices {
                resource_name: RESOURCE.to_owned(),
                device_ids: vec![device],
            };
            let container =
                api::ContainerResources { name: "vm".to_owned(), devices: vec![devices] };
            let (name, namespace) = ("pod".to_owned(), "default".to_owned());
            api::PodResources { name, namespace, containers: vec![container] }
        };
        let pod_resources = devices.into_iter().map(pod).collect();
        Box::pin(async { Ok(Response::new(api::ListPodResourcesResponse { pod_resources })) })
    }
}

/// A kubelet's client of a plugin.
pub struct Plugin(Channel);

impl Plugin {
    pub async fn connect(socket: &Path) -> Plugin {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()));
        let endpoint = endpoint.expect("a path");
        let until = Instant::now() + PATIENCE;
        // A socket has its name before it listens.
        loop {
            match endpoint.connect().await {
                Ok(channel) => return Plugin(channel),
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Any call with one answer.
    pub async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let mut grpc = tonic::client::Grpc::new(self.0.clone());
        grpc.ready().await.expect("it is there");
        let path = http::uri::PathAndQuery::from_static(path);
        let codec = ProstCodec::<Q, A>::default();
        grpc.unary(Request::new(request), path, codec).await.map(Response::into_inner)
    }

    pub async fn lists(&self) -> Lists {
        let mut grpc = tonic::client::Grpc::new(self.0.clone());
        grpc.ready().await.expect("it is there");
        let path = http::uri::PathAndQuery::from_static(path::LIST_AND_WATCH);
        let codec = ProstCodec::<api::Empty, api::ListAndWatchResponse>::default();
        let lists = grpc.server_streaming(Request::new(api::Empty {}), path, codec).await;
        Lists(lists.expect("a stream").into_inner())
    }

    /// Gives out these devices to a container.
    pub async fn allocate(
        &self,
        devices: &[&str],
    ) -> Result<api::ContainerAllocateResponse, Status> {
        let devices_ids = devices.iter().map(|it| it.to_string()).collect();
        let container = api::ContainerAllocateRequest { devices_ids };
        let request = api::AllocateRequest { container_requests: vec![container] };
        let answer: api::AllocateResponse = self.call(path::ALLOCATE, request).await?;
        let [container] = answer.container_responses.try_into().expect("one container");
        Ok(container)
    }

    /// The ticket of a device that is given out.
    pub async fn ticket(&self, device: &str) -> Ticket {
        ticket(&self.allocate(&[device]).await.expect("given out"))
    }
}

/// The ticket that a container gets.
pub fn ticket(container: &api::ContainerAllocateResponse) -> Ticket {
    container.envs["PUMICE_SLOT_TICKET"].parse().expect("a ticket")
}

/// A stream of lists.
pub struct Lists(Streaming<api::ListAndWatchResponse>);

impl Lists {
    /// The next list.
    pub async fn next(&mut self) -> Vec<api::Device> {
        let next = tokio::time::timeout(PATIENCE, self.0.message()).await;
        next.expect("in time").expect("no error").expect("a list").devices
    }

    /// Reads lists until one has so many healthy devices.
    pub async fn until_healthy(&mut self, count: usize) -> Vec<api::Device> {
        loop {
            let devices = self.next().await;
            if healthy(&devices) == count {
                return devices;
            }
        }
    }
}

pub fn healthy(devices: &[api::Device]) -> usize {
    devices.iter().filter(|device| device.health == api::HEALTHY).count()
}

/// A lease by ticket, as a container takes one.
pub fn lease(place: &Place, ticket: Ticket) -> Lease {
    place.pod().lease_ticket(ticket, PATIENCE).expect("a lease")
}
