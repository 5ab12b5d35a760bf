//! The tree that a process counts in.
//!
//! There are three kinds: one that a `pumice run` made and keeps, by its number; one of a name, which the first process
//! that asks makes ([`TreeName`]); and one for the process alone, where neither can be had. A named one is for the
//! processes of one user, one namespace of processes and one of shared memory. A process that runs under another user
//! than the `pumice run` that made the first kind, or in another namespace of shared memory, counts for itself. So does
//! one whose `pumice run` is gone.

use super::Variables;
use crate::config;
use crate::stats::{is_head_of, Head, Tree, TreeName, TREE_SIZE};
use pumice_frames::sys::segment::{self, View};
use rustix::process::geteuid;

/// The tree that other processes read, if there is one and it can be had. A named one is made if nobody has it.
pub fn shared_tree(variables: &impl Variables) -> Option<&'static Tree> {
    kept_tree(variables).or_else(|| named_tree(variables))
}

/// The tree that is shared, or one for this process alone.
pub(super) fn tree(variables: &impl Variables) -> Option<&'static Tree> {
    shared_tree(variables).or_else(|| private_tree(variables))
}

fn kept_tree(variables: &impl Variables) -> Option<&'static Tree> {
    let id = variables.get(config::ENV_STATS)?.parse().ok()?;
    let memory = segment::attach(id, TREE_SIZE, geteuid().as_raw()).ok()?;
    // SAFETY: mapped at the size of a tree, and never unmapped.
    unsafe { Tree::open(memory) }
}

fn named_tree(variables: &impl Variables) -> Option<&'static Tree> {
    let name = TreeName::parse(variables.get(config::ENV_TREE)?)?;
    let is_it = |view: &View| {
        let mut head: Head = [0; _];
        view.read(0..head.len(), &mut head).is_ok() && is_head_of(&head, name)
    };
    let prepare = |memory| {
        // SAFETY: mapped at the size of a tree or more, and never unmapped. The bytes are zeros, or those that another
        // process writes which prepares it: atomics all of them, with the same values.
        unsafe { Tree::create(memory, name, pool_max(variables), 0) };
    };
    let memory = segment::common(name.segment(), is_it, prepare).ok()?;
    // SAFETY: as above.
    unsafe { Tree::open(memory) }
}

/// A tree for this process alone, as its variables say.
fn private_tree(variables: &impl Variables) -> Option<&'static Tree> {
    let ready = variables.get(config::ENV_READY).and_then(config::parse_size);
    Tree::private(pool_max(variables), ready.unwrap_or(0) as u64).ok()
}

fn pool_max(variables: &impl Variables) -> u64 {
    let wanted = variables.get(config::ENV_POOL_MAX).and_then(config::parse_size);
    wanted.unwrap_or_else(half_of_memory) as u64
}

fn half_of_memory() -> usize {
    let info = rustix::system::sysinfo();
    info.totalram as usize / 2 * info.mem_unit as usize
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::stats::{Event, Owner};

    pub struct Given(pub &'static [(&'static str, &'static str)]);

    impl Variables for Given {
        fn get(&self, name: &str) -> Option<&str> {
            self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
        }
    }

    #[test]
    fn a_tree_of_its_own_is_as_large_as_the_variables_say() {
        let given = Given(&[("PUMICE_POOL_MAX", "64M"), ("PUMICE_READY", "8M")]);
        let own = private_tree(&given).expect("memory");
        assert_eq!((own.pool_max(), own.take_ready_bytes()), (64 << 20, 8 << 20));
        assert!(shared_tree(&given).is_none());
        for nowhere in [
            &[("PUMICE_STATS", "/nowhere")][..],
            &[("PUMICE_STATS", "-1")],
            &[("PUMICE_STATS", "4294967295")],
        ] {
            assert!(shared_tree(&Given(nowhere)).is_none() && tree(&Given(nowhere)).is_some());
        }
    }

    #[test]
    fn a_named_tree_is_the_same_for_all_who_ask() {
        let key = 0x5000_0000 | std::process::id();
        let name = TreeName::new(key);
        let text: &'static str = name.to_string().leak();
        let given = Given(std::vec![("PUMICE_TREE", text), ("PUMICE_POOL_MAX", "64M")].leak());
        let (one, other) = (tree(&given).expect("memory"), tree(&given).expect("memory"));
        assert_eq!((one.name(), one.pool_max(), one.ready_bytes()), (name, 64 << 20, 0));
        one.attach(Owner::here()).expect("a slot").add(Event::Requests, 5);
        assert!(!core::ptr::eq(one, other) && other.total(Event::Requests) == 5);
        let next = TreeName { key: key ^ 0x1000_0000, ..name };
        let text: &'static str = next.to_string().leak();
        let stranger = shared_tree(&Given(std::vec![("PUMICE_TREE", text)].leak()));
        assert_eq!(stranger.expect("memory").total(Event::Requests), 0);
        for bad in ["7", "1.2.0"] {
            assert!(shared_tree(&Given(std::vec![("PUMICE_TREE", bad)].leak())).is_none());
        }
    }
}
