//! The tables of `docs/generations.md`, which tests write and hold the page against.
//!
//! With `GENERATIONS_BLESS=1` in the environment a test writes its part of the page anew instead of comparing it.

use std::path::Path;

/// A part of the page is this table. It stands between two marks, comments of the page.
///
/// # Panics
/// It is not; or the page lacks the marks.
pub fn keep(part: &str, table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/generations.md");
    let page = std::fs::read_to_string(&path).expect("docs/generations.md");
    let (begin, end) = (
        format!("<!-- {part} -->\n"),
        format!("<!-- end of {part} -->"),
    );
    let (head, rest) = page.split_once(&begin).expect("a mark");
    let (kept, tail) = rest.split_once(&end).expect("its end");
    if std::env::var_os("GENERATIONS_BLESS").is_some() {
        std::fs::write(&path, [head, &begin, table, &end, tail].concat()).expect("written");
    } else {
        assert_eq!(
            kept, table,
            "docs/generations.md: run with GENERATIONS_BLESS=1 if this is meant"
        );
    }
}
