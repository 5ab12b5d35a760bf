//! A picture by itself, as `--plot` writes it: the page's, with its style, in a file.

use std::path::Path;

use super::{figure, STYLE};
use crate::registry::{Plot, Row};
use pumice_command::whole_file::write_whole;
use pumice_command::Failure;

/// Draws the rows to a file.
pub fn draw(path: &Path, plot: &Plot, rows: &[Row]) -> Result<(), Failure> {
    write_whole(path, &alone(&figure(plot, rows, "picture").into_string()))
}

/// The image of a figure, with the additions that a file needs: a name space, and the style. Without rows it is empty.
fn alone(figure: &str) -> String {
    let image = figure.split_once("<svg ").and_then(|(_, rest)| rest.split_once("</svg>"));
    let (attributes, inside) =
        image.and_then(|(image, _)| image.split_once('>')).unwrap_or_default();
    let paper = "svg { background: var(--paper); max-width: 56rem; }";
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" {attributes}><style>{STYLE}{paper}</style>{inside}</svg>\n"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry::processes::MAP;

    #[test]
    fn a_picture_stands_alone() {
        let row = Row::of(json!({"load": "loop", "way": "pumice", "wall_ns": 10.0}));
        let drawn = alone(&figure(&MAP.plots[0], &[row], "x").into_string());
        assert!(drawn.starts_with("<svg xmlns=") && drawn.ends_with("</svg>\n"), "{drawn}");
        assert!(drawn.contains("loop: pumice") && drawn.contains("<rect"), "{drawn}");
        assert!(alone("").starts_with("<svg xmlns="));
    }
}
