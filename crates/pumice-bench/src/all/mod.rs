//! `pumice bench all`: every experiment of the registry, one page, one file of results.
//!
//! | module | contents |
//! |---|---|
//! | [`child`] | one experiment as a child process |
//! | [`progress`] | how far it is |
//!
//! Results are written after each experiment, so the measurements are kept however this ends.

mod child;
mod progress;

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;

use super::arguments::check_writable;
use super::interrupts::Interrupts;
use super::machine::Machine;
use super::page;
use super::registry::{Entry, Setting, ENTRIES};
use super::results::{Ending, Measured, Results};
use super::team::folder::Folder;
use super::weather::{Noise, Ticks, Weather};
use child::{End, Ran};
use progress::Progress;
use pumice_command::table::Table;
use pumice_command::whole_file::write_whole;
use pumice_command::{Explain, Failure};

/// `--quick` ends within five minutes; the page takes none of the rest.
const QUICK: Duration = Duration::from_secs(290);
/// This share of the time of all later experiments is reserved for them.
const KEPT_FOR_LATER: f64 = 0.9;
/// An experiment is not begun if less than this share of its usual time is left.
const WORTH_BEGINNING: f64 = 0.3;
/// One that takes so many times as long as it should hangs.
const PATIENCE: f64 = 20.0;

/// Options of `pumice bench all`.
#[derive(Args, Debug)]
#[group(id = "output", required = true, multiple = true, args = ["html", "json"])]
pub struct AllArgs {
    /// Write a page with all tables and pictures to FILE; nothing in it is loaded from elsewhere
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the results to FILE, for 'pumice bench compare' and 'pumice bench report'
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Less of everything: five minutes at most
    #[arg(long)]
    quick: bool,
    /// Only this experiment (can be repeated, or separated by commas)
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = known)]
    only: Vec<String>,
}

fn known(name: &str) -> Result<String, String> {
    let names = ENTRIES.map(|entry| entry.name);
    match names.contains(&name) {
        true => Ok(name.to_owned()),
        false => Err(format!("the experiments are {}", names.join(", "))),
    }
}

/// Runs the experiments and writes their results.
pub fn all(options: &AllArgs) -> Result<(), Failure> {
    let started = Instant::now();
    for path in [&options.html, &options.json].into_iter().flatten() {
        check_writable(path)?;
    }
    let interrupts = Interrupts::take();
    let folder = Folder::make(None, "all")?;
    let wanted = |entry: &&Entry| {
        options.only.is_empty() || options.only.iter().any(|name| name == entry.name)
    };
    let entries: Vec<_> = ENTRIES.into_iter().filter(wanted).collect();
    let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let mut results = Results::new(date, options.quick, Machine::here());
    let progress = Progress::new(&entries, options.quick);
    let mut weather = Weather::measure();
    for (index, &entry) in entries.iter().enumerate() {
        let setting = if options.quick { entry.quick } else { entry.full };
        let until = options.quick.then(|| {
            let later = entries[index + 1..].iter().map(|entry| entry.quick.seconds).sum::<f64>();
            started + QUICK - Duration::from_secs_f64(later * KEPT_FOR_LATER).min(QUICK)
        });
        progress.begin(index);
        let ticks = Ticks::now();
        let ran = match turn(&interrupts, &setting, until) {
            Ok(()) => {
                let words = [&[entry.name][..], setting.arguments].concat();
                let patience = Duration::from_secs_f64(60.0 + PATIENCE * setting.seconds);
                let until = until.unwrap_or(Instant::now() + patience);
                Ok(child::run(&words, &folder, &interrupts, until, || progress.look())?)
            }
            Err(why) => Err(why),
        };
        let ticks = [ticks, Ticks::now()];
        let after = if ran.is_ok() { Weather::measure() } else { weather.clone() };
        let measured = measured(entry, &setting, ran, [weather, after.clone()], ticks);
        weather = after;
        progress.end(&measured);
        results.experiments.push(measured);
        results.seconds = started.elapsed().as_secs_f64();
        let has_had_turn = |one: &Measured| !matches!(one.state, Ending::NotRun | Ending::CutOff);
        results.complete =
            index + 1 == entries.len() && results.experiments.iter().all(has_had_turn);
        write(options, &results, index + 1 == entries.len())?;
    }
    progress.finish();
    summarize(&results);
    match interrupts.came() {
        None => Ok(()),
        Some(signal) => {
            let paths = [&options.html, &options.json].into_iter().flatten();
            let paths: Vec<_> = paths.map(|path| path.display().to_string()).collect();
            let message = format!("interrupted; the results so far are in {}", paths.join(" and "));
            Err(Failure { message, status: 128 + signal as u8 })
        }
    }
}

/// Whether an experiment has a turn; `Err` says why not.
fn turn(
    interrupts: &Interrupts,
    setting: &Setting,
    until: Option<Instant>,
) -> Result<(), &'static str> {
    if interrupts.came().is_some() {
        return Err("interrupted before");
    }
    let needed = Duration::from_secs_f64(setting.seconds * WORTH_BEGINNING);
    match until {
        Some(until) if Instant::now() + needed > until => Err("no time was left for it"),
        _ => Ok(()),
    }
}

fn measured(
    entry: &Entry,
    setting: &Setting,
    ran: Result<Ran, &'static str>,
    weather: [Weather; 2],
    ticks: [Ticks; 2],
) -> Measured {
    let (state, why) = match &ran {
        Err(why) => (Ending::NotRun, Some((*why).to_owned())),
        Ok(Ran { end, rows, .. }) => match end {
            End::Well => (Ending::Complete, None),
            End::Refused(why) if rows.is_empty() => (Ending::Skipped, Some(why.clone())),
            End::Refused(why) | End::Crashed(why) => (Ending::Failed, Some(why.clone())),
            End::Interrupted => (Ending::CutOff, Some("interrupted".to_owned())),
            End::TimeUp => (Ending::CutOff, Some("its time was over".to_owned())),
        },
    };
    let (rows, notes, seconds) =
        ran.map_or_else(|_| Default::default(), |ran| (ran.rows, ran.notes, ran.seconds));
    Measured {
        name: entry.name.to_owned(),
        arguments: setting.arguments.iter().map(|&word| word.to_owned()).collect(),
        state,
        why,
        seconds,
        noise: Noise::of(entry, &rows, &weather, ticks),
        rows,
        notes,
        weather,
    }
}

/// Writes the results so far. Into a pipe only once.
fn write(options: &AllArgs, results: &Results, is_last: bool) -> Result<(), Failure> {
    let is_due = |path: &&PathBuf| is_last || path.is_file();
    if let Some(path) = options.json.as_ref().filter(is_due) {
        let text = serde_json::to_string(results)
            .or_fail(format_args!("can't write {}", path.display()))?;
        write_whole(path, &(text + "\n"))?;
    }
    if let Some(path) = options.html.as_ref().filter(is_due) {
        write_whole(path, &page::page(results))?;
    }
    Ok(())
}

fn summarize(results: &Results) {
    let table = Table::begin(&[
        ("experiment", 10),
        ("state", 8),
        ("rows", 5),
        ("seconds", 7),
        ("noise", 8),
    ]);
    for one in &results.experiments {
        table.row(&[
            one.name.clone(),
            one.state.name().to_owned(),
            one.rows.len().to_string(),
            format!("{:.1}", one.seconds),
            one.noise.level.name().to_owned(),
        ]);
    }
    println!("{:.0} s in all", results.seconds);
}
