//! Kubelets that start anew, answer late, and die in the middle; the program's own end.

use std::fs;
use std::time::Duration;

use pumice_kubelet::api;
use pumice_slots::refusal::Reason;
use pumice_slots::Error;

use crate::support::{
    healthy, lease, until, Daemon, Kubelet, Manner, Place, Plugin, Program, ENDPOINT,
};

#[tokio::test]
async fn a_kubelet_that_starts_anew_hears_of_it_again() {
    let place = Place::new();
    let mut kubelet = Kubelet::start(&place, Manner::Prompt);
    let _daemon = Daemon::start(&place, 2);
    let _program = Program::start(&place, &[]);
    kubelet.registered().await;
    let given = Plugin::connect(&place.endpoint()).await.ticket("64k-4k-0").await;
    for _ in 0..3 {
        drop(kubelet);
        kubelet = Kubelet::start(&place, Manner::Prompt);
        assert_eq!(kubelet.registered().await.endpoint, ENDPOINT);
        let plugin = Plugin::connect(&place.endpoint()).await;
        assert_eq!(healthy(&plugin.lists().await.next().await), 2);
    }
    // The pods that run know nothing of it.
    drop(lease(&place, given));
}

#[tokio::test]
async fn a_socket_that_is_removed_is_made_again() {
    let place = Place::new();
    let mut kubelet = Kubelet::start(&place, Manner::Prompt);
    let _daemon = Daemon::start(&place, 2);
    let _program = Program::start(&place, &[]);
    kubelet.registered().await;
    fs::remove_file(place.endpoint()).expect("there");
    kubelet.registered().await;
    Plugin::connect(&place.endpoint()).await.lists().await.next().await;
}

#[tokio::test]
async fn there_may_be_no_kubelet_yet_and_no_daemon() {
    let place = Place::new();
    let _program = Program::start(&place, &[]);
    let mut kubelet = Kubelet::start(&place, Manner::Prompt);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(kubelet.others(), 0, "there are no devices to register");
    let _daemon = Daemon::start(&place, 1);
    kubelet.registered().await;
}

#[tokio::test]
async fn a_kubelet_that_answers_late_is_waited_for() {
    let place = Place::new();
    let late = Duration::from_millis(500);
    let mut kubelet = Kubelet::start(&place, Manner::Late(late));
    let _daemon = Daemon::start(&place, 2);
    let _program = Program::start(&place, &[]);
    kubelet.registered().await;
    // It connects before it answers, as the real one.
    let plugin = Plugin::connect(&place.endpoint()).await;
    let mut lists = plugin.lists().await;
    assert_eq!(healthy(&lists.next().await), 2);
    tokio::time::sleep(2 * late).await;
    assert_eq!(kubelet.others(), 0, "it was asked once");
}

#[tokio::test]
async fn kubelets_that_die_or_refuse_are_asked_again() {
    let place = Place::new();
    let mut kubelet = Kubelet::start(&place, Manner::Mute);
    let _daemon = Daemon::start(&place, 2);
    let _program = Program::start(&place, &[]);
    kubelet.registered().await;
    // It dies with the question open. Its connections end with it.
    drop(kubelet);
    let mut kubelet = Kubelet::start(&place, Manner::Rude);
    for _ in 0..3 {
        kubelet.registered().await;
    }
    drop(kubelet);
    let mut kubelet = Kubelet::start(&place, Manner::Prompt);
    kubelet.registered().await;
    // It watches nothing: another registration may help.
    kubelet.registered().await;
}

#[tokio::test]
async fn a_kubelet_that_dies_while_devices_are_given_out_can_do_it_again() {
    let place = Place::new();
    let mut kubelet = Kubelet::start(&place, Manner::Prompt);
    let _daemon = Daemon::start(&place, 1);
    let _program = Program::start(&place, &[]);
    kubelet.registered().await;
    for delay_us in [0, 200, 1_000, 3_000] {
        let plugin = Plugin::connect(&place.endpoint()).await;
        let asked = plugin.allocate(&["64k-4k-0"]);
        // Whether it was done or not, nobody hears.
        let _ = tokio::time::timeout(Duration::from_micros(delay_us), asked).await;
    }
    let plugin = Plugin::connect(&place.endpoint()).await;
    let old = plugin.ticket("64k-4k-0").await;
    let new = plugin.ticket("64k-4k-0").await;
    match place.pod().lease_ticket(old, Duration::ZERO) {
        Err(Error::Refused(refusal)) => assert_eq!(refusal.reason, Reason::NoSuchTicket),
        other => panic!("{other:?}"),
    }
    drop(lease(&place, new));
    assert_eq!(place.client().reservations().expect("an answer").len(), 1);
}

#[tokio::test]
async fn a_daemon_that_starts_anew_is_told_of_the_tickets() {
    let place = Place::new();
    let _kubelet = Kubelet::start(&place, Manner::Prompt);
    let mut daemon = Daemon::start(&place, 2);
    let _program = Program::start(&place, &[]);
    until("it listens", || place.endpoint().exists());
    let plugin = Plugin::connect(&place.endpoint()).await;
    let mut lists = plugin.lists().await;
    lists.until_healthy(2).await;
    let (used, unused) = (plugin.ticket("64k-4k-0").await, plugin.ticket("64k-4k-1").await);
    let mut running = lease(&place, used);
    daemon.kill();
    lists.until_healthy(0).await;
    let gone = plugin.allocate(&["64k-4k-1"]).await.expect_err("there is no daemon");
    assert_eq!(gone.code(), tonic::Code::Unavailable);

    let _daemon = Daemon::start(&place, 2);
    let devices = lists.until_healthy(2).await;
    assert!(devices.iter().all(|device| device.health == api::HEALTHY));
    until("the running pod's lease goes on", || running.resume().is_ok());
    drop(lease(&place, unused));
    drop(running);
    until("its memory is the daemon's to end", || {
        place.client().classes().expect("an answer")[0].leased == 0
    });
}

/// As an update of both does. The kubelet goes on, and so does a program on a slot.
#[tokio::test]
async fn tickets_stay_good_when_all_is_started_anew() {
    let place = Place::new();
    let mut kubelet = Kubelet::start(&place, Manner::Prompt);
    let mut daemon = Daemon::start(&place, 2);
    let program = Program::start(&place, &[]);
    kubelet.registered().await;
    let plugin = Plugin::connect(&place.endpoint()).await;
    let (used, unused) = (plugin.ticket("64k-4k-0").await, plugin.ticket("64k-4k-1").await);
    let mut running = lease(&place, used);
    daemon.kill();
    drop(program);
    let _daemon = Daemon::start(&place, 2);
    let _program = Program::start(&place, &[]);
    kubelet.registered().await;
    until("the running pod's lease goes on", || running.resume().is_ok());
    drop(lease(&place, unused));
    assert_eq!(place.client().reservations().expect("an answer").len(), 2);
}

#[tokio::test]
async fn it_ends_when_it_is_told_to_and_leaves_no_socket() {
    let place = Place::new();
    let mut kubelet = Kubelet::start(&place, Manner::Prompt);
    let _daemon = Daemon::start(&place, 1);
    let program = Program::start(&place, &[]);
    kubelet.registered().await;
    let plugin = Plugin::connect(&place.endpoint()).await;
    let _lists = plugin.lists().await;
    let given = plugin.ticket("64k-4k-0").await;
    assert_eq!(program.end(), Some(0));
    assert!(!place.endpoint().exists());
    // The next one begins with the daemon's reservations.
    drop(lease(&place, given));
    let _program = Program::start(&place, &[]);
    kubelet.registered().await;
    let plugin = Plugin::connect(&place.endpoint()).await;
    drop(lease(&place, plugin.ticket("64k-4k-0").await));
    assert_eq!(place.client().reservations().expect("an answer").len(), 1);
}
