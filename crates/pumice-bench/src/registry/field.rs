//! How data names the content of rows: fields, conditions on them, and words with fields in braces.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use pumice_command::statistics::{median, Ratio};
use pumice_command::table::thousands;

/// A row of an experiment: fields by their names, as the file of rows has them. `samples` has the rounds behind a
/// field, under its name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Row(Map<String, Value>);

impl Row {
    /// The fields of a JSON object: [`serde_json::json`] makes one.
    pub fn of(fields: Value) -> Row {
        match fields {
            Value::Object(fields) => Row(fields),
            other => unreachable!("a row is an object, not {other}"),
        }
    }

    /// With a field; null is a value.
    pub fn set(mut self, field: &str, value: impl Into<Value>) -> Row {
        self.0.insert(field.to_owned(), value.into());
        self
    }

    /// With the median of the rounds.
    pub fn median(self, field: &str, rounds: &[f64]) -> Row {
        self.set(field, median(rounds))
    }

    /// With the median of the rounds, and the rounds.
    pub fn sampled(self, field: &str, rounds: Vec<f64>) -> Row {
        self.median(field, &rounds).samples(field, rounds)
    }

    /// With the rounds of a field.
    pub fn samples(mut self, field: &str, rounds: Vec<f64>) -> Row {
        let samples = self.0.entry("samples").or_insert_with(|| Value::Object(Map::new()));
        samples[field] = rounds.into();
        self
    }

    /// With a figure and the ends of its interval.
    pub fn interval(self, [field, low, high]: [&str; 3], figure: Ratio) -> Row {
        self.set(field, figure.median).set(low, figure.low).set(high, figure.high)
    }

    /// The names of its fields.
    pub fn fields(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }
}

/// A field, and the value that it must have.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    field: &'static str,
    wanted: Wanted,
}

#[derive(Clone, Copy, Debug)]
enum Wanted {
    Text(&'static str),
    Number(f64),
    Prefix(&'static str),
}

/// The field is this text.
pub const fn is(field: &'static str, text: &'static str) -> Condition {
    Condition { field, wanted: Wanted::Text(text) }
}

/// The field is this number.
pub const fn equals(field: &'static str, number: f64) -> Condition {
    Condition { field, wanted: Wanted::Number(number) }
}

/// The field's text begins so.
pub const fn begins(field: &'static str, text: &'static str) -> Condition {
    Condition { field, wanted: Wanted::Prefix(text) }
}

impl Condition {
    fn holds(&self, row: &Row) -> bool {
        match self.wanted {
            Wanted::Text(wanted) => text(row, self.field) == wanted,
            Wanted::Number(wanted) => number(row, self.field) == Some(wanted),
            Wanted::Prefix(wanted) => text(row, self.field).starts_with(wanted),
        }
    }
}

/// Whether all of them hold.
pub fn all_hold(conditions: &[Condition], row: &Row) -> bool {
    conditions.iter().all(|condition| condition.holds(row))
}

/// The value of a field; `a.b` is the field `b` of the object `a`.
fn value<'r>(row: &'r Row, field: &str) -> Option<&'r Value> {
    let mut parts = field.split('.');
    let first = row.0.get(parts.next()?)?;
    parts.try_fold(first, |value, part| value.get(part))
}

/// A field that is a number.
pub fn number(row: &Row, field: &str) -> Option<f64> {
    value(row, field)?.as_f64().filter(|number| number.is_finite())
}

/// A field that is a number; not a number where it is none.
pub fn float(row: &Row, field: &str) -> f64 {
    number(row, field).unwrap_or(f64::NAN)
}

/// A field as words; nothing where it is missing or null.
pub fn text(row: &Row, field: &str) -> String {
    match value(row, field) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(true)) => "yes".to_owned(),
        Some(Value::Bool(false)) => "no".to_owned(),
        Some(value) => value.to_string(),
    }
}

/// The rounds of a figure.
pub fn samples(row: &Row, field: &str) -> Vec<f64> {
    let rounds = row.0.get("samples").and_then(|samples| samples.get(field)?.as_array());
    rounds.map_or_else(Vec::new, |rounds| rounds.iter().filter_map(Value::as_f64).collect())
}

/// The words with each `{field}` replaced by what the row says, and `{field|size}` by that as a number
/// of bytes.
pub fn label(words: &str, row: &Row) -> String {
    let mut label = String::new();
    let mut rest = words;
    while let Some((before, after)) = rest.split_once('{') {
        label += before;
        let (field, after) = after.split_once('}').unwrap_or((after, ""));
        label += &match field.split_once('|') {
            Some((field, _size)) => number(row, field).map_or_else(String::new, size),
            None => text(row, field),
        };
        rest = after;
    }
    label + rest
}

/// The fields that tell rows of an experiment apart.
pub fn identity(keys: &[&str], row: &Row) -> Vec<String> {
    keys.iter().map(|key| text(row, key)).collect()
}

/// A number with so many decimals; with none, thousands are grouped.
pub fn decimal(number: f64, decimals: usize) -> String {
    let shown = match decimals {
        0 => thousands(number),
        decimals => format!("{number:.decimals$}"),
    };
    let is_nothing = shown.chars().all(|letter| matches!(letter, '-' | '0' | '.'));
    if is_nothing {
        shown.trim_start_matches('-').to_owned()
    } else {
        shown
    }
}

/// Bytes in the largest unit of which they are a multiple.
pub fn size(bytes: f64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let fitting = units.into_iter().find(|&(_, bits)| bytes >= (1_u64 << bits) as f64);
    match fitting {
        Some((unit, bits)) => format!("{} {unit}", bytes / (1_u64 << bits) as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row() -> Row {
        Row::of(json!({
            "way": "kernel-4k", "thr": 2, "bytes": 1 << 30, "on": true, "none": null,
            "faster": {"median": 1.5}, "samples": {"thr": [1, 2.5, null]}
        }))
    }

    #[test]
    fn fields_are_found() {
        let row = row();
        assert_eq!(number(&row, "faster.median"), Some(1.5));
        assert_eq!(number(&row, "faster.low"), None);
        assert_eq!(number(&row, "way"), None);
        assert_eq!(
            ["way", "on", "none", "gone", "thr"].map(|it| text(&row, it)).join("/"),
            "kernel-4k/yes///2"
        );
        assert_eq!(samples(&row, "thr"), [1.0, 2.5]);
        assert!(samples(&row, "way").is_empty());
    }

    #[test]
    fn rounds_become_fields() {
        let row = Row::of(json!({"way": "pumice"})).sampled("ns", vec![3.0, 1.0, 2.0]);
        let row = row.interval(["times", "low", "high"], Ratio::of(&[2.0]));
        assert_eq!((number(&row, "ns"), number(&row, "low")), (Some(2.0), Some(2.0)));
        assert_eq!(samples(&row, "ns"), [3.0, 1.0, 2.0]);
    }

    #[test]
    fn conditions_hold_or_not() {
        let row = row();
        assert!(all_hold(
            &[is("way", "kernel-4k"), equals("thr", 2.0), begins("way", "kernel")],
            &row
        ));
        assert!(!all_hold(&[is("way", "pumice")], &row));
        assert!(all_hold(&[], &row));
    }

    #[test]
    fn words_have_fields_in_braces() {
        let row = row();
        assert_eq!(label("{way}, {thr} threads", &row), "kernel-4k, 2 threads");
        assert_eq!(label("{bytes|size} {gone}", &row), "1 GiB ");
        assert_eq!(label("{way", &row), "kernel-4k");
    }

    #[test]
    fn nothing_has_no_sign() {
        assert_eq!([-0.04, -0.4, 1e6].map(|it| decimal(it, 1)), ["0.0", "-0.4", "1000000.0"]);
        assert_eq!(decimal(-1_234.0, 0), "-1,234");
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!([512.0, 4096.0, 1.5 * 1024.0 * 1024.0].map(size), ["512 B", "4 KiB", "1.5 MiB"]);
    }
}
