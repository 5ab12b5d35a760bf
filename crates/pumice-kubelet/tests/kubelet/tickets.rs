//! Clients in containers: they have tickets or guess, and no rights besides, whatever user they are.

use std::time::Duration;

use pumice_slots::message::{Reply, Request};
use pumice_slots::refusal::Reason;
use pumice_slots::settings::PaceSetting;
use pumice_slots::ticket::Reservation;
use pumice_slots::{socket, Client, Error, LeaseRequest, Ticket};

use crate::support::{until, Daemon, Place, PATIENCE, SMALL};

fn reservation(name: &str) -> Reservation {
    Reservation {
        name: name.parse().expect("a name"),
        ticket: Ticket::random().expect("random numbers"),
        bytes: SMALL,
        pages: None,
        node: None,
        limit_ms: 600_000,
    }
}

fn reason<T>(outcome: Result<T, Error>) -> Reason {
    match outcome {
        Err(Error::Refused(refusal)) => refusal.reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("not refused"),
    }
}

/// The reason of a refusal at the door for tickets.
fn refused(place: &Place, request: &Request) -> Reason {
    let connection = socket::connect_to(&place.ticket_socket(), PATIENCE).expect("connected");
    socket::send(&connection, &request.encode(), None).expect("sent");
    let packet = socket::receive(&connection).expect("an answer").expect("an answer");
    assert!(socket::receive(&connection).expect("the end").is_none(), "it is closed");
    match Reply::decode(&packet.bytes).expect("a reply") {
        Reply::Refused(refusal) => refusal.reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nobody_has_rights_at_the_door_for_tickets() {
    let place = Place::new();
    let _daemon = Daemon::start(&place, 2);
    let lease = place.client().lease(&LeaseRequest { wait_ms: 60_000, ..LeaseRequest::new(1) });
    for request in [
        Request::Lease(LeaseRequest::new(SMALL)),
        Request::Resume,
        Request::Classes(0),
        Request::Leases(0),
        Request::Stat,
        Request::Settings,
        Request::Set(PaceSetting::DelayMs, 1),
        Request::LeaseSnapshot("web".parse().expect("a name"), 0),
        Request::Snapshots(0),
        Request::Reserve(reservation("a")),
        Request::Release("a".parse().expect("a name")),
        Request::Reservations(0),
    ] {
        assert_eq!(refused(&place, &request), Reason::NotYours, "{request:?}");
    }
    let guess = Ticket::random().expect("random numbers");
    for request in [Request::LeaseTicket(guess, 1_000), Request::ResumeTicket(guess)] {
        assert_eq!(refused(&place, &request), Reason::NoSuchTicket);
    }
    lease.expect("a lease").end().expect("an answer");
}

#[test]
fn guesses_get_nothing_and_hold_up_nobody() {
    let place = Place::new();
    let daemon = Daemon::start(&place, 2);
    let kept = reservation("kept");
    place.client().reserve(&kept).expect("reserved");
    until("both are ready", || place.client().classes().expect("an answer")[0].ready == 2);
    let files = daemon.open_files();
    // One bit is wrong, and some of them ask nothing at all.
    let mut idle = Vec::new();
    for bit in 0..128 {
        let mut bytes = kept.ticket.to_bytes();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let outcome = place.pod().lease_ticket(Ticket::from_bytes(bytes), PATIENCE);
        assert_eq!(reason(outcome), Reason::NoSuchTicket);
        idle.push(socket::connect_to(&place.ticket_socket(), PATIENCE).expect("connected"));
    }
    drop(place.pod().lease_ticket(kept.ticket, PATIENCE).expect("a lease"));
    drop(idle);
    until("nothing is left of them", || daemon.open_files() <= files);
}

#[test]
fn reservations_are_replaced_released_and_bounded() {
    let place = Place::new();
    let _daemon = Daemon::start(&place, 2);
    let (master, pod) = (place.client(), place.pod());
    let (one, two) = (reservation("one"), reservation("two"));
    for it in [&one, &two, &one] {
        master.reserve(it).expect("reserved, or once more the same");
    }
    assert_eq!(reason(master.reserve(&reservation("three"))), Reason::NoneFree);
    let theirs = Reservation { name: "three".parse().expect("a name"), ..one };
    assert_eq!(reason(master.reserve(&theirs)), Reason::TicketInUse);
    let large = Reservation { bytes: SMALL + 1, ..reservation("one") };
    assert_eq!(reason(master.reserve(&large)), Reason::NoSuchPages);
    // The one before it was given up all the same: its name has another holder.
    assert_eq!(reason(pod.lease_ticket(one.ticket, PATIENCE)), Reason::NoSuchTicket);

    let lease = pod.lease_ticket(two.ticket, PATIENCE).expect("a lease");
    assert_eq!(reason(master.reserve(&reservation("two"))), Reason::TicketInUse);
    master.release(two.name).expect("an answer");
    master.release(two.name).expect("an answer");
    assert_eq!(reason(master.reserve(&reservation("two"))), Reason::TicketInUse);
    lease.end().expect("an answer");
    assert_eq!(reason(pod.lease_ticket(two.ticket, PATIENCE)), Reason::NoSuchTicket);
    assert!(master.reservations().expect("an answer").is_empty());
}

/// A client waits with its ticket: it is served before one that came first, and waits in vain once it is released.
#[test]
fn clients_with_tickets_wait_for_their_slots() {
    let place = Place::new();
    let _daemon = Daemon::start(&place, 1);
    let waiting = LeaseRequest { wait_ms: 60_000, ..LeaseRequest::new(SMALL) };
    let first = place.client().lease(&waiting).expect("a lease");
    let kept = reservation("kept");
    assert_eq!(reason(place.client().reserve(&kept)), Reason::NoneFree);
    first.end().expect("an answer");
    place.client().reserve(&kept).expect("reserved");
    let lease = place.pod().lease_ticket(kept.ticket, PATIENCE).expect("a lease");
    let waits = |client: Client| std::thread::spawn(move || client.lease(&waiting));
    let stranger = waits(place.client());
    let row = || place.client().classes().expect("an answer")[0];
    until("a stranger waits", || row().waiting == 1);
    // The slot that is populated next is still the ticket's.
    lease.end().expect("an answer");
    until("it is ready", || row().ready == 1);
    let lease = place.pod().lease_ticket(kept.ticket, Duration::ZERO).expect("at once");
    assert_eq!(row().waiting, 1);
    place.client().release(kept.name).expect("an answer");
    drop(lease);
    drop(stranger.join().expect("no panic").expect("a lease at last"));
}
