//! Generated tables of `docs/generations.md`. Tests compare them with the page.
//!
//! With `GENERATIONS_BLESS=1` in the environment, a test rewrites its part of the page instead.

use std::path::Path;

/// Compares the part of the page between two marker comments with `table`.
///
/// # Panics
/// If they differ, or if the page lacks the markers.
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
