//! Bars and sparklines of letters.
//!
//! The letters of a bar tell its parts apart; colours only help. So nothing is lost under `NO_COLOR`.

use std::env;

use ratatui::style::{Color, Style};
use ratatui::text::Span;

/// The characters that the terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looks {
    has_colors: bool,
    has_unicode: bool,
}

/// A part of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Memory in use.
    InUse,
    /// Free and dirty.
    Unzeroed,
    /// Ready and zero.
    Zeroed,
    /// Not there, or not known.
    Rest,
}

impl Part {
    /// In the order of a bar.
    pub const ALL: [Part; 4] = [Part::InUse, Part::Unzeroed, Part::Zeroed, Part::Rest];
}

impl Looks {
    /// As variables say: <https://no-color.org>, and the locale.
    pub fn of_environment() -> Looks {
        let is_set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(is_set);
        let locale = locale.unwrap_or_default().to_string_lossy().to_lowercase();
        Looks {
            has_colors: is_set("NO_COLOR").is_none(),
            has_unicode: locale.contains("utf-8") || locale.contains("utf8"),
        }
    }

    #[cfg(test)]
    pub const PLAIN: Looks = Looks { has_colors: false, has_unicode: false };
    #[cfg(test)]
    pub const FULL: Looks = Looks { has_colors: true, has_unicode: true };

    /// The letter that a part of a bar is made of.
    pub fn letter(self, part: Part) -> char {
        match (part, self.has_unicode) {
            (Part::InUse, true) => '█',
            (Part::Unzeroed, true) => '▒',
            (Part::Zeroed, true) => '░',
            (Part::InUse, false) => '#',
            (Part::Unzeroed, false) => '=',
            (Part::Zeroed, false) => '-',
            (Part::Rest, _) => ' ',
        }
    }

    fn style(self, part: Part) -> Style {
        let color = match part {
            Part::InUse => Color::Blue,
            Part::Unzeroed => Color::Yellow,
            Part::Zeroed => Color::Green,
            Part::Rest => Color::Reset,
        };
        match self.has_colors {
            true => Style::new().fg(color),
            false => Style::new(),
        }
    }

    /// A part's letter in its colour, for a legend.
    pub fn sample(self, part: Part) -> Span<'static> {
        Span::styled(self.letter(part).to_string(), self.style(part))
    }

    /// A bar `width` letters long in which the parts' bytes stand to each other as in `parts`. A part
    /// that is not empty has a letter at least, if there is room.
    pub fn bar(self, parts: &[(Part, u64)], width: usize) -> Vec<Span<'static>> {
        let widths = shares(parts.iter().map(|&(_, bytes)| bytes), width);
        let piece = |(&(part, _), width): (&(Part, u64), usize)| {
            Span::styled(self.letter(part).to_string().repeat(width), self.style(part))
        };
        parts.iter().zip(widths).map(piece).collect()
    }

    /// The last `width` of some values, each a letter as high as it is beside `most`. A value
    /// above zero is always visible.
    pub fn spark(self, values: &[f64], most: f64, width: usize) -> String {
        const UNICODE: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        const ASCII: [char; 9] = [' ', '_', '.', ',', '-', '=', '+', '*', '#'];
        let letters = if self.has_unicode { UNICODE } else { ASCII };
        let letter = |value: &f64| {
            let height = if most > 0.0 { (value / most).clamp(0.0, 1.0) } else { 0.0 };
            letters[(height * 8.0).ceil() as usize]
        };
        let last = &values[values.len().saturating_sub(width)..];
        let line: String = last.iter().map(letter).collect();
        format!("{line:>width$}")
    }
}

/// `width` shared out among amounts.
fn shares(amounts: impl Iterator<Item = u64>, width: usize) -> Vec<usize> {
    let amounts: Vec<_> = amounts.map(u128::from).collect();
    let all: u128 = amounts.iter().sum();
    if all == 0 {
        return vec![0; amounts.len()];
    }
    let mut widths: Vec<usize> = amounts
        .iter()
        .map(|&amount| (amount * width as u128 / all) as usize)
        .zip(&amounts)
        .map(|(share, &amount)| share.max(usize::from(amount > 0)))
        .collect();
    // The greatest part takes the rest that rounding leaves.
    let greatest = (0..amounts.len()).max_by_key(|&index| amounts[index]).unwrap_or(0);
    let others: usize = widths.iter().sum::<usize>() - widths[greatest];
    widths[greatest] = width.saturating_sub(others);
    widths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_they_are_to_be() {
        let text = |parts: &[(Part, u64)], width| -> String {
            let bar = Looks::PLAIN.bar(parts, width);
            bar.iter().map(|span| span.content.to_string()).collect()
        };
        let parts = |in_use, unzeroed, zeroed| {
            [(Part::InUse, in_use), (Part::Unzeroed, unzeroed), (Part::Zeroed, zeroed)]
        };
        assert_eq!(text(&parts(50, 25, 25), 8), "####==--");
        assert_eq!(text(&parts(1000, 1, 0), 8), "#######=");
        assert_eq!(text(&parts(0, 0, 0), 8), "");
        assert_eq!(text(&parts(u64::MAX, u64::MAX, u64::MAX), 9), "###===---");
        assert_eq!(text(&parts(1, 1, 1), 0).len(), 2, "no room at all");
    }

    #[test]
    fn sparklines_show_the_last_values() {
        let looks = Looks::PLAIN;
        assert_eq!(looks.spark(&[0.0, 0.5, 1.0], 1.0, 5), "   -#");
        assert_eq!(looks.spark(&[9.0, 0.0, 0.001, 7.0], 1.0, 3), " _#");
        assert_eq!(looks.spark(&[1.0], 0.0, 2), "  ");
        assert_eq!(looks.spark(&[f64::NAN, f64::INFINITY], 1.0, 2).len(), 2);
        assert_eq!(Looks::FULL.spark(&[0.5], 1.0, 1), "▄");
    }
}
