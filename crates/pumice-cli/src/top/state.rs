//! The state of the display: programs in order, their history, and the choices made by keys.

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::glyphs::Part;
use crate::stat::rates::Rates;
use crate::stat::sample::{share, Process, Sample};
use crate::stat::with_rates;

/// Samples that are remembered.
const MOST_POINTS: usize = 600;

/// A program: its `pumice run` and its process.
pub type Key = (u32, u32);

pumice_frames::table! {
    /// The order of programs; the most first, but for names and numbers. Their keys are 1 to 7.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum SortBy: &'static str {
        /// Bytes of pool.
        Pool => "pool",
        /// Hit rate.
        Hits => "hits",
        /// Bytes scrubbed a second.
        Scrub => "scrub rate",
        /// Processor time of helpers.
        Cpu => "CPU",
        /// Requests a second.
        Requests => "requests",
        /// Process id.
        Pid => "pid",
        /// Name.
        Name => "name",
    }
}

impl SortBy {
    /// For people.
    pub fn name(self) -> &'static str {
        self.row()
    }

    fn compare(self, one: &Row, other: &Row) -> Ordering {
        let rate = |row: &Row, get: fn(&Rates) -> f64| row.rates.as_ref().map_or(-1.0, get);
        let most = |get: fn(&Rates) -> f64| rate(other, get).total_cmp(&rate(one, get));
        match self {
            SortBy::Pool => other.process.pool_bytes.cmp(&one.process.pool_bytes),
            SortBy::Hits => {
                other.hit_rate().unwrap_or(-1.0).total_cmp(&one.hit_rate().unwrap_or(-1.0))
            }
            SortBy::Scrub => most(|rates| rates.scrubbed_bytes_per_s),
            SortBy::Cpu => most(|rates| rates.scrubber_cpu),
            SortBy::Requests => most(|rates| rates.requests_per_s),
            SortBy::Pid => one.process.pid.cmp(&other.process.pid),
            SortBy::Name => one.process.program.cmp(&other.process.program),
        }
    }
}

/// The command of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Shows the list of keys, or hides it.
    Help,
    /// Orders by the next column.
    NextOrder,
    /// Orders by one of [`SortBy::ALL`].
    SortBy(usize),
    /// The other way round.
    Reverse,
    /// Takes no more samples, or does again.
    Pause,
    /// Chooses the program above.
    Up,
    /// Chooses the program below.
    Down,
    /// Chooses none; hides help.
    Back,
}

/// A program as it is.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its memory and counters.
    pub process: Process,
    /// How fast that changes; not known of a new one.
    pub rates: Option<Rates>,
}

impl Row {
    /// Which it is.
    pub fn key(&self) -> Key {
        (self.process.run_pid, self.process.pid)
    }

    /// Of the requests since the last sample, or of all where there were none.
    pub fn hit_rate(&self) -> Option<f64> {
        self.rates.and_then(|rates| rates.recent_hit_rate).or(self.process.hit_rate)
    }
}

/// One sample of a program, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// The share of hits; without requests, the last one.
    pub hit_rate: f64,
    /// Bytes scrubbed a second.
    pub scrub: f64,
    /// Processors that helpers keep busy.
    pub cpu: f64,
    /// Bytes of pool.
    pub pool: f64,
}

/// See the module's top.
#[derive(Debug)]
pub struct State {
    interval: Duration,
    last: Option<Sample>,
    rows: Vec<Row>,
    all: VecDeque<Point>,
    each: HashMap<Key, VecDeque<Point>>,
    order: SortBy,
    is_reversed: bool,
    is_paused: bool,
    shows_help: bool,
    chosen: Option<Key>,
}

impl State {
    /// Nothing is shown yet.
    pub fn new(interval: Duration) -> State {
        State {
            interval,
            last: None,
            rows: Vec::new(),
            all: VecDeque::new(),
            each: HashMap::new(),
            order: SortBy::Pool,
            is_reversed: false,
            is_paused: false,
            shows_help: false,
            chosen: None,
        }
    }

    /// Takes over a sample.
    pub fn take(&mut self, sample: Sample) {
        let rows = match &self.last {
            Some(last) => with_rates(last, &sample),
            None => sample.processes.iter().map(|process| (process.clone(), None)).collect(),
        };
        self.rows = rows.into_iter().map(|(process, rates)| Row { process, rates }).collect();
        self.last = Some(sample);
        let mut all = Point::default();
        let (mut hits, mut weights) = (0.0, 0.0);
        for row in &self.rows {
            let rates = row.rates.unwrap_or_default();
            let point = Point {
                hit_rate: row.hit_rate().unwrap_or(0.0),
                scrub: rates.scrubbed_bytes_per_s,
                cpu: rates.scrubber_cpu,
                pool: row.process.pool_bytes as f64,
            };
            push(self.each.entry(row.key()).or_default(), point);
            all.scrub += point.scrub;
            all.cpu += point.cpu;
            all.pool += point.pool;
            if let Some(rate) = rates.recent_hit_rate {
                hits += rate * rates.requests_per_s;
                weights += rates.requests_per_s;
            }
        }
        let before = self.all.back().map(|point| point.hit_rate);
        let ever = self.hit_rate_of_all();
        all.hit_rate = if weights > 0.0 { hits / weights } else { before.or(ever).unwrap_or(0.0) };
        push(&mut self.all, all);
        // Programs that have ended are forgotten.
        let there: Vec<_> = self.rows.iter().map(Row::key).collect();
        self.each.retain(|key, _| there.contains(key));
        self.chosen = self.chosen.filter(|key| there.contains(key));
        self.sort();
    }

    fn hit_rate_of_all(&self) -> Option<f64> {
        let sum = |event| {
            self.rows.iter().map(|row| row.process.event(event)).fold(0, u64::saturating_add)
        };
        let (hits, misses) =
            (sum(pumice_heap::stats::Event::Hits), sum(pumice_heap::stats::Event::Misses));
        share(hits, hits.saturating_add(misses))
    }

    /// Handles a key.
    pub fn tell(&mut self, told: Told) {
        match told {
            Told::Help => self.shows_help = !self.shows_help,
            Told::NextOrder => {
                let now = SortBy::ALL.iter().position(|&order| order == self.order).unwrap_or(0);
                self.order = SortBy::ALL[(now + 1) % SortBy::ALL.len()];
            }
            Told::SortBy(index) => self.order = *SortBy::ALL.get(index).unwrap_or(&self.order),
            Told::Reverse => self.is_reversed = !self.is_reversed,
            Told::Pause => self.is_paused = !self.is_paused,
            Told::Up | Told::Down => self.choose(told == Told::Down),
            Told::Back => {
                self.chosen = None;
                self.shows_help = false;
            }
        }
        self.sort();
    }

    fn choose(&mut self, next: bool) {
        let at = self.chosen_index();
        let index = match (at, next) {
            (None, true) => Some(0),
            (Some(index), true) => Some((index + 1).min(self.rows.len().saturating_sub(1))),
            (None | Some(0), false) => None,
            (Some(index), false) => Some(index - 1),
        };
        self.chosen = index.and_then(|index| self.rows.get(index)).map(Row::key);
    }

    fn sort(&mut self) {
        let (order, is_reversed) = (self.order, self.is_reversed);
        self.rows.sort_by(|one, other| {
            let ordering = order.compare(one, other);
            let ordering = if is_reversed { ordering.reverse() } else { ordering };
            ordering.then(one.key().cmp(&other.key()))
        });
    }

    /// Programs in order.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Trees that they belong to.
    pub fn trees(&self) -> usize {
        self.last.as_ref().map_or(0, |sample| sample.trees.len())
    }

    /// Bytes of pool of each part: of the program that is chosen, or of all.
    pub fn parts(&self) -> Vec<(Part, u64)> {
        let of = |part| {
            let rows =
                self.rows.iter().filter(|row| self.chosen.is_none_or(|key| key == row.key()));
            let bytes = rows.map(|row| bytes_of(&row.process, part));
            bytes.fold(0, u64::saturating_add)
        };
        Part::ALL.into_iter().map(|part| (part, of(part))).collect()
    }

    /// History, the latest last: of the program that is chosen, or of all.
    pub fn history(&self, value: impl Fn(&Point) -> f64) -> Vec<f64> {
        let chosen = self.chosen.map(|key| self.each.get(&key));
        let points = chosen.unwrap_or(Some(&self.all));
        points.into_iter().flatten().map(value).collect()
    }

    /// The program that is chosen, by its row.
    pub fn chosen_index(&self) -> Option<usize> {
        let key = self.chosen?;
        self.rows.iter().position(|row| row.key() == key)
    }

    /// See [`SortBy`].
    pub fn order(&self) -> SortBy {
        self.order
    }

    /// Whether the order is the other way round.
    pub fn is_reversed(&self) -> bool {
        self.is_reversed
    }

    /// Whether no samples are taken.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Whether keys are explained.
    pub fn shows_help(&self) -> bool {
        self.shows_help
    }

    /// Between two samples.
    pub fn interval(&self) -> Duration {
        self.interval
    }
}

/// A process's bytes of a part.
pub fn bytes_of(process: &Process, part: Part) -> u64 {
    let split = process.split;
    match part {
        Part::InUse => split.in_use_bytes.unwrap_or(0),
        Part::Unzeroed => split.unzeroed_bytes.unwrap_or(0),
        Part::Zeroed => split.zeroed_bytes.unwrap_or(0),
        Part::Rest => split.absent_bytes.unwrap_or(process.pool_bytes),
    }
}

fn push(points: &mut VecDeque<Point>, point: Point) {
    if points.len() == MOST_POINTS {
        points.pop_front();
    }
    points.push_back(point);
}
