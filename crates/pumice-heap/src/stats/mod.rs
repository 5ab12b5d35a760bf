//! Event counters, in a versioned layout that other processes can map.
//!
//! There is one segment of shared memory for the whole tree of processes: `pumice run` makes it where it stays as
//! their parent, else the first of them that needs it ([`TreeName`]). Each process that comes to serve a request
//! takes a [`CounterSlot`] in it and counts there, so reading never stops or slows anyone. The segment is a
//! [`Tree`]: a header with the tree's totals, then [`SLOTS`] slots. Every field that changes is an atomic of 64
//! bits, little-endian on every machine this runs on. A reader checks [`Tree::open`]'s conditions and then believes
//! nothing but numbers: the writers are programs.
//!
//! All counters are statistics: relaxed, and right once their writer is quiet. The exception is
//! the pool's size, on which the limit rests: it changes by compare-and-swap.

mod event;
mod name;
mod owner;
mod reason;
mod slot;
mod split;
mod tree;

pub use event::{Event, EVENTS};
pub use name::{is_tree_len, TreeName};
pub use owner::Owner;
pub use reason::Reason;
pub use slot::{CounterSlot, SETTINGS};
pub use split::{FreeBytes, PoolSplit};
pub use tree::{is_head_of, Head, Tree, FOLDS, MAGIC, SLOTS, TREE_SIZE, VERSION};
