//! The picture: a line for each load, a dot for each allocator, time and memory side by side.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::allocator::Allocator;
use super::row::{Ratio, Row};
use pumice_command::Failure;

const WIDTH: u32 = 1120;
const HEIGHT_OF_LOAD: u32 = 26;
/// Room above the loads for the legend, in loads.
const LEGEND_LOADS: u32 = 5;
const GREY: RGBColor = RGBColor(110, 110, 110);
const LIGHT: RGBColor = RGBColor(225, 225, 225);

/// Told apart by those who don't see red and green as well (Okabe and Ito's palette).
fn colour(allocator: Allocator) -> RGBColor {
    match allocator {
        Allocator::Glibc => RGBColor(0, 0, 0),
        Allocator::GlibcHuge => RGBColor(150, 150, 150),
        Allocator::Mimalloc => RGBColor(0, 114, 178),
        Allocator::Jemalloc => RGBColor(86, 180, 233),
        Allocator::Tcmalloc => RGBColor(230, 159, 0),
        Allocator::Pumice => RGBColor(0, 158, 115),
    }
}

/// Draws time and peak memory of each allocator relative to the better of glibc's settings.
pub fn ratios(path: &Path, rows: &[Row]) -> Result<(), Failure> {
    let drawn = draw(path, rows);
    drawn.map_err(|error| Failure::system(format!("can't draw {}: {error}", path.display())))
}

fn draw(path: &Path, rows: &[Row]) -> Result<(), Box<dyn std::error::Error>> {
    let mut loads: Vec<&str> = rows.iter().map(|row| row.load).collect();
    loads.dedup();
    let height = 120 + HEIGHT_OF_LOAD * (loads.len() as u32 + LEGEND_LOADS);
    let root = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let root = root.titled(
        "Relative to the better of glibc with and without huge pages",
        ("sans-serif", 22).into_font().color(&BLACK),
    )?;
    let halves = root.split_evenly((1, 2));
    panel(&halves[0], "time", &loads, rows, Row::time)?;
    panel(&halves[1], "peak memory", &loads, rows, Row::memory)?;
    root.present()?;
    Ok(())
}

fn panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    title: &str,
    loads: &[&str],
    rows: &[Row],
    ratio: fn(&Row) -> Ratio,
) -> Result<(), Box<dyn std::error::Error>> {
    let ends = || rows.iter().map(|row| ratio(row).value);
    let least = ends().fold(0.8, f64::min) / 1.15;
    let greatest = ends().fold(1.25, f64::max) * 1.15;
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(46)
        .y_label_area_size(140)
        .build_cartesian_2d(
            (least..greatest).log_scale(),
            0.0..loads.len() as f64 + f64::from(LEGEND_LOADS),
        )?;
    // The first load on top; the room above it is the legend's.
    let height = |load: &str| {
        let index = loads.iter().position(|name| *name == load).unwrap_or(0);
        (loads.len() - index) as f64 - 0.5
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(0)
        .x_desc(format!("{title}, below 1 is better"))
        .x_label_formatter(&|ratio| format!("{ratio:.2}"))
        .light_line_style(WHITE)
        .bold_line_style(LIGHT)
        .axis_style(GREY)
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 15))
        .draw()?;
    for load in loads {
        let y = height(load);
        let line = PathElement::new(vec![(least, y), (greatest, y)], LIGHT);
        chart.draw_series([line])?;
        let at = chart.backend_coord(&(least, y));
        let style = ("sans-serif", 14).into_font().color(&BLACK);
        let (left, top) = area.get_base_pixel();
        area.draw_text(load, &style, (at.0 - left - 134, at.1 - top - 7))?;
    }
    chart.draw_series([PathElement::new(vec![(1.0, 0.0), (1.0, loads.len() as f64)], GREY)])?;
    for allocator in Allocator::ALL {
        let colour = colour(allocator);
        let of_it: Vec<&Row> = rows.iter().filter(|row| row.allocator == allocator).collect();
        if of_it.is_empty() {
            continue;
        }
        if allocator == Allocator::Pumice {
            let interval = |row: &&Row| {
                let (ratio, y) = (ratio(row), height(row.load));
                let ends = [ratio.low, ratio.high].map(|end| end.clamp(least, greatest));
                PathElement::new(ends.map(|end| (end, y)).to_vec(), colour.stroke_width(2))
            };
            chart.draw_series(of_it.iter().map(interval))?;
        }
        let size = if allocator == Allocator::Pumice { 5 } else { 3 };
        let dot =
            |row: &&Row| Circle::new((ratio(row).value, height(row.load)), size, colour.filled());
        chart
            .draw_series(of_it.iter().map(dot))?
            .label(allocator.name())
            .legend(move |at| Circle::new(at, size, colour.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .label_font(("sans-serif", 12))
        .background_style(WHITE.mix(0.85))
        .border_style(LIGHT)
        .draw()?;
    Ok(())
}
