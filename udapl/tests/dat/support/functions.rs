//! Functions in this machine's slots, for tests that otherwise make their own.
//!
//! `DAT_TEST_FUNCTIONS=0000:00:03.0,0000:00:04.0` names two functions that are on one link and have the addresses that
//! `Fabric::options` tells the sides of.

/// What names them.
const FUNCTIONS: &str = "DAT_TEST_FUNCTIONS";

/// The two, if the environment names them; the test says so, and whoever ran it counts on that.
pub fn named() -> Option<[String; 2]> {
    let names = std::env::var(FUNCTIONS).ok()?;
    let Some((a, b)) = names.split_once(',') else {
        panic!("{FUNCTIONS}={names}: two functions with a comma between them");
    };
    println!("on functions {a} and {b}");
    Some([a.to_owned(), b.to_owned()])
}
