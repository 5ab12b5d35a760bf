//! Rounds in which the host had to bring memory: recognised, and repeated.
//!
//! A virtual machine's host brings memory that the machine has not touched since it started, or has given back: a
//! balloon, or free page reporting, gives back what was free for two seconds. A fault in such memory costs 3 to 7 times
//! more, and an allocator that is the first to reach it pays for all.
//!
//! So before each turn as much memory as the load takes under the allocator that takes most is touched and freed: the
//! host brings it now, and each allocator follows the same neighbour. Two signs tell a round in which that was not
//! enough:
//!
//! - the *probe*, a first touch of fresh memory before each turn, took far more processor time for a page than at its
//!   best in this run. The time that the host takes for a fault counts as the toucher's. The dearest of a round counts.
//! - the time in the kernel of the load's own row under plain glibc is far above the least of its rounds.
//!
//! Neither sign is a figure of an allocator that is compared with glibc. A round that has a sign is repeated in the
//! same order, so that the orders stay balanced, at most half as many times as there are rounds. A round that is not
//! better then stays, and is counted as cold. The signs are looked at again after each round, since a later round may
//! be the first that was warm.

use pumice_command::costs::{bring, first_touch_ns};
use pumice_command::memory;

/// Memory of a probe: a hundredth of a second.
const PROBE_BYTES: usize = 16 << 20;
/// The most memory that is brought before a turn.
const MOST_BYTES: usize = 2 << 30;
/// A cost so many times the best is a sign.
const SIGN: f64 = 2.0;
/// A time in the kernel may vary by so much, whatever its ratio.
const SLACK_S: f64 = 0.03;

/// The probe, and its best of this run.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    best_ns: f64,
}

impl Probe {
    /// Nothing is measured yet.
    pub fn new() -> Probe {
        Probe { best_ns: f64::INFINITY }
    }

    /// Has the host bring so much memory, if that much is free: processor time for a fresh page after that. Without
    /// memory for it there is no sign.
    pub fn measure(&mut self, load_bytes: usize) -> f64 {
        let free_bytes = memory::free_bytes().unwrap_or(0) as usize;
        // Without it the load may have to bring some of its memory: the second sign tells.
        let _ = bring(load_bytes.clamp(PROBE_BYTES, MOST_BYTES).min(free_bytes / 2));
        let page_ns = first_touch_ns(PROBE_BYTES).unwrap_or(self.best_ns);
        self.best_ns = self.best_ns.min(page_ns);
        page_ns
    }
}

/// The signs of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Signs {
    /// Its index among the wanted rounds.
    pub place: usize,
    /// The dearest probe before one of its turns, in nanoseconds a page.
    pub probe_ns: f64,
    /// Seconds in the kernel of the load under plain glibc.
    pub kernel_s: f64,
}

/// The rounds of a load so far, and how many are wanted.
#[derive(Debug)]
pub struct Judge {
    wanted: usize,
    rounds: Vec<Signs>,
}

impl Judge {
    /// Before the first round.
    pub fn new(wanted: usize) -> Judge {
        Judge { wanted, rounds: Vec::new() }
    }

    /// Notes a round.
    pub fn note(&mut self, round: Signs) {
        self.rounds.push(round);
    }

    /// The place of the round that is to run now: first those that have not run, then those that were cold. `None`
    /// when there are enough.
    pub fn next(&self, probe: &Probe) -> Option<usize> {
        let is_at = |place: usize| self.rounds.iter().any(|round| round.place == place);
        let missing = (0..self.wanted).find(|&place| !is_at(place));
        let may_repeat = self.rounds.len() < self.wanted + self.wanted.div_ceil(2);
        missing.or_else(|| (0..self.wanted).find(|&at| may_repeat && self.is_cold(at, probe)))
    }

    /// Whether every place has had a round.
    pub fn is_repeating(&self) -> bool {
        self.rounds.len() >= self.wanted
    }

    /// For each place its round, as an index of the rounds: the least cold.
    pub fn kept(&self, probe: &Probe) -> Vec<usize> {
        (0..self.wanted).filter_map(|place| self.best(place, probe)).collect()
    }

    /// How many rounds have run.
    pub fn ran(&self) -> usize {
        self.rounds.len()
    }

    /// How many rounds were repeated.
    pub fn repeated(&self) -> usize {
        self.rounds.len().saturating_sub(self.wanted)
    }

    /// How many of the kept rounds are cold.
    pub fn cold(&self, probe: &Probe) -> usize {
        (0..self.wanted).filter(|&place| self.is_cold(place, probe)).count()
    }

    /// The probes of the kept rounds.
    pub fn probes_ns(&self, probe: &Probe) -> Vec<f64> {
        self.kept(probe).into_iter().map(|index| self.rounds[index].probe_ns).collect()
    }

    fn is_cold(&self, place: usize, probe: &Probe) -> bool {
        let best = self.best(place, probe);
        best.is_some_and(|index| self.coldness(&self.rounds[index], probe) > SIGN)
    }

    fn best(&self, place: usize, probe: &Probe) -> Option<usize> {
        let coldness = |&index: &usize| self.coldness(&self.rounds[index], probe);
        let at_place = (0..self.rounds.len()).filter(|&index| self.rounds[index].place == place);
        at_place.min_by(|one, other| coldness(one).total_cmp(&coldness(other)))
    }

    /// How many times the best a round's dearer sign is.
    fn coldness(&self, round: &Signs, probe: &Probe) -> f64 {
        let times = |cost: f64, best: f64| if best > 0.0 { cost / best } else { 1.0 };
        let least_s = self.rounds.iter().map(|round| round.kernel_s).fold(f64::INFINITY, f64::min);
        let kernel = match round.kernel_s > least_s + SLACK_S {
            true => times(round.kernel_s, least_s.max(SLACK_S)),
            false => 1.0,
        };
        times(round.probe_ns, probe.best_ns).max(kernel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs rounds of these signs until there are enough: how many ran, and the judge.
    fn judge(wanted: usize, signs: &[(f64, f64)]) -> (usize, Judge, Probe) {
        let mut judge = Judge::new(wanted);
        let mut probe = Probe::new();
        for (ran, &(probe_ns, kernel_s)) in signs.iter().enumerate() {
            let Some(place) = judge.next(&probe) else { return (ran, judge, probe) };
            probe.best_ns = probe.best_ns.min(probe_ns);
            judge.note(Signs { place, probe_ns, kernel_s });
        }
        (signs.len(), judge, probe)
    }

    #[test]
    fn warm_rounds_are_not_repeated() {
        let (ran, judge, probe) =
            judge(3, &[(500.0, 0.1), (600.0, 0.12), (900.0, 0.1), (1.0, 0.0)]);
        assert_eq!((ran, judge.repeated(), judge.cold(&probe)), (3, 0, 0));
        assert_eq!(judge.kept(&probe), [0, 1, 2]);
        assert_eq!(judge.probes_ns(&probe), [500.0, 600.0, 900.0]);
    }

    #[test]
    fn a_cold_round_runs_again_at_its_place() {
        // The probe of the second jumps, then glibc's own row of the third.
        let signs = [(500.0, 0.1), (1600.0, 0.1), (500.0, 0.5), (500.0, 0.1), (500.0, 0.1)];
        let (ran, judge, probe) = judge(3, &signs);
        assert_eq!((ran, judge.repeated(), judge.cold(&probe)), (5, 2, 0));
        assert_eq!(judge.kept(&probe), [0, 3, 4]);
        let places: Vec<_> = judge.rounds.iter().map(|round| round.place).collect();
        assert_eq!(places, [0, 1, 2, 1, 2]);
    }

    #[test]
    fn the_first_round_may_be_the_cold_one() {
        let (ran, judge, probe) = judge(2, &[(2000.0, 0.1), (500.0, 0.1), (510.0, 0.1)]);
        assert_eq!((ran, judge.repeated()), (3, 1));
        assert_eq!(judge.kept(&probe), [2, 1]);
    }

    #[test]
    fn a_host_that_stays_cold_ends_it_all_the_same() {
        let mut signs = vec![(500.0, 0.1)];
        signs.resize(20, (2000.0, 0.1));
        let (ran, judge, probe) = judge(9, &signs);
        assert_eq!((ran, judge.repeated(), judge.kept(&probe).len()), (14, 5, 9));
        assert_eq!(judge.cold(&probe), 8);
    }

    #[test]
    fn little_time_in_the_kernel_is_no_sign() {
        let (ran, judge, _) = judge(3, &[(500.0, 0.0), (500.0, 0.02), (500.0, 0.03)]);
        assert_eq!((ran, judge.repeated()), (3, 0));
    }

    #[test]
    fn the_probe_measures() {
        let mut probe = Probe::new();
        let page_ns = probe.measure(1);
        assert!(page_ns > 0.0 && probe.best_ns == page_ns);
    }
}
