//! Tables: as they were published, and today's. Each scrolls in a box of its own where it is too wide.

use std::collections::BTreeSet;

use maud::{html, Markup};

use crate::registry::field::{all_hold, identity, number, text, Row};
use crate::registry::{Column, Entry, Published, Show, Table};

/// A table's inside with a caption, in a box that scrolls.
pub fn scrolling(caption: &str, inside: Markup) -> Markup {
    html! {
        figure.table {
            figcaption { (caption) }
            div.scroll tabindex="0" role="region" aria-label=(caption) {
                table aria-label=(caption) { (inside) }
            }
        }
    }
}

/// A table as it was published.
pub fn published(table: &Published) -> Markup {
    let caption = format!("Published: {}", table.caption);
    scrolling(
        &caption,
        html! {
            thead { tr {
                @for (index, head) in table.head.iter().enumerate() {
                    th.words[index == 0] scope="col" { (head) }
                }
            } }
            tbody {
                @for row in table.rows {
                    tr {
                        @for (index, cell) in row.iter().enumerate() {
                            @if index == 0 { th scope="row" { (cell) } } @else { td { (cell) } }
                        }
                    }
                }
            }
        },
    )
}

/// One of today's tables; nothing where it has no rows.
pub fn today(table: &Table, entry: &Entry, rows: &[Row]) -> Markup {
    let shown: Vec<_> = rows.iter().filter(|row| all_hold(table.only, row)).collect();
    let says =
        |column: &&Column| shown.iter().any(|row| !cell(column, entry, row, rows).is_empty());
    let columns: Vec<_> = table.columns.iter().filter(says).collect();
    let caption = format!("Today: {}", table.caption);
    html! {
        @if !shown.is_empty() {
            (scrolling(&caption, html! {
                thead { tr {
                    @for column in &columns {
                        th.words[matches!(column.show, Show::Words(_))] scope="col" { (column.head) }
                    }
                } }
                tbody { @for row in &shown { (one_row(&columns, entry, row, rows)) } }
            }))
        }
    }
}

fn one_row(columns: &[&Column], entry: &Entry, row: &Row, rows: &[Row]) -> Markup {
    let is_ours = ["backend", "way"].iter().any(|field| text(row, field) == "pumice");
    html! {
        tr.ours[is_ours] {
            @for (index, column) in columns.iter().enumerate() {
                @let cell = cell(column, entry, row, rows);
                @if index == 0 {
                    th scope="row" { (cell) }
                } @else if matches!(column.show, Show::Words(_)) {
                    td.words { (cell) }
                } @else {
                    td { (cell) }
                }
            }
        }
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
    html! {
        @if !rows.is_empty() {
            (scrolling("Rows", html! {
                thead { tr { @for field in &fields { th scope="col" { (field) } } } }
                tbody {
                    @for row in rows {
                        tr { @for field in &fields { td { (text(row, field)) } } }
                    }
                }
            }))
        }
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
