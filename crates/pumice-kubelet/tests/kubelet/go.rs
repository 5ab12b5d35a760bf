//! Another's client: `tests/go` is a kubelet's side made of the published Go module. `ci/kubelet` builds it.

use std::collections::HashMap;
use std::process::Command;
use std::time::Duration;

use pumice_slots::Ticket;

use crate::support::{lease, until, Daemon, Place, Program, RESOURCE};

#[test]
fn a_kubelet_in_go_gives_out_slots() {
    let Some(kubelet) = std::env::var_os("PUMICE_GO_KUBELET") else {
        return eprintln!("skipped: ci/kubelet builds a kubelet in Go and runs this");
    };
    let place = Place::new();
    let _daemon = Daemon::start(&place, 3);
    let _program = Program::start(&place, &[]);
    let run = Command::new(kubelet).arg(place.kubelet_dir()).output().expect("it starts");
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stderr));
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some(RESOURCE));
    let variables: HashMap<_, _> = lines.filter_map(|line| line.split_once('=')).collect();
    let tickets = Ticket::list(variables["PUMICE_SLOT_TICKET"]).expect("tickets");
    assert_eq!(tickets.len(), 2);
    let leases: Vec<_> = tickets.iter().map(|&ticket| lease(&place, ticket)).collect();
    assert_eq!(leases.len(), 2);
    drop(leases);
    // A container is started anew in the same pod.
    let again = || place.pod().lease_ticket(tickets[1], Duration::from_secs(10));
    until("the tickets are good again", || again().is_ok());
}
