//! Pictures: rates against lines touched or against threads, on logarithmic scales, and hit ratios
//! against frames, as SVG.

use std::ops::Range;
use std::path::Path;

use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;

use pumice_command::Failure;

/// A line of the picture.
#[derive(Debug)]
pub struct Series {
    /// Its name in the legend.
    pub name: &'static str,
    /// How it is drawn.
    pub stroke: Stroke,
    /// Lines touched a page, threads or frames; and pages a second, or percent.
    pub points: Vec<(f64, f64)>,
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    /// With a dot at each measurement.
    Solid,
    /// Thin and dotted: a variant of the solid line before it.
    Dotted,
}

const SIZE: (u32, u32) = (820, 460);
const GREY: RGBColor = RGBColor(110, 110, 110);
/// Told apart by those who don't see red and green as well (Okabe and Ito's palette).
const COLOURS: [RGBColor; 7] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
];

/// What a picture says of itself and its axes.
struct Words<'w> {
    title: &'w str,
    subtitle: &'w str,
    x: &'w str,
    y: &'w str,
    legend: SeriesLabelPosition,
    scale: Scale,
}

/// The y axis.
#[derive(Clone, Copy, Debug)]
enum Scale {
    Logarithmic,
    /// From 0 to 100.
    Percent,
}

/// Draws pages a second of processor time against cache lines touched in each page.
pub fn rate_against_lines(path: &Path, subtitle: &str, series: &[Series]) -> Result<(), Failure> {
    let words = Words {
        title: "Pages a processor can start to use in a second",
        subtitle,
        x: "cache lines written in each 4 KiB page (of 64)",
        y: "pages per CPU second",
        legend: SeriesLabelPosition::UpperRight,
        scale: Scale::Logarithmic,
    };
    // The last of them shares its colour with the one before it.
    draw_to(path, &words, series, 3)
}

/// Draws faults a second on the wall against threads.
pub fn rate_against_threads(path: &Path, subtitle: &str, series: &[Series]) -> Result<(), Failure> {
    let title = "Page faults a second";
    let legend = SeriesLabelPosition::UpperRight;
    let (x, y, scale) = ("threads", "faults per second", Scale::Logarithmic);
    let words = Words { title, subtitle, x, y, legend, scale };
    draw_to(path, &words, series, COLOURS.len())
}

/// Draws accesses a second against threads.
pub fn accesses_against_threads(
    path: &Path,
    subtitle: &str,
    series: &[Series],
) -> Result<(), Failure> {
    let title = "Accesses a second to a region larger than its memory";
    let legend = SeriesLabelPosition::UpperLeft;
    let (x, y, scale) = ("threads", "accesses per second", Scale::Logarithmic);
    let words = Words { title, subtitle, x, y, legend, scale };
    draw_to(path, &words, series, COLOURS.len())
}

/// Draws pages read a second against threads.
pub fn reads_against_threads(
    path: &Path,
    subtitle: &str,
    series: &[Series],
) -> Result<(), Failure> {
    let title = "Pages read a second, at random";
    let legend = SeriesLabelPosition::LowerRight;
    let (x, y, scale) = ("threads", "pages per second", Scale::Logarithmic);
    let words = Words { title, subtitle, x, y, legend, scale };
    draw_to(path, &words, series, COLOURS.len())
}

/// Draws hit ratios, in percent, against frames.
pub fn hits_against_frames(path: &Path, subtitle: &str, series: &[Series]) -> Result<(), Failure> {
    let words = Words {
        title: "References that find their page in memory",
        subtitle,
        x: "frames",
        y: "hits, percent",
        legend: SeriesLabelPosition::UpperLeft,
        scale: Scale::Percent,
    };
    draw_to(path, &words, series, COLOURS.len())
}

fn draw_to(
    path: &Path,
    words: &Words<'_>,
    series: &[Series],
    colours: usize,
) -> Result<(), Failure> {
    let drawn = draw(path, words, series, colours);
    drawn.map_err(|error| Failure::system(format!("can't draw {}: {error}", path.display())))
}

fn draw(
    path: &Path,
    words: &Words<'_>,
    series: &[Series],
    colours: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let root = root.titled(words.title, ("sans-serif", 22).into_font().color(&BLACK))?;
    let root = root.titled(words.subtitle, ("sans-serif", 15).into_font().color(&GREY))?;
    let points = || series.iter().flat_map(|series| &series.points);
    let (x, y) = (span(points().map(|p| p.0), 1.15), span(points().map(|p| p.1), 1.6));
    let mut chart = ChartBuilder::on(&root);
    chart.margin(12).x_label_area_size(46).y_label_area_size(84);
    let x = x.log_scale().base(2.0);
    match words.scale {
        Scale::Logarithmic => {
            fill(chart.build_cartesian_2d(x, y.log_scale())?, words, series, colours)?;
        }
        Scale::Percent => fill(chart.build_cartesian_2d(x, 0.0..100.0)?, words, series, colours)?,
    }
    root.present()?;
    Ok(())
}

/// A chart on which axes are to be drawn, and lines.
type Chart<'c, X, Y> = ChartContext<'c, SVGBackend<'c>, Cartesian2d<X, Y>>;

fn fill<X, Y>(
    mut chart: Chart<'_, X, Y>,
    words: &Words<'_>,
    series: &[Series],
    colours: usize,
) -> Result<(), Box<dyn std::error::Error>>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .x_desc(words.x)
        .y_desc(words.y)
        .x_label_formatter(&|lines| format!("{lines:.0}"))
        .y_label_formatter(&|rate| engineering(*rate))
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .axis_style(GREY)
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 15))
        .draw()?;
    for (index, one) in series.iter().enumerate() {
        let colour = COLOURS[index.min(colours - 1)];
        let solid = one.stroke == Stroke::Solid;
        let style = colour.stroke_width(if solid { 3 } else { 1 });
        let line = one.points.iter().copied();
        let drawn = if solid {
            chart.draw_series(LineSeries::new(line, style))?
        } else {
            chart.draw_series(DashedLineSeries::new(line, 5, 5, style))?
        };
        drawn
            .label(one.name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 26, y)], style));
        if solid {
            let dots = one.points.iter().map(|&point| Circle::new(point, 4, colour.filled()));
            chart.draw_series(dots)?;
        }
    }
    chart
        .configure_series_labels()
        .position(words.legend.clone())
        .legend_area_size(34)
        .label_font(("sans-serif", 14))
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(225, 225, 225))
        .draw()?;
    Ok(())
}

/// From a little below the least value to a little above the greatest.
fn span(values: impl Iterator<Item = f64> + Clone, slack: f64) -> Range<f64> {
    let least = values.clone().fold(f64::INFINITY, f64::min);
    let greatest = values.fold(f64::MIN_POSITIVE, f64::max);
    least / slack..greatest * slack
}

/// 70000000 as "70 M".
fn engineering(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{} G", v / 1e9),
        v if v >= 1e6 => format!("{} M", v / 1e6),
        v if v >= 1e3 => format!("{} k", v / 1e3),
        v => format!("{v}"),
    }
}
