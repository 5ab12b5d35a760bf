//! The daemon's counters as a page for Prometheus.

use super::census::Census;
use super::tickets::TicketCounts;
use crate::message::{ClassRow, FileState, SnapshotRow};
use crate::serving::page::Page;
use crate::stat::{Counter, WAIT_BOUNDS_US};

/// The page. `tickets` has the slots that are reserved now, and counts.
pub fn page(
    census: &Census,
    classes: &[ClassRow],
    snapshots: &[SnapshotRow],
    tickets: (u32, TicketCounts),
) -> String {
    const REFUSED: &str = "refused_";
    let mut page = Page::default();
    for counter in Counter::ALL {
        if counter != Counter::WaitSumUs && !counter.name().starts_with(REFUSED) {
            let name = format!("pumice_slots_{}", counter.name());
            let kind = if counter.is_gauge() { "gauge" } else { "counter" };
            page.metric(&name, kind, counter.explain()).sample(&[], census.get(counter));
        }
    }

    let help = "Requests refused, by reason.";
    let mut refused = page.metric("pumice_slots_refused_total", "counter", help);
    for counter in Counter::ALL {
        let reason = counter.name().strip_prefix(REFUSED);
        if let Some(reason) = reason.and_then(|reason| reason.strip_suffix("_total")) {
            refused.sample(&[("reason", &reason)], census.get(counter));
        }
    }

    let help = "Time that granted requests waited.";
    let mut waits = page.metric("pumice_slots_wait_seconds", "histogram", help);
    let mut all = 0;
    for (index, count) in census.waits().iter().enumerate() {
        all += count;
        let bound = match WAIT_BOUNDS_US.get(index) {
            Some(&bound_us) => (bound_us as f64 / 1e6).to_string(),
            None => "+Inf".to_owned(),
        };
        waits.part("_bucket", &[("le", &bound)], all);
    }
    waits.part("_sum", &[], census.get(Counter::WaitSumUs) as f64 / 1e6);
    waits.part("_count", &[], all);

    let mut slots = page.metric("pumice_slots_class", "gauge", "Slots of a class, by state.");
    for row in classes {
        let node = row.node.map_or_else(String::new, |node| node.to_string());
        for (state, count) in states(row) {
            slots.sample(
                &[("bytes", &row.bytes), ("pages", &row.pages), ("node", &node), ("state", &state)],
                count,
            );
        }
    }

    let (reserved, counts) = tickets;
    let help = "Slots reserved for tickets that nobody has.";
    page.metric("pumice_slots_reserved", "gauge", help).sample(&[], reserved);
    let help = "Reservations for tickets, by what came of them.";
    let mut events = page.metric("pumice_slots_tickets_total", "counter", help);
    for (event, count) in [
        ("reserved", counts.reserved),
        ("leased", counts.leased),
        ("expired", counts.expired),
        ("released", counts.released),
        ("wrong", counts.wrong),
    ] {
        events.sample(&[("event", &event)], count);
    }

    let help = "Slots with a snapshot's content, by state.";
    let mut slots = page.metric("pumice_slots_snapshot", "gauge", help);
    for row in snapshots {
        for (state, count) in states(&row.class) {
            slots.sample(&[("name", &row.name), ("state", &state)], count);
        }
    }
    let help = "Whether a snapshot's file is missing, can't be read or changes.";
    let mut failing = page.metric("pumice_slots_snapshot_failing", "gauge", help);
    for row in snapshots {
        failing.sample(&[("name", &row.name)], u8::from(row.file == FileState::Failing));
    }
    let help = "Whether all clients of a snapshot have the same slot.";
    let mut shared = page.metric("pumice_slots_snapshot_shared", "gauge", help);
    for row in snapshots {
        shared.sample(&[("name", &row.name)], row.sharing as u8);
    }
    page.into_text()
}

fn states(row: &ClassRow) -> [(&'static str, u32); 5] {
    [
        ("wanted", row.wanted),
        ("ready", row.ready),
        ("populating", row.populating),
        ("leased", row.leased),
        ("waited_for", row.waiting),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_page_has_a_value_for_each_name() {
        let mut census = Census::default();
        census.granted(Duration::from_micros(70));
        census.granted(Duration::from_secs(7_000));
        census.refused(crate::refusal::Reason::Quota);
        let page = page(&census, &[], &[], (0, TicketCounts::default()));
        assert!(page.contains("\npumice_slots_granted_total 2\n"), "{page}");
        assert!(page.contains("pumice_slots_refused_total{reason=\"quota\"} 1\n"));
        assert!(page.contains("pumice_slots_wait_seconds_bucket{le=\"0.0001\"} 1\n"));
        assert!(page.contains("pumice_slots_wait_seconds_bucket{le=\"+Inf\"} 2\n"));
        assert!(page.contains("pumice_slots_wait_seconds_count 2\n"));
        for line in page.lines() {
            let is_comment = line.starts_with("# HELP ") || line.starts_with("# TYPE ");
            let value = line.rsplit(' ').next().expect("a value");
            assert!(is_comment || value.parse::<f64>().is_ok(), "{line}");
        }
    }
}
