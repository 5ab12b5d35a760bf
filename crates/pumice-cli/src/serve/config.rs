//! The daemon's file, in TOML: the same words as the flags, and each slot a table.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pumice_command::Failure;
use pumice_heap::config::parse_size;
use pumice_slots::daemon::Rule;
use pumice_slots::serving::http::Address;
use pumice_slots::settings::PaceSetting;
use pumice_slots::{PageKind, SnapshotName};
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::options::{self, Copies};

/// A file larger than this is no configuration.
const MOST_BYTES: u64 = 1 << 20;

/// The contents of a file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct File {
    /// `[[slot]]`
    #[serde(rename = "slot")]
    pub slots: Vec<SlotEntry>,
    /// `[[snapshot]]`
    #[serde(rename = "snapshot")]
    pub snapshots: Vec<SnapshotEntry>,
    /// As `--pages`.
    #[serde(deserialize_with = "pages")]
    pub pages: Option<PageKind>,
    /// As `--dir`.
    pub dir: Option<PathBuf>,
    /// As `--socket`.
    pub socket: Option<PathBuf>,
    /// As `--ticket-socket`.
    pub ticket_socket: Option<PathBuf>,
    /// As `--allow`, a list.
    #[serde(deserialize_with = "allow")]
    pub allow: Vec<Rule>,
    /// As `--share`.
    #[serde(deserialize_with = "share")]
    pub share: Option<u32>,
    /// As `--metrics`.
    #[serde(deserialize_with = "metrics")]
    pub metrics: Option<Address>,
    /// As `--grow-hugetlb`.
    pub grow_hugetlb: bool,
    /// As `--drain`.
    #[serde(deserialize_with = "drain")]
    pub drain: Option<Duration>,
    /// As `--threads`.
    #[serde(deserialize_with = "threads")]
    pub threads: Option<u32>,
    /// `[populate]`
    #[serde(rename = "populate", deserialize_with = "pace")]
    pub pace: [Option<u64>; PaceSetting::ALL.len()],
}

/// `[[slot]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotEntry {
    /// `size`, as typed.
    #[serde(rename = "size", deserialize_with = "bytes")]
    pub bytes: u64,
    /// How many.
    #[serde(default = "one", deserialize_with = "count")]
    pub count: u32,
    /// As `--pages`.
    #[serde(default, deserialize_with = "pages")]
    pub pages: Option<PageKind>,
    /// As `--node`.
    pub node: Option<u32>,
}

/// `[[snapshot]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotEntry {
    /// The name that clients ask for.
    #[serde(deserialize_with = "snapshot_name")]
    pub name: SnapshotName,
    /// The file.
    pub file: PathBuf,
    /// How many slots, or `"shared"`.
    #[serde(default = "one_alone", deserialize_with = "copies")]
    pub count: Copies,
    /// As `--pages`.
    #[serde(default, deserialize_with = "pages")]
    pub pages: Option<PageKind>,
    /// As `--node`.
    pub node: Option<u32>,
}

/// Reads the file.
pub fn read(path: &Path) -> Result<File, Failure> {
    let name = path.display();
    let failed = |error: &dyn std::fmt::Display| {
        Failure::usage(format!("can't read the configuration {name}: {error}"))
    };
    let status = fs::metadata(path).map_err(|error| failed(&error))?;
    if !status.is_file() || status.len() > MOST_BYTES {
        return Err(failed(&"it is no regular file, or is too large"));
    }
    let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
    parse(&text).map_err(|(line, message)| Failure::usage(format!("{name}:{line}: {message}")))
}

/// The file, or a line's number and the error there.
fn parse(text: &str) -> Result<File, (usize, String)> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start).min(text.len());
        let line = text.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count() + 1;
        (line, error.message().replace('\n', "; "))
    })
}

fn one() -> u32 {
    1
}

fn one_alone() -> Copies {
    Copies::Alone(1)
}

fn with<'de, D: Deserializer<'de>, T>(
    from: D,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    parse(&String::deserialize(from)?).map_err(D::Error::custom)
}

fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    with(from, |text| {
        let bytes = parse_size(text).filter(|&bytes| bytes > 0);
        bytes.map(|bytes| bytes as u64).ok_or_else(|| "a size is such as \"8G\"".into())
    })
}

fn number<'de, D: Deserializer<'de>>(
    from: D,
    range: RangeInclusive<u32>,
    expected: &str,
) -> Result<u32, D::Error> {
    let number = u32::deserialize(from)?;
    range.contains(&number).then_some(number).ok_or_else(|| D::Error::custom(expected))
}

fn count<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    number(from, 1..=65536, "a count is a number from 1 to 65536")
}

fn copies<'de, D: Deserializer<'de>>(from: D) -> Result<Copies, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Typed {
        Number(i64),
        Word(String),
    }
    let text = match Typed::deserialize(from) {
        Ok(Typed::Number(number)) => number.to_string(),
        Ok(Typed::Word(word)) => word,
        // Which says what is expected.
        Err(_) => String::new(),
    };
    options::copies(&text).map_err(D::Error::custom)
}

fn threads<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    number(from, 1..=64, "threads are a number from 1 to 64").map(Some)
}

fn share<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    number(from, 1..=100, "a share is a number from 1 to 100, in percent").map(Some)
}

fn snapshot_name<'de, D: Deserializer<'de>>(from: D) -> Result<SnapshotName, D::Error> {
    with(from, options::snapshot_name)
}

fn pages<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PageKind>, D::Error> {
    with(from, options::pages).map(Some)
}

fn drain<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    with(from, options::duration).map(Some)
}

fn metrics<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Address>, D::Error> {
    with(from, Address::parse).map(Some)
}

fn allow<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Rule>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    texts.iter().map(|text| Rule::parse(text)).collect::<Result<_, _>>().map_err(D::Error::custom)
}

fn pace<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<[Option<u64>; PaceSetting::ALL.len()], D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Typed {
        Whole(u64),
        Decimal(f64),
        Word(String),
    }
    let table = std::collections::BTreeMap::<String, Typed>::deserialize(from)?;
    let mut pace = [None; PaceSetting::ALL.len()];
    for (key, typed) in table {
        let setting = PaceSetting::ALL.into_iter().find(|setting| setting.key() == key);
        let Some(setting) = setting else {
            let keys = PaceSetting::ALL.map(PaceSetting::key).join(", ");
            return Err(D::Error::custom(format!("no setting '{key}'; there are {keys}")));
        };
        let text = match typed {
            Typed::Whole(number) => number.to_string(),
            Typed::Decimal(number) => number.to_string(),
            Typed::Word(word) => word,
        };
        let raw = setting.parse(&text);
        let expects = setting.expects();
        let raw = raw.ok_or_else(|| D::Error::custom(format!("{key} takes {expects}")))?;
        pace[setting as usize] = Some(raw);
    }
    Ok(pace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_of_it_is_read() {
        let file = parse(
            r#"
            dir = "/run/x"
            socket = "/run/x/s"
            pages = "4k"
            allow = ["user:0=1G", "group:0"]
            metrics = "127.0.0.1:9464"
            grow-hugetlb = true
            drain = "10s"
            threads = 2
            share = 50
            [populate]
            batch_pages = 1024
            load = 1.5
            polite = "off"
            [[slot]]
            size = "8G"
            count = 2
            pages = "hugetlb-2m"
            node = 0
            [[slot]]
            size = "64K"
            [[snapshot]]
            name = "web"
            file = "/vm/web.mem"
            count = 4
            [[snapshot]]
            name = "base"
            file = "/vm/base.mem"
            count = "shared"
            "#,
        )
        .expect("good");
        assert_eq!(file.slots.len(), 2);
        assert_eq!((file.slots[0].bytes, file.slots[0].count), (8 << 30, 2));
        assert_eq!(file.slots[1].count, 1);
        assert_eq!(file.snapshots[0].name.as_str(), "web");
        assert_eq!((file.snapshots[0].count, file.snapshots[0].pages), (Copies::Alone(4), None));
        assert_eq!(file.snapshots[1].count, Copies::Shared);
        assert_eq!(file.pace, [Some(1024), None, None, Some(150), Some(0)]);
        assert_eq!(file.share, Some(50));
        assert_eq!((file.allow.len(), file.drain), (2, Some(Duration::from_secs(10))));
    }

    /// The configuration that `deploy/kubernetes` has for the machines of a cluster.
    #[test]
    fn that_of_the_manifests_is_read() {
        let manifest = include_str!("../../../../deploy/kubernetes/configmap.yaml");
        let (_, text) = manifest.split_once("pumice.toml: |\n").expect("the file");
        let file = parse(text).expect("a configuration");
        assert_eq!(
            file.ticket_socket.as_deref(),
            Some(Path::new("/run/pumice/tickets/slots.sock"))
        );
        assert!(file.metrics.is_some());
        let all_bytes: u64 = file.slots.iter().map(|slot| slot.bytes * u64::from(slot.count)).sum();
        let daemonset = include_str!("../../../../deploy/kubernetes/daemonset.yaml");
        let limit = format!("memory: {}Mi", (all_bytes >> 20) + 128);
        assert_eq!(daemonset.matches(&limit).count(), 2, "the sum of the slots and 128 MiB");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, line, part) in [
            ("a", 1, "="),
            ("\nslots = 1", 2, "slots"),
            ("[[slot]]\nsize = \"x\"", 2, "8G"),
            ("[[slot]]\nsize = 7", 2, "string"),
            ("[[slot]]\ncount = 1", 1, "size"),
            ("[populate]\nbatch = 1", 1, "batch_pages"),
            ("pages = \"5k\"", 1, "thp"),
            ("allow = [\"qemu\"]", 1, "user:"),
            ("share = 0", 1, "percent"),
            ("[[snapshot]]\nname = \"a/b\"", 2, "letters"),
            ("[[snapshot]]\nname = \"a\"", 1, "file"),
            ("[[snapshot]]\nname = \"a\"\nfile = \"/a\"\ncount = 0", 4, "65536, or shared"),
            ("[[snapshot]]\nname = \"a\"\nfile = \"/a\"\ncount = \"x\"", 4, "65536, or shared"),
        ] {
            let (at, message) = parse(text).expect_err("bad");
            assert_eq!(at, line, "{text}: {message}");
            assert!(message.contains(part) && !message.contains('\n'), "{text}: {message}");
        }
    }
}
