//! `pumice slots`: a running daemon's slots, leases and counts, and how it populates.

use std::path::PathBuf;

use clap::Args;
use pumice_slots::message::{ClassRow, LeaseRow, SnapshotRow};
use pumice_slots::refusal::size;
use pumice_slots::settings::PaceSetting;
use pumice_slots::stat::{Counter, WAIT_BOUNDS_US};
use pumice_slots::{default_socket, Client};
use serde_json::{json, Map, Value};

use crate::lease::explain;
use pumice_command::{self as args, Failure};

/// The arguments of `pumice slots`.
#[derive(Args, Debug)]
pub struct SlotsArgs {
    /// The daemon's socket; that of one's own or the system's daemon if not given
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The daemon's counters, instead of the slots
    #[arg(long)]
    stat: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Change how the daemon populates: batch_pages, delay_ms, rate_pages_per_s, load or
    /// polite (can be repeated)
    #[arg(long, value_name = "KEY=VALUE", value_parser = change)]
    set: Vec<(PaceSetting, u64)>,
}

/// Shows or changes.
pub fn slots(options: SlotsArgs) -> Result<(), Failure> {
    let client = Client::new(options.socket.unwrap_or_else(default_socket));
    for &(setting, raw) in &options.set {
        client.set(setting, raw).map_err(|error| explain(&error))?;
    }
    let text = if options.stat {
        let values = client.stat().map_err(|error| explain(&error))?;
        let settings = client.settings().map_err(|error| explain(&error))?;
        let form = if options.json { stat_json } else { stat_table };
        form(&values, &settings)
    } else if options.json || options.set.is_empty() {
        let classes = client.classes().map_err(|error| explain(&error))?;
        let snapshots = client.snapshots().map_err(|error| explain(&error))?;
        let leases = client.leases().map_err(|error| explain(&error))?;
        let form = if options.json { list_json } else { list_tables };
        form(&classes, &snapshots, &leases)
    } else {
        return Ok(());
    };
    args::print(text.as_bytes())
}

fn change(text: &str) -> Result<(PaceSetting, u64), String> {
    let (key, value) = text.split_once('=').ok_or("it takes KEY=VALUE, such as delay_ms=5")?;
    let setting = PaceSetting::ALL.into_iter().find(|setting| setting.key() == key);
    let setting = setting.ok_or_else(|| {
        let keys = PaceSetting::ALL.map(PaceSetting::key).join(", ");
        format!("no setting '{key}'; there are {keys}")
    })?;
    let raw = setting.parse(value);
    raw.map(|raw| (setting, raw)).ok_or_else(|| format!("{key} takes {}", setting.expects()))
}

fn list_tables(classes: &[ClassRow], snapshots: &[SnapshotRow], leases: &[LeaseRow]) -> String {
    let mut text = String::new();
    if !classes.is_empty() || snapshots.is_empty() {
        let mut rows = vec![CLASS_HEAD.map(str::to_owned).to_vec()];
        rows.extend(classes.iter().map(class_cells));
        text += &columns(&rows);
    }
    if !snapshots.is_empty() {
        let head = ["SNAPSHOT", "FILE", "SHARING"].iter().chain(&CLASS_HEAD).copied();
        let mut rows = vec![head.map(str::to_owned).collect()];
        for snapshot in snapshots {
            let (file, sharing) = (snapshot.file.name(), snapshot.sharing.name());
            let own = [snapshot.name.to_string(), file.to_owned(), sharing.to_owned()];
            rows.push(own.into_iter().chain(class_cells(&snapshot.class)).collect());
        }
        text += if text.is_empty() { "" } else { "\n" };
        text += &columns(&rows);
    }
    if !leases.is_empty() {
        let mut rows = vec![["LEASE", "SIZE", "PAGES", "USER", "PROCESS", "SECONDS"]
            .map(str::to_owned)
            .to_vec()];
        for lease in leases {
            rows.push(vec![
                lease.id.to_string(),
                size(lease.bytes),
                lease.pages.to_string(),
                lease.uid.to_string(),
                lease.pid.to_string(),
                (lease.age_ms / 1000).to_string(),
            ]);
        }
        text += "\n";
        text += &columns(&rows);
    }
    text
}

const CLASS_HEAD: [&str; 9] =
    ["SIZE", "PAGES", "NODE", "WANTED", "READY", "HUGE", "POPULATING", "LEASED", "WAITING"];

fn class_cells(class: &ClassRow) -> Vec<String> {
    let ready_bytes = u64::from(class.ready) * class.bytes;
    let huge = match ready_bytes {
        0 => "-".to_owned(),
        _ if class.pages.is_hugetlb() => "100%".to_owned(),
        bytes => format!("{}%", class.huge_bytes * 100 / bytes),
    };
    let populating = match class.populating {
        0 => "-".to_owned(),
        count => {
            let all = u64::from(count) * class.bytes;
            format!("{count} ({}%)", class.populating_bytes * 100 / all.max(1))
        }
    };
    vec![
        size(class.bytes),
        class.pages.to_string(),
        class.node.map_or_else(|| "any".to_owned(), |node| node.to_string()),
        class.wanted.to_string(),
        class.ready.to_string(),
        huge,
        populating,
        class.leased.to_string(),
        class.waiting.to_string(),
    ]
}

fn list_json(classes: &[ClassRow], snapshots: &[SnapshotRow], leases: &[LeaseRow]) -> String {
    let classes: Vec<_> = classes.iter().map(class_json).collect();
    let snapshots: Vec<_> = snapshots
        .iter()
        .map(|snapshot| {
            let mut object = class_json(&snapshot.class);
            object["name"] = snapshot.name.as_str().into();
            object["file"] = snapshot.file.name().into();
            object["sharing"] = snapshot.sharing.name().into();
            object["file_bytes"] = snapshot.file_bytes.into();
            object
        })
        .collect();
    let leases: Vec<_> = leases
        .iter()
        .map(|lease| {
            json!({
                "id": lease.id,
                "bytes": lease.bytes,
                "pages": lease.pages.name(),
                "uid": lease.uid,
                "pid": lease.pid,
                "age_ms": lease.age_ms,
            })
        })
        .collect();
    format!("{}\n", json!({ "classes": classes, "snapshots": snapshots, "leases": leases }))
}

fn class_json(class: &ClassRow) -> Value {
    json!({
        "bytes": class.bytes,
        "pages": class.pages.name(),
        "node": class.node,
        "wanted": class.wanted,
        "ready": class.ready,
        "huge_bytes": class.huge_bytes,
        "populating": class.populating,
        "populating_bytes": class.populating_bytes,
        "leased": class.leased,
        "waiting": class.waiting,
    })
}

/// Counters by name, buckets by their upper bound, settings by key.
fn stat_json(values: &[u64], settings: &[u64]) -> String {
    let mut object = Map::new();
    for (counter, &value) in Counter::ALL.iter().zip(values) {
        object.insert(counter.name().to_owned(), value.into());
    }
    let buckets = values
        .iter()
        .skip(Counter::ALL.len())
        .enumerate()
        .map(|(index, &count)| json!({ "most_us": WAIT_BOUNDS_US.get(index), "count": count }));
    object.insert("waits".to_owned(), Value::Array(buckets.collect()));
    let mut shown = Map::new();
    for (setting, &raw) in PaceSetting::ALL.iter().zip(settings) {
        shown.insert(setting.key().to_owned(), setting.show(raw).to_string().into());
    }
    object.insert("settings".to_owned(), Value::Object(shown));
    format!("{}\n", Value::Object(object))
}

fn stat_table(values: &[u64], settings: &[u64]) -> String {
    let mut rows = Vec::new();
    for (counter, &value) in Counter::ALL.iter().zip(values) {
        rows.push(vec![counter.name().to_owned(), value.to_string()]);
    }
    for (index, &count) in values.iter().skip(Counter::ALL.len()).enumerate() {
        let bucket = match WAIT_BOUNDS_US.get(index) {
            Some(&bound_us) => format!("waited up to {}", time(bound_us)),
            None => "waited longer".to_owned(),
        };
        rows.push(vec![bucket, count.to_string()]);
    }
    for (setting, &raw) in PaceSetting::ALL.iter().zip(settings) {
        rows.push(vec![format!("setting {}", setting.key()), setting.show(raw).to_string()]);
    }
    columns(&rows)
}

fn time(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{} ms", us / 1_000),
        _ => format!("{} s", us / 1_000_000),
    }
}

/// Columns as wide as their content; the first flush left, the others right.
fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            line += &match column {
                0 => format!("{cell:<width$}"),
                _ => format!("  {cell:>width$}"),
            };
        }
        text += line.trim_end();
        text += "\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_or_explained() {
        assert_eq!(change("delay_ms=5"), Ok((PaceSetting::DelayMs, 5)));
        assert_eq!(change("load=1.5"), Ok((PaceSetting::Load, 150)));
        assert!(change("delay=5").is_err_and(|why| why.contains("delay_ms")));
        assert!(change("delay_ms").is_err());
    }

    #[test]
    fn columns_line_up() {
        let rows = [["a", "1"], ["bcd", "234"]];
        let rows: Vec<_> = rows.iter().map(|row| row.map(str::to_owned).to_vec()).collect();
        assert_eq!(columns(&rows), "a      1\nbcd  234\n");
    }
}
