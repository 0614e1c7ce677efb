//! Extracts the programs from pages of docs, so that the tests compile and run them. In the whole programs, lines that
//! are not code become empty lines, so an error at line 300 of a program is at line 300 of the page.
//!
//! | page | becomes |
//! |---|---|
//! | docs/guide.md | `guide.rs`, `guide.c`, `guide.text` (output of `guide.c`): each has all blocks of a language |
//! | docs/first-steps.md | `first-steps.rs`, a program |
//! | [`SNIPPETS`] | `snippets.rs`: a test for each block of Rust, with its page and line in its name |

use std::path::Path;
use std::{env, fs};

const SNIPPETS: [&str; 3] = ["event-loops", "reconnecting", "tuning"];

fn main() {
    let guide = page("guide");
    for (language, ending) in [("rust", "rs"), ("c", "c"), ("text", "text")] {
        write(&format!("guide.{ending}"), &blocks(&guide, language));
    }
    write("first-steps.rs", &blocks(&page("first-steps"), "rust"));
    write("snippets.rs", &SNIPPETS.map(snippets).concat());
}

fn page(name: &str) -> String {
    let path = format!("../docs/{name}.md");
    println!("cargo::rerun-if-changed={path}");
    fs::read_to_string(&path).expect("a page of docs")
}

fn write(name: &str, text: &str) {
    let folder = env::var("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&folder).join(name), text).expect("a file in the output directory");
}

/// Returns the lines of all blocks of a language, each at its line number in the page.
fn blocks(page: &str, language: &str) -> String {
    let mut block = None;
    let mut text = String::new();
    for line in page.lines() {
        if let Some(fence) = line.strip_prefix("```") {
            block = if block.is_some() { None } else { Some(fence) };
        } else if block == Some(language) {
            text.push_str(line);
        }
        text.push('\n');
    }
    text
}

/// Returns one test for each block of Rust in a page.
fn snippets(name: &str) -> String {
    let page = page(name);
    let mut inside = None;
    let mut text = String::new();
    for (line, number) in page.lines().zip(1..) {
        match (line.strip_prefix("```"), inside) {
            (Some(language), None) => {
                let rust = language == "rust";
                inside = Some(rust);
                if rust {
                    let name = name.replace('-', "_");
                    text += &format!(
                        "#[test]\nfn {name}_{number}() -> Result<(), Box<dyn std::error::Error>> {{\n"
                    );
                }
            }
            (Some(_), Some(rust)) => {
                inside = None;
                if rust {
                    text += "Ok(())\n}\n";
                }
            }
            (None, Some(true)) => {
                text += line;
                text.push('\n');
            }
            _ => {}
        }
    }
    text
}
