//! Mistakes of clients, by accident or not: none of them stops service to others.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use pumice_slots::message::{Reply, Request, MAX_BYTES};
use pumice_slots::refusal::Reason;
use pumice_slots::settings::PaceSetting;
use pumice_slots::ticket::Reservation;
use pumice_slots::{socket, Client, Error, LeaseRequest, PageKind, SlotFile, Ticket};
use rustix::net::{sendmsg, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::slots::{waiting, Daemon, PATIENCE};

const SMALL: u64 = 64 << 10;
const TICKET: Ticket = Ticket::from_bytes([7; 16]);

fn daemon(name: &str) -> Daemon {
    Daemon::start(name, &["--slot", "64K=2", "--slot", "256K=1", "--pages", "4k"])
}

fn connect(daemon: &Daemon) -> OwnedFd {
    socket::connect_to(&daemon.socket(), PATIENCE).expect("connected")
}

fn ask(connection: &OwnedFd, bytes: &[u8]) -> Option<Reply> {
    socket::send(connection, bytes, None).expect("sent");
    let packet = socket::receive(connection).expect("an answer or the end")?;
    Some(Reply::decode(&packet.bytes).expect("a reply"))
}

fn reason(error: &Error) -> Reason {
    match error {
        Error::Refused(refusal) => refusal.reason,
        other => panic!("{other}"),
    }
}

/// Others are served.
fn serves(daemon: &Daemon) {
    let lease = daemon.client().lease(&waiting(SMALL)).expect("a lease");
    lease.end().expect("an answer");
}

#[test]
fn garbage_is_refused_and_the_connection_closed() {
    let daemon = daemon("garbage");
    let good = Request::Lease(LeaseRequest::new(SMALL)).encode();
    let mut other_version = good.clone();
    other_version[4] = 7;
    let cases = [
        (b"x".to_vec(), Reason::Malformed),
        (vec![0xff; MAX_BYTES], Reason::Malformed),
        (vec![0xff; MAX_BYTES + 1], Reason::Malformed),
        (vec![0; 100_000], Reason::Malformed),
        (good[..good.len() - 1].to_vec(), Reason::Malformed),
        ([&good[..], b"x"].concat(), Reason::Malformed),
        (other_version, Reason::Version),
    ];
    for (bytes, expected) in cases {
        let connection = connect(&daemon);
        let Some(Reply::Refused(refusal)) = ask(&connection, &bytes) else { panic!("not refused") };
        assert_eq!(refusal.reason, expected, "{} bytes", bytes.len());
        assert!(socket::receive(&connection).expect("the end").is_none());
    }
    serves(&daemon);
}

/// Every byte of every request, changed at random; the seed is fixed, so that a failure comes again.
#[test]
fn noise_stops_nobody() {
    let daemon = daemon("noise");
    let mut random = fastrand::Rng::with_seed(1);
    let requests = [
        Request::Lease(LeaseRequest::new(SMALL)),
        Request::End,
        Request::Resume,
        Request::Classes(0),
        Request::Leases(7),
        Request::Stat,
        Request::Settings,
        Request::Set(PaceSetting::BatchPages, 512),
        Request::LeaseSnapshot("web".parse().expect("a name"), 5),
        Request::Snapshots(0),
        Request::Reserve(Reservation {
            name: "pod".parse().expect("a name"),
            ticket: TICKET,
            bytes: SMALL,
            pages: None,
            node: None,
            limit_ms: 1,
        }),
        Request::Release("pod".parse().expect("a name")),
        Request::LeaseTicket(TICKET, 1),
        Request::ResumeTicket(TICKET),
        Request::Reservations(0),
    ];
    for round in 0..400 {
        let connection = connect(&daemon);
        for _ in 0..4 {
            let mut bytes = requests[random.usize(..requests.len())].encode();
            for _ in 0..random.usize(..4) {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
            bytes.truncate(random.usize(..bytes.len() * 2));
            // It may be closed by now.
            if bytes.is_empty() || socket::send(&connection, &bytes, None).is_err() {
                break;
            }
        }
        if round % 100 == 0 {
            serves(&daemon);
        }
    }
    serves(&daemon);
}

#[test]
fn a_client_that_does_not_read_is_disconnected() {
    let daemon = daemon("deaf");
    let connection = connect(&daemon);
    socket::set_patience(&connection, Duration::from_millis(200)).expect("set");
    let request = Request::Classes(0).encode();
    // Answers pile up until the daemon has had enough; where requests pile up first, it is not
    // reading because it is gone.
    let closed = (0..100_000).any(|_| socket::send(&connection, &request, None).is_err());
    assert!(closed);
    serves(&daemon);
}

#[test]
fn slow_and_idle_clients_hold_up_nobody() {
    let daemon = daemon("idle");
    let _idle: Vec<_> = (0..100).map(|_| connect(&daemon)).collect();
    serves(&daemon);
    let closed_early: Vec<_> = (0..100).map(|_| connect(&daemon)).collect();
    drop(closed_early);
    serves(&daemon);
}

/// The first goes round and round; the second has its lease in between.
#[test]
fn a_flood_holds_up_nobody() {
    let daemon = daemon("flood");
    let socket_path = daemon.socket();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let client = Client::new(&socket_path);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = client.stat();
                }
            });
        }
        (0..20).for_each(|_| serves(&daemon));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn descriptors_that_are_sent_are_not_kept() {
    let daemon = daemon("descriptors");
    serves(&daemon);
    // The daemon opens and closes files of its own at any time, so what is counted is one that only
    // this test has.
    let file = tempfile::NamedTempFile::new().expect("created");
    let count = || {
        let folder = format!("/proc/{}/fd", daemon.pid());
        let entries = std::fs::read_dir(folder).expect("the daemon runs").flatten();
        entries
            .filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|to| to == file.path()))
            .count()
    };
    for request in [Request::Resume, Request::Stat, Request::End] {
        let connection = connect(&daemon);
        // More than there is room for.
        let descriptors = [file.as_file().as_fd(); 20];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(20))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let bytes = request.encode();
        let slices = [std::io::IoSlice::new(&bytes)];
        sendmsg(&connection, &slices, &mut control, SendFlags::NOSIGNAL).expect("sent");
        let packet = socket::receive(&connection).expect("an answer").expect("not the end");
        if request == Request::Resume {
            let Ok(Reply::Refused(refusal)) = Reply::decode(&packet.bytes) else { panic!() };
            assert_eq!(refusal.reason, Reason::NotASlot);
        }
    }
    let until = std::time::Instant::now() + PATIENCE;
    while count() > 0 {
        assert!(std::time::Instant::now() < until, "{} descriptors were kept", count());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_is_slow_to_close_holds_up_nobody() {
    let daemon = daemon("linger");
    serves(&daemon);
    let quick = std::fs::File::open("/dev/null").expect("there");
    for (first, is_stopped) in [(Request::Stat.encode(), false), (b"x".to_vec(), true)] {
        let (slow, _other_end) = crate::slots::lingering();
        let connection = connect(&daemon);
        if is_stopped {
            // Messages after garbage stay in the queue of a socket that is closed.
            daemon.signal(libc::SIGSTOP);
            socket::send(&connection, &first, None).expect("sent");
        }
        let mut descriptors = [quick.as_fd(); 12];
        descriptors[11] = slow.as_fd();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(12))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let slices = [std::io::IoSlice::new(&first)];
        sendmsg(&connection, &slices, &mut control, SendFlags::NOSIGNAL).expect("sent");
        drop(slow);
        daemon.signal(libc::SIGCONT);
        let _ = socket::receive(&connection);
        serves(&daemon);
    }
}

#[test]
fn what_is_slow_to_close_does_not_keep_the_daemon() {
    let mut daemon = daemon("linger-end");
    serves(&daemon);
    let connections: Vec<_> = (0..4).map(|_| connect(&daemon)).collect();
    daemon.signal(libc::SIGSTOP);
    let mut other_ends = Vec::new();
    for connection in &connections {
        for _ in 0..8 {
            let (slow, other_end) = crate::slots::lingering();
            other_ends.push(other_end);
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let descriptors = [slow.as_fd()];
            assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
            let request = Request::Stat.encode();
            let slices = [std::io::IoSlice::new(&request)];
            // Messages that do not fit are not needed.
            let _ = sendmsg(connection, &slices, &mut control, SendFlags::DONTWAIT);
        }
    }
    daemon.signal(libc::SIGTERM);
    daemon.signal(libc::SIGCONT);
    assert_eq!(daemon.status(), Some(0));
}

fn resume(daemon: &Daemon, file: impl AsFd) -> (OwnedFd, Reply) {
    let connection = connect(daemon);
    let request = Request::Resume.encode();
    socket::send(&connection, &request, Some(file.as_fd())).expect("sent");
    let packet = socket::receive(&connection).expect("an answer").expect("not the end");
    (connection, Reply::decode(&packet.bytes).expect("a reply"))
}

#[test]
fn a_lease_is_resumed_once() {
    let daemon = daemon("twice");
    let lease = daemon.lease(SMALL);
    let (_connection, reply) = resume(&daemon, lease.file());
    let Reply::Refused(refusal) = reply else { panic!("{reply:?}") };
    assert_eq!(refusal.reason, Reason::OutOfTurn);
    assert_eq!(daemon.client().classes().expect("an answer")[0].leased, 1);
}

/// Files of no memory and the largest size: sums of them stay numbers.
#[test]
fn sizes_do_not_overflow() {
    let daemon = daemon("overflow");
    let vast = || SlotFile::create((1 << 63) - 4096, PageKind::Small).expect("a memfd");
    let _resumed: Vec<_> = (0..3).map(|_| resume(&daemon, vast())).collect();
    daemon.client().stat().expect("an answer");
    let _ = daemon.client().lease(&waiting(SMALL)).map(drop);
    daemon.client().classes().expect("it lives");
}

/// Sends a signal, which is handled and does nothing, to a thread until it has ended.
fn disturb<R>(thread: std::thread::JoinHandle<R>) -> R {
    use std::os::unix::thread::JoinHandleExt;
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: zeros are a valid action, and the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    let until = std::time::Instant::now() + PATIENCE;
    while !thread.is_finished() {
        assert!(std::time::Instant::now() < until, "it waits for ever");
        // SAFETY: the thread is not joined yet.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
        std::thread::sleep(Duration::from_millis(10));
    }
    thread.join().expect("no panic")
}

#[test]
fn a_signal_does_not_end_a_wait() {
    let daemon = daemon("signal");
    let first = daemon.lease(200 << 10);
    let client = daemon.client();
    let waits = std::thread::spawn(move || client.lease(&waiting(200 << 10)).map(|l| l.bytes()));
    let row = || daemon.client().classes().expect("an answer")[1];
    while row().waiting == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let ends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        first.end()
    });
    assert_eq!(disturb(waits).expect("a lease"), 256 << 10);
    ends.join().expect("no panic").expect("an answer");
}

#[test]
fn signals_do_not_make_a_wait_longer() {
    let daemon = daemon("signals");
    let connection = connect(&daemon);
    socket::set_patience(&connection, Duration::from_millis(300)).expect("set");
    let error = disturb(std::thread::spawn(move || socket::receive(&connection)));
    assert_eq!(error.expect_err("nothing came").kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn requests_out_of_turn() {
    let daemon = daemon("turn");
    let connection = connect(&daemon);
    let Some(Reply::Refused(refusal)) = ask(&connection, &Request::End.encode()) else { panic!() };
    assert_eq!(refusal.reason, Reason::OutOfTurn);
    let lease = Request::Lease(waiting(SMALL)).encode();
    assert!(matches!(ask(&connection, &lease), Some(Reply::Granted(_))));
    let Some(Reply::Refused(refusal)) = ask(&connection, &lease) else { panic!() };
    assert_eq!(refusal.reason, Reason::OutOfTurn);
    serves(&daemon);
}

/// `docs/slots-protocol.md`: any other message is refused and the connection closed, which gives up the wait.
#[test]
fn a_waiting_lease_takes_no_other_request() {
    let daemon = daemon("waiting");
    let _held = daemon.lease(200 << 10);
    let lease = Request::Lease(waiting(200 << 10));
    let row = || daemon.client().classes().expect("an answer")[1];
    let others = [
        lease.clone(),
        Request::End,
        Request::Resume,
        Request::Classes(0),
        Request::Leases(0),
        Request::Stat,
        Request::Settings,
        Request::Set(PaceSetting::DelayMs, 77),
        Request::LeaseSnapshot("web".parse().expect("a name"), 5),
        Request::Snapshots(0),
    ];
    let until = std::time::Instant::now() + PATIENCE;
    let until_waiting = |count: u32| {
        while row().waiting != count {
            assert!(std::time::Instant::now() < until, "{:?}", row());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    for other in others {
        let connection = connect(&daemon);
        socket::send(&connection, &lease.encode(), None).expect("sent");
        until_waiting(1);
        // A slot of one's own comes along, which only Resume would take.
        let file = SlotFile::create(SMALL, PageKind::Small).expect("a memfd");
        socket::send(&connection, &other.encode(), Some(file.as_fd())).expect("sent");
        let packet = socket::receive(&connection).expect("an answer").expect("not the end");
        let Ok(Reply::Refused(refusal)) = Reply::decode(&packet.bytes) else { panic!("{other:?}") };
        assert_eq!(refusal.reason, Reason::OutOfTurn, "{other:?}");
        assert!(socket::receive(&connection).expect("the end").is_none(), "{other:?}");
        until_waiting(0);
    }
    assert_ne!(daemon.client().settings().expect("an answer")[1], 77);
    serves(&daemon);
}

#[test]
fn what_can_not_be_had_is_refused_with_what_can() {
    let daemon = daemon("refused");
    let client = daemon.client();
    let error = client.lease(&waiting(1 << 40)).expect_err("too large");
    assert_eq!(reason(&error), Reason::TooLarge);
    assert!(error.to_string().contains("64K, 256K"), "{error}");
    let request = LeaseRequest { pages: Some(PageKind::Hugetlb2M), ..waiting(SMALL) };
    assert_eq!(reason(&client.lease(&request).expect_err("none")), Reason::NoSuchPages);

    let _first = daemon.lease(200 << 10);
    let now = LeaseRequest::new(200 << 10);
    assert_eq!(reason(&client.lease(&now).expect_err("leased")), Reason::NoneReady);
    let soon = LeaseRequest { wait_ms: 50, ..now };
    assert_eq!(reason(&client.lease(&soon).expect_err("leased")), Reason::TimedOut);
    serves(&daemon);
}

#[test]
fn a_waiting_client_gets_a_slot_that_another_ends() {
    let daemon = daemon("waits");
    let first = daemon.lease(200 << 10);
    let client = daemon.client();
    let second = std::thread::spawn(move || client.lease(&waiting(200 << 10)).map(|l| l.bytes()));
    daemon.client().classes().expect("an answer");
    first.end().expect("an answer");
    assert_eq!(second.join().expect("no panic").expect("a lease"), 256 << 10);
}
