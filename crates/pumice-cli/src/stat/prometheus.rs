//! A sample as a page for Prometheus.
//!
//! A tree's counters include those of processes that have ended, so that they never go back while one of its processes
//! lives. A process has its pool
//! as it is now, and its own counters.

use std::fmt::Display;

use pumice_heap::stats::Event;
use pumice_slots::serving::page::Page;

use super::sample::{Process, Sample, Totals};

/// A page of one sample.
pub fn page(sample: &Sample) -> String {
    let mut page = Page::default();
    page.metric("pumice_processes", "gauge", "Processes that are served by pumice.")
        .sample(&[], sample.processes.len());

    let mut of_trees = |name: &str, kind: &str, help: &str, value: &dyn Fn(&Totals) -> String| {
        let mut metric = page.metric(name, kind, help);
        for tree in &sample.trees {
            let labels: [(_, &dyn Display); 3] =
                [("run_pid", &tree.run_pid), ("uid", &tree.uid), ("tree", &tree.tree)];
            metric.sample(&labels, value(tree));
        }
    };
    of_trees("pumice_tree_pool_bytes", "gauge", "Bytes of pool of a tree.", &|tree| {
        tree.pool_bytes.to_string()
    });
    of_trees("pumice_tree_pool_peak_bytes", "gauge", "The most there ever were.", &|tree| {
        tree.pool_peak_bytes.to_string()
    });
    of_trees("pumice_tree_pool_max_bytes", "gauge", "The most there may be.", &|tree| {
        tree.pool_max_bytes.to_string()
    });
    of_trees("pumice_tree_processes_total", "counter", "Processes it ever had.", &|tree| {
        tree.processes.to_string()
    });
    for (index, event) in Event::ALL.into_iter().enumerate() {
        let name = format!("pumice_tree_{}_total", name_of(event));
        of_trees(&name, "counter", &format!("Of a tree: {}.", help_of(event)), &|tree| {
            value_of(event, tree.events.get(index).copied().unwrap_or(0))
        });
    }

    let help = "A process's share of the pool, by state.";
    let mut pool = page.metric("pumice_process_pool_bytes", "gauge", help);
    for process in &sample.processes {
        let split = process.split;
        let unknown = split.in_use_bytes.is_none().then_some(process.pool_bytes);
        for (state, bytes) in [
            ("zeroed", split.zeroed_bytes),
            ("unzeroed", split.unzeroed_bytes),
            ("absent", split.absent_bytes),
            ("in_use", split.in_use_bytes),
            ("unknown", unknown),
        ] {
            if let Some(bytes) = bytes {
                let [run_pid, uid, pid, program] = labels(process);
                pool.sample(&[run_pid, uid, pid, program, ("state", &state)], bytes);
            }
        }
    }
    let help = "1 where nothing is served, and why.";
    let mut not_served = page.metric("pumice_process_not_served", "gauge", help);
    for process in &sample.processes {
        if let Some(reason) = &process.reason {
            let [run_pid, uid, pid, program] = labels(process);
            not_served.sample(&[run_pid, uid, pid, program, ("reason", reason)], 1);
        }
    }
    for event in Event::ALL {
        let name = format!("pumice_process_{}_total", name_of(event));
        let help = format!("Of a process: {}.", help_of(event));
        let mut metric = page.metric(&name, "counter", &help);
        for process in &sample.processes {
            metric.sample(&labels(process), value_of(event, process.event(event)));
        }
    }
    page.into_text()
}

/// Prometheus wants seconds.
fn name_of(event: Event) -> &'static str {
    match event {
        Event::ScrubberNs => "scrubber_seconds",
        other => other.name(),
    }
}

fn help_of(event: Event) -> &'static str {
    match event {
        Event::ScrubberNs => "processor time of the helper threads",
        other => other.explain(),
    }
}

fn value_of(event: Event, value: u64) -> String {
    match event {
        Event::ScrubberNs => (value as f64 / 1e9).to_string(),
        _ => value.to_string(),
    }
}

fn labels(process: &Process) -> [(&'static str, &dyn Display); 4] {
    let Process { run_pid, uid, pid, program, .. } = process;
    [("run_pid", run_pid), ("uid", uid), ("pid", pid), ("program", program)]
}
