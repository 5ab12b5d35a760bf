//! Experiments that compare processes: ours and the kernel's, each with as much memory, in turns.
//!
//! | module | contents |
//! |---|---|
//! | [`worker`] | a process that is told what to do by lines of JSON on its input, and answers each |
//! | [`answer`] | a worker's answer, and how it is made |
//! | [`control_group`] | a control group that limits the kernel's, or neighbours |
//! | [`folder`] | where files lie that go when it is over |
//! | [`waits`] | how long accesses took |
//! | [`zone`] | frames of a process of ours |

pub mod answer;
pub mod control_group;
pub mod folder;
pub mod waits;
pub mod worker;
pub mod zone;
