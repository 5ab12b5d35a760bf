//! The flags of `pumice serve`, and the plan that they and a file become.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use pumice_command::Failure;
use pumice_heap::config::parse_size;
use pumice_slots::daemon::{Allowed, Key, Plan, Rule, SnapshotPlan};
use pumice_slots::serving::http::Address;
use pumice_slots::settings::PaceSetting;
use pumice_slots::{PageKind, Sharing, SnapshotName};

use super::config;

/// The arguments of `pumice serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Read the configuration from FILE (TOML); flags are added to it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Keep COUNT slots of SIZE, such as 8G=2 (can be repeated)
    #[arg(long, value_name = "SIZE=COUNT", value_parser = slot)]
    slot: Vec<(u64, u32)>,
    /// Keep COUNT slots that have the content of FILE, such as web=/var/lib/vm/web.mem:4, or, with the word shared for
    /// COUNT, one that can only be read and is leased to any number; clients ask for NAME (can be repeated)
    #[arg(long, value_name = "NAME=FILE:COUNT", value_parser = snapshot)]
    snapshot: Vec<(SnapshotName, PathBuf, Copies)>,
    /// The pages that slots are made of: 4k, thp (huge where they can be had), hugetlb-2m or
    /// hugetlb-1g; thp if not given
    #[arg(long, value_name = "KIND", value_parser = pages)]
    pages: Option<PageKind>,
    /// Memory node (NUMA) of the slots
    #[arg(long, value_name = "N")]
    node: Option<u32>,
    /// The daemon's folder; /run/pumice or $XDG_RUNTIME_DIR/pumice if not given
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// Where to listen; slots.sock in the daemon's folder if not given
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Where to listen for clients that have tickets and no other rights; its folder can be mounted into containers
    #[arg(long, value_name = "PATH")]
    ticket_socket: Option<PathBuf>,
    /// A user or group that may lease besides root and the daemon's user, such as user:qemu=32G or
    /// group:kvm; the size is the most that one user may have at a time (can be repeated)
    #[arg(long, value_name = "WHO[=SIZE]", value_parser = Rule::parse)]
    allow: Vec<Rule>,
    /// The share of each kind of slots, in percent, that one user may have ended and that is not populated again: above
    /// it the user waits, and ready slots are left to others; no limit if not given
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    share: Option<u32>,
    /// Serve metrics for Prometheus at unix:PATH or a loopback address such as 127.0.0.1:9464
    #[arg(long, value_name = "ADDRESS", value_parser = Address::parse)]
    metrics: Option<Address>,
    /// Raise the kernel's hugetlb pool (nr_hugepages) where it has too few pages, and lower it at the end
    #[arg(long)]
    grow_hugetlb: bool,
    /// How long SIGTERM waits for leases to end, such as 10s; those left stay with their holders;
    /// 5s if not given
    #[arg(long, value_name = "TIME", value_parser = duration)]
    drain: Option<Duration>,
    /// Threads that populate; 1 if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: Option<u32>,
    #[command(flatten)]
    pace: PaceArgs,
}

/// How many slots of a snapshot there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// So many, for a lessee each.
    Alone(u32),
    /// One for all.
    Shared,
}

impl Copies {
    fn count(self) -> u32 {
        match self {
            Copies::Alone(count) => count,
            Copies::Shared => 1,
        }
    }

    fn sharing(self) -> Sharing {
        match self {
            Copies::Alone(_) => Sharing::Alone,
            Copies::Shared => Sharing::Shared,
        }
    }
}

/// How much is populated at a time, and when.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Populating (also while it runs: pumice slots --set)")]
struct PaceArgs {
    /// Pages of 4 KiB in one burst; 2048 if not given
    #[arg(long, value_name = "N", value_parser = pace(PaceSetting::BatchPages))]
    batch_pages: Option<u64>,
    /// Milliseconds between two bursts; 0 if not given
    #[arg(long, value_name = "N", value_parser = pace(PaceSetting::DelayMs))]
    delay_ms: Option<u64>,
    /// Pages of 4 KiB in a second at most; 0, no limit, if not given
    #[arg(long, value_name = "N", value_parser = pace(PaceSetting::RatePagesPerS))]
    rate_pages_per_s: Option<u64>,
    /// Populate nothing while the load average is above this; 0, no limit, if not given
    #[arg(long, value_name = "L", value_parser = pace(PaceSetting::Load))]
    load: Option<u64>,
    /// Whether to yield to other programs on the machine: on, if not given, or off
    #[arg(long, value_name = "SWITCH", value_parser = pace(PaceSetting::Polite))]
    polite: Option<u64>,
}

impl ServeArgs {
    /// Reads the file, if there is one, and adds the flags.
    pub fn plan(&self) -> Result<Plan, Failure> {
        let file = match &self.config {
            Some(path) => config::read(path)?,
            None => config::File::default(),
        };
        let default_pages = self.pages.or(file.pages).unwrap_or(PageKind::Thp);
        let mut classes: Vec<(Key, u32)> = Vec::new();
        let listed = file.slots.into_iter().map(|slot| {
            let pages = slot.pages.unwrap_or(default_pages);
            (Key { node: slot.node, ..Key::new(slot.bytes, pages) }, slot.count)
        });
        let typed = self.slot.iter().map(|&(bytes, count)| {
            (Key { node: self.node, ..Key::new(bytes, default_pages) }, count)
        });
        for (key, count) in listed.chain(typed) {
            match classes.iter_mut().find(|(other, _)| *other == key) {
                Some((_, before)) => *before = before.saturating_add(count),
                None => classes.push((key, count)),
            }
        }
        classes.sort_by_key(|&(key, _)| key);
        let listed = file.snapshots.into_iter().map(|snapshot| SnapshotPlan {
            name: snapshot.name,
            path: snapshot.file.into(),
            count: snapshot.count.count(),
            sharing: snapshot.count.sharing(),
            pages: snapshot.pages.unwrap_or(default_pages),
            node: snapshot.node,
        });
        let typed = self.snapshot.iter().map(|(name, path, copies)| SnapshotPlan {
            name: *name,
            path: Arc::from(&**path),
            count: copies.count(),
            sharing: copies.sharing(),
            pages: default_pages,
            node: self.node,
        });
        let snapshots = listed.chain(typed).collect();
        let typed: [_; PaceSetting::ALL.len()] = [
            self.pace.batch_pages,
            self.pace.delay_ms,
            self.pace.rate_pages_per_s,
            self.pace.load,
            self.pace.polite,
        ];
        let pace = PaceSetting::ALL.map(|setting| {
            let index = setting as usize;
            typed[index].or(file.pace[index]).unwrap_or(setting.default_raw())
        });
        Ok(Plan {
            classes,
            snapshots,
            dir: self.dir.clone().or(file.dir),
            socket: self.socket.clone().or(file.socket),
            ticket_socket: self.ticket_socket.clone().or(file.ticket_socket),
            allowed: Allowed::new(self.allow.iter().cloned().chain(file.allow).collect()),
            share_percent: self.share.or(file.share),
            metrics: self.metrics.clone().or(file.metrics),
            grow_hugetlb: self.grow_hugetlb || file.grow_hugetlb,
            drain: self.drain.or(file.drain).unwrap_or(Duration::from_secs(5)),
            threads: self.threads.or(file.threads).unwrap_or(1),
            pace,
        })
    }
}

/// Reads `SIZE=COUNT`.
fn slot(text: &str) -> Result<(u64, u32), String> {
    let (bytes, count) = text.split_once('=').unwrap_or((text, "1"));
    let bytes = parse_size(bytes).filter(|&bytes| bytes > 0);
    let count = count.parse::<u32>().ok().filter(|&count| (1..=65536).contains(&count));
    let slot = bytes.zip(count).map(|(bytes, count)| (bytes as u64, count));
    slot.ok_or_else(|| "slots are a size and a count, such as 8G=2".into())
}

/// Reads `NAME=FILE:COUNT`. A path may have colons: the last is before a number or `shared`.
fn snapshot(text: &str) -> Result<(SnapshotName, PathBuf, Copies), String> {
    const EXPECTED: &str =
        "a snapshot is a name, a file and a count, such as web=/var/lib/vm/web.mem:4";
    let (name, rest) = text.split_once('=').ok_or(EXPECTED)?;
    let name = snapshot_name(name)?;
    let (path, count) = match rest.rsplit_once(':') {
        Some((path, SHARED)) => (path, SHARED),
        Some((path, count)) if count.bytes().all(|byte| byte.is_ascii_digit()) => (path, count),
        _ => (rest, "1"),
    };
    let copies = copies(count)?;
    match path.is_empty() {
        true => Err(EXPECTED.into()),
        false => Ok((name, Path::new(path).to_owned(), copies)),
    }
}

/// The word for one slot for all.
const SHARED: &str = Sharing::Shared.name();

/// Reads how many slots of a snapshot there are.
pub fn copies(text: &str) -> Result<Copies, String> {
    if text == SHARED {
        return Ok(Copies::Shared);
    }
    let count = text.parse::<u32>().ok().filter(|count| (1..=65536).contains(count));
    let count = count.ok_or("a count is a number from 1 to 65536, or shared")?;
    Ok(Copies::Alone(count))
}

/// Reads a snapshot's name.
pub fn snapshot_name(text: &str) -> Result<SnapshotName, String> {
    Ok(text.parse()?)
}

/// Reads a kind of pages.
pub fn pages(text: &str) -> Result<PageKind, String> {
    PageKind::parse(text).ok_or_else(|| {
        let names = PageKind::ALL.map(PageKind::name).join(", ");
        format!("kinds of pages are {names}")
    })
}

/// Reads a length of time.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit_ms = match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" | "min" => Some(60_000),
        "h" => Some(3_600_000),
        "" if number == "0" => Some(1),
        _ => None,
    };
    let ms = unit_ms.zip(number.parse::<u64>().ok());
    ms.and_then(|(unit_ms, number)| number.checked_mul(unit_ms))
        .filter(|&ms| ms <= 24 * 3_600_000)
        .map(Duration::from_millis)
        .ok_or_else(|| "a time is such as 500ms, 10s or 1m, 24h at most".into())
}

fn pace(setting: PaceSetting) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| setting.parse(text).ok_or_else(|| format!("it takes {}", setting.expects()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, ms) in [("500ms", 500), ("10s", 10_000), ("1m", 60_000), ("0", 0)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)));
        }
        for none in ["", "s", "10", "-1s", "1.5s", "25h", "99999999999999999999s", "1 s"] {
            assert!(duration(none).is_err(), "{none:?}");
        }
    }

    #[test]
    fn snapshots_are_names_files_and_counts() {
        let web = snapshot_name("web").expect("a name");
        for (text, path, copies) in [
            ("web=/vm/web.mem:4", "/vm/web.mem", Copies::Alone(4)),
            ("web=web.mem", "web.mem", Copies::Alone(1)),
            ("web=/a:b/c=d:2", "/a:b/c=d", Copies::Alone(2)),
            ("web=/a:b", "/a:b", Copies::Alone(1)),
            ("web=/vm/web.mem:shared", "/vm/web.mem", Copies::Shared),
            ("web=shared", "shared", Copies::Alone(1)),
        ] {
            assert_eq!(snapshot(text), Ok((web, path.into(), copies)), "{text}");
        }
        for bad in [
            "",
            "web",
            "web=",
            "=x",
            "web=:4",
            "web=:shared",
            "web=/x:0",
            "web=/x:",
            "a/b=/x",
            "web=/x:99999",
        ] {
            assert!(snapshot(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn slots_are_sizes_and_counts() {
        assert_eq!(slot("8G=2"), Ok((8 << 30, 2)));
        assert_eq!(slot("1M"), Ok((1 << 20, 1)));
        for bad in ["", "=2", "8G=", "8G=x", "8G=0", "0=1", "8X=1"] {
            assert!(slot(bad).is_err(), "{bad}");
        }
    }
}
