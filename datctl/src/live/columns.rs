//! Tables that fit the width of the screen: if not all columns fit, the least important ones are left out. No cell is
//! cut or continued on another line.

/// Number of spaces between two columns.
const GAP: usize = 2;

/// A column.
pub(super) struct Column {
    pub(super) title: &'static str,
    /// Rank of the column. The column with the highest rank is left out first; one column always remains.
    pub(super) rank: u8,
    /// True if the cells are numbers, which are aligned to the right.
    pub(super) is_number: bool,
}

/// Returns the lines of a table: the titles, and a line for each row. Without a width the table has all columns.
pub(super) fn lines<const N: usize>(
    columns: &[Column; N],
    rows: &[[String; N]],
    width: Option<usize>,
) -> Vec<String> {
    let widths: [usize; N] = std::array::from_fn(|at| {
        let cells = rows.iter().map(|row| row[at].chars().count());
        cells.chain([columns[at].title.len()]).max().unwrap_or(0)
    });
    let mut shown: Vec<usize> = (0..N).collect();
    let total = |shown: &[usize]| {
        let cells: usize = shown.iter().map(|at| widths[*at]).sum();
        cells + GAP * shown.len().saturating_sub(1)
    };
    while shown.len() > 1 && width.is_some_and(|width| total(&shown) > width) {
        let least = shown.iter().max_by_key(|at| columns[**at].rank).copied();
        shown.retain(|at| Some(*at) != least);
    }
    let line = |cell: &dyn Fn(usize) -> String| {
        let cells = shown.iter().map(|&at| {
            let (text, width) = (cell(at), widths[at]);
            if columns[at].is_number {
                format!("{text:>width$}")
            } else {
                format!("{text:<width$}")
            }
        });
        let cells: Vec<String> = cells.collect();
        cells.join(&" ".repeat(GAP)).trim_end().to_owned()
    };
    let titles = line(&|at| columns[at].title.to_owned());
    let rows = rows.iter().map(|row| line(&|at| row[at].clone()));
    std::iter::once(titles).chain(rows).collect()
}

/// Wraps a sentence at spaces to lines of this width. A word that is longer than a line is cut.
pub(super) fn wrapped(text: &str, width: Option<usize>) -> Vec<String> {
    let Some(width) = width else {
        return vec![text.to_owned()];
    };
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let word = clipped(word, width);
        let last = lines.last_mut().filter(|line| {
            line.is_empty() || line.chars().count() + 1 + word.chars().count() <= width
        });
        match last {
            Some(line) if line.is_empty() => line.push_str(&word),
            Some(line) => line.extend([" ", word.as_str()]),
            None => lines.push(word),
        }
    }
    lines
}

/// Returns the word; if it is longer than the width, it is cut and ends with a mark.
fn clipped(word: &str, width: usize) -> String {
    if word.chars().count() <= width {
        return word.to_owned();
    }
    let most = width.saturating_sub(1);
    word.chars().take(most).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_left_out_by_rank_until_the_rest_fits() {
        let column = |title, rank, is_number| Column {
            title,
            rank,
            is_number,
        };
        let columns = [
            column("ep", 0, true),
            column("state", 2, false),
            column("peer", 1, false),
        ];
        let rows = [["7", "Connected", "fe80::1"].map(str::to_owned)];
        for (width, wanted) in [
            (None, ["ep  state      peer", " 7  Connected  fe80::1"]),
            (Some(22), ["ep  state      peer", " 7  Connected  fe80::1"]),
            (Some(21), ["ep  peer", " 7  fe80::1"]),
            (Some(10), ["ep", " 7"]),
            (Some(1), ["ep", " 7"]),
        ] {
            assert_eq!(lines(&columns, &rows, width), wanted, "{width:?}");
        }
    }

    #[test]
    fn a_sentence_goes_on_in_the_next_line_and_a_long_word_is_cut() {
        assert_eq!(wrapped("one two three", Some(8)), ["one two", "three"]);
        assert_eq!(wrapped("abcdefghij k", Some(5)), ["abcd…", "k"]);
        assert_eq!(wrapped("one two", None), ["one two"]);
    }
}
