//! Every option, with its default beside its name, and an environment variable for each.
//!
//! `pumice run` turns its flags into these variables; the shim reads them once, at the first
//! request it serves. Those that are [`Setting`]s can be changed on a running process
//! (`pumice ctl PID KEY=VALUE`): they live in its [`crate::stats::CounterSlot`].

use core::fmt;

use crate::stats::CounterSlot;

/// Turns everything off when it says `off` (also `0`, `no`, `false`).
pub const ENV_SWITCH: &str = "PUMICE";
/// Number of the shared memory that has the tree's counters ([`crate::stats::Tree`]).
pub const ENV_STATS: &str = "PUMICE_STATS";
/// Name of the tree ([`crate::stats::TreeName`]), where the first program that has to count is to make that memory.
pub const ENV_TREE: &str = "PUMICE_TREE";
/// Bytes to have ready, populated in the background, in the first process that asks.
pub const ENV_READY: &str = "PUMICE_READY";
/// Process id of the `pumice run` whose child is to populate that as soon as it runs; not set
/// where nothing is to be ready.
pub const ENV_FIRST: &str = "PUMICE_FIRST";
/// The most bytes of pool in the tree.
pub const ENV_POOL_MAX: &str = "PUMICE_POOL_MAX";
/// Requests of this many bytes and more are served.
pub const ENV_THRESHOLD: &str = "PUMICE_THRESHOLD";
/// Private anonymous mappings of this many bytes and more are served; `off`, as where it is not set: none.
pub const ENV_MMAP_THRESHOLD: &str = "PUMICE_MMAP_THRESHOLD";
/// Only programs of these names are served (comma-separated).
pub const ENV_ONLY: &str = "PUMICE_ONLY";
/// Programs of these names are not served (comma-separated).
pub const ENV_SKIP: &str = "PUMICE_SKIP";
/// The engine for each size, and the kind that zeroes ahead of need ([`pumice_frames::clear::Clearer`] as text),
/// measured by the program that starts the tree.
pub const ENV_CLEAR: &str = "PUMICE_CLEAR";
/// Checks at each allocation that memory said to be zero is (`1`).
pub const ENV_VERIFY: &str = "PUMICE_VERIFY";

/// Default of [`ENV_THRESHOLD`].
pub const DEFAULT_THRESHOLD: usize = 64 << 10;
/// A process has no heap before it asks for so much at once...
pub const MUCH_AT_ONCE: usize = 2 << 20;
/// ... or for so much in all, by requests of the threshold and more, unless a threshold is set.
pub const MUCH_IN_ALL: usize = 16 << 20;
/// The value of [`ENV_MMAP_THRESHOLD`] where mappings are asked for without a size.
pub const MMAP_THRESHOLD: usize = 1 << 20;
/// The smallest threshold there may be: one frame.
pub const MIN_THRESHOLD: usize = 4 << 10;

pumice_frames::table! {
    /// A setting that can change while a process runs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(usize)]
    pub enum Setting: (&'static str, &'static str, u64, &'static str) {
        /// a freed area of this order or higher wakes scrubd
        ScrubStart => ("scrub_start", "PUMICE_SCRUB_START", 9, "an order from 0 to 18"),
        /// scrubd zeroes areas of this order and higher
        ScrubStop => ("scrub_stop", "PUMICE_SCRUB_STOP", 4, "an order from 0 to 18"),
        /// scrubd rests while the load average is above this; 0 for no limit
        ScrubLoad => ("scrub_load", "PUMICE_SCRUB_LOAD", 0, "a load average such as 1.5, or 0 for no limit"),
        /// frames scrubd zeroes in a second at most; 0 for no limit
        ScrubRatePagesPerS =>
            ("scrub_rate_pages_per_s", "PUMICE_SCRUB_RATE_PAGES_PER_S", 0, "pages a second, or 0 for no limit"),
        /// frames scrubd zeroes in one burst
        ScrubBatchPages =>
            ("scrub_batch_pages", "PUMICE_SCRUB_BATCH_PAGES", 512, "a number of pages from 1 to 262144"),
        /// how long freed memory must lie before it is zeroed
        ScrubDelayMs => ("scrub_delay_ms", "PUMICE_SCRUB_DELAY_MS", 2, "milliseconds, 3600000 at most"),
        /// how long free memory is kept before it is given back; 0 for at once
        DecayMs => ("decay_ms", "PUMICE_DECAY_MS", 10_000, "milliseconds, 86400000 at most"),
    }
}

impl Setting {
    /// The key of `pumice ctl`.
    pub const fn key(self) -> &'static str {
        self.row().0
    }

    /// The environment variable.
    #[doc(hidden)]
    pub const fn env(self) -> &'static str {
        self.row().1
    }

    /// The raw value where nobody says otherwise. A load is in hundredths.
    #[doc(hidden)]
    pub const fn default_raw(self) -> u64 {
        self.row().2
    }

    /// The values that [`Setting::parse`] takes, in words.
    #[doc(hidden)]
    pub const fn expects(self) -> &'static str {
        self.row().3
    }

    /// Reads a value as a person writes it: orders 0 to 18, a load as a decimal number,
    /// whole numbers for the rest. `None` if it is none.
    pub fn parse(self, text: &str) -> Option<u64> {
        let number = || text.parse::<u64>().ok();
        match self {
            Setting::ScrubStart | Setting::ScrubStop => number().filter(|&order| order <= 18),
            Setting::ScrubLoad => parse_hundredths(text),
            Setting::ScrubBatchPages => number().filter(|&pages| (1..=1 << 18).contains(&pages)),
            Setting::ScrubRatePagesPerS => number(),
            Setting::ScrubDelayMs => number().filter(|&ms| ms <= 3_600_000),
            Setting::DecayMs => number().filter(|&ms| ms <= 86_400_000),
        }
    }

    /// A raw value as [`Setting::parse`] would read it.
    #[doc(hidden)]
    pub fn show(self, raw: u64) -> impl fmt::Display {
        Shown { setting: self, raw }
    }

    /// The raw value in force in a process. Slots start as zeros: a value is kept plus one.
    #[inline]
    pub fn get(self, slot: &CounterSlot) -> u64 {
        match slot.setting(self as usize) {
            0 => self.default_raw(),
            kept => kept - 1,
        }
    }

    /// Changes the raw value in a process. The largest number there is becomes the one before.
    pub fn set(self, slot: &CounterSlot, raw: u64) {
        slot.set_setting(self as usize, raw.saturating_add(1));
    }
}

/// See [`Setting::show`].
struct Shown {
    setting: Setting,
    raw: u64,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.setting {
            Setting::ScrubLoad => write!(f, "{}.{:02}", self.raw / 100, self.raw % 100),
            _ => write!(f, "{}", self.raw),
        }
    }
}

fn parse_hundredths(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || whole.len() > 9 {
        return None;
    }
    let mut hundredths = whole.parse::<u64>().ok()? * 100;
    for (digit, weight) in fraction.bytes().zip([10, 1]) {
        hundredths += u64::from(digit - b'0') * weight;
    }
    Some(hundredths)
}

/// Reads [`ENV_MMAP_THRESHOLD`]: a size, [`MIN_THRESHOLD`] at least, or `off`, which is the largest.
pub fn parse_mmap_threshold(text: &str) -> Option<usize> {
    match text {
        "off" => Some(usize::MAX),
        size => parse_size(size).filter(|&size| size >= MIN_THRESHOLD),
    }
}

/// Reads a size: a whole number of bytes, or one with `K`, `M`, `G` or `T` (powers of 1024; a
/// following `B` or `iB` is allowed, as is lower case). `None` if it is none or too large.
///
/// ```
/// use pumice_heap::config::parse_size;
/// assert_eq!(parse_size("64K"), Some(65536));
/// assert_eq!(parse_size("2GiB"), Some(2 << 30));
/// assert_eq!(parse_size("banana"), None);
/// ```
pub fn parse_size(text: &str) -> Option<usize> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: usize = number.parse().ok()?;
    let is = |names: [&str; 3]| names.iter().any(|name| unit.eq_ignore_ascii_case(name));
    let shift = match unit {
        "" | "B" | "b" => 0,
        _ if is(["k", "kb", "kib"]) => 10,
        _ if is(["m", "mb", "mib"]) => 20,
        _ if is(["g", "gb", "gib"]) => 30,
        _ if is(["t", "tb", "tib"]) => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

/// Whether `name` is in a comma-separated list.
pub fn list_has(list: &str, name: &str) -> bool {
    list.split(',').any(|entry| entry.trim() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("0"), Some(0));
        assert_eq!(parse_size("1m"), Some(1 << 20));
        assert_eq!(parse_size("3TiB"), Some(3 << 40));
        assert_eq!(parse_size("512b"), Some(512));
        for none in ["", "K", "-1", "1.5G", "1Q", "1 G", "99999999999999999999", "99999999T"] {
            assert_eq!(parse_size(none), None, "{none:?}");
        }
    }

    #[test]
    fn settings_parse_what_they_say() {
        assert_eq!(Setting::ScrubLoad.parse("1.5"), Some(150));
        assert_eq!(Setting::ScrubLoad.parse("0.07"), Some(7));
        assert_eq!(Setting::ScrubLoad.parse("."), None);
        assert_eq!(Setting::ScrubStart.parse("19"), None);
        for setting in Setting::ALL {
            assert_eq!(setting.parse("x"), None);
            assert_eq!(Setting::ALL[setting as usize], setting);
        }
    }

    #[test]
    fn what_is_shown_can_be_typed() {
        for (setting, raw) in [
            (Setting::ScrubLoad, 150),
            (Setting::ScrubLoad, 7),
            (Setting::ScrubStop, 18),
            (Setting::DecayMs, 10_000),
        ] {
            assert_eq!(setting.parse(&setting.show(raw).to_string()), Some(raw));
        }
    }

    #[test]
    fn a_fresh_slot_has_the_defaults() {
        let tree = crate::stats::Tree::private(0, 0).expect("memory");
        let slot = tree.attach(1).expect("a slot");
        for setting in Setting::ALL {
            assert_eq!(setting.get(slot), setting.default_raw());
            for (raw, kept) in [(0, 0), (7, 7), (u64::MAX, u64::MAX - 1)] {
                setting.set(slot, raw);
                assert_eq!(setting.get(slot), kept);
            }
        }
    }

    #[test]
    fn lists() {
        assert!(list_has("a, b,c", "b"));
        assert!(!list_has("abc", "b"));
    }
}
