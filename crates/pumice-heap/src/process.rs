//! The start of a process's heap, and how a forked child finds out that it is one.
//!
//! The shim and the Rust allocator read the variables each in its own way, and publish the heap in their own. The rest
//! is here: the obstacles to serving, the heap's start ([`Served`]), the tree it counts in, and the word by which a
//! child knows.
//!
//! # fork
//! A child must count in a slot of its own, and must not believe its parent's heap about memory that the two now
//! share. It finds out by a page that the kernel wipes on `fork` (`MADV_WIPEONFORK`), which is right for a raw `clone`
//! too, and for `vfork`, whose child *is* the parent as far as memory goes. The page holds a word:
//! ```text
//! FORKED (0) --first large request or free--> ADOPTING --> CURRENT
//!                                                  +-----> DETACHED: no slot, or no calls allowed
//! ```
//! So `fork` costs next to nothing here, and children that only exec never take a slot.
//!
//! # vfork
//! A process that has another one's memory until it starts a program must not take the heap for its own, nor start
//! threads for it: they would be threads of a process that ends. So the page also says whose the memory is, from the
//! end of a `fork` on that the C library makes. After one that it does not, the kernel is asked whether the parent has
//! the same memory; where it does not say (`kcmp` may be forbidden), the process that adopts is taken for the owner.

mod environment;
mod served;
mod trees;

pub use environment::{value_of, EnvironmentBlock, AT_PAGESZ, AT_SECURE};
pub use served::{Host, Served, ZeroCheck};
pub use trees::shared_tree;

use rustix::process::{getppid, getrlimit, Resource};

use crate::config::{self, Setting};
use crate::stats::{CounterSlot, Owner, Reason, Tree};
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::clear::Clearer;
use pumice_frames::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use pumice_frames::sys::topology::Topology;
use pumice_frames::sys::{file, mem, thread};

const FORKED: u32 = 0;
/// And the thread that does it, in one word.
const ADOPTING: u32 = 1 << 31;
const CURRENT: u32 = 2;
const DETACHED: u32 = 3;

/// So many memory nodes that are not there ([`Topology::fake`]). For tests, so it is not among those
/// of [`config`], which are documented for users.
const ENV_FAKE_NODES: &str = "PUMICE_FAKE_NODES";

/// The environment a process was started with, however it is read.
pub trait Variables {
    /// A variable's value, if it is set and is text.
    fn get(&self, name: &str) -> Option<&str>;
}

/// The word that a forked child finds wiped. See the module's top.
#[derive(Debug)]
pub struct ProcessWord {
    state: AtomicU32,
    /// The memory's process, as an [`Owner`]'s word; 0 where that is not known. Relaxed: it changes where no other
    /// thread of the owner can be.
    owner: AtomicU64,
}

impl ProcessWord {
    /// A word in a page of its own, which stays mapped. `None`: no memory, or an old kernel.
    pub fn map() -> Option<&'static ProcessWord> {
        let page = mem::map_wiped_on_fork().ok()?;
        // SAFETY: a page of zeros, which stays mapped.
        let word: &ProcessWord = unsafe { page.cast().as_ref() };
        // Relaxed: the thread that publishes the heap publishes this with it.
        word.state.store(CURRENT, Ordering::Relaxed);
        word.owner.store(Owner::here().into_word(), Ordering::Relaxed);
        Some(word)
    }

    /// To be called in a child of `fork`, before anything else can run there.
    pub fn note_fork(&self) {
        // Its namespace is looked up when the heap is adopted: most children never do that.
        let owner = Owner { namespace: 0, pid: thread::process_id() };
        self.owner.store(owner.into_word(), Ordering::Relaxed);
    }

    /// Whether the memory is another process's: see the module's top.
    pub fn is_borrowed(&self) -> bool {
        match self.owner.load(Ordering::Relaxed) {
            // A fork that nobody told of: this is its child, or a child of that one which has its memory.
            0 => thread::may_have_borrowed() && thread::shares_memory_with_parent() == Some(true),
            owner => !Owner::from_word(owner).is_here(),
        }
    }

    /// Whether this process may use the heap. In a forked child, `adopt` makes the heap its own
    /// and says whether it could; it is called once, by one thread, and others are told `false`
    /// until it is done.
    #[inline]
    pub fn is_current(&self, adopt: impl FnOnce() -> bool) -> bool {
        // Acquire: pairs with the Release in `adopt`.
        match self.state.load(Ordering::Acquire) {
            CURRENT => true,
            FORKED => self.adopt(adopt),
            _ => false,
        }
    }

    /// Whether this process has made the heap its own already.
    pub fn is_adopted(&self) -> bool {
        // Acquire: pairs with the Release in `adopt`.
        self.state.load(Ordering::Acquire) == CURRENT
    }

    /// The thread that is making the heap this process's own, at this moment.
    pub fn adopting_thread(&self) -> Option<u32> {
        // Acquire: pairs with the Release in `adopt`.
        let state = self.state.load(Ordering::Acquire);
        (state & ADOPTING != 0).then_some(state & !ADOPTING)
    }

    #[cold]
    fn adopt(&self, adopt: impl FnOnce() -> bool) -> bool {
        // Relaxed: the child is a copy of its parent, so there is nothing else to see.
        let relaxed = Ordering::Relaxed;
        let adopting = ADOPTING | thread::thread_id();
        if self.is_borrowed()
            || self.state.compare_exchange(FORKED, adopting, relaxed, relaxed).is_err()
        {
            return false;
        }
        self.owner.store(Owner::here().into_word(), relaxed);
        let adopted = adopt();
        // Release: pairs with the Acquire in `is_current`.
        self.state.store(if adopted { CURRENT } else { DETACHED }, Ordering::Release);
        adopted
    }
}

/// Whether this is the process that `pumice run` started, or the program that it became by `exec`, and has memory to
/// populate ahead ([`config::ENV_FIRST`]).
pub fn is_first(variables: &impl Variables) -> bool {
    let leader = variables.get(config::ENV_FIRST).and_then(|text| text.parse().ok());
    leader
        .is_some_and(|leader: i32| getppid().is_some_and(|it| it.as_raw_nonzero().get() == leader))
}

/// The program's name as the kernel knows it, at most 15 bytes.
pub fn program_name(buffer: &mut [u8; 16]) -> &[u8] {
    let name = file::read(c"/proc/self/comm", buffer).unwrap_or(&[]);
    name.strip_suffix(b"\n").unwrap_or(name)
}

/// A slot of the tree for this process, with the settings of its variables.
pub fn take_slot(
    tree: &'static Tree,
    name: &[u8],
    variables: &impl Variables,
) -> Option<&'static CounterSlot> {
    let slot = tree.attach(Owner::here())?;
    slot.set_name(name);
    for setting in Setting::ALL {
        if let Some(raw) = variables.get(setting.env()).and_then(|text| setting.parse(text)) {
            setting.set(slot, raw);
        }
    }
    Some(slot)
}

/// A slot of the tree for a forked child, with its parent's name and settings.
fn take_slot_of_child(tree: &'static Tree, parent: &CounterSlot) -> Option<&'static CounterSlot> {
    let slot = tree.attach(Owner::here())?;
    let name = parent.name();
    slot.set_name(name.split(|&byte| byte == 0).next().unwrap_or(&[]));
    for setting in Setting::ALL {
        setting.set(slot, setting.get(parent));
    }
    Some(slot)
}

/// The engines as the program that started the tree measured them; nothing is measured here.
fn clearer(variables: &impl Variables) -> Clearer {
    let measured = variables.get(config::ENV_CLEAR).map(Clearer::from_env_str);
    measured.and_then(Result::ok).unwrap_or_else(Clearer::detect)
}

/// The memory nodes of this machine, or those that a test makes up.
fn topology(variables: &impl Variables) -> Topology {
    let fake = variables.get(ENV_FAKE_NODES).and_then(|count| count.parse().ok());
    fake.map_or_else(Topology::read, Topology::fake)
}

/// Whether the variables say that nothing is to be served in this program, and which. It is asked for its name
/// ([`program_name`]) where they name programs.
///
/// # Errors
/// The reason.
pub fn find_refusal(variables: &impl Variables) -> Result<(), Reason> {
    let mut buffer = [0; 16];
    let mut is_listed = |variable| {
        let list = variables.get(variable)?;
        let name = program_name(&mut buffer);
        Some(core::str::from_utf8(name).is_ok_and(|name| config::list_has(list, name)))
    };
    let switch = variables.get(config::ENV_SWITCH).unwrap_or("on");
    let is_off = ["off", "0", "no", "false"].iter().any(|off| switch.eq_ignore_ascii_case(off));
    match () {
        () if is_off => Err(Reason::Off),
        () if is_listed(config::ENV_ONLY) == Some(false) => Err(Reason::NotOnly),
        () if is_listed(config::ENV_SKIP) == Some(true) => Err(Reason::Skipped),
        () => Ok(()),
    }
}

/// Whether the machine, or a limit, lets nothing be served in this process, and which.
///
/// # Errors
/// The reason.
pub fn find_obstacle(page_size: usize) -> Result<(), Reason> {
    let none_if = |reason, met| if met { Err(reason) } else { Ok(()) };
    let is_limited = |resource| getrlimit(resource).current.is_some();
    none_if(Reason::AddressSpace, is_limited(Resource::As) || is_limited(Resource::Data))?;
    none_if(Reason::Machine, page_size != FRAME_SIZE)?;
    none_if(Reason::Promised, is_promised_strictly())
}

/// Whether the kernel counts memory when it is mapped, and not when it is touched: free memory here would be missing
/// to all other programs.
fn is_promised_strictly() -> bool {
    let mut buffer = [0; 4];
    let mode = file::read(c"/proc/sys/vm/overcommit_memory", &mut buffer);
    mode.is_ok_and(|mode| mode.starts_with(b"2"))
}

#[cfg(test)]
mod tests {
    use super::trees::tests::Given;
    use super::*;

    #[test]
    fn a_process_is_current_until_it_is_a_child() {
        let word = ProcessWord::map().expect("a page");
        assert!(word.is_current(|| panic!("nothing to adopt")));
        // As the kernel leaves it in a child.
        word.state.store(FORKED, Ordering::Relaxed);
        assert!(word.is_current(|| true));
        assert!(word.is_current(|| panic!("adopted already")));
        word.state.store(FORKED, Ordering::Relaxed);
        assert!(!word.is_current(|| false));
        assert!(!word.is_current(|| panic!("it could not be adopted")));
    }

    #[test]
    fn what_asks_while_a_heap_is_adopted_is_not_served() {
        let word = ProcessWord::map().expect("a page");
        word.state.store(FORKED, Ordering::Relaxed);
        assert!(word.is_current(|| !word.is_current(|| panic!("twice"))));
    }

    #[test]
    fn a_borrower_of_the_memory_adopts_nothing() {
        let word = ProcessWord::map().expect("a page");
        assert!(!word.is_borrowed());
        // As in a child that has borrowed the memory of a child that has not adopted it.
        word.state.store(FORKED, Ordering::Relaxed);
        let other = Owner { pid: thread::process_id() + 1, ..Owner::here() };
        word.owner.store(other.into_word(), Ordering::Relaxed);
        assert!(word.is_borrowed() && !word.is_current(|| panic!("it is not its own")));
        word.note_fork();
        assert!(!word.is_borrowed() && word.is_current(|| true) && !word.is_borrowed());
        // After a fork that nobody told of.
        word.state.store(FORKED, Ordering::Relaxed);
        word.owner.store(0, Ordering::Relaxed);
        assert!(!word.is_borrowed() && word.is_current(|| true));
    }

    #[test]
    fn programs_are_chosen_by_name_and_switch() {
        let mut buffer = [0; 16];
        let name = core::str::from_utf8(program_name(&mut buffer)).expect("a name").to_owned();
        let own: &'static str = Box::leak(name.into_boxed_str());
        let find = |variable, value| find_refusal(&Given(Box::leak(Box::new([(variable, value)]))));
        assert_eq!(find_refusal(&Given(&[])), Ok(()));
        assert_eq!(find("PUMICE", "OFF"), Err(Reason::Off));
        assert_eq!(find("PUMICE_ONLY", "b, c"), Err(Reason::NotOnly));
        assert_eq!(find("PUMICE_ONLY", own), Ok(()));
        assert_eq!(find("PUMICE_SKIP", own), Err(Reason::Skipped));
        assert_eq!(find("PUMICE_SKIP", "b, c"), Ok(()));
        assert_eq!(find_obstacle(FRAME_SIZE), Ok(()));
        assert_eq!(find_obstacle(65536), Err(Reason::Machine));
    }

    #[test]
    fn nodes_can_be_made_up() {
        assert_eq!(topology(&Given(&[("PUMICE_FAKE_NODES", "3")])).count(), 3);
        assert_eq!(
            topology(&Given(&[("PUMICE_FAKE_NODES", "x")])).count(),
            Topology::read().count()
        );
    }

    #[test]
    fn only_the_child_of_the_leader_is_first() {
        assert!(!is_first(&Given(&[])));
        assert!(!is_first(&Given(&[("PUMICE_FIRST", "x")])));
        assert!(!is_first(&Given(&[("PUMICE_FIRST", "2147483647")])));
    }
}
