//! The harness of all experiments: the ways take turns, round by round, and the rows are shown, written and kept.
//!
//! An experiment has columns, as data ([`Column`]), and makes [`Row`]s. [`Output`] prints a row under the columns,
//! writes it to the file that `--json` names, and draws the picture that `--plot` names from all of them.

use std::path::PathBuf;

use clap::Args;

use super::arguments::check_writable;
use super::page;
use super::registry::{self, Column, Plot, Row, Show};
use pumice_command::json_lines::JsonLines;
use pumice_command::statistics::{median, Ratio};
use pumice_command::table::Table;
use pumice_command::Failure;

/// The options that every experiment has.
#[derive(Args, Debug, Default)]
pub struct OutputArgs {
    /// Also write the rows to FILE, one JSON object a line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also draw a picture of them, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Where the rows of an experiment go.
#[derive(Debug)]
pub struct Output {
    json: JsonLines,
    picture: Option<(PathBuf, &'static Plot)>,
    table: Table,
    columns: Vec<Column>,
    rows: Vec<Row>,
}

impl Output {
    /// Makes the files before the measurement, so that a bad path is told at once. `plot` is the picture, if one is
    /// asked for.
    pub fn create(args: &OutputArgs, plot: &'static Plot) -> Result<Output, Failure> {
        let (json, table) = (JsonLines::create(args.json.as_deref())?, Table::resume(&[]));
        args.plot.as_deref().map_or(Ok(()), check_writable)?;
        let picture = args.plot.clone().map(|path| (path, plot));
        Ok(Output { json, picture, table, columns: Vec::new(), rows: Vec::new() })
    }

    /// Begins a table: prints the headings. Ratios to other rows are the page's.
    pub fn begin(&mut self, table: &registry::Table) {
        let is_alone = |column: &&Column| !matches!(column.show, Show::Times { .. });
        self.columns = table.columns.iter().filter(is_alone).copied().collect();
        let heads: Vec<_> = self.columns.iter().map(|column| (column.head, column.width)).collect();
        self.table = Table::begin(&heads);
    }

    /// Prints a row, writes it, and keeps it.
    pub fn show(&mut self, row: Row) -> Result<(), Failure> {
        self.print(&row);
        self.keep(row)
    }

    /// Prints a row under the columns.
    pub fn print(&self, row: &Row) {
        let cells = self.columns.iter().map(|column| column.show.cell(row).unwrap_or_default());
        self.table.row(&cells.collect::<Vec<_>>());
    }

    /// Writes a row and keeps it.
    pub fn keep(&mut self, row: Row) -> Result<(), Failure> {
        self.json.write(&row)?;
        self.rows.push(row);
        Ok(())
    }

    /// Prints a line of these cells under the columns: it is no row.
    pub fn line<const N: usize>(&self, cells: [&str; N]) {
        self.table.row(&cells.map(str::to_owned));
    }

    /// Prints an empty line between groups of rows.
    pub fn gap(&self) {
        self.table.gap();
    }

    /// The rows so far.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Draws the picture and ends the file.
    pub fn finish(self) -> Result<(), Failure> {
        if let Some((path, plot)) = &self.picture {
            page::draw(path, plot, &self.rows)?;
        }
        self.json.finish()
    }
}

/// Whether the first round counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmUp {
    /// Every round counts.
    None,
    /// A round before the others does not count.
    Round,
}

/// Runs each of so many ways once a round, and another goes first in each round. `run` is told which way, and which
/// round: 0 is that to warm up. Returns the values of each way, one a round that counts.
pub fn in_turns<T, E>(
    ways: usize,
    rounds: usize,
    warm_up: WarmUp,
    mut run: impl FnMut(usize, usize) -> Result<T, E>,
) -> Result<Vec<Vec<T>>, E> {
    // Soon rounds begin in all parts of the list, and after as many rounds as ways each has gone first.
    let step = (ways * 3 / 8..).find(|&step| step > 0 && divisor(step, ways) == 1).unwrap_or(1);
    let mut values: Vec<Vec<T>> = (0..ways).map(|_| Vec::with_capacity(rounds)).collect();
    let first = if warm_up == WarmUp::Round { 0 } else { 1 };
    for round in first..=rounds {
        for turn in 0..ways {
            let way = ((round - first) * step + turn) % ways;
            let value = run(way, round)?;
            if round > 0 {
                values[way].push(value);
            }
        }
    }
    Ok(values)
}

/// The greatest that two numbers have in common.
fn divisor(one: usize, other: usize) -> usize {
    if other == 0 {
        one
    } else {
        divisor(other, one % other)
    }
}

/// A figure of each round.
pub fn figures<T>(rounds: &[T], of: impl Fn(&T) -> f64) -> Vec<f64> {
    rounds.iter().map(of).collect()
}

/// The median of a figure over the rounds, of which there is at least one.
pub fn middle<T>(rounds: &[T], of: impl Fn(&T) -> f64) -> f64 {
    median(&figures(rounds, of))
}

/// With the median of a figure, the ends of its 95 % interval, and its rounds.
pub fn with_interval(row: Row, fields: [&str; 3], rounds: Vec<f64>) -> Row {
    row.interval(fields, Ratio::of(&rounds)).samples(fields[0], rounds)
}

/// By how many percent `more` is more than `less`.
pub fn percent_more(more: f64, less: f64) -> f64 {
    100.0 * (more / less - 1.0)
}

/// With `drift_percent`, by how much the last round's rate is higher than the first's, and `spread_percent`, by how
/// much the fastest round's is higher than the slowest's; both null where there is one round.
pub fn with_drift(row: Row, rates: &[f64]) -> Row {
    let fastest = rates.iter().copied().fold(0.0, f64::max);
    let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let several = |percent: f64| (rates.len() > 1).then_some(percent);
    row.set("drift_percent", several(percent_more(rates[rates.len() - 1], rates[0])))
        .set("spread_percent", several(percent_more(fastest, slowest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_runs_once_a_round_and_each_goes_first() {
        let mut order = Vec::new();
        let values = in_turns(3, 3, WarmUp::None, |way, round| {
            order.push((way, round));
            Ok::<_, ()>(order.len())
        });
        let firsts: Vec<_> = order.iter().step_by(3).map(|&(way, _)| way).collect();
        assert_eq!(firsts, [0, 1, 2]);
        assert_eq!(values, Ok(vec![vec![1, 6, 8], vec![2, 4, 9], vec![3, 5, 7]]));
        let mut firsts = Vec::new();
        let step = |way, _| {
            firsts.push(way);
            Ok::<_, ()>(())
        };
        in_turns(12, 12, WarmUp::None, step).expect("no error");
        let mut firsts: Vec<_> = firsts.into_iter().step_by(12).collect();
        assert_eq!(firsts[..4], [0, 5, 10, 3]);
        firsts.sort_unstable();
        assert_eq!(firsts, (0..12).collect::<Vec<_>>());
    }

    #[test]
    fn a_round_to_warm_up_does_not_count() {
        let rounds = in_turns(2, 2, WarmUp::Round, |_, round| Ok::<_, ()>(round));
        assert_eq!(rounds, Ok(vec![vec![1, 2]; 2]));
        assert_eq!(in_turns(1, 2, WarmUp::Round, |_, _| Err::<(), _>("no")), Err("no"));
    }
}
