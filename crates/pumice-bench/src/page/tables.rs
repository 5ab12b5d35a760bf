//! Tables: as they were published, and today's. Each scrolls in a box of its own where it is too wide.

use std::collections::BTreeSet;

use maud::{html, Markup, Render};

use crate::registry::field::{all_hold, identity, number, text, Row};
use crate::registry::{Column, Entry, Published, Show, Table};

/// A table with a caption, in a box that scrolls. A heading says whether its column has words, a row whether it is
/// ours; its first cell names it.
pub fn table<C: Render>(
    caption: &str,
    heads: &[(&str, bool)],
    rows: impl Iterator<Item = (bool, Vec<C>)>,
) -> Markup {
    html! {
        figure.table {
            figcaption { (caption) }
            div.scroll tabindex="0" role="region" aria-label=(caption) {
                table aria-label=(caption) {
                    thead { tr { @for (head, is_words) in heads { th.words[*is_words] scope="col" { (head) } } } }
                    tbody {
                        @for (is_ours, cells) in rows {
                            tr.ours[is_ours] {
                                @for (index, (cell, (_, is_words))) in cells.iter().zip(heads).enumerate() {
                                    @if index == 0 {
                                        th scope="row" { (cell) }
                                    } @else if *is_words {
                                        td.words { (cell) }
                                    } @else {
                                        td { (cell) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A table as it was published.
pub fn published(published: &Published) -> Markup {
    let heads = published.head.iter().enumerate().map(|(index, &head)| (head, index == 0));
    let rows = published.rows.iter().map(|row| (false, row.to_vec()));
    table(&format!("Published: {}", published.caption), &heads.collect::<Vec<_>>(), rows)
}

/// One of today's tables; nothing where it has no rows.
pub fn today(today: &Table, entry: &Entry, rows: &[Row]) -> Markup {
    let shown: Vec<_> = rows.iter().filter(|row| all_hold(today.only, row)).collect();
    let says =
        |column: &&Column| shown.iter().any(|row| !cell(column, entry, row, rows).is_empty());
    let columns: Vec<_> = today.columns.iter().filter(says).collect();
    let head = |it: &&Column| (it.head, matches!(it.show, Show::Words(_)));
    let heads: Vec<_> = columns.iter().map(head).collect();
    let shown = shown.into_iter().map(|row| {
        let is_ours = ["backend", "way"].iter().any(|field| text(row, field) == "pumice");
        (is_ours, columns.iter().map(|column| cell(column, entry, row, rows)).collect())
    });
    match columns.is_empty() {
        true => html! {},
        false => table::<String>(&format!("Today: {}", today.caption), &heads, shown),
    }
}

/// A cell's text; nothing where the row does not say.
fn cell(column: &Column, entry: &Entry, row: &Row, rows: &[Row]) -> String {
    let cell = match column.show {
        Show::Times { figure, key, of } => times(row, rows, entry.keys, figure, key, of),
        show => show.cell(row),
    };
    cell.unwrap_or_default()
}

fn times(
    row: &Row,
    rows: &[Row],
    keys: &[&str],
    figure: &str,
    key: &str,
    of: &str,
) -> Option<String> {
    let others: Vec<&str> = keys.iter().copied().filter(|&other| other != key).collect();
    let wanted = identity(&others, row);
    let peer = rows
        .iter()
        .find(|peer| text(peer, key) == of && identity(&others, peer) == wanted)
        .filter(|_| text(row, key) != of)?;
    let ratio = number(row, figure)? / number(peer, figure)?;
    ratio.is_finite().then(|| format!("{ratio:.2}"))
}

/// Every field of every row.
pub fn all_fields(rows: &[Row]) -> Markup {
    let fields: BTreeSet<&String> =
        rows.iter().flat_map(Row::fields).filter(|field| *field != "samples").collect();
    let heads: Vec<_> = fields.iter().map(|field| (field.as_str(), false)).collect();
    let cells = |row| (false, fields.iter().map(|field| text(row, field)).collect::<Vec<_>>());
    match rows.is_empty() {
        true => html! {},
        false => table("Rows", &heads, rows.iter().map(cells)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry::prezeroing::PFT;

    fn row(backend: &str, rate: f64) -> Row {
        let keys = json!({"experiment": "burst", "backend": backend, "thr": 1, "lines": 1});
        Row::of(keys).set("flt_cpu_s", rate)
    }

    #[test]
    fn gains_are_over_the_peer_that_agrees_in_the_rest() {
        let rows = [row("kernel-4k", 1000.0), row("kernel-thp", 4000.0), row("pumice", 8000.0)];
        let page = today(&PFT.tables[0], &PFT, &rows).into_string();
        assert!(page.contains("<td>8.00</td><td>2.00</td></tr>"), "{page}");
        assert!(page.contains("<tr class=\"ours\"><th scope=\"row\">pumice</th>"), "{page}");
        assert_eq!(today(&PFT.tables[1], &PFT, &rows).into_string(), "");
    }

    #[test]
    fn what_rows_say_is_text() {
        let page = all_fields(&[row("<script>", 1.0)]).into_string();
        assert!(page.contains("&lt;script&gt;") && !page.contains("<script"), "{page}");
    }
}
