//! Devices: a slot each, with a name that is the same for as long as the daemon has as many slots of its class.
//!
//! A device is no certain slot: those of a class are alike, and each holder of a ticket gets one of them.

use std::collections::HashSet;

use pumice_slots::message::{ClassRow, ReservationRow};
use pumice_slots::refusal::size;
use pumice_slots::ticket::{ReservationName, Stage};
use pumice_slots::PageKind;

use crate::api;

/// The properties that the devices of a class share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// Bytes.
    pub bytes: u64,
    /// The kind of pages.
    pub pages: PageKind,
    /// The memory node, if one was chosen.
    pub node: Option<u32>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name, which its reservation has, too.
    pub name: ReservationName,
    /// The properties of its slot.
    pub kind: Kind,
    /// Whether it can be given out.
    pub is_healthy: bool,
    /// Whether a slot of its class is ready for it.
    pub is_ready: bool,
}

/// All devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// In the order of their classes and numbers.
    pub devices: Vec<Device>,
}

/// Slots of a class that clients have leased without a ticket.
pub fn strangers(class: &ClassRow, reservations: &[ReservationRow]) -> u32 {
    let is_ours =
        |row: &&ReservationRow| row.stage == Stage::Leased && Kind::of_row(row) == Kind::of(class);
    class.leased.saturating_sub(reservations.iter().filter(is_ours).count() as u32)
}

impl Kind {
    /// Of a class.
    pub fn of(class: &ClassRow) -> Kind {
        Kind { bytes: class.bytes, pages: class.pages, node: class.node }
    }

    fn of_row(row: &ReservationRow) -> Kind {
        Kind { bytes: row.bytes, pages: row.pages, node: row.node }
    }

    /// The size as it stands in names, such as `4g`.
    pub fn size(&self) -> String {
        size(self.bytes).to_lowercase()
    }

    /// The resource that its devices are of, such as `pumice.dev/slot-4g`. All kinds of one size are the same.
    pub fn resource(&self, domain: &str) -> String {
        format!("{domain}/slot-{}", self.size())
    }

    /// The name of its device of this number.
    fn name(&self, number: u32) -> Option<ReservationName> {
        let (size, pages) = (self.size(), self.pages.name());
        let node = self.node.map_or_else(String::new, |node| format!("-n{node}"));
        format!("{size}-{pages}{node}-{number}").parse().ok()
    }
}

impl Inventory {
    /// The devices of a daemon's slots. `strangers_of` tells how many of a class clients have without a ticket: for so
    /// many devices there is no slot.
    pub fn new(
        classes: &[ClassRow],
        reservations: &[ReservationRow],
        strangers_of: impl Fn(Kind) -> u32,
    ) -> Inventory {
        let reserved: HashSet<_> = reservations.iter().map(|row| row.name).collect();
        let mut devices = Vec::new();
        for class in classes {
            let kind = Kind::of(class);
            let names: Vec<_> = (0..class.wanted).filter_map(|number| kind.name(number)).collect();
            let given = names.iter().filter(|name| reserved.contains(name)).count() as u32;
            let mut left = class.wanted.saturating_sub(strangers_of(kind) + given);
            let is_kept =
                |row: &&ReservationRow| row.stage != Stage::Leased && Kind::of_row(row) == kind;
            let kept = reservations.iter().filter(is_kept).count() as u32;
            let mut ready = class.ready.saturating_sub(kept);
            for name in names {
                let is_given = reserved.contains(&name);
                let is_healthy = is_given || left > 0;
                let is_ready = !is_given && is_healthy && ready > 0;
                left -= u32::from(!is_given && left > 0);
                ready -= u32::from(is_ready);
                devices.push(Device { name, kind, is_healthy, is_ready });
            }
        }
        Inventory { devices }
    }

    /// The same while the daemon is gone.
    pub fn without_daemon(&self) -> Inventory {
        let gone =
            |device: &Device| Device { is_healthy: false, is_ready: false, ..device.clone() };
        Inventory { devices: self.devices.iter().map(gone).collect() }
    }

    /// The resources, each once, and the size in it.
    pub fn resources(&self, domain: &str) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for device in &self.devices {
            let resource = (device.kind.resource(domain), device.kind.size());
            if !found.contains(&resource) {
                found.push(resource);
            }
        }
        found
    }

    /// The device of a name.
    pub fn find(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name.as_str() == name)
    }

    /// The devices of a size as the kubelet sees them.
    pub fn list(&self, size: &str) -> api::ListAndWatchResponse {
        let theirs = self.devices.iter().filter(|device| device.kind.size() == size);
        api::ListAndWatchResponse { devices: theirs.map(Device::listed).collect() }
    }

    /// The devices that should be given out: those that must be, and then, if possible, others of one memory node whose
    /// slots are ready.
    pub fn preferred(&self, available: &[String], must: &[String], count: usize) -> Vec<String> {
        let mut chosen: Vec<String> = must.iter().take(count).cloned().collect();
        let rest = available.iter().filter(|name| !must.contains(name));
        let mut rest: Vec<&Device> = rest.filter_map(|name| self.find(name)).collect();
        let needed = count - chosen.len();
        let node = match must.iter().find_map(|name| self.find(name)) {
            Some(first) => first.kind.node,
            None => fullest_node(&rest, needed),
        };
        // A stable sort: of those that are alike, the kubelet's order.
        rest.sort_by_key(|device| (device.kind.node != node, !device.is_ready));
        chosen.extend(rest.iter().take(needed).map(|device| device.name.to_string()));
        chosen
    }
}

/// The node that has enough of these devices, and of those the one with the most ready ones.
fn fullest_node(devices: &[&Device], needed: usize) -> Option<u32> {
    let rank = |device: &&&Device| {
        let same = || devices.iter().filter(|other| other.kind.node == device.kind.node);
        (same().count().min(needed), same().filter(|other| other.is_ready).count())
    };
    // The first of several: a maximum would be the last.
    devices.iter().rev().max_by_key(rank).and_then(|device| device.kind.node)
}

impl Device {
    fn listed(&self) -> api::Device {
        let node = self.kind.node.map(|node| api::NumaNode { id: node.into() });
        api::Device {
            id: self.name.to_string(),
            health: if self.is_healthy { api::HEALTHY } else { api::UNHEALTHY }.to_owned(),
            topology: node.map(|node| api::TopologyInfo { nodes: vec![node] }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(bytes: u64, node: Option<u32>, wanted: u32, ready: u32, leased: u32) -> ClassRow {
        ClassRow {
            bytes,
            pages: PageKind::Thp,
            node,
            wanted,
            ready,
            populating: 0,
            populating_bytes: 0,
            huge_bytes: 0,
            leased,
            waiting: 0,
        }
    }

    fn reserved(name: &str, bytes: u64, stage: Stage) -> ReservationRow {
        ReservationRow {
            name: name.parse().expect("a name"),
            bytes,
            pages: PageKind::Thp,
            node: None,
            stage,
            left_ms: 1,
        }
    }

    fn health(inventory: &Inventory) -> Vec<(String, bool, bool)> {
        let devices = inventory.devices.iter();
        devices.map(|it| (it.name.to_string(), it.is_healthy, it.is_ready)).collect()
    }

    #[test]
    fn names_are_of_sizes_kinds_and_numbers() {
        let classes = [class(4 << 30, None, 2, 0, 0), class(4 << 30, Some(1), 1, 0, 0)];
        let inventory = Inventory::new(&classes, &[], |_| 0);
        let names: Vec<_> = inventory.devices.iter().map(|it| it.name.to_string()).collect();
        assert_eq!(names, ["4g-thp-0", "4g-thp-1", "4g-thp-n1-0"]);
        let resources = inventory.resources("pumice.dev");
        assert_eq!(resources, [("pumice.dev/slot-4g".to_owned(), "4g".to_owned())]);
        let list = inventory.list("4g").devices;
        assert_eq!(list[0].topology, None);
        assert_eq!(list[2].topology.as_ref().map(|it| it.nodes[0].id), Some(1));
        assert!(inventory.list("8g").devices.is_empty());
        // The longest name there can be.
        let long = Kind { bytes: 1023 << 30, pages: PageKind::ALL[2], node: Some(1023) };
        assert!(long.name(65535).is_some());
    }

    #[test]
    fn slots_that_strangers_have_are_no_devices() {
        let bytes = 1 << 30;
        let rows =
            [reserved("1g-thp-2", bytes, Stage::Leased), reserved("1g-thp-0", bytes, Stage::Kept)];
        let class = class(bytes, None, 4, 2, 2);
        assert_eq!(strangers(&class, &rows), 1);
        let inventory = Inventory::new(&[class], &rows, |_| 1);
        let expected = [
            ("1g-thp-0".to_owned(), true, false),
            ("1g-thp-1".to_owned(), true, true),
            ("1g-thp-2".to_owned(), true, false),
            ("1g-thp-3".to_owned(), false, false),
        ];
        assert_eq!(health(&inventory), expected);
        assert!(health(&inventory.without_daemon()).iter().all(|(_, healthy, _)| !healthy));
    }

    #[test]
    fn devices_of_one_node_whose_slots_are_ready_are_preferred() {
        let bytes = 1 << 30;
        let classes = [class(bytes, Some(0), 2, 1, 0), class(bytes, Some(1), 3, 2, 0)];
        let inventory = Inventory::new(&classes, &[], |_| 0);
        let all: Vec<_> = inventory.devices.iter().map(|it| it.name.to_string()).collect();
        let one = |node, number| format!("1g-thp-n{node}-{number}");
        assert_eq!(inventory.preferred(&all, &[], 2), [one(1, 0), one(1, 1)]);
        assert_eq!(inventory.preferred(&all, &[], 3), [one(1, 0), one(1, 1), one(1, 2)]);
        assert_eq!(inventory.preferred(&all, &[one(0, 1)], 2), [one(0, 1), one(0, 0)]);
        assert_eq!(inventory.preferred(&all, &[], 9).len(), 5);
        assert_eq!(inventory.preferred(&[one(1, 2), one(0, 1)], &[], 1), [one(1, 2)]);
        assert_eq!(inventory.preferred(&["other".into()], &[], 1), Vec::<String>::new());
        assert_eq!(inventory.preferred(&all, &all, 1), [one(0, 0)]);
    }
}
