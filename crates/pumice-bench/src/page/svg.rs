//! The elements of pictures: axes, marks and dashes that are told apart without colours.

use maud::{html, Markup};

use crate::registry::YScale;

/// Units of a picture's width; letters are 13 of them high, so that a phone shows them at 10 points.
pub const WIDTH: f64 = 440.0;
/// Widths of a letter, about.
pub const LETTER: f64 = 7.0;

/// An axis.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    scale: YScale,
    least: f64,
    greatest: f64,
    /// Where these lie.
    from: f64,
    to: f64,
}

impl Axis {
    /// Over these values, with a little room at either end. `None` without any above 0.
    pub fn over(values: impl Iterator<Item = f64>, room: f64, from: f64, to: f64) -> Option<Axis> {
        let (mut least, mut greatest) = (f64::INFINITY, 0.0_f64);
        for value in values.filter(|&value| value > 0.0 && value.is_finite()) {
            least = least.min(value);
            greatest = greatest.max(value);
        }
        let (least, greatest) = (least / room, greatest * room);
        let scale = YScale::Logarithmic;
        (greatest > 0.0).then_some(Axis { scale, least, greatest, from, to })
    }

    /// A linear one from 0 to 100.
    pub fn percent(from: f64, to: f64) -> Axis {
        Axis { scale: YScale::Percent, least: 0.0, greatest: 100.0, from, to }
    }

    /// Where a value lies.
    pub fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            YScale::Logarithmic => (value / self.least).ln() / (self.greatest / self.least).ln(),
            YScale::Percent => value / self.greatest,
        };
        self.from + share * (self.to - self.from)
    }

    /// Round values to label. Of a logarithmic axis these are 1, 2 and 5 times powers of ten, or the powers alone where
    /// these are enough.
    pub fn ticks(&self) -> Vec<f64> {
        if self.scale == YScale::Percent {
            return vec![0.0, 20.0, 40.0, 60.0, 80.0, 100.0];
        }
        let steps: &[f64] = match self.greatest / self.least {
            ratio if ratio > 300.0 => &[1.0],
            ratio if ratio > 30.0 => &[1.0, 3.0],
            _ => &[1.0, 2.0, 5.0],
        };
        let first = self.least.log10().floor() as i32;
        let last = self.greatest.log10().ceil() as i32;
        let all = (first..=last).flat_map(|power| steps.iter().map(move |s| s * 10f64.powi(power)));
        all.filter(|&tick| tick >= self.least && tick <= self.greatest).collect()
    }
}

/// 70000000 as "70 M".
pub fn engineering(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{} G", rounded(v / 1e9)),
        v if v >= 1e6 => format!("{} M", rounded(v / 1e6)),
        v if v >= 1e3 => format!("{} k", rounded(v / 1e3)),
        v => rounded(v),
    }
}

/// Three digits at most.
fn rounded(value: f64) -> String {
    let decimals = match value {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// An image with its title, and the same in words for screen readers.
pub fn image(id: &str, title: &str, about: &str, height: f64, inside: Markup) -> Markup {
    let (title_id, about_id) = (format!("{id}-title"), format!("{id}-about"));
    html! {
        svg role="img" viewBox=(format!("0 0 {WIDTH} {height:.0}")) aria-labelledby=(format!("{title_id} {about_id}")) {
            title id=(title_id) { (title) }
            desc id=(about_id) { (about) }
            (inside)
        }
    }
}

/// How many series have a mark of their own.
pub const MARKS: usize = 6;

/// The mark of the series of this number.
pub fn mark(series: usize, x: f64, y: f64) -> Markup {
    let around = |points: &[(f64, f64)]| {
        let points = points.iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy));
        points.collect::<Vec<_>>().join(" ")
    };
    html! {
        @match series % MARKS {
            0 => circle.mark cx=(round(x)) cy=(round(y)) r="4" {},
            1 => rect.mark x=(round(x - 3.5)) y=(round(y - 3.5)) width="7" height="7" {},
            2 => polygon.mark points=(around(&[(0.0, -5.0), (4.6, 3.4), (-4.6, 3.4)])) {},
            3 => polygon.mark points=(around(&[(0.0, -5.2), (5.2, 0.0), (0.0, 5.2), (-5.2, 0.0)])) {},
            4 => path.cross d=(format!("M{0:.1} {1:.1}l8 8m0 -8l-8 8", x - 4.0, y - 4.0)) {},
            _ => path.cross d=(format!("M{0:.1} {1:.1}h10m-5 -5v10", x - 5.0, y)) {},
        }
    }
}

/// A coordinate in few letters.
pub fn round(coordinate: f64) -> String {
    format!("{coordinate:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_is_logarithmic() {
        let axis = Axis::over([1.0, 100.0].into_iter(), 1.0, 0.0, 50.0).expect("values");
        assert!((axis.at(10.0) - 25.0).abs() < 1e-9);
        assert_eq!(axis.ticks(), [1.0, 3.0, 10.0, 30.0, 100.0]);
        let percent = Axis::percent(0.0, 50.0);
        assert_eq!((percent.at(0.0), percent.at(50.0), percent.ticks().len()), (0.0, 25.0, 6));
        assert!(Axis::over([0.0, f64::NAN].into_iter(), 1.0, 0.0, 1.0).is_none());
    }

    #[test]
    fn rates_are_short() {
        let shown = [70e6, 1_234_567.0, 500.0, 0.25, 12_340.0].map(engineering);
        assert_eq!(shown, ["70 M", "1.23 M", "500", "0.25", "12.3 k"]);
    }
}
