//! Sockets that other users connect to, and pages of metrics.
//!
//! | module | contents |
//! |---|---|
//! | [`folder`] | folders that only this user and root can write in, opened step by step |
//! | [`bound`] | sockets in such folders; those that dead daemons left are removed |
//! | [`page`] | a page of metrics |
//! | [`http`] | pages for Prometheus, at a unix socket or a port of this machine |

pub(crate) mod bound;
pub(crate) mod folder;
pub mod http;
pub mod page;
