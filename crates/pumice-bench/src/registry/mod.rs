//! The experiments that `bench all` runs, and how reports and comparisons show them: all as data.
//!
//! | module | experiments of |
//! |---|---|
//! | [`prezeroing`] | SPEC.md's part A |
//! | [`faults`] | part B |
//! | [`worth`] | part C |
//! | [`machines`] | part D |
//! | [`paging`] | part E |
//! | [`processes`] | part F |
//! | [`field`] | how data names the content of rows |
//!
//! An experiment is one [`Entry`] in its part's module, and a name in [`ENTRIES`]. A test of the program holds
//! every subcommand of `pumice bench` to being there or among the exempt.

pub mod faults;
pub mod field;
pub mod machines;
pub mod paging;
pub mod prezeroing;
pub mod processes;
pub mod worth;

pub use field::{is, Condition, Row};

use crate::names::named;

/// All experiments, in the order in which they run and are shown.
pub const ENTRIES: [&Entry; 16] = [
    &prezeroing::PFT,
    &prezeroing::CLEAR,
    &prezeroing::SCRUB,
    &faults::FAULT,
    &worth::PROGRAMS,
    &worth::START,
    &machines::VM,
    &machines::LEASE,
    &machines::PIN,
    &machines::POPULATE,
    &paging::RECLAIM,
    &paging::REPLACE,
    &paging::IO,
    &processes::MAP,
    &processes::FORK,
    &processes::FRAME,
];

/// The one of this name.
pub fn entry(name: &str) -> Option<&'static Entry> {
    ENTRIES.into_iter().find(|entry| entry.name == name)
}

/// Words, and names of fields.
type Word = &'static str;

/// An experiment.
#[derive(Debug)]
pub struct Entry {
    /// Of the subcommand.
    pub name: &'static str,
    /// A heading.
    pub title: &'static str,
    /// Its purpose and how to read it, in a sentence or two.
    pub about: &'static str,
    /// Where it belongs.
    pub part: Part,
    /// How it runs with `--quick`.
    pub quick: Setting,
    /// How it runs without.
    pub full: Setting,
    /// The tables that it reproduces.
    pub published: &'static [Published],
    /// The fields that name the subject of a row: no two rows agree in all of them.
    pub keys: &'static [&'static str],
    /// The fields that are compared between results.
    pub figures: &'static [Figure],
    /// Today's tables.
    pub tables: &'static [Table],
    /// Today's pictures.
    pub plots: &'static [Plot],
}

/// Arguments, and the time to expect.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// After the name.
    pub arguments: &'static [&'static str],
    /// How long it takes on two processors.
    pub seconds: f64,
}

named! {
    /// The parts of SPEC.md, the design that is carried over, with their headings.
    pub enum Part {
        /// See its heading.
        A = "Pre-zeroed pages",
        /// See its heading.
        B = "Page fault scalability",
        /// See its heading.
        C = "Is it worth it?",
        /// See its heading.
        D = "Ready memory for virtual machines and pinning",
        /// See its heading.
        E = "Paging",
        /// The experiments that none of them has.
        F = "Ordinary processes",
    }
}

impl Part {
    /// Its source, if it was published.
    pub const fn source(self) -> &'static str {
        match self {
            Part::A => "Christoph Lameter, prezeroing V3 for Linux 2.6.10, 2004",
            Part::B => "Christoph Lameter, page fault scalability V12 for Linux, 2004",
            Part::C => "Matthew Dillon, on DragonFly's idle page zeroing, 2010",
            Part::D => "the PG_zero request for comments, Linux, 2020",
            Part::E => "Andrea Arcangeli, on the Linux 2.4.10 virtual memory rewrite, 2001",
            Part::F => "pumice's own: nothing was published to set beside it",
        }
    }
}

/// A table as it was published.
#[derive(Debug)]
pub struct Published {
    /// Its subject, and the machine.
    pub caption: &'static str,
    /// The headings; the first column names the rows.
    pub head: &'static [&'static str],
    /// The rows, each as long as the headings.
    pub rows: &'static [&'static [&'static str]],
}

/// A field that is compared.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its name, and that of its rounds in `samples`.
    pub field: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Which way is good.
    pub better: Better,
    /// How two values are compared.
    pub scale: Scale,
}

/// Which way is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// The more, the better.
    More,
    /// The less, the better.
    Less,
}

/// How two values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// By their ratio.
    Ratio,
    /// By their difference: shares in percent, which may be 0 or less.
    Difference,
    /// By their difference, each of which is one: the same each time, on every machine.
    Exact,
}

/// More of it is better.
pub const fn more(field: &'static str, unit: &'static str) -> Figure {
    Figure { field, unit, better: Better::More, scale: Scale::Ratio }
}

/// Less of it is better.
pub const fn less(field: &'static str, unit: &'static str) -> Figure {
    Figure { field, unit, better: Better::Less, scale: Scale::Ratio }
}

/// Less of this share is better.
pub const fn lower_share(field: &'static str) -> Figure {
    Figure { field, unit: "%", better: Better::Less, scale: Scale::Difference }
}

/// A table of today's, in a terminal and on the page.
#[derive(Debug)]
pub struct Table {
    /// Its subject.
    pub caption: &'static str,
    /// Which rows it shows on the page.
    pub only: &'static [Condition],
    /// Its columns; the first names the rows. The page leaves out those that say nothing of these rows.
    pub columns: &'static [Column],
}

/// A table of these rows.
pub const fn table(caption: Word, only: &'static [Condition], columns: &'static [Column]) -> Table {
    Table { caption, only, columns }
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// The heading, with its unit.
    pub head: &'static str,
    /// The least width in a terminal: the heading may be wider.
    pub width: usize,
    /// Its cells.
    pub show: Show,
}

impl Column {
    /// So wide in a terminal.
    pub const fn wide(self, width: usize) -> Column {
        Column { width, ..self }
    }
}

/// The cells of a column.
#[derive(Clone, Copy, Debug)]
pub enum Show {
    /// Words with fields in braces, as [`field::label`] reads them.
    Words(&'static str),
    /// A number with as many decimals; with none, thousands are grouped.
    Number(&'static str, usize),
    /// Text that a function makes of the row.
    By(fn(&Row) -> String),
    /// A number, multiplied by another.
    Scaled(&'static str, f64, usize),
    /// A number and its interval.
    Interval(&'static str, [&'static str; 2], usize),
    /// How many times the figure of the row that agrees in all keys but this one.
    Times {
        /// The field of the figure.
        figure: &'static str,
        /// The key that differs.
        key: &'static str,
        /// Its value in the other row.
        of: &'static str,
    },
}

impl Show {
    /// The text of a row's cell. Nothing where the row does not say, or where other rows are needed to say it.
    pub fn cell(&self, row: &Row) -> Option<String> {
        let shown = |field: &str, by: f64, decimals: usize| {
            field::number(row, field).map(|number| field::decimal(number * by, decimals))
        };
        match *self {
            Show::Words(words) => Some(field::label(words, row)),
            Show::Number(field, decimals) => shown(field, 1.0, decimals),
            Show::By(words) => Some(words(row)),
            Show::Scaled(field, by, decimals) => shown(field, by, decimals),
            Show::Interval(field, [low, high], decimals) => {
                let ends = shown(low, 1.0, decimals).zip(shown(high, 1.0, decimals));
                let middle = shown(field, 1.0, decimals)?;
                Some(match ends {
                    Some((low, high)) => format!("{middle} [{low}, {high}]"),
                    None => middle,
                })
            }
            Show::Times { .. } => None,
        }
    }
}

/// A column of words.
pub const fn words(head: &'static str, text: &'static str) -> Column {
    Column { head, width: 10, show: Show::Words(text) }
}

/// A column of numbers.
pub const fn number(head: &'static str, field: &'static str, decimals: usize) -> Column {
    Column { head, width: 8, show: Show::Number(field, decimals) }
}

/// A column of text that a function makes of each row.
pub const fn by(head: &'static str, words: fn(&Row) -> String) -> Column {
    Column { head, width: 8, show: Show::By(words) }
}

/// A column of numbers in another unit than the field's.
pub const fn scaled(head: &'static str, field: &'static str, by: f64, decimals: usize) -> Column {
    Column { head, width: 8, show: Show::Scaled(field, by, decimals) }
}

/// A column of numbers with their intervals.
pub const fn interval(head: Word, field: Word, ends: [Word; 2], decimals: usize) -> Column {
    Column { head, width: 20, show: Show::Interval(field, ends, decimals) }
}

/// A column of ratios to a peer's row.
pub const fn times(head: Word, figure: Word, key: Word, of: Word) -> Column {
    Column { head, width: 0, show: Show::Times { figure, key, of } }
}

/// A picture.
#[derive(Debug)]
pub enum Plot {
    /// Lines over logarithmic axes.
    Lines(Lines),
    /// Bars from 0 on.
    Bars(Bars),
}

/// Lines over logarithmic axes.
#[derive(Debug)]
pub struct Lines {
    /// As [`field::label`] reads it, of the first row that is shown.
    pub title: &'static str,
    /// Only rows with the largest value of this field are shown; all, where it is empty.
    pub largest: &'static str,
    /// The scale of the y axis.
    pub scale: YScale,
    /// The x axis: a field and its name.
    pub x: (&'static str, &'static str),
    /// The y axis, as well.
    pub y: (&'static str, &'static str),
    /// The lines.
    pub series: &'static [Series],
}

impl Lines {
    /// Of the rows with the largest value of this field only.
    pub const fn only_largest(self, field: Word) -> Lines {
        Lines { largest: field, ..self }
    }
}

/// Lines of all rows, over two logarithmic axes: a title, the axes, and the lines.
pub const fn lines(
    title: Word,
    x: (Word, Word),
    y: (Word, Word),
    series: &'static [Series],
) -> Lines {
    Lines { title, largest: "", scale: YScale::Logarithmic, x, y, series }
}

/// A y axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YScale {
    /// By powers of ten.
    Logarithmic,
    /// Linear, from 0 to 100.
    Percent,
}

/// One line.
#[derive(Debug)]
pub struct Series {
    /// Its name.
    pub name: &'static str,
    /// Its rows.
    pub only: &'static [Condition],
    /// The field for y, where it is not the picture's.
    pub y: Option<&'static str>,
}

/// A line over the picture's own y.
pub const fn series(name: Word, only: &'static [Condition]) -> Series {
    Series { name, only, y: None }
}

/// Bars, one group for each row.
#[derive(Debug)]
pub struct Bars {
    /// The heading.
    pub title: &'static str,
    /// Their rows.
    pub only: &'static [Condition],
    /// The label above a group, as [`field::label`] reads it.
    pub label: &'static str,
    /// The unit behind the numbers, and how many decimals these have.
    pub unit: (&'static str, usize),
    /// The bars of a group.
    pub values: &'static [Value],
    /// Rows of which the bars are told apart from the others'.
    pub marked: &'static [Condition],
}

impl Bars {
    /// Of these rows only.
    pub const fn only(self, only: &'static [Condition]) -> Bars {
        Bars { only, ..self }
    }

    /// With the bars of these rows told apart.
    pub const fn marked(self, marked: &'static [Condition]) -> Bars {
        Bars { marked, ..self }
    }
}

/// Bars of all rows: a title, the label of a group, the unit, and the values.
pub const fn bars(title: Word, label: Word, unit: (Word, usize), values: &'static [Value]) -> Bars {
    Bars { title, only: &[], label, unit, values, marked: &[] }
}

/// One bar of a group.
#[derive(Debug)]
pub struct Value {
    /// Its name, where a group has several.
    pub name: &'static str,
    /// The field that it shows.
    pub field: &'static str,
    /// The fields of its interval.
    pub ends: Option<[&'static str; 2]>,
}

impl Value {
    /// With an interval between these fields.
    pub const fn with_ends(self, ends: [&'static str; 2]) -> Value {
        Value { ends: Some(ends), ..self }
    }
}

/// A bar alone in its group.
pub const fn value(field: &'static str) -> Value {
    named("", field)
}

/// A bar with a name.
pub const fn named(name: &'static str, field: &'static str) -> Value {
    Value { name, field, ends: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_rectangles_and_entries_whole() {
        let tables = ENTRIES.iter().flat_map(|entry| entry.published);
        for table in tables {
            assert!(table.rows.iter().all(|row| row.len() == table.head.len()), "{table:?}");
        }
        for entry in ENTRIES {
            assert!(!entry.keys.is_empty() && !entry.figures.is_empty(), "{}", entry.name);
            assert!(!entry.tables.is_empty() && !entry.plots.is_empty(), "{}", entry.name);
        }
    }
}
