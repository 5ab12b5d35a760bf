//! Settings of a daemon that can change while it runs: how much it populates at a time, and when.

use core::fmt;

pumice_frames::table! {
    /// A setting of the populating threads. Values are whole numbers on the wire; a load is in hundredths.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(u16)]
    pub enum PaceSetting: (&'static str, u64, &'static str) {
        /// Pages of 4 KiB populated in one burst.
        BatchPages = 0 => ("batch_pages", 2048, "a number of pages from 1 to 262144"),
        /// Milliseconds of pause between two bursts.
        DelayMs = 1 => ("delay_ms", 0, "milliseconds, 3600000 at most"),
        /// Pages of 4 KiB a second at most; 0 for no limit.
        RatePagesPerS = 2 => ("rate_pages_per_s", 0, "pages a second, or 0 for no limit"),
        /// Load average above which nothing is populated; 0 for no limit.
        Load = 3 => ("load", 0, "a load average such as 1.5, or 0 for no limit"),
        /// 1: hold back where anybody else wants the machine; 0: go at full speed.
        Polite = 4 => ("polite", 1, "on or off"),
    }
}

impl PaceSetting {
    /// The key that is typed.
    pub const fn key(self) -> &'static str {
        self.row().0
    }

    /// The value where nobody says otherwise.
    pub const fn default_raw(self) -> u64 {
        self.row().1
    }

    /// The values that [`PaceSetting::parse`] takes, in words.
    pub const fn expects(self) -> &'static str {
        self.row().2
    }

    /// Reads a value as a person writes it. `None` if it is none.
    pub fn parse(self, text: &str) -> Option<u64> {
        let raw = match self {
            PaceSetting::Load => {
                let load: f64 = text.parse().ok()?;
                (0.0..1e6).contains(&load).then(|| (load * 100.0).round() as u64)?
            }
            PaceSetting::Polite => ["off", "on"].iter().position(|&word| word == text)? as u64,
            _ => text.parse().ok()?,
        };
        self.is_valid(raw).then_some(raw)
    }

    /// Whether the setting may have this value.
    pub const fn is_valid(self, raw: u64) -> bool {
        match self {
            PaceSetting::BatchPages => raw >= 1 && raw <= 1 << 18,
            PaceSetting::DelayMs => raw <= 3_600_000,
            PaceSetting::RatePagesPerS => raw <= 1 << 40,
            PaceSetting::Load => raw <= 100_000_000,
            PaceSetting::Polite => raw <= 1,
        }
    }

    /// A value as [`PaceSetting::parse`] would read it.
    pub fn show(self, raw: u64) -> impl fmt::Display {
        Shown { setting: self, raw }
    }
}

/// See [`PaceSetting::show`].
struct Shown {
    setting: PaceSetting,
    raw: u64,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.setting {
            PaceSetting::Load => write!(f, "{}.{:02}", self.raw / 100, self.raw % 100),
            PaceSetting::Polite => f.write_str(if self.raw == 0 { "off" } else { "on" }),
            _ => write!(f, "{}", self.raw),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_typed() {
        for setting in PaceSetting::ALL {
            assert_eq!(PaceSetting::from_number(setting as u16), Some(setting));
            for raw in [setting.default_raw(), 150] {
                let raw = if setting.is_valid(raw) { raw } else { 0 };
                assert_eq!(setting.parse(&setting.show(raw).to_string()), Some(raw));
            }
            assert_eq!(setting.parse("x"), None);
            assert_eq!(setting.parse("-1"), None);
        }
        assert_eq!(PaceSetting::BatchPages.parse("0"), None);
        assert_eq!(PaceSetting::Load.parse("nan"), None);
    }
}
