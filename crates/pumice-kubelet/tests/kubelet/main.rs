//! The program between a daemon and a kubelet, which dies, answers late, and gives out devices a thousand times.

mod go;
mod kubelets;
mod pods;
mod support;
mod tickets;

/// Not a test: [`support::Daemon`] starts this program once more to run it.
#[test]
fn a_daemon_of_a_test() {
    support::serve();
}
