//! Address spaces as their mappings and faults show them, and what kind of fault each one is.

use std::collections::{BTreeMap, HashMap, HashSet};

/// A mapping of so many bytes and more is one that `pumice run` serves.
const SERVED_MAPPING: u64 = pumice_heap::config::MMAP_THRESHOLD as u64;
/// An allocation of so many bytes and more is one. glibc maps allocations of 128 KiB and more by
/// themselves, with a page for its own use.
const SERVED_ALLOCATION: u64 = pumice_heap::config::DEFAULT_THRESHOLD as u64;
/// The kernel's name for a mapping grown by `brk` or made for an arena.
const HEAP: &[u8] = b"[heap]";

/// The kind of memory in a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// A file, or memory that processes share: no zero-fill faults of the program's own.
    File,
    /// A thread's stack, or the process's.
    Stack,
    /// The heap that `brk` grows, of which allocations small and large are made.
    Heap,
    /// Private anonymous memory of this length.
    Anonymous(u64),
}

impl Area {
    /// The kind of a mapping by its name, `MAP_*` flags and length from the kernel.
    pub fn of(name: &[u8], flags: u32, len: u64) -> Area {
        let (shared, stack) = (libc::MAP_SHARED as u32, libc::MAP_STACK as u32);
        let grows = libc::MAP_GROWSDOWN as u32;
        if name.starts_with(b"[stack") || flags & (stack | grows) != 0 {
            Area::Stack
        } else if name.starts_with(HEAP) {
            Area::Heap
        } else if name.starts_with(b"//anon") && flags & shared == 0 {
            Area::Anonymous(len)
        } else {
            Area::File
        }
    }
}

/// An event and its time.
#[derive(Clone, Copy, Debug)]
pub struct Happening {
    /// By the clock that all processors share.
    pub time_ns: u64,
    /// The event.
    pub what: What,
}

/// An event that the kernel tells of.
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// A fault that stands for `weight` of them, and the size of the page that came; 0 if not known.
    Fault { pid: u32, tid: u32, at: u64, page_bytes: u64, weight: u64 },
    /// A mapping was made or grown.
    Map { pid: u32, at: u64, len: u64, area: Area },
    /// A process or thread was started.
    Fork { pid: u32, parent: u32 },
    /// A process became another program.
    Exec { pid: u32 },
}

impl What {
    /// The process that it belongs to.
    pub fn pid(&self) -> u32 {
        match *self {
            What::Fault { pid, .. }
            | What::Map { pid, .. }
            | What::Fork { pid, .. }
            | What::Exec { pid } => pid,
        }
    }

    /// Whether it is a fault that stands for so many.
    pub fn is_sampled_by(&self, faults: u64) -> bool {
        matches!(self, What::Fault { weight, .. } if *weight == faults)
    }
}

/// Faults by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Zero-fill faults that brought a small page.
    pub small: u64,
    /// Zero-fill faults that brought a huge page.
    pub huge: u64,
    /// Of the small ones, those in memory that `pumice run` would serve.
    pub served_small: u64,
    /// Of the huge ones.
    pub served_huge: u64,
    /// Of the small ones, those in a heap, where the requests are not known.
    pub heap_small: u64,
    /// Of the huge ones.
    pub heap_huge: u64,
    /// Copies of pages that a fork left shared.
    pub copied: u64,
    /// Pages of files and of shared memory.
    pub file: u64,
}

impl Counts {
    /// All of them.
    pub fn all(&self) -> u64 {
        self.small + self.huge + self.copied + self.file
    }

    /// Faults that the samples do not account for count as the kind of most samples.
    pub fn scaled_to(mut self, all: u64) -> Counts {
        let seen = self.all();
        if seen == 0 || seen == all {
            return self;
        }
        let most = [self.small, self.huge, self.copied, self.file].into_iter().max();
        let missing = all as i128 - i128::from(seen);
        let adjust = |count: &mut u64| {
            *count = u64::try_from((i128::from(*count) + missing).max(0)).unwrap_or(u64::MAX);
        };
        // In proportion, so that the parts that would be served stay parts of it.
        let scale = |whole: &mut u64, parts: [&mut u64; 2]| {
            let before = (*whole).max(1);
            adjust(whole);
            for part in parts {
                *part = (u128::from(*part) * u128::from(*whole) / u128::from(before)) as u64;
            }
        };
        if most == Some(self.small) {
            scale(&mut self.small, [&mut self.served_small, &mut self.heap_small]);
        } else if most == Some(self.huge) {
            scale(&mut self.huge, [&mut self.served_huge, &mut self.heap_huge]);
        } else if most == Some(self.copied) {
            adjust(&mut self.copied);
        } else {
            adjust(&mut self.file);
        }
        self
    }
}

/// A mapping: its end, its kind, and whether it was there before the process was forked.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    end: u64,
    area: Area,
    is_inherited: bool,
}

/// One process's mappings, by their start.
type Space = BTreeMap<u64, Mapping>;

/// A huge page's fault takes about as long as so many of small pages.
const HUGE_IN_SMALL: u64 = 128;

/// Faults of one thread in memory that is served or may be: small pages and huge ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadFaults {
    /// Those that brought small pages.
    pub small: u64,
    /// Those that brought huge ones.
    pub huge: u64,
}

/// All processes' mappings.
#[derive(Debug, Default)]
pub struct Spaces {
    spaces: HashMap<u32, Space>,
    counts: Counts,
    /// Processes that were forked and have executed nothing since.
    copies: HashSet<u32>,
    /// Bytes of each process that were zero-filled and are nothing that is served.
    other_bytes: HashMap<u32, u64>,
    threads: HashMap<u32, ThreadFaults>,
}

impl Spaces {
    /// Faults seen so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether a process is what another one forked, memory and all.
    pub fn is_copy(&self, pid: u32) -> bool {
        self.copies.contains(&pid)
    }

    /// Bytes of a process that were zero-filled and are nothing that is served: stacks, small mappings.
    pub fn other_bytes(&self, pid: u32) -> u64 {
        self.other_bytes.get(&pid).copied().unwrap_or(0)
    }

    /// Of the thread whose faults took longest, by and large.
    pub fn busiest_thread(&self) -> ThreadFaults {
        let long = |thread: &&ThreadFaults| thread.small + HUGE_IN_SMALL * thread.huge;
        self.threads.values().max_by_key(long).copied().unwrap_or_default()
    }

    /// Takes note of an event; in order of time.
    pub fn note(&mut self, what: &What) {
        match *what {
            What::Fault { pid, tid, at, page_bytes, weight } => {
                let is_huge = page_bytes > 4096;
                match self.fault(pid, at, is_huge, weight) {
                    Kind::Served => {
                        let thread = self.threads.entry(tid).or_default();
                        *(if is_huge { &mut thread.huge } else { &mut thread.small }) += weight;
                    }
                    Kind::Other => {
                        *self.other_bytes.entry(pid).or_default() += page_bytes.max(4096) * weight;
                    }
                    Kind::Elsewhere => {}
                }
            }
            What::Map { pid, at, len, area } => {
                let end = at.saturating_add(len);
                let mapping = Mapping { end, area, is_inherited: false };
                map(self.spaces.entry(pid).or_default(), at, mapping);
            }
            // A thread's start says so too, with its own process as parent.
            What::Fork { pid, parent } if pid != parent => {
                let mut space = self.spaces.get(&parent).cloned().unwrap_or_default();
                space.values_mut().for_each(|mapping| mapping.is_inherited = true);
                self.spaces.insert(pid, space);
                self.copies.insert(pid);
            }
            What::Fork { .. } => {}
            What::Exec { pid } => {
                self.spaces.insert(pid, Space::new());
                self.copies.remove(&pid);
            }
        }
    }

    /// Counts it, and says where it belongs.
    fn fault(&mut self, pid: u32, at: u64, is_huge: bool, weight: u64) -> Kind {
        let found = self.spaces.get(&pid).and_then(|space| {
            let (_, mapping) = space.range(..=at).next_back()?;
            (at < mapping.end).then_some(*mapping)
        });
        // Memory that mremap moved there, of which the kernel does not tell, is large and anonymous.
        let moved = Mapping { end: 0, area: Area::Anonymous(u64::MAX), is_inherited: false };
        let mapping = found.unwrap_or(moved);
        let counts = &mut self.counts;
        if mapping.area == Area::File {
            counts.file += weight;
            return Kind::Elsewhere;
        }
        if mapping.is_inherited {
            counts.copied += weight;
            return Kind::Elsewhere;
        }
        let (all, served, heap) = match is_huge {
            true => (&mut counts.huge, &mut counts.served_huge, &mut counts.heap_huge),
            false => (&mut counts.small, &mut counts.served_small, &mut counts.heap_small),
        };
        *all += weight;
        match mapping.area {
            Area::Anonymous(len) if len >= SERVED_MAPPING || is_allocation(len) => {
                *served += weight
            }
            Area::Heap => *heap += weight,
            _ => return Kind::Other,
        }
        Kind::Served
    }
}

/// Where a fault belongs.
enum Kind {
    /// In memory that is served, or may be.
    Served,
    /// In other memory that it filled with zeros.
    Other,
    /// It filled nothing with zeros.
    Elsewhere,
}

/// Whether a mapping's length is one that glibc makes for an allocation of its own.
fn is_allocation(len: u64) -> bool {
    len > 2 * SERVED_ALLOCATION
}

/// Puts a mapping over older ones. One that ends where the new one begins, and is of the same
/// kind, is grown, as the kernel does it.
fn map(space: &mut Space, at: u64, mut mapping: Mapping) {
    let overlapped: Vec<_> = space
        .range(..mapping.end)
        .rev()
        .take_while(|(_, old)| old.end > at)
        .map(|(&start, &old)| (start, old))
        .collect();
    for (start, old) in overlapped {
        space.remove(&start);
        if start < at {
            space.insert(start, Mapping { end: at, ..old });
        }
        if old.end > mapping.end {
            space.insert(mapping.end, old);
        }
        // The same memory with other attributes is no new memory.
        if old.is_inherited && start <= at && old.end >= mapping.end && old.area == mapping.area {
            mapping.is_inherited = true;
        }
    }
    space.insert(at, mapping);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn fault(pid: u32, at: u64) -> What {
        What::Fault { pid, tid: pid, at, page_bytes: 4096, weight: 1 }
    }

    fn map(pid: u32, at: u64, len: u64, area: Area) -> What {
        What::Map { pid, at, len, area }
    }

    fn counted(happenings: &[What]) -> Counts {
        let mut spaces = Spaces::default();
        happenings.iter().for_each(|what| spaces.note(what));
        spaces.counts()
    }

    #[test]
    fn areas_are_told_by_name_and_flags() {
        let private = libc::MAP_PRIVATE as u32;
        assert_eq!(Area::of(b"//anon", private, MIB), Area::Anonymous(MIB));
        assert_eq!(Area::of(b"[heap]", private, MIB), Area::Heap);
        assert_eq!(Area::of(b"[stack]", private, MIB), Area::Stack);
        assert_eq!(Area::of(b"//anon", private | libc::MAP_STACK as u32, MIB), Area::Stack);
        assert_eq!(Area::of(b"/usr/lib/libc.so.6", private, MIB), Area::File);
        assert_eq!(Area::of(b"/dev/zero (deleted)", libc::MAP_SHARED as u32, MIB), Area::File);
    }

    #[test]
    fn kinds_are_told_apart() {
        let huge = What::Fault { pid: 1, tid: 1, at: 10 * MIB, page_bytes: 2 * MIB, weight: 3 };
        let counts = counted(&[
            map(1, 10 * MIB, 4 * MIB, Area::Anonymous(4 * MIB)),
            map(1, 20 * MIB, MIB, Area::Heap),
            map(1, 30 * MIB, MIB, Area::File),
            map(1, 40 * MIB, 8192, Area::Anonymous(8192)),
            fault(1, 12 * MIB),
            huge,
            fault(1, 20 * MIB),
            fault(1, 30 * MIB),
            fault(1, 40 * MIB),
            // Moved there, or unknown for another reason.
            fault(1, 90 * MIB),
        ]);
        let expected = Counts {
            small: 4,
            huge: 3,
            served_small: 2,
            served_huge: 3,
            heap_small: 1,
            file: 1,
            ..Counts::default()
        };
        assert_eq!(counts, expected);
    }

    #[test]
    fn what_a_fork_left_shared_is_copied() {
        let counts = counted(&[
            map(1, MIB, 4 * MIB, Area::Anonymous(4 * MIB)),
            What::Fork { pid: 2, parent: 1 },
            fault(2, MIB),
            map(2, 64 * MIB, MIB, Area::Anonymous(MIB)),
            fault(2, 64 * MIB),
            What::Exec { pid: 2 },
            map(2, MIB, MIB, Area::Anonymous(MIB)),
            fault(2, MIB),
        ]);
        assert_eq!((counts.copied, counts.small), (1, 2));
    }

    #[test]
    fn the_busiest_thread_is_found() {
        let mut spaces = Spaces::default();
        assert_eq!(spaces.busiest_thread(), ThreadFaults::default());
        spaces.note(&map(1, 0, 10 * MIB, Area::Anonymous(10 * MIB)));
        for (tid, page_bytes, weight) in [(1, 4096, 100), (2, 2 * MIB, 1), (2, 4096, 3)] {
            spaces.note(&What::Fault { pid: 1, tid, at: MIB, page_bytes, weight });
        }
        assert_eq!(spaces.busiest_thread(), ThreadFaults { small: 3, huge: 1 });
    }

    #[test]
    fn later_mappings_lie_over_earlier_ones() {
        let counts = counted(&[
            map(1, 0, 10 * MIB, Area::Anonymous(10 * MIB)),
            map(1, 4 * MIB, MIB, Area::File),
            fault(1, 3 * MIB),
            fault(1, 4 * MIB),
            fault(1, 6 * MIB),
        ]);
        assert_eq!((counts.served_small, counts.file), (2, 1));
    }

    #[test]
    fn the_rest_goes_to_the_greatest() {
        let counts =
            Counts { small: 90, served_small: 45, heap_small: 9, file: 10, ..Counts::default() };
        let scaled = counts.scaled_to(110);
        assert_eq!((scaled.small, scaled.served_small, scaled.file), (100, 50, 10));
        assert_eq!(scaled.all(), 110);
        assert_eq!(counts.scaled_to(100), counts);
        assert_eq!(Counts::default().scaled_to(7), Counts::default());
    }
}
