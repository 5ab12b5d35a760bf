//! A table for people, printed row by row as an experiment goes on.

/// Columns of fixed width; the first is flush left, the others right.
#[derive(Debug)]
pub struct Table {
    widths: Vec<usize>,
}

impl Table {
    /// Prints the headings. A column is as wide as its heading or `width`, whichever is more.
    pub fn begin(columns: &[(&str, usize)]) -> Table {
        let table = Table::resume(columns);
        table.row(&columns.iter().map(|&(name, _)| name.to_owned()).collect::<Vec<_>>());
        table
    }

    /// The table whose headings [`Table::begin`] printed for the same columns.
    pub fn resume(columns: &[(&str, usize)]) -> Table {
        let widths = columns.iter().map(|&(name, width)| width.max(name.chars().count()));
        Table { widths: widths.collect() }
    }

    /// Prints a row.
    pub fn row(&self, cells: &[String]) {
        println!("{}", self.format(cells));
    }

    /// Prints an empty line between groups of rows.
    pub fn gap(&self) {
        println!();
    }

    /// A row as text, without a newline.
    pub fn format(&self, cells: &[String]) -> String {
        let mut line = String::new();
        for (index, (cell, &width)) in cells.iter().zip(&self.widths).enumerate() {
            if index == 0 {
                line += &format!("{cell:<width$}");
            } else {
                line += &format!("  {cell:>width$}");
            }
        }
        line.trim_end().to_owned()
    }
}

/// A whole number with a comma after every third digit, as in 1,050,416.
pub fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let (sign, digits) = digits.split_at(usize::from(digits.starts_with('-')));
    let mut grouped = sign.to_owned();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(thousands(0.0), "0");
        assert_eq!(thousands(999.6), "1,000");
        assert_eq!(thousands(1_050_416.0), "1,050,416");
        assert_eq!(thousands(-123_456.0), "-123,456");
    }

    #[test]
    fn cells_line_up() {
        let table = Table { widths: vec![4, 6] };
        assert_eq!(table.format(&["ab".to_owned(), "1".to_owned()]), "ab         1");
    }
}
