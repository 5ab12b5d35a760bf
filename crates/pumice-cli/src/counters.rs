//! The counters and settings of a tree of programs: made, found again, copied.
//!
//! `pumice run` makes them in a segment of shared memory ([`segment`]) and tells the programs its number, or, where it
//! becomes the program, has the first program make them. The kernel says of each segment whose it is; the tree in it
//! names the process that leads it. It goes when the last process that counts there has ended: nothing is left to sweep
//! up, and nothing can cut it off.

use std::io;
use std::ptr::NonNull;
use std::time::SystemTime;

use pumice_frames::sys::segment::{self, Status, View};
use pumice_heap::stats::{is_tree_len, CounterSlot, Tree, TreeName, FOLDS, TREE_SIZE};

use crate::numbers::Numbers;

/// A tree that changes during each of so many readings is shown as it is.
const MOST_READINGS: usize = 4;

/// A segment that nobody has for so many seconds, and that is to be found by its key, is abandoned.
const ABANDONED_S: u64 = 10;

/// A tree of programs, as the `pumice run` has it that made it.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    /// For `PUMICE_STATS`.
    pub id: u32,
    /// Its contents.
    pub tree: &'static Tree,
}

impl Counters {
    /// Makes them. `pool_max` and `ready` are in bytes.
    pub fn create(pool_max: u64, ready: u64) -> io::Result<Counters> {
        let (id, memory) = segment::create(TREE_SIZE)?;
        // SAFETY: a new segment's bytes are zeros, and it is never unmapped.
        let tree = unsafe { Tree::create(memory, TreeName::of_own(), pool_max, ready) };
        Ok(Counters { id, tree })
    }
}

/// Removes segments whose makers were killed in the few microseconds in which nobody had them. Nobody else of their
/// trees has come since, or it would have them.
pub fn remove_abandoned() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    remove_abandoned_at(now.as_secs());
}

fn remove_abandoned_at(now_s: u64) {
    let own = rustix::process::geteuid().as_raw();
    let is_abandoned = |status: &Status| {
        let age_s = now_s.saturating_sub(status.changed_s);
        status.has_key()
            && status.attached == 0
            && status.owner() == Some(own)
            && age_s >= ABANDONED_S
    };
    for (id, status) in segment::all().into_iter().flatten() {
        if is_tree_len(status.len) && is_abandoned(&status) {
            // Where it is gone, another was faster.
            let _ = segment::remove(id);
        }
    }
}

/// Slots of processes that exist, each with the process's number here.
pub fn live_slots<'t>(
    tree: &'t Tree,
    numbers: &'t Numbers,
) -> impl Iterator<Item = (u32, &'t CounterSlot)> {
    tree.slots().iter().filter_map(|slot| Some((numbers.here(slot.owner())?, slot)))
}

/// The number here of the process that leads a tree, or the number that it had where that is the same; 0 where neither
/// is known.
pub fn leader(tree: &Tree, numbers: &Numbers) -> u32 {
    let leader = tree.name().leader;
    let before = || if numbers.is_own(leader) { leader.pid } else { 0 };
    numbers.here(leader).unwrap_or_else(before)
}

/// The name of the program that counts in a slot. The program may have written anything there.
pub fn program_name(slot: &CounterSlot) -> String {
    let name = slot.name();
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

/// A segment that may be a tree's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its number.
    pub id: u32,
    /// The user whose it is.
    pub uid: u32,
    /// Its bytes.
    pub len: usize,
}

/// All there are that this user may read.
pub fn all() -> impl Iterator<Item = Found> {
    segment::all().into_iter().flatten().filter_map(|(id, status)| found(id, &status))
}

fn found(id: u32, status: &Status) -> Option<Found> {
    let uid = status.owner().filter(|_| is_tree_len(status.len))?;
    Some(Found { id, uid, len: status.len })
}

/// The tree in a segment, if it is one of this version. Never unmapped.
pub fn open(found: Found) -> Option<&'static Tree> {
    let memory = segment::attach(found.id, found.len, found.uid).ok()?;
    // SAFETY: mapped, as long as a tree at least, and never unmapped.
    unsafe { Tree::open(memory) }
}

/// A copy of a tree.
///
/// The maker of a segment may have made it of huge pages that are not there, and a process that touches those is
/// killed. A copy can be touched.
#[derive(Debug)]
pub struct Snapshot(Box<Page>);

/// As a [`Tree`] is mapped.
#[derive(Debug)]
#[repr(align(4096))]
struct Page([u8; TREE_SIZE]);

impl Snapshot {
    /// `None` if it is no tree of this version, or another user's by now.
    pub fn read(expected: Found) -> Option<Snapshot> {
        let view = View::open(expected.id).ok()?;
        if found(expected.id, &view.status) != Some(expected) {
            return None;
        }
        let copy = |part, into: &mut [u8]| view.copy(part, into).ok();
        let mut snapshot = Snapshot(Box::new(Page([0; TREE_SIZE])));
        // While a slot goes to another process, its counters are nowhere. That takes a microsecond, unless the
        // process that does it is killed.
        for _ in 0..MOST_READINGS {
            copy(0..TREE_SIZE, &mut snapshot.0 .0)?;
            // SAFETY: the bytes are there for as long as the reference is looked at.
            let tree = unsafe { Tree::open(NonNull::from(&mut snapshot.0 .0).cast()) }?;
            let mut later = [0; FOLDS.end - FOLDS.start];
            copy(FOLDS, &mut later)?;
            if tree.is_settled() && snapshot.0 .0[FOLDS] == later {
                break;
            }
        }
        Some(snapshot)
    }

    /// Its contents.
    pub fn tree(&self) -> &Tree {
        let at = NonNull::from(&self.0 .0).cast();
        // SAFETY: the bytes are aligned, and there for as long as this value is.
        unsafe { Tree::open(at) }.expect("looked at when it was read")
    }
}

#[cfg(test)]
pub mod tests {
    use pumice_heap::stats::Event;

    use super::*;

    /// The segment of this process's as it is found.
    pub fn own(id: u32) -> Found {
        let uid = rustix::process::geteuid().as_raw();
        Found { id, uid, len: TREE_SIZE }
    }

    #[test]
    fn totals_never_go_back_while_slots_change_hands() {
        let made = Counters::create(1 << 30, 0).expect("shared memory");
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let relaxed = std::sync::atomic::Ordering::Relaxed;
                while !stop.load(relaxed) {
                    // No process has such a number, so each takes the slot of one before.
                    made.tree.attach(u32::MAX - 1).expect("a slot").add(Event::Requests, 1 << 20);
                    // Faster than any program: but counters that change at each reading are shown as they are.
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            });
            let (mut most, mut went_back) = (0, None);
            for _ in 0..5000 {
                let snapshot = Snapshot::read(own(made.id)).expect("a tree");
                let now = snapshot.tree().total(Event::Requests);
                went_back = went_back.or((now < most).then_some((most, now)));
                most = most.max(now);
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(went_back, None);
        });
    }

    #[test]
    fn a_tree_is_found_and_opened_by_its_owner() {
        let made = Counters::create(1 << 30, 0).expect("shared memory");
        let found = own(made.id);
        assert!(all().any(|it| it == found));
        assert_eq!(open(found).expect("a tree").pool_max(), 1 << 30);
        let others = Found { uid: found.uid + 1, ..found };
        assert!(open(others).is_none() && Snapshot::read(others).is_none());
    }

    #[test]
    fn what_nobody_has_for_long_is_abandoned() {
        // SAFETY: plain system calls.
        let id =
            unsafe { libc::shmget(0x7a11_0000, TREE_SIZE + 1, libc::IPC_CREAT | 0o600) } as u32;
        let made = segment::status(id).expect("there");
        remove_abandoned_at(made.changed_s + ABANDONED_S - 1);
        assert!(segment::status(id).is_ok_and(|status| status.has_key()));
        remove_abandoned_at(made.changed_s + ABANDONED_S);
        assert!(segment::status(id).is_err());
    }

    #[test]
    fn another_segment_is_no_tree() {
        let (id, _) = segment::create(TREE_SIZE).expect("shared memory");
        assert!(open(own(id)).is_none() && Snapshot::read(own(id)).is_none());
        let (id, _) = segment::create(TREE_SIZE - 1).expect("shared memory");
        assert!(all().all(|it| it.id != id) && Snapshot::read(own(id)).is_none());
    }
}
