//! The rounds of a load: in turns, after one that does not count, and again where the host had to bring memory.

use std::io::{self, IsTerminal};
use std::time::Instant;

use super::allocator::{Allocator, Preload};
use super::cold::{Judge, Probe, Signs};
use super::kit::{Kit, Ready};
use super::measure::{self, NoRun, Spent};
use super::row::{Measured, Rounds};
use super::turns;
use crate::interrupts::Interrupts;
use pumice_command::Failure;

/// The parts that all loads of a run share.
#[derive(Debug)]
pub struct Bench {
    /// The inputs, and where they lie.
    pub kit: Kit,
    /// The allocators.
    pub preloads: Vec<Preload>,
    rounds: usize,
    interrupts: Interrupts,
    probe: Probe,
    /// Loads that were measured.
    measured: usize,
}

/// The figures of one allocator, round by round.
type Turns<'p> = (&'p Preload, Vec<Spent>);

impl Bench {
    /// From now on signals that would end the run end its programs first.
    pub fn new(kit: Kit, preloads: Vec<Preload>, rounds: usize) -> Bench {
        let (interrupts, probe) = (Interrupts::take(), Probe::new());
        Bench { kit, preloads, rounds, interrupts, probe, measured: 0 }
    }

    /// Where the experiment is in this load.
    pub fn progress(&self, place: String) -> Progress {
        Progress { place, rounds: self.rounds }
    }

    /// Fails if somebody wants the experiment to end.
    pub fn look(&self) -> Result<(), Failure> {
        self.interrupts.came().map_or(Ok(()), |_| Err(interrupted()))
    }

    /// The rounds under each allocator that runs the load. `None` if glibc is not among them.
    pub fn measure(
        &mut self,
        load: &Ready,
        progress: &Progress,
    ) -> Result<Option<Measured>, Failure> {
        // Each load begins elsewhere in the cycle of orders, so that all loads together are as balanced as can be.
        let first = self.measured * self.rounds;
        self.measured += 1;
        let mut turns: Vec<Turns> = self.preloads.iter().map(|one| (one, Vec::new())).collect();
        // This round warms the caches, writes the shim, and measures the clearing plan. Two of them do.
        let glibc = self.preloads.iter().find(|one| one.allocator == Allocator::Glibc);
        let ours = self.preloads.iter().find(|one| one.allocator.is_pumice());
        let mut warm: Vec<Turns> =
            glibc.into_iter().chain(ours).map(|one| (one, Vec::new())).collect();
        let begun = allocators(&warm);
        self.round(load, first, &mut warm, &mut |name| {
            progress.show(&format!("round 0 of {}, {name}", progress.rounds));
        })?;
        if last_of_glibc(&warm).is_none() {
            return Ok(None);
        }
        let ran = allocators(&warm);
        let failed = |of: &Allocator| begun.contains(of) && !ran.contains(of);
        turns.retain(|(of, _)| !failed(&of.allocator));
        let mut most_bytes = most_bytes_of(&warm);
        let (mut probe, mut judge) = (self.probe, Judge::new(self.rounds));
        let started = Instant::now();
        while let Some(place) = judge.next(&probe) {
            let again = if judge.is_repeating() { ", again: memory was cold" } else { "" };
            let mut probe_ns = 0.0_f64;
            self.round(load, first + 1 + place, &mut turns, &mut |name| {
                progress.show(&format!(
                    "round {} of {}{again}, {name}",
                    place + 1,
                    progress.rounds
                ));
                probe_ns = probe_ns.max(probe.measure(most_bytes));
            })?;
            let Some(glibc) = last_of_glibc(&turns) else { return Ok(None) };
            most_bytes = most_bytes.max(most_bytes_of(&turns));
            judge.note(Signs { place, probe_ns, kernel_s: glibc.system_s });
        }
        let round_s = started.elapsed().as_secs_f64() / judge.ran() as f64;
        progress.clear();
        let kept = judge.kept(&probe);
        let rounds = |(of, spent): Turns| {
            let spent = kept.iter().map(|&index| spent[index]).collect();
            Rounds { allocator: of.allocator, spent }
        };
        let measured = Measured {
            all: turns.into_iter().map(rounds).collect(),
            repeated: judge.repeated(),
            cold: judge.cold(&probe),
            probes_ns: judge.probes_ns(&probe),
            round_s,
        };
        self.probe = probe;
        Ok(Some(measured))
    }

    /// One round; `begin` is called before each turn. An allocator under which the load fails takes part no more.
    fn round(
        &self,
        load: &Ready,
        round: usize,
        turns: &mut Vec<Turns>,
        begin: &mut dyn FnMut(&str),
    ) -> Result<(), Failure> {
        let there = allocators(turns);
        for next in turns::order(there.len(), round).map(|turn| there[turn]) {
            let Some(index) = turns.iter().position(|(of, _)| of.allocator == next) else {
                continue;
            };
            begin(next.name());
            let (preload, spent) = &mut turns[index];
            match measure::run(preload, load, self.kit.folder(), &self.interrupts) {
                Ok(run) => spent.push(run),
                Err(NoRun::Interrupted) => {
                    Progress::clear_line();
                    return Err(interrupted());
                }
                Err(NoRun::Failed(why)) => {
                    Progress::clear_line();
                    println!("fails under {}: {why}", next.name());
                    turns.remove(index);
                    if next == Allocator::Glibc {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

fn allocators(turns: &[Turns]) -> Vec<Allocator> {
    turns.iter().map(|(of, _)| of.allocator).collect()
}

/// The last turn of plain glibc, if it runs the load.
fn last_of_glibc(turns: &[Turns]) -> Option<Spent> {
    let glibc = turns.iter().find(|(of, _)| of.allocator == Allocator::Glibc);
    glibc.and_then(|(_, spent)| spent.last().copied())
}

/// The most memory that a turn had.
fn most_bytes_of(turns: &[Turns]) -> usize {
    let peaks_kib = turns.iter().flat_map(|(_, spent)| spent).map(|spent| spent.peak_kib);
    peaks_kib.fold(0.0, f64::max) as usize * 1024
}

fn interrupted() -> Failure {
    Failure { message: "interrupted".to_owned(), status: 130 }
}

/// Where the experiment is, in one line on a terminal that is rewritten as it goes on.
#[derive(Debug)]
pub struct Progress {
    /// Which load.
    place: String,
    /// Of how many rounds.
    rounds: usize,
}

impl Progress {
    /// Rewrites the line.
    pub fn show(&self, what: &str) {
        if io::stderr().is_terminal() {
            eprint!("\r{}: {what}\x1b[K", self.place);
        }
    }

    /// Takes the line away.
    pub fn clear(&self) {
        Progress::clear_line();
    }

    fn clear_line() {
        if io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
    }
}
