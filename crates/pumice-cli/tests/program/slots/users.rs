//! The users that may lease, and their quotas. Other users are threads of this program, which only root can make.

use std::ffi::CString;
use std::mem::size_of;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixDatagram;

use pumice_slots::file::Populating;
use pumice_slots::message::{Reply, Request};
use pumice_slots::refusal::Reason;
use pumice_slots::settings::PaceSetting;
use pumice_slots::stat::Counter;
use pumice_slots::{socket, Client, Error, LeaseRequest, PageKind, SlotFile};

use rustix::event::{poll, PollFd, PollFlags};

use crate::slots::{as_user, is_root, waiting, Daemon};

const SMALL: u64 = 64 << 10;
const FRIEND: u32 = 54_321;
const STRANGER: u32 = 54_322;
const GROUP: u32 = 54_323;

fn reason<T>(outcome: Result<T, Error>) -> Option<Reason> {
    match outcome {
        Ok(_) => None,
        Err(Error::Refused(refusal)) => Some(refusal.reason),
        Err(other) => panic!("{other}"),
    }
}

/// The test's folder may lie where others can't look.
fn open_folders(daemon: &Daemon) {
    use std::os::unix::fs::PermissionsExt;
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&daemon.folder, open).expect("ours");
}

#[test]
fn others_are_refused_and_quotas_hold() {
    if !is_root() {
        return;
    }
    let allow_user = format!("user:{FRIEND}=128K");
    let allow_group = format!("group:{GROUP}=64K");
    let arguments =
        ["--slot", "64K=6", "--pages", "4k", "--allow", &allow_user, "--allow", &allow_group];
    let daemon = Daemon::start("users", &arguments);
    open_folders(&daemon);
    let client = Client::new(daemon.socket());
    let request = waiting(SMALL);

    let refused = as_user(STRANGER, &[], || reason(client.lease(&request)));
    assert_eq!(refused, Some(Reason::NotAllowed));
    let refused = as_user(STRANGER, &[], || reason(client.stat()));
    assert_eq!(refused, Some(Reason::NotAllowed));

    as_user(FRIEND, &[], || {
        let first = client.lease(&request).expect("a lease");
        let second = client.lease(&request).expect("a lease");
        assert_eq!(reason(client.lease(&request)), Some(Reason::Quota));
        // Slots that the lessee asks to populate itself count as well.
        let empty = LeaseRequest { charge: pumice_slots::Charge::Lessee, ..request };
        assert_eq!(reason(client.lease(&empty)), Some(Reason::Quota));
        first.end().expect("an answer");
        let third = client.lease(&request).expect("what was ended counts no more");
        // It sees its own leases, and changes nothing.
        assert_eq!(client.leases().expect("an answer").len(), 2);
        assert_eq!(reason(client.set(PaceSetting::DelayMs, 1)), Some(Reason::NotYours));
        drop((second, third));
    });

    as_user(STRANGER, &[GROUP], || {
        let lease = client.lease(&request).expect("a member of the group");
        assert_eq!(reason(client.lease(&request)), Some(Reason::Quota));
        // A user's own slot opens by its path under any daemon.
        assert_eq!(lease.file().metadata().expect("a file").len(), SMALL);
    });
    let _root = client.lease(&request).expect("root needs no rule");

    // A file that looks like a slot and has no memory takes none from the class beyond the quota.
    let forged: Vec<_> = as_user(FRIEND, &[], || {
        let forge = || {
            let file = SlotFile::create(SMALL, PageKind::Small).expect("a memfd");
            let connection =
                socket::connect_to(&daemon.socket(), crate::slots::PATIENCE).expect("connected");
            socket::send(&connection, &Request::Resume.encode(), Some(file.as_fd())).expect("sent");
            let packet = socket::receive(&connection).expect("an answer").expect("not the end");
            (connection, Reply::decode(&packet.bytes).expect("a reply"))
        };
        (0..4).map(|_| forge()).collect()
    });
    let granted = forged.iter().filter(|(_, reply)| matches!(reply, Reply::Granted(_))).count();
    assert!(granted <= 2, "{granted}");
}

/// A file of a tenant's own, memory and all, which takes the place of a slot: the tenant would bring it back each
/// time that others have waited long enough for one.
#[test]
fn a_tenant_resumes_only_what_a_daemon_made() {
    if !is_root() {
        return;
    }
    let allow = format!("user:{FRIEND}");
    let arguments = ["--slot", "64K=1", "--pages", "4k", "--allow", &allow];
    let mut daemon = Daemon::start("forged", &arguments);
    open_folders(&daemon);
    daemon.until("ready", |row| row.ready == 1);
    let reply = as_user(FRIEND, &[], || {
        let file = SlotFile::create(SMALL, PageKind::Small).expect("a memfd");
        let mut populating = Populating::begin(&file, SMALL, PageKind::Small).expect("mapped");
        while populating.step(1 << 20).expect("populated") > 0 {}
        let connection =
            socket::connect_to(&daemon.socket(), crate::slots::PATIENCE).expect("connected");
        socket::send(&connection, &Request::Resume.encode(), Some(file.as_fd())).expect("sent");
        let packet = socket::receive(&connection).expect("an answer").expect("not the end");
        Reply::decode(&packet.bytes).expect("a reply")
    });
    let Reply::Refused(refusal) = reply else { panic!("{reply:?}") };
    assert_eq!(refusal.reason, Reason::NotASlot);
    daemon.until("untouched", |row| row.ready == 1 && row.leased == 0);

    // The next daemon takes over the lease that this one gave.
    let client = Client::new(daemon.socket());
    let lease = as_user(FRIEND, &[], || client.lease(&waiting(SMALL)));
    let mut lease = lease.expect("a lease");
    daemon.restart(&arguments);
    as_user(FRIEND, &[], || lease.resume()).expect("taken over");
    daemon.until("counted", |row| row.leased == 1);
    lease.end().expect("an answer");
}

/// A member of the group, and a number that subuid(5) gives it, which has its groups in a user namespace. There the
/// file is what this test says.
#[test]
fn subordinate_numbers_have_one_quota() {
    if !is_root() {
        return;
    }
    const SUBORDINATE: u32 = 7_000_000;
    let place = crate::support::folder("slots-subuid");
    let file = place.join("subuid");
    std::fs::write(&file, format!("{FRIEND}:{SUBORDINATE}:10\n")).expect("ours");
    // The file's mount is this thread's alone, and that of what it starts.
    let daemon = std::thread::spawn(move || {
        let file = CString::new(file.into_os_string().into_vec()).expect("no zero in it");
        let (nothing, root) = (std::ptr::null(), c"/".as_ptr());
        let subuid = c"/etc/subuid".as_ptr();
        // SAFETY: plain system calls, the first on the calling thread; all strings end with zeros.
        let is_other = unsafe {
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(
                    nothing,
                    root,
                    nothing,
                    libc::MS_REC | libc::MS_PRIVATE,
                    nothing.cast(),
                ) == 0
                && libc::mount(file.as_ptr(), subuid, nothing, libc::MS_BIND, nothing.cast()) == 0
        };
        if !is_other {
            return None;
        }
        let allow = format!("group:{GROUP}=64K");
        let slots = ["--slot", "64K=6", "--pages", "4k", "--allow", &allow];
        Some(Daemon::start("subuid", &slots))
    });
    let Some(daemon) = daemon.join().expect("no panic") else {
        eprintln!("skipped: /etc/subuid can't be another file here");
        return;
    };
    open_folders(&daemon);
    let client = daemon.client();
    let lease = |user: u32| as_user(user, &[GROUP], || client.lease(&waiting(SMALL)));
    let _first = lease(FRIEND).expect("a lease");
    assert_eq!(reason(lease(SUBORDINATE + 3)), Some(Reason::Quota));
    let _other = lease(SUBORDINATE + 10).expect("nobody's number but its own");
}

/// A daemon that two users may lease from.
fn daemon_of_two(name: &str, slots: &[&str]) -> Daemon {
    let allow = [FRIEND, STRANGER].map(|user| format!("user:{user}"));
    let daemon =
        Daemon::start(name, &[slots, &["--allow", &allow[0], "--allow", &allow[1]]].concat());
    open_folders(&daemon);
    daemon
}

/// One has had much, and has many requests in line already; the other comes later, and has its turns first.
#[test]
fn a_user_that_comes_again_and_again_starves_nobody() {
    if !is_root() {
        return;
    }
    let daemon = daemon_of_two("turns", &["--slot", "64K=1", "--slot", "256K=1", "--pages", "4k"]);
    let client = daemon.client();
    let held = daemon.lease(SMALL);
    as_user(FRIEND, &[], || client.lease(&waiting(4 * SMALL)).map(drop)).expect("a lease");
    let request = Request::Lease(waiting(SMALL)).encode();
    let wait = |user: u32| {
        let connection = as_user(user, &[], || {
            socket::connect_to(&daemon.socket(), crate::slots::PATIENCE).expect("connected")
        });
        socket::send(&connection, &request, None).expect("sent");
        (connection, user)
    };
    let mut waiting: Vec<_> = (0..20).map(|_| wait(FRIEND)).collect();
    daemon.until("waiting", |row| row.waiting == 20);
    waiting.extend((0..5).map(|_| wait(STRANGER)));
    daemon.until("waiting", |row| row.waiting == 25);
    held.end().expect("an answer");

    // There is one slot, so the next is granted when this one is ended.
    let mut order = Vec::new();
    while order.len() < 10 {
        let mut polled: Vec<_> =
            waiting.iter().map(|(at, _)| PollFd::new(at, PollFlags::IN)).collect();
        poll(&mut polled, None).expect("one is served");
        let is_ready = |polled: &PollFd<'_>| !polled.revents().is_empty();
        let index = polled.iter().position(is_ready).expect("one is");
        let (connection, user) = waiting.swap_remove(index);
        let packet = socket::receive(&connection).expect("an answer").expect("not the end");
        assert!(matches!(Reply::decode(&packet.bytes), Ok(Reply::Granted(_))));
        order.push(user);
    }
    assert_eq!(order[..3], [STRANGER; 3], "{order:?}");
    assert_eq!(order.iter().filter(|&&user| user == STRANGER).count(), 5, "{order:?}");
    assert!(client.stat().expect("an answer")[Counter::OutOfOrder as usize] >= 5);
}

#[test]
fn with_a_share_who_ends_much_leaves_ready_slots_to_others() {
    if !is_root() {
        return;
    }
    let daemon = daemon_of_two("share", &["--slot", "4M=4", "--pages", "4k", "--share", "50"]);
    let client = daemon.client();
    daemon.until("ready", |row| row.ready == 4);
    // From here on nothing is populated that nobody waits for.
    client.set(PaceSetting::BatchPages, 16).expect("root may");
    client.set(PaceSetting::RatePagesPerS, 1).expect("root may");
    let take = |user: u32| {
        let now = LeaseRequest::new(4 << 20);
        reason(as_user(user, &[], || client.lease(&now).map(|lease| lease.end())))
    };
    let taken = [FRIEND, FRIEND, FRIEND, STRANGER].map(take);
    assert_eq!(taken, [None, None, Some(Reason::NoneReady), None]);
    assert_eq!(client.stat().expect("an answer")[Counter::HeldBack as usize], 1);
}

/// A socket in whose queue is another, whose last close waits for longer than any client; and what holds that up.
fn slow_to_close() -> (OwnedFd, TcpStream) {
    let (full, other_end) = crate::slots::lingering();
    let (outer, inner) = UnixDatagram::pair().expect("a pair");
    socket::send(&outer, b"x", Some(full.as_fd())).expect("sent");
    (inner.into(), other_end)
}

/// Users that may not even lease, and what they send, which no thread can close.
#[test]
fn strangers_do_not_use_up_descriptors() {
    if !is_root() {
        return;
    }
    let allow = format!("user:{FRIEND}");
    let arguments = ["--slot", "64K=2", "--pages", "4k", "--allow", &allow];
    let mut daemon = Daemon::start("strangers", &arguments);
    open_folders(&daemon);
    let path = daemon.socket();
    let mut lease = as_user(FRIEND, &[], || Client::new(&path).lease(&waiting(SMALL)));
    daemon.restart(&arguments);
    let count = || {
        let folder = format!("/proc/{}/fd", daemon.pid());
        std::fs::read_dir(folder).expect("root may").count()
    };
    let before = count();
    let connect = || socket::connect_to(&path, crate::slots::PATIENCE).expect("connected");
    // This test would have to close descriptors that are refused.
    daemon.signal(libc::SIGSTOP);
    let _held: Vec<_> = as_user(STRANGER, &[], || {
        let send = |_| {
            let (slow, held) = slow_to_close();
            socket::send(connect(), b"x", Some(slow.as_fd())).expect("sent");
            held
        };
        (0..96).map(send).collect()
    });
    daemon.signal(libc::SIGCONT);
    as_user(STRANGER, &[], || (0..2000).for_each(|_| drop(connect())));
    daemon.until("served", |row| row.ready > 0);
    if !knows_passrights() {
        eprintln!("skipped: before Linux 6.16 a socket takes whatever descriptors are sent");
        return;
    }
    assert!(count() < before + 1000, "{} descriptors, not {before}", count());
    // Users that may lease send theirs all the same.
    let lease = lease.as_mut().expect("a lease");
    as_user(FRIEND, &[], || lease.resume()).expect("taken over");
}

fn knows_passrights() -> bool {
    const SO_PASSRIGHTS: libc::c_int = 83;
    let (one, _other) = UnixDatagram::pair().expect("a pair");
    let (on, length) = (1, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: a plain system call on a number that lives here.
    unsafe {
        let value = (&raw const on).cast();
        libc::setsockopt(one.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, value, length) == 0
    }
}

#[test]
fn one_user_can_not_take_all_connections() {
    if !is_root() {
        return;
    }
    let allow = [format!("user:{FRIEND}"), format!("user:{STRANGER}")];
    let arguments =
        ["--slot", "64K=2", "--pages", "4k", "--allow", &allow[0], "--allow", &allow[1]];
    let daemon = Daemon::start("crowd", &arguments);
    open_folders(&daemon);
    let path = daemon.socket();
    let patience = crate::slots::PATIENCE;
    let all: Vec<_> = as_user(FRIEND, &[], || {
        let connect = || socket::connect_to(&path, patience).expect("connected");
        let all = (0..300).map(|_| connect()).collect();
        assert_eq!(reason(Client::new(&path).stat()), Some(Reason::Busy));
        all
    });
    assert_eq!(as_user(STRANGER, &[], || reason(Client::new(&path).stat())), None);
    drop(all);
}

#[test]
fn one_user_can_not_fill_the_queue() {
    if !is_root() {
        return;
    }
    let allow = [format!("user:{FRIEND}"), format!("user:{STRANGER}")];
    let arguments =
        ["--slot", "64K=1", "--pages", "4k", "--allow", &allow[0], "--allow", &allow[1]];
    let daemon = Daemon::start("queue", &arguments);
    open_folders(&daemon);
    let (path, patience) = (daemon.socket(), crate::slots::PATIENCE);
    let held = daemon.lease(SMALL);
    let request = Request::Lease(waiting(SMALL)).encode();
    as_user(FRIEND, &[], || {
        let wait = || {
            let connection = socket::connect_to(&path, patience).expect("connected");
            socket::send(&connection, &request, None).expect("sent");
            connection
        };
        let all: Vec<_> = (0..64).map(|_| wait()).collect();
        let packet = socket::receive(wait()).expect("an answer").expect("not the end");
        let Ok(Reply::Refused(refusal)) = Reply::decode(&packet.bytes) else { panic!("granted") };
        assert_eq!(refusal.reason, Reason::Busy);
        drop(all);
    });
    daemon.until("gone", |row| row.waiting == 0);
    held.end().expect("an answer");
    as_user(STRANGER, &[], || Client::new(&path).lease(&waiting(SMALL)).map(drop))
        .expect("a lease");
}

#[test]
fn the_daemons_descriptors_are_hidden() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start("hidden", &["--slot", "64K=1", "--pages", "4k"]);
    let folder = format!("/proc/{}/fd", daemon.pid());
    assert!(as_user(FRIEND, &[], || std::fs::read_dir(&folder).is_err()));
}
