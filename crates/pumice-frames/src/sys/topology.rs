//! The machine's memory nodes: how many a heap tells apart, which one the caller is on, and which
//! others are near it.
//!
//! A *node* here is an index from 0; the kernel's numbers, which may have holes, stay inside. Only
//! nodes with memory that the process may have count. A processor without memory of its own is on
//! the node nearest to it, and so is one of a node beyond [`MAX_NODES`]. Where the kernel tells
//! nothing, or there is nothing to tell apart, there is one node, and nothing here makes a system
//! call after the start.

use core::ffi::CStr;
use core::fmt::{self, Arguments, Write};

use super::mempolicy::{self, NodeSet, MAX_NUMBERS};
use super::{cpu, file};

/// The most nodes told apart. Of more, evenly spread ones are taken: numbers that follow each
/// other are mostly near each other.
pub const MAX_NODES: usize = 8;

/// See the module's top.
#[derive(Clone, Debug)]
pub struct Topology {
    count: usize,
    /// The kernel's numbers.
    numbers: [u8; MAX_NODES],
    /// For each of the kernel's numbers, the node nearest to it.
    nearest: [u8; MAX_NUMBERS],
    /// For each node all of them, the nearest first, which is itself.
    orders: [[u8; MAX_NODES]; MAX_NODES],
    source: NodeSource,
}

#[derive(Clone, Copy, Debug)]
enum NodeSource {
    /// The kernel's.
    Kernel,
    /// Processors take turns.
    Fake,
    /// A test's.
    #[cfg(any(test, feature = "fake"))]
    Told(&'static super::fake::FakeNodes),
}

impl Topology {
    /// One node.
    pub fn one() -> Topology {
        Topology {
            count: 1,
            numbers: [0; MAX_NODES],
            nearest: [0; MAX_NUMBERS],
            orders: [[0; MAX_NODES]; MAX_NODES],
            source: NodeSource::Kernel,
        }
    }

    /// The nodes of this machine. One in a program that has a memory policy already: it knows
    /// better than the processor it happens to run on.
    pub fn read() -> Topology {
        let allowed = || match mempolicy::is_set() {
            true => Some(NodeSet::default()),
            false => mempolicy::allowed_nodes(),
        };
        Topology::read_from(&read_sys, allowed).unwrap_or_else(Topology::one)
    }

    /// So many nodes that are not there: processors take turns, and no policy is set.
    pub fn fake(count: usize) -> Topology {
        let mut topology = Topology::one();
        topology.count = count.clamp(1, MAX_NODES);
        topology.source = NodeSource::Fake;
        for node in 0..topology.count {
            topology.numbers[node] = node as u8;
            topology.set_order(node, |_| 0);
        }
        topology
    }

    /// As [`Topology::fake`]; the caller is where `told` says.
    #[cfg(any(test, feature = "fake"))]
    pub fn told(count: usize, told: &'static super::fake::FakeNodes) -> Topology {
        Topology { source: NodeSource::Told(told), ..Topology::fake(count) }
    }

    /// How many nodes there are: 1 to [`MAX_NODES`].
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The node that the caller runs on, or a stale one: a hint.
    #[inline]
    pub fn here(&self) -> usize {
        if self.count == 1 {
            return 0;
        }
        match self.source {
            NodeSource::Kernel => self.nearest[cpu::node() % MAX_NUMBERS].into(),
            NodeSource::Fake => cpu::current() % self.count,
            #[cfg(any(test, feature = "fake"))]
            NodeSource::Told(told) => told.here() % self.count,
        }
    }

    /// All nodes, `node` first and then the nearest first.
    #[inline]
    pub fn by_distance(&self, node: usize) -> impl DoubleEndedIterator<Item = usize> + '_ {
        self.orders[node][..self.count].iter().map(|&other| other.into())
    }

    /// Has the pages that the calling thread, a helper, faults in from now on come from a node, as far as that has
    /// room.
    pub fn prefer(&self, node: usize) {
        match self.source {
            _ if self.count == 1 => {}
            NodeSource::Kernel => mempolicy::prefer(self.numbers[node].into()),
            NodeSource::Fake => {}
            #[cfg(any(test, feature = "fake"))]
            NodeSource::Told(told) => told.prefer(node),
        }
    }
}

/// Reading.
impl Topology {
    /// The topology in files like those of `/sys/devices/system/node`. `read` reads one, by its name, into a buffer;
    /// `allowed` is asked only if there is more than one node with memory. `None`: one node.
    fn read_from(read: &Read, allowed: impl FnOnce() -> Option<NodeSet>) -> Option<Topology> {
        let mut buffer = [0; FILE_BYTES];
        let mut with_memory = parse_list(read(format_args!("has_memory"), &mut buffer)?)?;
        if with_memory.len() < 2 {
            return None;
        }
        if let Some(allowed) = allowed() {
            with_memory = with_memory.intersection(&allowed);
        }
        let total = with_memory.len();
        if total < 2 {
            return None;
        }
        let mut topology = Topology::one();
        topology.count = total.min(MAX_NODES);
        for node in 0..topology.count {
            let number = with_memory.iter().nth(node * total / topology.count)?;
            topology.numbers[node] = number as u8;
        }
        for (number, nearest) in topology.nearest.iter_mut().enumerate() {
            *nearest = (number % topology.count) as u8;
        }
        let online = read(format_args!("online"), &mut buffer).and_then(parse_list);
        let online = online.unwrap_or(with_memory);
        for number in online.iter() {
            let row = read(format_args!("node{number}/distance"), &mut buffer);
            topology.place(number, &online, row.unwrap_or_default());
        }
        Some(topology)
    }

    /// Says which node is nearest to one that is online, and if it is one of ours, which are near
    /// it. `row` has the distances from it, in the order of those online.
    fn place(&mut self, number: usize, online: &NodeSet, row: &[u8]) {
        let numbers = self.numbers;
        let distance = |node: usize| {
            let other = usize::from(numbers[node]);
            let position = online.iter().position(|it| it == other);
            let told = position.and_then(|position| parse_number(words(row).nth(position)?));
            // A node without a known distance counts as far: the greater the difference of the numbers, the farther.
            told.unwrap_or(1 << 16 | number.abs_diff(other) as u32)
        };
        let own = (0..self.count).find(|&node| usize::from(numbers[node]) == number);
        if let Some(own) = own {
            self.set_order(own, distance);
        }
        let nearest = own.or_else(|| (0..self.count).min_by_key(|&node| distance(node)));
        self.nearest[number] = nearest.unwrap_or(0) as u8;
    }

    /// Sets the order of a node: itself, then by distance. Of those equally far each node begins
    /// with another, so that they do not all turn to the same one.
    fn set_order(&mut self, node: usize, distance: impl Fn(usize) -> u32) {
        let count = self.count;
        let order = &mut self.orders[node][..count];
        for (turn, other) in order.iter_mut().enumerate() {
            *other = ((node + turn) % count) as u8;
        }
        order[1..].sort_unstable_by_key(|&other| {
            let other = usize::from(other);
            (distance(other), (other + count - node) % count)
        });
    }
}

/// The longest file that is read: the distances of 256 nodes.
const FILE_BYTES: usize = 1024;

/// Reads a file of `/sys/devices/system/node`.
type Read<'r> = dyn for<'b> Fn(Arguments, &'b mut [u8]) -> Option<&'b [u8]> + 'r;

fn read_sys<'b>(name: Arguments, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    let mut path = Path { text: [0; 64], len: 0 };
    write!(path, "/sys/devices/system/node/{name}\0").ok()?;
    file::read(CStr::from_bytes_until_nul(&path.text).ok()?, buffer).ok()
}

/// Text of a path, as it is put together.
struct Path {
    text: [u8; 64],
    len: usize,
}

impl Write for Path {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let rest = self.text.get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        rest.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

fn parse_number(text: &[u8]) -> Option<u32> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

/// Reads a list such as `0-1,8`. `None` if it is none.
fn parse_list(text: &[u8]) -> Option<NodeSet> {
    let mut nodes = NodeSet::default();
    for part in text.trim_ascii().split(|&byte| byte == b',').filter(|part| !part.is_empty()) {
        let mut ends = part.splitn(2, |&byte| byte == b'-').map(parse_number);
        let first = ends.next()?? as usize;
        let last = ends.next().map_or(Some(first), |last| Some(last? as usize))?;
        for number in first..=last.min(MAX_NUMBERS) {
            nodes.insert(number);
        }
    }
    Some(nodes)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::sys::fake::FakeNodes;

    /// Reads from files with these contents. `None` for allowed: the kernel does not say.
    fn read(files: &[(&str, &str)], allowed: Option<&str>) -> Topology {
        let files: HashMap<&str, &str> = files.iter().copied().collect();
        let read = |name: Arguments, buffer: &mut [u8]| -> Option<usize> {
            let text = files.get(name.to_string().as_str())?.as_bytes();
            buffer[..text.len()].copy_from_slice(text);
            Some(text.len())
        };
        let read = |name: Arguments, buffer: &mut [u8]| read(name, buffer);
        let allowed = allowed.map(|list| parse_list(list.as_bytes()).expect("a list"));
        Topology::read_from(
            &|name, buffer| {
                let len = read(name, buffer)?;
                Some(&buffer[..len])
            },
            || allowed,
        )
        .unwrap_or_else(Topology::one)
    }

    fn order(topology: &Topology, node: usize) -> Vec<usize> {
        topology.by_distance(node).collect()
    }

    #[test]
    fn lists() {
        let list = |text: &str| parse_list(text.as_bytes()).map(|set| set.iter().collect());
        assert_eq!(list("0\n"), Some(vec![0]));
        assert_eq!(list("0-2,8,250-251\n"), Some(vec![0, 1, 2, 8, 250, 251]));
        assert_eq!(list("\n"), Some(vec![]));
        assert_eq!(list("254-4000000000"), Some(vec![254, 255]));
        assert_eq!(list("7-3"), Some(vec![]));
        for none in ["x", "1-", "-1", "1-x", "0 1"] {
            assert_eq!(list(none), None, "{none}");
        }
    }

    #[test]
    fn one_node_where_there_is_nothing_to_tell_apart() {
        for (files, allowed) in [
            (&[][..], None),
            (&[("has_memory", "0\n")], None),
            (&[("has_memory", "\n")], None),
            (&[("has_memory", "what\n")], None),
            (&[("has_memory", "0-3\n"), ("online", "0-3\n")], Some("2")),
            (&[("has_memory", "0-3\n")], Some("")),
        ] {
            let topology = read(files, allowed);
            assert_eq!((topology.count(), topology.here()), (1, 0), "{files:?}");
            assert_eq!(order(&topology, 0), [0]);
        }
    }

    #[test]
    fn the_nearest_nodes_come_first() {
        let files = [
            ("has_memory", "0-3\n"),
            ("online", "0-3\n"),
            ("node0/distance", "10 32 12 32\n"),
            ("node1/distance", "32 10 32 12\n"),
            ("node2/distance", "12 32 10 32\n"),
            ("node3/distance", "32 12 32 10\n"),
        ];
        let topology = read(&files, Some("0-3"));
        assert_eq!(order(&topology, 0), [0, 2, 1, 3]);
        assert_eq!(order(&topology, 1), [1, 3, 2, 0]);
        assert_eq!(order(&topology, 2), [2, 0, 3, 1]);
        assert_eq!(order(&topology, 3), [3, 1, 0, 2]);
        let topology = read(&files, Some("1-2"));
        assert_eq!((topology.count(), topology.numbers), (2, [1, 2, 0, 0, 0, 0, 0, 0]));
        assert_eq!(topology.nearest[..4], [1, 0, 1, 0], "those forbidden are near one allowed");
    }

    #[test]
    fn numbers_have_holes_and_nodes_no_memory() {
        let topology = read(
            &[
                ("has_memory", "0,8,255\n"),
                ("online", "0-1,8,255\n"),
                ("node0/distance", "10 20 40 80\n"),
                ("node1/distance", "40 10 20 80\n"),
                ("node8/distance", "40 20 10 80\n"),
                ("node255/distance", "80 80 40 10\n"),
            ],
            None,
        );
        assert_eq!(topology.numbers[..3], [0, 8, 255]);
        assert_eq!(order(&topology, 2), [2, 1, 0]);
        let nearest = [0, 1, 8, 255].map(|number| topology.nearest[number]);
        assert_eq!(nearest, [0, 1, 1, 2], "what has no memory is near what has");
    }

    #[test]
    fn distances_may_be_missing_or_nonsense() {
        let files = [("has_memory", "0-2"), ("node0/distance", "10 x"), ("node2/distance", "\n")];
        let topology = read(&files, None);
        for node in 0..3 {
            let mut all = order(&topology, node);
            assert_eq!((all[0], usize::from(topology.nearest[node])), (node, node));
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2]);
        }
    }

    #[test]
    fn of_many_nodes_some_stand_for_all() {
        let rows: Vec<(String, String)> = (0..24)
            .map(|from: i32| {
                let row = (0..24).map(|to| if from / 12 == to / 12 { "11 " } else { "32 " });
                (format!("node{from}/distance"), row.collect())
            })
            .collect();
        let mut files = vec![("has_memory", "0-23"), ("online", "0-23")];
        files.extend(rows.iter().map(|(name, row)| (name.as_str(), row.as_str())));
        let topology = read(&files, Some("0-23"));
        assert_eq!(topology.count(), MAX_NODES);
        assert_eq!(topology.numbers, [0, 3, 6, 9, 12, 15, 18, 21]);
        for number in 0..24 {
            assert_eq!(topology.nearest[number] / 4, number as u8 / 12, "the same half");
        }
    }

    #[test]
    fn this_machine_has_nodes() {
        let topology = Topology::read();
        assert!((1..=MAX_NODES).contains(&topology.count()));
        assert!(topology.here() < topology.count());
    }

    #[test]
    fn fakes_are_where_they_are_told() {
        let told: &'static FakeNodes = Box::leak(Box::default());
        let topology = Topology::told(3, told);
        assert_eq!(order(&topology, 1), [1, 2, 0]);
        told.move_to(2);
        assert_eq!(topology.here(), 2);
        topology.prefer(1);
        assert_eq!(told.preferred(), [1]);
        assert!(Topology::fake(2).here() < 2);
        assert_eq!(Topology::fake(0).count(), 1);
        assert_eq!(Topology::fake(99).count(), MAX_NODES);
    }
}
