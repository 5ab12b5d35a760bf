//! A device plugin of Kubernetes: each slot of a daemon's is a device, and a pod that asks for one gets a ticket for
//! it. The daemon runs beside it, and is reached by the protocol of `pumice-slots`. `docs/kubernetes.md` is for users.
//!
//! | module | contents |
//! |---|---|
//! | [`api`] | the kubelet's messages, with the numbers that its published API gives their fields |
//! | [`grpc`] | the calls: those that the kubelet makes here, and those that are made there |
//! | [`devices`] | devices, their names and resources; it touches neither files nor a clock |
//! | [`ledger`] | the tickets that were given out; talks with the daemon |
//! | [`store`] | the file of the tickets that were given out |
//! | [`answers`] | the answers to the kubelet |
//! | [`plugin`] | a resource: its socket and its registration |
//! | [`run`](mod@run) | the program: a thread that watches the daemon, and a loop that keeps plugins registered |
//!
//! # A device's life
//!
//! The kubelet alone knows which devices are free, and never says when a pod has ended. So a device's ticket is good
//! until the same device is given out again, until nobody has shown it or had its slot for some time, or until the
//! kubelet's list of pods has no pod with the device any more. The daemon keeps the time, and gives the slot to nobody
//! else meanwhile.
//!
//! The daemon has the reservations. This process has the tickets, and tells a daemon that is started anew. A file has
//! them as well: an update starts both anew, and programs that run must not lose their slots by that.
//!
//! # Threads
//!
//! One runs the calls. Another watches the daemon once a second; calls that need the daemon have threads of the
//! runtime. [`ledger::Ledger`] has one lock, which is held while the daemon answers.

pub mod answers;
pub mod api;
pub mod devices;
pub mod grpc;
pub mod ledger;
pub mod plugin;
pub mod run;
pub mod store;

pub use run::{run, Options};
