//! Lines over two logarithmic axes, with a legend below.

use maud::{html, Markup};

use super::svg::{engineering, image, mark, round, Axis, WIDTH};
use crate::registry::field::{all_hold, label, number, Row};
use crate::registry::{Lines, YScale};

const LEFT: f64 = 52.0;
const RIGHT: f64 = WIDTH - 14.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 270.0;
/// Below the axis: its ticks and its name.
const LEGEND: f64 = BOTTOM + 60.0;
const LEGEND_LINE: f64 = 20.0;

/// A line of the picture: its number among the series, so that marks stay with their names.
struct Line {
    number: usize,
    name: &'static str,
    points: Vec<(f64, f64)>,
}

/// The picture; nothing where there is nothing to draw.
pub fn figure(plot: &Lines, rows: &[Row], id: &str) -> Markup {
    let rows = largest(plot.largest, rows);
    let lines = lines(plot, &rows);
    let title = rows.first().map_or_else(String::new, |row| label(plot.title, row));
    let points = || lines.iter().flat_map(|line| line.points.iter().copied());
    let x = Axis::over(points().map(|point| point.0), 1.15, LEFT, RIGHT);
    let y = match plot.scale {
        YScale::Logarithmic => Axis::over(points().map(|point| point.1), 1.3, BOTTOM, TOP),
        YScale::Percent => Some(Axis::percent(BOTTOM, TOP)),
    };
    html! {
        @if let (Some(x), Some(y)) = (x, y) {
            figure.plot {
                figcaption { (title) }
                (picture(plot, &title, &lines, x, y, id))
            }
        }
    }
}

/// The rows with the largest value of a field; all, where its name is empty.
fn largest<'r>(field: &str, rows: &'r [Row]) -> Vec<&'r Row> {
    let most = rows.iter().filter_map(|row| number(row, field)).fold(0.0, f64::max);
    rows.iter().filter(|row| field.is_empty() || number(row, field) == Some(most)).collect()
}

fn lines(plot: &Lines, rows: &[&Row]) -> Vec<Line> {
    let line = |(index, series): (usize, &crate::registry::Series)| {
        let y = series.y.unwrap_or(plot.y.0);
        let mut points: Vec<(f64, f64)> = Vec::new();
        for row in rows.iter().filter(|row| all_hold(series.only, row)) {
            let Some(point) = number(row, plot.x.0).zip(number(row, y)) else { continue };
            // Of rows measured twice the first is the one that has all the others beside it.
            let is_on_axes = point.0 > 0.0 && (point.1 > 0.0 || plot.scale == YScale::Percent);
            if is_on_axes && points.iter().all(|other| other.0 != point.0) {
                points.push(point);
            }
        }
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        Line { number: index, name: series.name, points }
    };
    let all = plot.series.iter().enumerate().map(line);
    all.filter(|line| !line.points.is_empty()).collect()
}

fn picture(plot: &Lines, name: &str, lines: &[Line], x: Axis, y: Axis, id: &str) -> Markup {
    let height = LEGEND + LEGEND_LINE * lines.len() as f64;
    let inside = html! {
        text.axis x="0" y="14" { (plot.y.1) }
        @for tick in y.ticks() {
            line.grid x1=(round(LEFT)) x2=(round(RIGHT)) y1=(round(y.at(tick))) y2=(round(y.at(tick))) {}
            text.tick x=(round(LEFT - 6.0)) y=(round(y.at(tick) + 4.0)) text-anchor="end" { (engineering(tick)) }
        }
        @for tick in ticks_of_x(lines) {
            line.grid x1=(round(x.at(tick))) x2=(round(x.at(tick))) y1=(round(BOTTOM)) y2=(round(BOTTOM + 5.0)) {}
            text.tick x=(round(x.at(tick))) y=(round(BOTTOM + 19.0)) text-anchor="middle" { (engineering(tick)) }
        }
        line.base x1=(round(LEFT)) x2=(round(RIGHT)) y1=(round(BOTTOM)) y2=(round(BOTTOM)) {}
        text.axis x=(round(RIGHT)) y=(round(BOTTOM + 38.0)) text-anchor="end" { (plot.x.1) }
        @for line in lines {
            g class=(format!("series c{} d{}", line.number, line.number)) {
                polyline.line points=(path(line, x, y)) {}
                @for &(at, value) in &line.points {
                    g {
                        title { (format!("{}: {} at {}", line.name, engineering(value), engineering(at))) }
                        (mark(line.number, x.at(at), y.at(value)))
                    }
                }
            }
        }
        @for (index, line) in lines.iter().enumerate() {
            @let at = LEGEND + LEGEND_LINE * index as f64;
            g class=(format!("series c{} d{}", line.number, line.number)) {
                polyline.line points=(format!("4,{at} 44,{at}")) {}
                (mark(line.number, 24.0, at))
            }
            text.legend x="54" y=(round(at + 4.0)) { (line.name) }
        }
    };
    image(id, name, &description(plot, lines), height, inside)
}

/// The values that were measured.
fn ticks_of_x(lines: &[Line]) -> Vec<f64> {
    let mut values: Vec<f64> =
        lines.iter().flat_map(|line| line.points.iter().map(|point| point.0)).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}

fn path(line: &Line, x: Axis, y: Axis) -> String {
    let point = |&(at, value): &(f64, f64)| format!("{:.1},{:.1}", x.at(at), y.at(value));
    line.points.iter().map(point).collect::<Vec<_>>().join(" ")
}

/// The same in words, for screen readers.
fn description(plot: &Lines, lines: &[Line]) -> String {
    let line = |line: &Line| {
        let values = line.points.iter();
        let values =
            values.map(|&(at, value)| format!("{} at {}", engineering(value), engineering(at)));
        format!("{}: {}", line.name, values.collect::<Vec<_>>().join(", "))
    };
    let lines: Vec<_> = lines.iter().map(line).collect();
    let scales = match plot.scale {
        YScale::Logarithmic => "both logarithmic",
        YScale::Percent => "the latter logarithmic",
    };
    format!("{} against {}, {scales}. {}.", plot.y.1, plot.x.1, lines.join(". "))
}
