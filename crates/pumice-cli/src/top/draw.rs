//! The screen, for the room there is: the parts that matter least go first.

use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph};
use ratatui::Frame;

use super::glyphs::{Looks, Part};
use super::state::{bytes_of, Row, SortBy, State};
use crate::stat::show::percent;

/// With less there is nothing to see.
const LEAST: (u16, u16) = (24, 4);
/// Rows of the summary at the top: the title, the pool, its legend, three lines of history.
const SUMMARY: u16 = 6;
/// With fewer rows in all, the summary is the title and the pool.
const FEW_ROWS: u16 = 14;

/// Draws it all.
pub fn draw(frame: &mut Frame, state: &State, looks: Looks) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        frame.render_widget(Paragraph::new("too small; q quits"), area);
        return;
    }
    let summary = if area.height < FEW_ROWS { 2 } else { SUMMARY };
    let rows = [Constraint::Length(summary), Constraint::Min(1), Constraint::Length(1)];
    let [top, middle, bottom] = Layout::vertical(rows).areas(area);
    let lines = summary_lines(state, looks, usize::from(top.width));
    frame.render_widget(Paragraph::new(lines), top);
    frame.render_widget(Paragraph::new(table(state, looks, middle)), middle);
    frame.render_widget(Paragraph::new(footer(state)), bottom);
    if state.shows_help() {
        draw_help(frame, middle);
    }
}

fn summary_lines(state: &State, looks: Looks, width: usize) -> Vec<Line<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let parts = state.parts();
    let pool: u64 = parts.iter().map(|part| part.1).fold(0, u64::saturating_add);
    let subject = match state.chosen_index().map(|index| &state.rows()[index]) {
        Some(row) => format!("{} ({})", name(row), row.process.pid),
        None => {
            format!("{}, {}", count(state.rows().len(), "program"), count(state.trees(), "tree"))
        }
    };
    let paused = if state.is_paused() { "  paused" } else { "" };
    let title = Line::from(vec![
        Span::styled("pumice top", bold),
        format!("  {subject}  pool {}{paused}", size(pool)).into(),
    ]);

    let room = width.saturating_sub(8);
    let mut bar = vec![Span::from("pool   ")];
    bar.extend(looks.bar(&parts, room));
    let mut legend = vec![Span::from("       ")];
    for (part, label) in
        [(Part::InUse, "in use"), (Part::Unzeroed, "unzeroed"), (Part::Zeroed, "zeroed")]
    {
        let bytes = parts.iter().find(|one| one.0 == part).map_or(0, |one| one.1);
        legend.push(looks.sample(part));
        legend.push(format!(" {label} {}   ", size(bytes)).into());
    }

    let history = |label: &str, values: Vec<f64>, least: f64, shown: &dyn Fn(f64) -> String| {
        let last = values.last().copied().unwrap_or(0.0);
        let most = values.iter().copied().fold(least, f64::max);
        let spark = looks.spark(&values, most, width.saturating_sub(20));
        Line::from(format!("{label:<7}{:>11} {spark}", shown(last)))
    };
    vec![
        title,
        bar.into(),
        legend.into(),
        history("hits", state.history(|point| point.hit_rate), 1.0, &|rate| percent_of(rate)),
        history("scrub", state.history(|point| point.scrub), 1.0, &|rate| {
            format!("{}/s", size(rate as u64))
        }),
        history("CPU", state.history(|point| point.cpu), 0.01, &|cpu| percent_of(cpu)),
    ]
}

/// A column of the table: its heading, how wide it is, and how wide the screen must be for it.
struct Column {
    order: Option<SortBy>,
    heading: &'static str,
    width: usize,
    least_screen: usize,
}

const fn column(
    order: Option<SortBy>,
    heading: &'static str,
    width: usize,
    least_screen: usize,
) -> Column {
    Column { order, heading, width, least_screen }
}

const COLUMNS: [Column; 8] = [
    column(Some(SortBy::Pid), "PID", 7, 0),
    column(None, "RUN", 7, 92),
    column(Some(SortBy::Name), "PROGRAM", 15, 0),
    column(Some(SortBy::Pool), "POOL", 10, 36),
    column(Some(SortBy::Hits), "HITS%", 5, 42),
    column(Some(SortBy::Scrub), "SCRUB/s", 10, 53),
    column(Some(SortBy::Cpu), "CPU%", 5, 59),
    column(Some(SortBy::Requests), "REQ/s", 8, 68),
];
/// A bar needs as much.
const LEAST_BAR: usize = 8;

fn table(state: &State, looks: Looks, area: Rect) -> Vec<Line<'static>> {
    let width = usize::from(area.width);
    let columns: Vec<_> = COLUMNS.iter().filter(|column| width >= column.least_screen).collect();
    let taken: usize = columns.iter().map(|column| column.width + 1).sum();
    let bar_width = width.saturating_sub(taken);
    let bar_width = if bar_width >= LEAST_BAR { bar_width } else { 0 };
    let arrow = if state.is_reversed() { '^' } else { 'v' };
    let heading = columns.iter().map(|column| {
        let is_order = column.order == Some(state.order());
        let mark = if is_order { arrow.to_string() } else { String::new() };
        cell(column, &format!("{}{mark}", column.heading))
    });
    let mut heading: String = heading.collect();
    if bar_width > 0 {
        heading += "SPLIT";
    }
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    let mut lines = vec![Line::styled(format!("{heading:<width$}"), reversed)];
    if state.rows().is_empty() {
        lines.push(Line::from("no program is being served by pumice; 'pumice run -- PROGRAM'"));
    }
    let room = usize::from(area.height).saturating_sub(1).max(1);
    // The chosen row is always seen.
    let first = state.chosen_index().map_or(0, |index| (index + 1).saturating_sub(room));
    let most = state.rows().iter().map(|row| row.process.pool_bytes).max().unwrap_or(0);
    for (index, row) in state.rows().iter().enumerate().skip(first).take(room) {
        let mut spans = vec![Span::from(
            columns.iter().map(|column| cell(column, &value(column, row))).collect::<String>(),
        )];
        if let Some(reason) = row.process.reason {
            spans.push(format!("not served: {reason}").into());
        } else if bar_width > 0 && most > 0 {
            let own = (u128::from(row.process.pool_bytes) * bar_width as u128 / u128::from(most))
                as usize;
            let parts = Part::ALL.map(|part| (part, bytes_of(&row.process, part)));
            spans.extend(looks.bar(&parts, own));
        }
        let line = Line::from(spans);
        lines.push(match state.chosen_index() == Some(index) {
            true => line.style(Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED)),
            false => line,
        });
    }
    lines
}

fn cell(column: &Column, text: &str) -> String {
    let width = column.width;
    let text: String = text.chars().take(width).collect();
    match column.heading {
        "PROGRAM" => format!("{text:<width$} "),
        _ => format!("{text:>width$} "),
    }
}

fn value(column: &Column, row: &Row) -> String {
    let rates = row.rates;
    let unknown = || "-".to_owned();
    match column.order {
        Some(SortBy::Pid) => row.process.pid.to_string(),
        None => row.process.run_pid.to_string(),
        Some(SortBy::Name) => name(row),
        Some(SortBy::Pool) => size(row.process.pool_bytes),
        Some(SortBy::Hits) => percent(row.hit_rate()),
        Some(SortBy::Scrub) => {
            rates.map_or_else(unknown, |rates| size(rates.scrubbed_bytes_per_s as u64))
        }
        Some(SortBy::Cpu) => {
            rates.map_or_else(unknown, |rates| format!("{:.1}", 100.0 * rates.scrubber_cpu))
        }
        Some(SortBy::Requests) => {
            rates.map_or_else(unknown, |rates| format!("{:.0}", rates.requests_per_s))
        }
    }
}

fn footer(state: &State) -> Line<'static> {
    let order = state.order().name();
    let every = state.interval().as_secs_f64();
    Line::from(format!("q quit  h help  s sort: {order}  r reverse  p pause  every {every} s"))
}

fn draw_help(frame: &mut Frame, over: Rect) {
    let lines = [
        "q       quit",
        "h ?     this help",
        "s 1-7   sort: pool, hits, scrub rate, CPU,",
        "        requests, pid, name",
        "r       the other way round",
        "p       pause, and go on",
        "up down choose a program; Esc none",
        "CPU and scrub rate are the helper threads'",
    ];
    let height = over.height.min(lines.len() as u16);
    let area = Rect { height, width: over.width.min(46), ..over };
    frame.render_widget(Clear, area);
    let style = Style::new().add_modifier(Modifier::REVERSED);
    let text: Vec<_> = lines.iter().map(|line| Line::from(format!(" {line:<45}"))).collect();
    frame.render_widget(Paragraph::new(text).style(style), area);
}

/// A program may have written anything as its name.
fn name(row: &Row) -> String {
    row.process.program.escape_debug().to_string()
}

fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

fn percent_of(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// In the unit that suits it.
fn size(bytes: u64) -> String {
    let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|&(unit, _)| bytes >= unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use pumice_heap::stats::Event;
    use ratatui::backend::TestBackend;
    use ratatui::Terminal;

    use super::super::state::Told;
    use super::*;
    use crate::stat::sample::{Process, Sample, Split};

    fn process(pid: u32, program: &str, mib: u64, hits: u64) -> Process {
        let bytes = mib << 20;
        let mut events: std::collections::BTreeMap<_, _> =
            Event::ALL.into_iter().map(|event| (event.name(), 0)).collect();
        events.insert("requests", hits + 1);
        events.insert("hits", hits);
        events.insert("misses", 1);
        events.insert("scrubbed_bytes", hits << 20);
        events.insert("scrubber_ns", hits * 1_000_000);
        Process {
            run_pid: 100,
            uid: 0,
            pid,
            program: program.to_owned(),
            pool_bytes: bytes,
            split: Split {
                zeroed_bytes: Some(bytes / 4),
                unzeroed_bytes: Some(bytes / 4),
                absent_bytes: Some(0),
                in_use_bytes: Some(bytes / 2),
            },
            tree_pool_bytes: bytes,
            tree_pool_peak_bytes: bytes,
            tree_pool_max_bytes: 1 << 40,
            hit_rate: Some(0.5),
            zeroed_rate: None,
            scrubber_s: 0.0,
            reason: None,
            events,
        }
    }

    fn sample(at: Instant, processes: Vec<Process>) -> Sample {
        Sample { at, processes, trees: Vec::new() }
    }

    fn state() -> State {
        let mut state = State::new(Duration::from_secs(1));
        let start = Instant::now();
        for second in 0..3 {
            let hits = 300 * second;
            let processes =
                vec![process(7, "python3", 64, hits), process(8, "sort\u{1b}[2J", 256, 2 * hits)];
            state.take(sample(start + Duration::from_secs(second), processes));
        }
        state
    }

    fn screen(state: &State, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("no terminal");
        terminal.draw(|frame| draw(frame, state, Looks::PLAIN)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let line = |row: u16| -> String {
            (0..width).map(|column| buffer[(column, row)].symbol()).collect()
        };
        (0..height).map(|row| line(row).trim_end().to_owned()).collect()
    }

    #[test]
    fn a_screen_of_the_usual_size() {
        let lines = screen(&state(), 80, 24);
        let expected = [
            "pumice top  2 programs, 0 trees  pool 320.0 MiB",
            "pool   ####################################==================------------------",
            "       # in use 160.0 MiB   = unzeroed 80.0 MiB   - zeroed 80.0 MiB",
            "hits         100 %                                                           ##",
            "scrub  900.0 MiB/s                                                           ##",
            "CPU           90 %                                                           ##",
            "    PID PROGRAM              POOLv HITS%    SCRUB/s  CPU%    REQ/s SPLIT",
            "      8 sort\\u{1b}[2J    256.0 MiB   100  600.0 MiB  60.0      600 #######===---",
            "      7 python3           64.0 MiB   100  300.0 MiB  30.0      300 #=-",
        ];
        for (line, expected) in lines.iter().zip(expected) {
            assert_eq!(line.trim_end(), expected, "\n{}", lines.join("\n"));
        }
        assert!(lines[23].starts_with("q quit  h help  s sort: pool"), "{}", lines[23]);
    }

    #[test]
    fn every_size_is_drawn() {
        let mut state = state();
        for help in [false, true] {
            for width in (1..140).step_by(9) {
                for height in (1..30).step_by(3) {
                    let lines = screen(&state, width, height);
                    let is_large = width >= LEAST.0 && height >= LEAST.1;
                    assert!(!is_large || lines[0].starts_with("pumice top"), "{width}x{height}");
                }
            }
            assert!(!help || screen(&state, 80, 24).join("\n").contains("this help"));
            state.tell(Told::Help);
        }
    }

    #[test]
    fn keys_order_and_choose() {
        let mut state = state();
        let first = |state: &State| state.rows()[0].process.pid;
        assert_eq!(first(&state), 8);
        state.tell(Told::Reverse);
        assert_eq!(first(&state), 7);
        state.tell(Told::Reverse);
        state.tell(Told::SortBy(5));
        assert_eq!((first(&state), state.order()), (7, SortBy::Pid));
        state.tell(Told::NextOrder);
        assert_eq!(state.order(), SortBy::Name);
        state.tell(Told::SortBy(8));
        assert_eq!(state.order(), SortBy::Name, "there is no such");
        state.tell(Told::Down);
        assert!(screen(&state, 80, 24)[0].contains("python3 (7)"));
        state.tell(Told::Down);
        state.tell(Told::Down);
        assert_eq!(state.chosen_index(), Some(1));
        let two_rows = screen(&state, 80, 5);
        assert!(two_rows.join("\n").contains("sort"), "what is chosen is seen: {two_rows:?}");
        state.tell(Told::Back);
        assert_eq!(state.chosen_index(), None);
        // The chosen program may end.
        state.tell(Told::Down);
        state.take(sample(Instant::now(), Vec::new()));
        assert_eq!(state.chosen_index(), None);
        assert!(screen(&state, 80, 24).join("\n").contains("no program"));
    }
}
