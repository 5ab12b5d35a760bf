//! Bars from 0 on, each under its name and number, so that a phone has room for both.

use maud::{html, Markup};

use super::svg::{image, round, LETTER, WIDTH};
use crate::registry::field::{all_hold, decimal, label, number, Row};
use crate::registry::Bars;

const LETTERS: f64 = 17.0;
const BAR: f64 = 11.0;
const GAP: f64 = 9.0;

struct Group {
    label: String,
    is_marked: bool,
    bars: Vec<Bar>,
}

struct Bar {
    /// Its number among the group's, so that its looks stay with its name.
    number: usize,
    name: &'static str,
    value: f64,
    ends: Option<(f64, f64)>,
}

/// Where values lie.
struct Scale {
    least: f64,
    greatest: f64,
}

impl Scale {
    /// Over all values and their intervals, unless these are many times as long as any bar.
    fn over(groups: &[Group]) -> Scale {
        let bars = || groups.iter().flat_map(|group| &group.bars);
        let longest = bars().map(|bar| bar.value.abs()).fold(0.0, f64::max);
        let most = (longest * 2.0).max(f64::MIN_POSITIVE);
        let ends = bars().flat_map(|bar| bar.ends.map(|(low, high)| [low, high])).flatten();
        let all = bars().map(|bar| bar.value).chain(ends.map(|end| end.clamp(-most, most)));
        let (mut least, mut greatest) = (0.0_f64, 0.0_f64);
        for value in all {
            least = least.min(value);
            greatest = greatest.max(value);
        }
        if least == greatest {
            greatest = 1.0;
        }
        Scale { least, greatest }
    }

    fn at(&self, value: f64) -> f64 {
        let value = value.clamp(self.least, self.greatest);
        (value - self.least) / (self.greatest - self.least) * (WIDTH - 4.0) + 2.0
    }
}

/// The picture; nothing where there is nothing to draw.
pub fn figure(plot: &Bars, rows: &[Row], id: &str) -> Markup {
    let groups: Vec<_> = rows
        .iter()
        .filter(|row| all_hold(plot.only, row))
        .map(|row| group(plot, row))
        .filter(|group| !group.bars.is_empty())
        .collect();
    html! {
        @if !groups.is_empty() {
            figure.plot {
                figcaption { (plot.title) ", " (plot.unit.0) }
                (picture(plot, &groups, id))
            }
        }
    }
}

fn group(plot: &Bars, row: &Row) -> Group {
    let bar = |(index, value): (usize, &crate::registry::Value)| {
        let ends = value.ends.and_then(|[low, high]| number(row, low).zip(number(row, high)));
        Some(Bar { number: index, name: value.name, value: number(row, value.field)?, ends })
    };
    Group {
        label: label(plot.label, row),
        is_marked: !plot.marked.is_empty() && all_hold(plot.marked, row),
        bars: plot.values.iter().enumerate().filter_map(bar).collect(),
    }
}

fn picture(plot: &Bars, groups: &[Group], id: &str) -> Markup {
    let scale = Scale::over(groups);
    let has_names = plot.values.len() > 1;
    let of_bar = BAR + if has_names { LETTERS } else { 0.0 };
    let height_of = |group: &Group| LETTERS + of_bar * group.bars.len() as f64 + GAP;
    let tops = groups.iter().scan(0.0, |top, group| {
        let this = *top;
        *top += height_of(group);
        Some(this)
    });
    let height: f64 = groups.iter().map(height_of).sum();
    let inside = html! {
        @for (top, group) in tops.zip(groups) {
            @if has_names {
                text.group x="2" y=(round(top + 13.0)) { (cut(&group.label, 60)) }
            }
            @for (index, bar) in group.bars.iter().enumerate() {
                @let first = if has_names { LETTERS } else { 0.0 };
                @let line = top + first + of_bar * index as f64;
                @let number = said(plot, bar);
                @let room = ((WIDTH - 4.0) / LETTER) as usize - number.chars().count() - 1;
                @let name = if has_names { bar.name } else { &*group.label };
                text.legend x="2" y=(round(line + 13.0)) { (cut(name, room)) }
                text.number x=(round(WIDTH - 2.0)) y=(round(line + 13.0)) text-anchor="end" { (number) }
                (one_bar(bar, group, &scale, line + LETTERS))
            }
        }
        line.base x1=(round(scale.at(0.0))) x2=(round(scale.at(0.0))) y1="0" y2=(round(height)) {}
    };
    image(id, plot.title, &description(plot, groups), height, inside)
}

fn one_bar(bar: &Bar, group: &Group, scale: &Scale, top: f64) -> Markup {
    let (zero, end) = (scale.at(0.0), scale.at(bar.value));
    let looks = if group.is_marked { 1 } else { bar.number };
    let middle = top + BAR / 2.0;
    html! {
        rect class=(format!("bar b{looks}")) x=(round(zero.min(end))) y=(round(top + 1.0))
            width=(round((zero - end).abs().max(1.0))) height=(round(BAR - 2.0)) {}
        @if let Some((low, high)) = bar.ends {
            path.ends d=(format!(
                "M{0:.1} {2:.1}v{3:.1}M{1:.1} {2:.1}v{3:.1}M{0:.1} {4:.1}H{1:.1}",
                scale.at(low), scale.at(high), top + 1.0, BAR - 2.0, middle
            )) {}
        }
    }
}

/// The number, and its interval.
fn said(plot: &Bars, bar: &Bar) -> String {
    let (unit, decimals) = plot.unit;
    let value = decimal(bar.value, decimals);
    match bar.ends {
        Some((low, high)) => {
            format!("{value} {unit} [{}, {}]", decimal(low, decimals), decimal(high, decimals))
        }
        None => format!("{value} {unit}"),
    }
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => text.chars().take(most.saturating_sub(1)).chain(['\u{2026}']).collect(),
    }
}

/// The same in words, for screen readers.
fn description(plot: &Bars, groups: &[Group]) -> String {
    let bars = groups.iter().flat_map(|group| group.bars.iter().map(move |bar| (group, bar)));
    let words = bars.map(|(group, bar)| {
        let name = if bar.name.is_empty() { String::new() } else { format!(", {}", bar.name) };
        format!("{}{name}: {}", group.label, said(plot, bar))
    });
    words.collect::<Vec<_>>().join(". ") + "."
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::processes::MAP;
    use crate::registry::Plot;
    use serde_json::json;

    #[test]
    fn a_bar_is_as_long_as_its_number() {
        let bar = |value| Bar { number: 0, name: "", value, ends: None };
        let group =
            |value| Group { label: String::new(), is_marked: false, bars: vec![bar(value)] };
        let scale = Scale::over(&[group(10.0), group(-10.0)]);
        assert!((scale.at(0.0) - WIDTH / 2.0).abs() < 1e-9);
        assert!((scale.at(10.0) - (WIDTH - 2.0)).abs() < 1e-9);
        assert!((scale.at(1e9) - (WIDTH - 2.0)).abs() < 1e-9, "it stays in the picture");
    }

    #[test]
    fn pumices_bars_look_otherwise() {
        let row = |way: &str| Row::of(json!({"load": "loop", "way": way, "wall_ns": 10.0}));
        let Plot::Bars(plot) = &MAP.plots[0] else { panic!("bars") };
        let page = figure(plot, &[row("kernel-4k"), row("pumice")], "x").into_string();
        assert!(page.contains("bar b0") && page.contains("bar b1"), "{page}");
        assert!(page.contains("loop: pumice: 10 ns."), "{page}");
        assert_eq!(figure(plot, &[], "x").into_string(), "");
    }
}
