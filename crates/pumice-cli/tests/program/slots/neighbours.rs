//! Tenants at once, one of whom floods the daemon, one is slow, and one dies all the time. Another's request waits for
//! slots, and for nobody's turn but those that came before.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::scope;

use pumice_slots::message::Request;
use pumice_slots::socket;

use crate::slots::{waiting, Daemon, PATIENCE};

const SLOT: u64 = 256 << 10;
const SLOTS: usize = 4;
const FLOODERS: usize = 4;
const LEASES: usize = 40;

/// Asks for slots, and gives each back at once; counts those it was given.
fn flood(daemon: &Daemon, is_over: &AtomicBool, given: &AtomicUsize) {
    let client = daemon.client();
    while !is_over.load(Ordering::Relaxed) {
        // It is refused where it has more than its share.
        if let Ok(lease) = client.lease(&waiting(SLOT)) {
            given.fetch_add(1, Ordering::Relaxed);
            let _ = lease.end();
        }
    }
}

/// Asks for a slot and never reads the answer, or asks for half of one.
fn be_slow(daemon: &Daemon, is_over: &AtomicBool) {
    let request = Request::Lease(waiting(SLOT)).encode();
    let mut kept = Vec::<OwnedFd>::new();
    let mut turn = 0;
    while !is_over.load(Ordering::Relaxed) {
        let Ok(connection) = socket::connect_to(&daemon.socket(), PATIENCE) else { continue };
        let part = if turn % 2 == 0 { request.len() } else { request.len() / 2 };
        let _ = socket::send(&connection, &request[..part], None);
        kept.push(connection);
        // Two of its slots at most are not to be had.
        if kept.len() > 2 {
            kept.remove(0);
        }
        turn += 1;
        std::thread::yield_now();
    }
}

/// Has a slot and is killed.
fn die(daemon: &Daemon, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        let mut lessee = daemon.command(&["lease", "256K", "--wait", "1m"], &[]);
        lessee.args(["--", "sh", "-c", "kill -9 $PPID $$", "{path}"]);
        let ended = lessee.output().expect("pumice starts");
        assert!(!ended.status.success());
    }
}

#[test]
fn nobody_waits_for_a_flood_a_slow_tenant_or_a_dying_one() {
    let count = format!("256K={SLOTS}");
    let daemon = Daemon::start("neighbours", &["--slot", &count, "--pages", "4k"]);
    let (is_over, given) = (AtomicBool::new(false), AtomicUsize::new(0));
    let overtaken = scope(|threads| {
        for _ in 0..FLOODERS {
            threads.spawn(|| flood(&daemon, &is_over, &given));
        }
        threads.spawn(|| be_slow(&daemon, &is_over));
        threads.spawn(|| die(&daemon, &is_over));
        let overtaken = (0..LEASES).map(|_| {
            let before = given.load(Ordering::Relaxed);
            let lease = daemon.lease(SLOT);
            let overtaken = given.load(Ordering::Relaxed) - before;
            assert_eq!(lease.bytes(), SLOT);
            lease.end().expect("an answer");
            overtaken
        });
        let overtaken: Vec<_> = overtaken.collect();
        is_over.store(true, Ordering::Relaxed);
        overtaken
    });
    assert!(given.into_inner() > LEASES, "the flood was none");
    // Those before it in the queue and in the slots, and those that its threads counted late.
    let most = 4 * (SLOTS + FLOODERS);
    assert!(overtaken.iter().all(|&count| count <= most), "{overtaken:?}");
    // All slots are there again.
    daemon.until("all ready", |row| row.ready as usize == SLOTS);
}
