//! Tickets: `pumice lease` shows them, also those of its environment, and to a daemon that is started anew.

use std::process::{Command, Stdio};

use pumice_slots::refusal::Reason;
use pumice_slots::ticket::{Reservation, Stage};
use pumice_slots::{Client, Error, Ticket};

use crate::slots::{as_user, is_root, waiting, Daemon, PATIENCE};
use crate::support::{first_line, folder, pumice};

const SMALL: u64 = 64 << 10;
const SLOTS: [&str; 4] = ["--slot", "64K=2", "--pages", "4k"];

/// Reserves a slot under a name.
fn reserve(daemon: &Daemon, name: &str) -> Ticket {
    let reservation = Reservation {
        name: name.parse().expect("a name"),
        ticket: Ticket::random().expect("random numbers"),
        bytes: SMALL,
        pages: None,
        node: None,
        limit_ms: 600_000,
    };
    daemon.client().reserve(&reservation).expect("reserved");
    reservation.ticket
}

/// `pumice lease ARGUMENTS --wait 1m -- stat {path}`, which prints the slot's size.
fn stat(daemon: &Daemon, arguments: &[&str]) -> Command {
    let mut command = daemon.command(&["lease"], arguments);
    command.args(["--wait", "1m", "--", "stat", "-L", "-c", "%s", "{path}"]);
    command.env_remove("PUMICE_SLOT_TICKET");
    command
}

/// The status, what it printed, and its words about an error.
fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.stdin(Stdio::null()).output().expect("pumice starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_program_runs_on_the_slot_of_its_ticket() {
    let daemon = Daemon::start("ticket", &SLOTS);
    let (one, two) = (reserve(&daemon, "one").to_string(), reserve(&daemon, "two").to_string());
    let both = format!("{one},{two}");
    let good = (Some(0), "65536\n".to_owned(), String::new());
    for tickets in [&one, &two, &both] {
        assert_eq!(run(stat(&daemon, &[]).env("PUMICE_SLOT_TICKET", tickets)), good);
        assert_eq!(run(&mut stat(&daemon, &["--ticket", tickets])), good);
    }
    assert_eq!(run(stat(&daemon, &["64K"]).env("PUMICE_SLOT_TICKET", &one)), good);

    // The first one's slot is leased: the second one's is had.
    let lease = daemon.client().lease_ticket(one.parse().expect("a ticket"), PATIENCE);
    assert_eq!(run(&mut stat(&daemon, &["--ticket", &both])), good);
    drop(lease.expect("a lease"));

    let fails = |arguments: &[&str], status: i32, word: &str| {
        let (code, _, said) = run(&mut stat(&daemon, arguments));
        assert_eq!(code, Some(status), "{arguments:?}: {said}");
        assert!(said.contains(word), "{arguments:?}: {said}");
    };
    let wrong = "0".repeat(32);
    fails(&["--ticket", &wrong], 1, "ticket");
    fails(&["--ticket", "7"], 2, "32 hexadecimal digits");
    fails(&["128K", "--ticket", &one], 2, "less than 128K");
    fails(&["--pages", "thp", "--ticket", &one], 2, "4k pages");
    let (code, _, said) = run(stat(&daemon, &[]).env("PUMICE_SLOT_TICKET", "x"));
    assert!(code == Some(2) && said.contains("PUMICE_SLOT_TICKET"), "{said}");
}

#[test]
fn others_get_only_slots_that_are_not_reserved() {
    let daemon = Daemon::start("ticket-others", &SLOTS);
    daemon.until("both are ready", |row| row.ready == 2);
    let one = reserve(&daemon, "one");
    let other = daemon.client().lease(&waiting(SMALL)).expect("a lease");
    let (code, _, said) = run(daemon
        .command(&["lease", "64K"], &["--", "true", "{fd}"])
        .env_remove("PUMICE_SLOT_TICKET"));
    assert!(code == Some(1) && said.contains("no such slot is ready"), "{said}");
    let page = daemon.client().reservations().expect("an answer");
    assert_eq!((page.len(), page[0].stage), (1, Stage::Kept));
    drop(daemon.client().lease_ticket(one, PATIENCE).expect("a lease"));
    drop(other);
}

/// Users that the daemon knows, and one that it does not, as in a container. Only root can be them.
#[test]
fn a_ticket_is_good_for_any_user_and_on_nobodys_account() {
    use std::fs::{set_permissions, Permissions};
    use std::os::unix::fs::PermissionsExt;
    const FRIEND: u32 = 54_331;
    const STRANGER: u32 = 54_332;
    if !is_root() {
        return;
    }
    let place = folder("slots-ticket-door");
    let door = place.join("tickets/slots.sock");
    let (path, friend) = (door.display().to_string(), format!("user:{FRIEND}=64K"));
    let arguments =
        ["--slot", "64K=3", "--pages", "4k", "--allow", &friend, "--ticket-socket", &path];
    let daemon = Daemon::start("ticket-users", &arguments);
    for folder in [&*place, &*daemon.folder] {
        set_permissions(folder, Permissions::from_mode(0o755)).expect("ours");
    }
    let reason = |outcome: Result<(), Error>| match outcome {
        Err(Error::Refused(refusal)) => refusal.reason,
        other => panic!("{other:?}"),
    };
    let (one, two) = (reserve(&daemon, "one"), reserve(&daemon, "two"));
    let (client, pod) = (Client::new(daemon.socket()), Client::new(&door));
    as_user(STRANGER, &[], || {
        assert_eq!(reason(client.lease_ticket(one, PATIENCE).map(drop)), Reason::NotAllowed);
        drop(pod.lease_ticket(one, PATIENCE).expect("any user may show it there"));
        assert_eq!(reason(pod.lease(&waiting(SMALL)).map(drop)), Reason::NotYours);
    });
    as_user(FRIEND, &[], || {
        let reserved = client.lease_ticket(two, PATIENCE).expect("a lease");
        let own = client.lease(&waiting(SMALL)).expect("its quota is for others");
        assert_eq!(reason(client.lease(&waiting(SMALL)).map(drop)), Reason::Quota);
        let name = "one".parse().expect("a name");
        assert_eq!(reason(client.release(name)), Reason::NotYours);
        assert_eq!(reason(client.reservations().map(drop)), Reason::NotYours);
        let third = Reservation {
            name,
            ticket: one,
            bytes: SMALL,
            pages: None,
            node: None,
            limit_ms: 600_000,
        };
        assert_eq!(reason(client.reserve(&third)), Reason::NotYours);
        drop((reserved, own));
    });
    assert_eq!(daemon.client().reservations().expect("an answer").len(), 2);
}

/// The next daemon hears of the ticket later than of the lease.
#[test]
fn a_lease_by_ticket_goes_on_with_the_next_daemon() {
    let mut daemon = Daemon::start("ticket-restart", &SLOTS);
    let ticket = reserve(&daemon, "one");
    let reservation = Reservation {
        name: "one".parse().expect("a name"),
        ticket,
        bytes: SMALL,
        pages: None,
        node: None,
        limit_ms: 600_000,
    };
    let mut lease = pumice(&["lease", "--print", "--wait", "1m", "--socket"])
        .arg(daemon.socket())
        .env("PUMICE_SLOT_TICKET", ticket.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("pumice starts");
    let (line, _) = first_line(lease.stdout.take());
    assert!(line.starts_with("PUMICE_SLOT_PATH="), "{line}");
    daemon.restart(&SLOTS);
    daemon.until("two are ready", |row| row.ready == 2);
    daemon.client().reserve(&reservation).expect("reserved");
    daemon.until("the lease goes on", |row| row.leased == 1);
    assert_eq!(daemon.client().reservations().expect("an answer")[0].stage, Stage::Leased);
    lease.kill().expect("ours");
    lease.wait().expect("ours");
    daemon.until("it has ended", |row| row.leased == 0);
}
