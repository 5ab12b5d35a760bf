//! The page that `bench all --html` and `bench report` write: a function of the results alone.
//!
//! | module | contents |
//! |---|---|
//! | [`tables`] | tables, published and today's |
//! | [`lines`] | lines over logarithmic axes |
//! | [`bars`] | bars |
//! | [`svg`] | the elements of both |
//! | [`picture`] | one of them in a file |
//!
//! Nothing is loaded from elsewhere, which its content security policy holds it to, and nothing runs. All that
//! comes from results is text: [`maud`] escapes it. Shapes, dashes and words say what colours say.

mod bars;
mod lines;
mod picture;
mod svg;
mod tables;

pub use picture::draw;

use std::time::Duration;

use maud::{html, Markup, PreEscaped, DOCTYPE};

use super::registry::field::decimal;
use super::registry::{self, Entry, Part, Plot, Row};
use super::results::{Ending, Measured, Results};

const GIB: f64 = (1_u64 << 30) as f64;
const STYLE: &str = include_str!("style.css");
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

/// The page.
pub fn page(results: &Results) -> String {
    let title = format!("pumice on {}", results.machine.processor);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                link rel="icon" href="data:,";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "What ready memory is worth on this machine" }
                    p {
                        "pumice " (results.pumice) ", "
                        @if results.quick { "a quick run" } @else { "a full run" }
                        " of " (minutes(results.seconds)) ", " time datetime=(results.date) { (results.date) } "."
                    }
                    @if !results.complete {
                        p.notice { strong { "Not complete: " } "not every experiment came to its end. Results \
                            measured until then are below." }
                    }
                    (machine(results))
                    (overview(results))
                }
                main {
                    @for part in Part::ALL { (one_part(results, part)) }
                    (others(results))
                }
                footer {
                    p { "Tables named \u{201c}published\u{201d} are other people's, on their machines; see each part's \
                        source. Ratios, not figures, carry over." }
                }
            }
        }
    };
    page.into_string()
}

fn machine(results: &Results) -> Markup {
    let machine = &results.machine;
    let mut lines = vec![
        ("Processor", format!("{} ({} of them)", machine.processor, machine.processors)),
        ("Memory", format!("{} GiB", decimal(machine.memory_bytes as f64 / GIB, 1))),
        ("Kernel", machine.kernel.clone()),
        ("Huge pages", machine.huge_pages.clone()),
        ("C library", machine.libc.clone()),
    ];
    lines.extend(machine.hypervisor.iter().map(|it| ("Virtual, on", it.clone())));
    html! {
        section aria-labelledby="machine" {
            h2 id="machine" { "Machine" }
            dl {
                @for (name, value) in &lines { div { dt { (name) } dd { (value) } } }
                @for (name, version) in &machine.versions { div { dt { (name) } dd { (version) } } }
            }
        }
    }
}

fn overview(results: &Results) -> Markup {
    let heads = [("experiment", true), ("state", true), ("noise", true), ("seconds", false)];
    let rows = results.experiments.iter().map(|one| {
        let name = html! { a href=(format!("#{}", one.name)) { (one.name) } };
        let [state, noise] = [&*state(one), one.noise.level.name()].map(|word| html! { (word) });
        (false, vec![name, state, noise, html! { (decimal(one.seconds, 1)) }])
    });
    html! {
        section aria-labelledby="overview" {
            h2 id="overview" { "Experiments" }
            (tables::table("How each went, and how quiet the machine was", &heads, rows))
        }
    }
}

fn state(one: &Measured) -> String {
    match &one.why {
        Some(why) => format!("{}: {why}", one.state.name()),
        None => one.state.name().to_owned(),
    }
}

fn one_part(results: &Results, part: Part) -> Markup {
    let of_part =
        |one: &&Measured| registry::entry(&one.name).is_some_and(|entry| entry.part == part);
    let measured: Vec<_> = results.experiments.iter().filter(of_part).collect();
    html! {
        @if !measured.is_empty() {
            section {
                h2 { (part.name()) }
                p.source { "After " (part.source()) "." }
                @for one in measured {
                    @if let Some(entry) = registry::entry(&one.name) { (experiment(one, entry)) }
                }
            }
        }
    }
}

fn experiment(one: &Measured, entry: &Entry) -> Markup {
    html! {
        article id=(one.name) {
            h3 { (entry.title) }
            p { (entry.about) }
            @if one.state != Ending::Complete {
                p.notice { strong { (one.state.name()) } @if let Some(why) = &one.why { ": " (why) } "." }
            }
            @if !one.rows.is_empty() {
                p.noise.(one.noise.level.name()) { (one.noise.words()) }
            }
            @for table in entry.published { (tables::published(table)) }
            div.plots {
                @for (index, plot) in entry.plots.iter().enumerate() {
                    (figure(plot, &one.rows, &format!("{}-{index}", one.name)))
                }
            }
            @for table in entry.tables { (tables::today(table, entry, &one.rows)) }
            (details(one))
        }
    }
}

fn figure(plot: &Plot, rows: &[Row], id: &str) -> Markup {
    match plot {
        Plot::Lines(plot) => lines::figure(plot, rows, id),
        Plot::Bars(plot) => bars::figure(plot, rows, id),
    }
}

fn details(one: &Measured) -> Markup {
    let command =
        [&["pumice bench".to_owned(), one.name.clone()], &*one.arguments].concat().join(" ");
    html! {
        details {
            summary { "How it was measured" }
            p { code { (command) } ", " (minutes(one.seconds)) ", " (one.rows.len()) " rows" }
            @if !one.notes.is_empty() {
                pre tabindex="0" { (one.notes.join("\n")) }
            }
        }
    }
}

/// Experiments of another version's, which this one knows nothing of.
fn others(results: &Results) -> Markup {
    let unknown: Vec<_> =
        results.experiments.iter().filter(|one| registry::entry(&one.name).is_none()).collect();
    html! {
        @if !unknown.is_empty() {
            section {
                h2 { "Others" }
                @for one in unknown {
                    article id=(one.name) {
                        h3 { (one.name) }
                        p { (state(one)) }
                        (tables::all_fields(&one.rows))
                        (details(one))
                    }
                }
            }
        }
    }
}

/// A time as people say it.
pub fn minutes(seconds: f64) -> String {
    let whole = Duration::from_secs(seconds.max(0.0).round() as u64);
    humantime::format_duration(whole).to_string()
}
