//! Takes the programs out of docs/guide.md, so that the tests compile and run them: `guide.rs`, `guide.c`, and what
//! the latter prints, `guide.text`.
//!
//! What is no code becomes empty lines: a complaint about line 300 of a program is about line 300 of the guide.

use std::path::Path;
use std::{env, fs};

const GUIDE: &str = "../docs/guide.md";

fn main() {
    println!("cargo::rerun-if-changed={GUIDE}");
    let guide = fs::read_to_string(GUIDE).expect("docs/guide.md");
    let folder = env::var("OUT_DIR").expect("cargo sets it");
    for (language, ending) in [("rust", "rs"), ("c", "c"), ("text", "text")] {
        let program = Path::new(&folder).join(format!("guide.{ending}"));
        fs::write(program, blocks(&guide, language)).expect("a file in the output directory");
    }
}

/// The lines of all blocks of a language, each where it stands.
fn blocks(guide: &str, language: &str) -> String {
    let mut block = None;
    let mut text = String::new();
    for line in guide.lines() {
        if let Some(fence) = line.strip_prefix("```") {
            block = if block.is_some() { None } else { Some(fence) };
        } else if block == Some(language) {
            text.push_str(line);
        }
        text.push('\n');
    }
    text
}
