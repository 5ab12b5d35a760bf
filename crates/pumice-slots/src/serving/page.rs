//! Pages of metrics, in the text format that Prometheus reads.
//!
//! Written by hand: the numbers are kept for other readers anyway, and the format is a line each.

use std::fmt::{Display, Write};

/// A page, one metric after another.
#[derive(Debug, Default)]
pub struct Page(String);

impl Page {
    /// Begins a metric: `kind` is `counter`, `gauge` or `histogram`.
    pub fn metric<'p>(&'p mut self, name: &'p str, kind: &str, help: &str) -> Metric<'p> {
        let page = &mut self.0;
        // Writing to a string can't fail.
        let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        Metric { page, name }
    }

    /// The text.
    pub fn into_text(self) -> String {
        self.0
    }
}

/// A metric of a page, to which samples are added.
#[derive(Debug)]
pub struct Metric<'p> {
    page: &'p mut String,
    name: &'p str,
}

impl Metric<'_> {
    /// Adds a sample. The values of labels may be any text.
    pub fn sample(&mut self, labels: &[(&str, &dyn Display)], value: impl Display) {
        self.part("", labels, value);
    }

    /// Adds a sample of a part of a histogram, such as `_sum`.
    pub fn part(&mut self, suffix: &str, labels: &[(&str, &dyn Display)], value: impl Display) {
        let label = |(key, value): &(&str, &dyn Display)| {
            let value = escape(&value.to_string());
            format!("{key}=\"{value}\"")
        };
        let labels: Vec<_> = labels.iter().map(label).collect();
        let labels = match labels.join(",") {
            none if none.is_empty() => none,
            some => format!("{{{some}}}"),
        };
        // Writing to a string can't fail.
        let _ = writeln!(self.page, "{}{suffix}{labels} {value}", self.name);
    }
}

/// A label's value as the format wants it. Characters that could move a terminal's cursor are replaced.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        match letter {
            '\\' => escaped += "\\\\",
            '"' => escaped += "\\\"",
            '\n' => escaped += "\\n",
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escape("a\"b\\c\nd\x1b[e\u{e9}"), "a\\\"b\\\\c\\nd\u{fffd}[e\u{e9}");
    }
}
