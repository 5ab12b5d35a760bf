//! Slots: memory that a daemon has populated ahead, leased whole to another program. An inside of pumice, whose facade
//! is `pumice`. It makes the system calls of `pumice-frames`; the daemon populates at the pace of the scrubber of
//! `pumice-heap`. `pumice serve` starts the daemon. Every `pub` item is sound to call from safe code, or `unsafe`.
//! Those with `#[doc(hidden)]` are for pumice's crates.
//!
//! | module | contents |
//! |---|---|
//! | [`pages`] | kinds of pages, and the side that is charged for them |
//! | [`snapshot`] | names of snapshots, and whether their lessees share memory |
//! | [`ticket`] | tickets, for which slots are reserved |
//! | [`refusal`] | a daemon's no, and its reasons |
//! | [`message`] | the protocol's messages and their bytes |
//! | [`settings`] | the settings of a running daemon that can change |
//! | [`stat`] | a daemon's counts |
//! | [`socket`] | packets and descriptors over a unix socket |
//! | [`file`](mod@file) | a slot's file: made, sealed, populated, ended |
//! | [`shared`] | the memory of a shared snapshot, which nobody can change |
//! | [`peer`] | the credentials of a socket's listener |
//! | [`client`] | leasing: [`Client`] and the guard [`Lease`] |
//! | [`serving`] | sockets in safe folders, pages of metrics |
//! | [`memory`] | the memory that can be had |
//! | [`daemon`] | the daemon |
//! | [`error`] | the errors of clients and daemons |
//!
//! # Isolation of tenants
//!
//! A slot is an inode of its own, leased once and never again. So the data of one tenant can't reach another, even
//! where a tenant keeps a mapping, a descriptor, or a copy of it in another process. The order of its life ensures
//! that:
//!
//! 1. It is made, given its size, and sealed with `F_SEAL_GROW | F_SEAL_SEAL` while it is still empty
//!    and nobody else's. Growing it is impossible from then on, before a lease and after it alike, and
//!    the second seal keeps a tenant from adding one that would hinder the daemon (`F_SEAL_SHRINK`
//!    would forbid the truncation at the end, `F_SEAL_WRITE` the populating).
//! 2. It is populated, by faults in a mapping of the daemon's that is gone before the lease. A snapshot's content comes
//!    there by the same mapping.
//! 3. It is leased: one descriptor goes to one peer, whose credentials the kernel vouches for.
//! 4. The lease ends when its connection does, however that comes. The daemon truncates the file and
//!    closes it. Mappings that are left get SIGBUS, and no descriptor brings the size back.
//!
//! A shared snapshot's memory is the exception: any number of tenants have it, and it has one content for good. It is
//! filled like a slot and then sealed against writing and every change of its size, before anybody has it. Tenants get
//! a descriptor for reading, and their private mappings copy the pages that they write to. It is never truncated: the
//! kernel frees it when the daemon and the last tenant have let go of it.
//!
//! Pages that a tenant has pinned (registered buffers, a device) stay its own until it unpins them: truncating
//! takes pages out of the file, and none is anybody else's before its last user is gone. On hugetlb
//! pages the kernel lets each holder of the descriptor map it anew and so grow it, seals or not: the holder gets
//! zeroed pages of the common pool then, which `MAP_HUGETLB` would give it as well.

pub mod client;
pub mod daemon;
pub mod error;
pub mod file;
pub mod memory;
pub mod message;
pub mod pages;
pub mod peer;
pub mod refusal;
pub mod serving;
pub mod settings;
pub mod shared;
pub mod snapshot;
pub mod socket;
pub mod stat;
pub mod ticket;

pub use client::{default_socket, Client, Lease};
pub use error::{Error, ServeError};
pub use file::SlotFile;
pub use message::LeaseRequest;
pub use pages::{Charge, PageKind};
pub use refusal::Refusal;
pub use shared::SharedFile;
pub use snapshot::{Sharing, SnapshotName};
pub use ticket::Ticket;
