//! An estimate in lines for people, and as an object for machines.

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::faults::Faults;
use super::verdict::{Bounds, Range, Verdict};
use crate::run::spawn::{End, Ran, Usage};
use pumice_command::costs::{Cost, Costs};
use pumice_command::statistics::mean_interval;
use pumice_command::table::thousands;

/// Of the time a program ran, translation that is worth a word in the verdict.
const MUCH: f64 = 0.05;

/// An estimate: one JSON object with these names. Times are in seconds where the name says so.
#[derive(Debug, Serialize)]
pub struct Estimate {
    #[serde(flatten)]
    ran: Ran,
    peak_resident_bytes: u64,
    /// All zero-fill faults, and those that brought small and huge pages.
    zfod: u64,
    zfod_small: u64,
    zfod_huge: u64,
    /// Of these, in memory that `pumice run` would serve, and in heaps, of which it would serve a part.
    served_small: u64,
    served_huge: u64,
    heap_small: u64,
    heap_huge: u64,
    /// Minor faults that filled nothing with zeros.
    copied: u64,
    file: u64,
    /// Whether faults were told apart at all, and those taken within system calls too.
    split: bool,
    sees_system_calls: bool,
    lost_records: u64,
    small_fault_ns: Cost,
    huge_fault_ns: Option<Cost>,
    /// The time saved of each where all of the page is written then.
    small_written_ns: Cost,
    huge_written_ns: Option<Cost>,
    touch_ns: Cost,
    fill_gb_s: Cost,
    served_bytes: u64,
    zeroing_s: f64,
    faults_s: Range,
    /// The time saved of these where all of each page is written.
    written_s: Range,
    /// The least that the program has at its peak, and touching that for the first time: part of `faults_s`, and
    /// saved only if it is populated ahead.
    first_bytes: u64,
    first_s: Range,
    /// The part of all these seconds by which the program runs longer: less than 1 where threads share them.
    spread: f64,
    /// The time that these may have taken in this run; `null` where system calls took most of the time in the kernel.
    kernel_s: Option<f64>,
    huge_alone_s: f64,
    /// The time that huge pages save in translating addresses; see the next three.
    translation_s: Range,
    small_step_ns: Option<Cost>,
    huge_step_ns: Option<Cost>,
    /// `null` where the processor does not count them.
    tlb_misses: Option<u64>,
    /// The most that `pumice run` can save: of the program as it is, and where glibc uses huge pages.
    bound_s: f64,
    /// Of the time it ran.
    bound_share: f64,
    bound_range_s: Range,
    bound_over_huge_s: Range,
    verdict: Verdict,
    #[serde(flatten)]
    tried: Option<Tried>,
}

/// The measurements of `--try`: medians, and the time saved.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Tried {
    /// Runs each way.
    pub runs: u32,
    /// As it is.
    pub plain_s: f64,
    /// Under `pumice run`.
    pub pumice_s: f64,
    /// By that.
    #[serde(flatten)]
    pub saved: Saved,
    /// Under `pumice run --mmap`.
    pub mmap_s: f64,
    /// By that.
    pub mmap_saved: Saved,
    /// The saving of `--mmap` beyond that of `pumice run`.
    pub mmap_over_run: Saved,
}

/// Seconds: the mean difference, taken run by run, and its 95 % interval.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Saved {
    /// The mean.
    #[serde(rename = "saved_s")]
    pub middle: f64,
    /// The interval.
    #[serde(rename = "saved_low_s")]
    pub low: f64,
    /// See [`Saved::low`].
    #[serde(rename = "saved_high_s")]
    pub high: f64,
}

impl Saved {
    /// Of runs of which the first of each took `before` and the second `after`.
    pub fn between(before: &[f64], after: &[f64]) -> Saved {
        let saved: Vec<_> =
            before.iter().zip(after).map(|(before, after)| before - after).collect();
        let (low, high) = mean_interval(&saved);
        Saved { middle: saved.iter().sum::<f64>() / saved.len() as f64, low, high }
    }

    /// In words, as a part of `whole_s`.
    fn words(&self, whole_s: f64) -> String {
        let percent = |seconds: f64| 100.0 * seconds / whole_s.max(f64::MIN_POSITIVE);
        let range = format!(
            "{:+.1} % [{:+.1}, {:+.1}]",
            percent(self.middle),
            percent(self.low),
            percent(self.high)
        );
        match self {
            Saved { low, .. } if *low > 0.0 => format!("it saves {range}"),
            Saved { high, .. } if *high < 0.0 => format!("it costs time: saves {range}"),
            _ => format!("too close to call: saves {range}"),
        }
    }
}

impl Estimate {
    /// Puts together what was found.
    pub fn new(
        program: &[OsString],
        wall_s: f64,
        end: End,
        usage: &Usage,
        faults: &Faults,
        costs: &Costs,
        bounds: &Bounds,
    ) -> Estimate {
        let words: Vec<_> = program.iter().map(|word| word.to_string_lossy()).collect();
        let counts = &faults.counts;
        Estimate {
            ran: Ran::new(words.join(" "), wall_s, end, usage),
            peak_resident_bytes: usage.peak_resident_bytes,
            zfod: counts.small + counts.huge,
            zfod_small: counts.small,
            zfod_huge: counts.huge,
            served_small: counts.served_small,
            served_huge: counts.served_huge,
            heap_small: counts.heap_small,
            heap_huge: counts.heap_huge,
            copied: counts.copied,
            file: counts.file,
            split: faults.is_split,
            sees_system_calls: faults.sees_system_calls,
            lost_records: faults.lost,
            small_fault_ns: costs.small_ns.cost().unwrap_or_default(),
            huge_fault_ns: costs.huge_ns.cost(),
            small_written_ns: costs.small_written_ns.cost().unwrap_or_default(),
            huge_written_ns: costs.huge_written_ns.cost(),
            touch_ns: costs.touch_ns.cost().unwrap_or_default(),
            fill_gb_s: costs.fill_gb_s.cost().unwrap_or_default(),
            served_bytes: bounds.bytes,
            zeroing_s: bounds.zeroing_s,
            faults_s: bounds.faults_s,
            written_s: bounds.written_s,
            first_bytes: faults.first_bytes,
            first_s: bounds.first_s,
            spread: bounds.spread,
            kernel_s: bounds.kernel_s,
            huge_alone_s: bounds.huge_alone_s,
            translation_s: bounds.translation_s,
            small_step_ns: costs.small_step_ns.cost(),
            huge_step_ns: costs.huge_step_ns.cost(),
            tlb_misses: bounds.tlb_misses,
            bound_s: bounds.bound_s.high,
            bound_share: bounds.share(wall_s),
            bound_range_s: bounds.bound_s,
            bound_over_huge_s: bounds.over_huge_s,
            verdict: bounds.verdict(wall_s),
            tried: None,
        }
    }

    /// Prints it on stderr, apart from the program's own output.
    pub fn print(&self, why_not_split: Option<&io::Error>) {
        for line in self.lines(why_not_split) {
            eprintln!("{line}");
        }
    }

    /// Adds the measurements, and prints them.
    pub fn add(&mut self, tried: Tried) {
        let Tried { runs, plain_s, pumice_s, mmap_s, .. } = tried;
        eprintln!(
            "tried       {runs} runs each: {plain_s:.3} s as it is, {pumice_s:.3} s under pumice run; {}; \
             at most {:.1} % were expected",
            tried.saved.words(plain_s),
            100.0 * self.bound_share
        );
        let advice = match tried.mmap_over_run {
            Saved { low, .. } if low > 0.0 => "type --mmap, it saves more than without",
            Saved { high, .. } if high < 0.0 => "leave --mmap out, it saves less than without",
            _ => "no measurable difference from pumice run without it",
        };
        eprintln!(
            "            {mmap_s:.3} s under pumice run --mmap; {}; {advice}",
            tried.mmap_saved.words(plain_s)
        );
        self.tried = Some(tried);
    }

    fn translation(&self) -> String {
        let (Some(small), Some(huge)) = (self.small_step_ns, self.huge_step_ns) else {
            return "translation no huge pages, so they save nothing".to_owned();
        };
        let steps = format!(
            "a random access takes {:.0} ns in small pages, {:.0} ns in huge ones",
            small.middle, huge.middle
        );
        let Range { low, high, .. } = self.translation_s;
        match self.tlb_misses {
            Some(misses) => {
                let misses = thousands(misses as f64);
                format!("translation {misses} misses; {steps}: {high:.4} s")
            }
            None => format!(
                "translation {low:.0} to {high:.4} s of its own {:.3} s: {steps}; how many of its accesses are \
                 random is not known, since no misses are counted on this machine",
                self.ran.user_s
            ),
        }
    }

    fn lines(&self, why_not_split: Option<&io::Error>) -> Vec<String> {
        let mut lines = vec![format!(
            "program     {:.3} s; {:.3} s of processor time, {:.3} s of these in the kernel",
            self.ran.wall_s,
            self.ran.user_s + self.ran.system_s,
            self.ran.system_s
        )];
        if let Some(error) = why_not_split {
            lines.push(format!(
                "            its faults can't be told apart ({error}): all count; \
                 try 'sysctl kernel.perf_event_paranoid=1'"
            ));
        }
        self.push_events(&mut lines);
        lines.push(self.machine());
        self.push_bounds(&mut lines);
        lines.push(self.verdict());
        if self.lost_records > 0 {
            lines.push(format!(
                "note        {} records came too fast; the parts are less exact",
                thousands(self.lost_records as f64)
            ));
        }
        if self.split && !self.sees_system_calls {
            lines.push(
                "note        faults within system calls are not seen (kernel.perf_event_paranoid is above 1)"
                    .to_owned(),
            );
        }
        lines
    }

    /// Small pages of what `pumice run` serves, and huge ones.
    fn small(&self) -> u64 {
        self.served_small + self.heap_small
    }

    fn huge(&self) -> u64 {
        self.served_huge + self.heap_huge
    }

    /// The events that were seen.
    fn push_events(&self, lines: &mut Vec<String>) {
        let count = |number: u64| thousands(number as f64);
        lines.push(format!(
            "zero-fill   {} faults: {} small pages, {} huge ones; besides {} copies after fork, \
             {} of files",
            count(self.zfod),
            count(self.zfod_small),
            count(self.zfod_huge),
            count(self.copied),
            count(self.file)
        ));
        lines.push(format!(
            "served      {} small, {} huge of these in memory that pumice run serves: {:.1} MiB \
             ({} small, {} huge in heaps, of which it serves large requests)",
            count(self.small()),
            count(self.huge()),
            mib(self.served_bytes),
            count(self.heap_small),
            count(self.heap_huge)
        ));
    }

    /// The machine's costs.
    fn machine(&self) -> String {
        let cost = |cost: &Cost, by: f64| {
            format!("{:.2} [{:.2}, {:.2}]", cost.middle / by, cost.low / by, cost.high / by)
        };
        let huge_us = match &self.huge_fault_ns {
            Some(huge) => format!("{} us a huge one", cost(huge, 1e3)),
            None => "no huge pages".to_owned(),
        };
        format!(
            "machine     {} us to fault in and give back a small page, {huge_us}, {:.0} ns a touch of a resident page, \
             zeroing {:.1} GB/s",
            cost(&self.small_fault_ns, 1e3),
            self.touch_ns.middle,
            self.fill_gb_s.middle
        )
    }

    /// The time that each part of it takes at most.
    fn push_bounds(&self, lines: &mut Vec<String>) {
        lines.push(format!(
            "zeroing     {:.1} MiB / {:.1} GB/s = {:.4} s: the most that pre-zeroed pages save",
            mib(self.served_bytes),
            self.fill_gb_s.middle,
            self.zeroing_s
        ));
        let Range { middle, low, high } = self.faults_s;
        lines.push(format!(
            "faults      {} x {:.2} us + {} x {:.0} us = {middle:.4} s [{low:.4}, {high:.4}]: \
             the most that ready memory saves ('pumice run --ready'); {:.4} s where all of each page is written",
            thousands(self.small() as f64),
            self.small_fault_ns.middle / 1e3,
            thousands(self.huge() as f64),
            self.huge_fault_ns.map_or(0.0, |huge| huge.middle) / 1e3,
            self.written_s.middle,
        ));
        if let Some(kernel_s) = self.kernel_s.filter(|&kernel_s| kernel_s > high) {
            lines.push(format!(
                "kernel      {kernel_s:.4} s if all its time in the kernel went to faults: some cost more, for \
                 example where a host has to find the memory"
            ));
        }
        let Range { middle, low, high } = self.first_s;
        lines.push(format!(
            "first touch {:.1} MiB at its most: {middle:.4} s [{low:.4}, {high:.4}] that 'pumice run' does not save \
             without --ready",
            mib(self.first_bytes)
        ));
        if self.spread < 1.0 {
            lines.push(format!(
                "threads     {:.0} % of that lengthens the run: the rest runs in parallel",
                100.0 * self.spread
            ));
        }
        lines.push(self.translation());
        lines.push(format!(
            "huge pages  alone they save {:.4} s of the faults and all of the translation \
             ('GLIBC_TUNABLES=glibc.malloc.hugetlb=1'); then pumice run saves {:.4} s at most",
            self.huge_alone_s, self.bound_over_huge_s.high
        ));
    }

    fn verdict(&self) -> String {
        let percent = 100.0 * self.bound_share;
        let verdict = match self.verdict {
            Verdict::DontBother => format!("at most {percent:.1} %: don't bother"),
            Verdict::TooClose => {
                format!("at most {percent:.1} %: it may be too close to call; try --try")
            }
            Verdict::Try => {
                let low = 100.0 * self.bound_range_s.low / self.ran.wall_s.max(f64::MIN_POSITIVE);
                let least = match percent - low >= 1.0 {
                    true => format!(" ({low:.0} % if it writes all of its memory)"),
                    false => String::new(),
                };
                format!(
                    "up to {percent:.0} %{least}: try 'pumice run -- {}', and with --mmap if it maps memory itself \
                     instead of by malloc (--try tells)",
                    self.ran.program
                )
            }
        };
        // Beside a known time, an unknown one is worth a word only if it is long.
        let unknown_s = self.translation_s.high - self.translation_s.low;
        let besides =
            if unknown_s > MUCH * self.ran.wall_s { "; translation comes on top" } else { "" };
        format!("verdict     {verdict}{besides}")
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The progress of `--try`, on a terminal.
pub fn bar(runs: u64) -> ProgressBar {
    let bar = ProgressBar::new(runs);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos} of {len} runs, {eta} left") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}
