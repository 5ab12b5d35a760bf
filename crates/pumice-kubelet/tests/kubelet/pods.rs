//! Pods: devices are listed and given out, and programs lease slots by their tickets.

use std::collections::HashSet;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use pumice_kubelet::api::{self, path};
use pumice_slots::refusal::Reason;
use pumice_slots::{Error, LeaseRequest};

use crate::support::{
    healthy, lease, ticket, until, Daemon, Kubelet, Manner, Place, Plugin, Pods, Program, ENDPOINT,
    RESOURCE, SMALL,
};

fn reason<T>(outcome: Result<T, Error>) -> Reason {
    match outcome {
        Err(Error::Refused(refusal)) => refusal.reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("not refused"),
    }
}

#[tokio::test]
async fn a_pod_has_a_slot() {
    let place = Place::new();
    let mut kubelet = Kubelet::start(&place, Manner::Prompt);
    let _daemon = Daemon::start(&place, 2);
    let _program = Program::start(&place, &[]);
    let request = kubelet.registered().await;
    assert_eq!((&*request.version, &*request.endpoint), ("v1beta1", ENDPOINT));
    assert_eq!(request.resource_name, RESOURCE);
    let options = request.options.expect("options");
    assert!(options.get_preferred_allocation_available && !options.pre_start_required);

    let plugin = Plugin::connect(&place.endpoint()).await;
    let same: api::DevicePluginOptions =
        plugin.call(path::OPTIONS, api::Empty {}).await.expect("options");
    assert_eq!(same, options);
    let devices = plugin.lists().await.next().await;
    let names: Vec<_> = devices.iter().map(|device| &*device.id).collect();
    assert_eq!((names, healthy(&devices)), (vec!["64k-4k-0", "64k-4k-1"], 2));
    assert!(devices.iter().all(|device| device.topology.is_none()), "any node");

    let container = plugin.allocate(&["64k-4k-1"]).await.expect("given out");
    let [mount] = &container.mounts[..] else { panic!("one mount") };
    let folder = place.ticket_socket().parent().expect("a folder").display().to_string();
    assert_eq!((&mount.host_path, &mount.container_path), (&folder, &folder));
    assert!(mount.read_only);
    assert_eq!(container.envs["PUMICE_SOCKET"], place.ticket_socket().display().to_string());
    assert_eq!(container.envs["PUMICE_SLOT_TICKET_64K"], container.envs["PUMICE_SLOT_TICKET"]);
    let _: api::Empty =
        plugin.call(path::PRE_START, api::PreStartContainerRequest::default()).await.expect("ok");

    let ticket = ticket(&container);
    let first = lease(&place, ticket);
    assert_eq!(first.bytes(), SMALL);
    first.file().write_all_at(b"a pod's", 0).expect("a slot");
    let again = || place.pod().lease_ticket(ticket, Duration::ZERO);
    assert_eq!(reason(again()), Reason::TicketInUse);
    // The container ends, and another one begins in the same pod.
    drop(first);
    until("the slot is given back", || again().is_ok());
}

#[tokio::test]
async fn a_slot_that_is_given_out_is_nobody_elses() {
    let place = Place::new();
    let _kubelet = Kubelet::start(&place, Manner::Prompt);
    let _daemon = Daemon::start(&place, 2);
    let _program = Program::start(&place, &[]);
    until("it listens", || place.endpoint().exists());
    let plugin = Plugin::connect(&place.endpoint()).await;
    let mut lists = plugin.lists().await;
    lists.until_healthy(2).await;
    until("all are ready", || place.client().classes().expect("an answer")[0].ready == 2);

    let one = plugin.ticket("64k-4k-0").await;
    let stranger = place.client().lease(&LeaseRequest::new(SMALL)).expect("the other slot");
    let refused = place.client().lease(&LeaseRequest::new(SMALL));
    assert_eq!(reason(refused), Reason::NoneReady, "one is ready, and kept");
    // There is no slot for the other device now, and the kubelet is told.
    let devices = lists.until_healthy(1).await;
    assert_eq!(devices[1].health, api::UNHEALTHY);
    let slot = lease(&place, one);
    stranger.end().expect("an answer");
    assert_eq!(lists.until_healthy(2).await.len(), 2);
    drop(slot);

    let unknown = plugin.allocate(&["64k-4k-7"]).await.expect_err("no such device");
    assert_eq!(unknown.code(), tonic::Code::InvalidArgument);
    let request = api::ContainerPreferredAllocationRequest {
        available_device_ids: vec!["64k-4k-0".into(), "64k-4k-1".into()],
        must_include_device_ids: vec!["64k-4k-1".into()],
        allocation_size: 1,
    };
    let request = api::PreferredAllocationRequest { container_requests: vec![request] };
    let answer: api::PreferredAllocationResponse =
        plugin.call(path::PREFERRED, request).await.expect("an answer");
    assert_eq!(answer.container_responses[0].device_ids, ["64k-4k-1"]);
}

/// As many pods as a machine starts in a year: each is given a device and uses it or does not.
#[tokio::test]
async fn a_thousand_pods_leave_nothing() {
    const SLOTS: u32 = 4;
    let place = Place::new();
    let _kubelet = Kubelet::start(&place, Manner::Prompt);
    let daemon = Daemon::start(&place, SLOTS);
    let program = Program::start(&place, &[]);
    until("it listens", || place.endpoint().exists());
    let plugin = Plugin::connect(&place.endpoint()).await;
    let _lists = plugin.lists().await;
    let (mut seen, mut before) = (HashSet::new(), None);
    let settled = || {
        let class = place.client().classes().expect("an answer")[0];
        (class.ready, class.leased, class.waiting) == (SLOTS, 0, 0)
    };
    for number in 0..1_000 {
        let given = plugin.ticket(&format!("64k-4k-{}", number % SLOTS)).await;
        assert!(seen.insert(given.to_string()), "no ticket comes twice");
        if number % 5 != 0 {
            drop(lease(&place, given));
        }
        if number == 100 {
            until("all slots are ready", settled);
            before = Some((program.open_files(), daemon.open_files(), program.resident_bytes()));
        }
    }
    let rows = place.client().reservations().expect("an answer");
    assert_eq!(rows.len(), SLOTS as usize, "one for each device");
    for row in rows {
        place.client().release(row.name).expect("an answer");
    }
    until("all slots are ready and nobody's", settled);
    let (files, daemons_files, bytes) = before.expect("a hundred pods");
    until("no descriptor is left", || {
        program.open_files() <= files && daemon.open_files() <= daemons_files
    });
    let grown = program.resident_bytes().saturating_sub(bytes);
    assert!(grown < 1 << 20, "{grown} bytes more after 900 pods");
}

#[tokio::test]
async fn a_ticket_that_nobody_shows_expires() {
    let place = Place::new();
    let _kubelet = Kubelet::start(&place, Manner::Prompt);
    let _daemon = Daemon::start(&place, 1);
    let _program = Program::start(&place, &["--limit", "300ms"]);
    until("it listens", || place.endpoint().exists());
    let plugin = Plugin::connect(&place.endpoint()).await;
    let given = plugin.ticket("64k-4k-0").await;
    let request = LeaseRequest { wait_ms: 60_000, ..LeaseRequest::new(SMALL) };
    let other = place.client().lease(&request).expect("a lease, as the time is over");
    assert_eq!(reason(place.pod().lease_ticket(given, Duration::ZERO)), Reason::NoSuchTicket);
    drop(other);
}

#[tokio::test]
async fn the_slot_of_a_pod_that_the_kubelet_lists_no_more_is_released() {
    let place = Place::new();
    let _kubelet = Kubelet::start(&place, Manner::Prompt);
    let pods = Pods::start(&place);
    pods.set(&["64k-4k-0", "64k-4k-1"]);
    let _daemon = Daemon::start(&place, 2);
    let _program = Program::start(&place, &["--grace", "200ms"]);
    until("it listens", || place.endpoint().exists());
    let plugin = Plugin::connect(&place.endpoint()).await;
    let (stays, goes) = (plugin.ticket("64k-4k-0").await, plugin.ticket("64k-4k-1").await);
    pods.set(&["64k-4k-0"]);
    let count = || place.client().reservations().expect("an answer").len();
    until("one is released", || count() == 1);
    assert_eq!(reason(place.pod().lease_ticket(goes, Duration::ZERO)), Reason::NoSuchTicket);
    let looks = pods.looks();
    until("the list is looked at again and again", || pods.looks() > looks + 4);
    drop(lease(&place, stays));
}

/// With the program `pumice`, if it was built. Its own tests show tickets without a kubelet.
#[tokio::test]
async fn pumice_lease_shows_the_ticket() {
    let own = std::env::current_exe().expect("a program");
    let pumice = own.ancestors().nth(2).expect("target/debug").join("pumice");
    // One that was built long ago may lie there.
    let help = Command::new(&pumice).args(["lease", "--help"]).output();
    if !help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains("ticket")) {
        return eprintln!("skipped: {} is not built as it is now", pumice.display());
    }
    let place = Place::new();
    let _kubelet = Kubelet::start(&place, Manner::Prompt);
    let _daemon = Daemon::start(&place, 1);
    let _program = Program::start(&place, &[]);
    until("it listens", || place.endpoint().exists());
    let plugin = Plugin::connect(&place.endpoint()).await;
    let container = plugin.allocate(&["64k-4k-0"]).await.expect("given out");
    let run = Command::new(pumice)
        .args(["lease", "--wait", "1m", "--", "stat", "-L", "-c", "%s", "{path}"])
        .envs(&container.envs)
        .output()
        .expect("it starts");
    assert_eq!((run.status.code(), &*run.stdout), (Some(0), &b"65536\n"[..]));
}
