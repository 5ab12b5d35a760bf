//! Samples in the text format that Prometheus reads.
//!
//! Of each tree what was counted in all, processes that have ended included, so that counters never go
//! back; of each process what it has now, and its own counters.

use std::fmt::{self, Write};

use pumice_heap::stats::Event;

use super::sample::{Process, Sample, Totals};

/// A page of one sample.
pub fn page(sample: &Sample) -> String {
    let mut page = String::new();
    // Writing to a string can't fail.
    let _ = write(&mut page, sample);
    page
}

fn write(page: &mut String, sample: &Sample) -> fmt::Result {
    head(page, "pumice_processes", "gauge", "Processes that are served by pumice.")?;
    writeln!(page, "pumice_processes {}", sample.processes.len())?;

    let mut of_trees = |name: &str, kind: &str, help: &str, value: &dyn Fn(&Totals) -> String| {
        head(page, name, kind, help)?;
        for tree in &sample.trees {
            let (run, uid) = (tree.run_pid, tree.uid);
            writeln!(page, "{name}{{run_pid=\"{run}\",uid=\"{uid}\"}} {}", value(tree))?;
        }
        Ok(())
    };
    of_trees("pumice_tree_pool_bytes", "gauge", "Bytes of pool of a tree.", &|tree| {
        tree.pool_bytes.to_string()
    })?;
    of_trees("pumice_tree_pool_peak_bytes", "gauge", "The most there ever were.", &|tree| {
        tree.pool_peak_bytes.to_string()
    })?;
    of_trees("pumice_tree_pool_max_bytes", "gauge", "The most there may be.", &|tree| {
        tree.pool_max_bytes.to_string()
    })?;
    of_trees("pumice_tree_processes_total", "counter", "Processes it ever had.", &|tree| {
        tree.processes.to_string()
    })?;
    for (index, event) in Event::ALL.into_iter().enumerate() {
        let name = format!("pumice_tree_{}_total", name_of(event));
        of_trees(&name, "counter", &format!("Of a tree: {}.", help_of(event)), &|tree| {
            value_of(event, tree.events.get(index).copied().unwrap_or(0))
        })?;
    }

    head(page, "pumice_process_pool_bytes", "gauge", "A process's share of the pool, by state.")?;
    for process in &sample.processes {
        let labels = labels(process);
        let split = process.split;
        let mut states = vec![
            ("zeroed", split.zeroed_bytes),
            ("unzeroed", split.unzeroed_bytes),
            ("absent", split.absent_bytes),
            ("in_use", split.in_use_bytes),
        ];
        if split.in_use_bytes.is_none() {
            states.push(("unknown", Some(process.pool_bytes)));
        }
        for (state, bytes) in states {
            if let Some(bytes) = bytes {
                writeln!(page, "pumice_process_pool_bytes{{{labels},state=\"{state}\"}} {bytes}")?;
            }
        }
    }
    head(page, "pumice_process_not_served", "gauge", "1 where nothing is served, and why.")?;
    for process in &sample.processes {
        if let Some(reason) = process.reason {
            let labels = labels(process);
            writeln!(page, "pumice_process_not_served{{{labels},reason=\"{reason}\"}} 1")?;
        }
    }
    for event in Event::ALL {
        let name = format!("pumice_process_{}_total", name_of(event));
        head(page, &name, "counter", &format!("Of a process: {}.", help_of(event)))?;
        for process in &sample.processes {
            let value = value_of(event, process.event(event));
            writeln!(page, "{name}{{{}}} {value}", labels(process))?;
        }
    }
    Ok(())
}

fn head(page: &mut String, name: &str, kind: &str, help: &str) -> fmt::Result {
    writeln!(page, "# HELP {name} {help}")?;
    writeln!(page, "# TYPE {name} {kind}")
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

fn labels(process: &Process) -> String {
    let Process { run_pid, uid, pid, program, .. } = process;
    let program = escape(program);
    format!("run_pid=\"{run_pid}\",uid=\"{uid}\",pid=\"{pid}\",program=\"{program}\"")
}

/// A label's value as the format wants it. What could move a terminal's cursor is not worth keeping.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        match letter {
            '\\' => escaped += "\\\\",
            '"' => escaped += "\\\"",
            '\n' => escaped += "\\n",
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escape("a\"b\\c\nd\x1b[e\u{e9}"), "a\\\"b\\\\c\\nd\u{fffd}[e\u{e9}");
    }
}
