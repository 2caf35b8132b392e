//! Text in aligned columns.

use std::fmt;

/// On which side of its column a cell stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows of cells, each column as wide as its widest cell. Displayed indented, without a newline at the end.
#[derive(Debug, Clone)]
pub(crate) struct Table<const N: usize> {
    columns: [Align; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// A table without rows.
    pub(crate) fn new(columns: [Align; N]) -> Self {
        Self { columns, rows: Vec::new() }
    }

    /// Adds a row: the headings are one like any other.
    pub(crate) fn row(&mut self, cells: [impl Into<String>; N]) {
        self.rows.push(cells.map(Into::into));
    }
}

impl<const N: usize> fmt::Display for Table<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: [usize; N] = std::array::from_fn(width);
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for ((cell, align), width) in row.iter().zip(self.columns).zip(widths) {
                line += "  ";
                line += &match align {
                    Align::Left => format!("{cell:<width$}"),
                    Align::Right => format!("{cell:>width$}"),
                };
            }
            let end = if index == 0 { "" } else { "\n" };
            write!(f, "{end}{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A count with its digits in groups of three: `1,234,567`.
pub(crate) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        // Digits are ASCII, and so are parts of them.
        .map(|group| std::str::from_utf8(group).expect("digits"))
        .collect();
    groups.join(",")
}

/// A size in the largest binary unit that leaves one or more: `16.0 KiB`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let power = count.ilog(1024);
    let size = count as f64 / 1024_f64.powi(power as i32);
    format!("{size:.1} {}", UNITS[power as usize - 1])
}

/// Items behind one another: `2, 4, 5`.
pub(crate) fn list(items: impl IntoIterator<Item = impl fmt::Display>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    items.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new([Align::Left, Align::Right, Align::Left]);
        table.row(["part", "count", "note"]);
        table.row(["embedding", "7", ""]);
        table.row(["head", "1,024", "x"]);
        let expected = "  part       count  note\n  embedding      7\n  head       1,024  x";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn numbers_for_people() {
        let counts = [0, 12, 123, 1_234, 748_494_684_784];
        assert_eq!(counts.map(grouped), ["0", "12", "123", "1,234", "748,494,684,784"]);
        let sizes = [1_023, 1_024, 1_536, 5 << 30, u64::MAX];
        assert_eq!(sizes.map(bytes), ["1023 B", "1.0 KiB", "1.5 KiB", "5.0 GiB", "16.0 EiB"]);
    }
}
