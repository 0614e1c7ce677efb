//! Real functions of this machine, for tests that otherwise create simulated functions.
//!
//! `DAT_TEST_FUNCTIONS=0000:00:03.0,0000:00:04.0` names two functions on one link with the addresses that
//! `Fabric::options` uses.

/// Environment variable that names the two functions.
const FUNCTIONS: &str = "DAT_TEST_FUNCTIONS";

/// Returns the names of the two functions, if the environment variable is set. Prints the names then; the program that
/// runs the tests relies on this line.
pub fn named() -> Option<[String; 2]> {
    let names = std::env::var(FUNCTIONS).ok()?;
    let Some((a, b)) = names.split_once(',') else {
        panic!("{FUNCTIONS}={names}: two functions with a comma between them");
    };
    println!("on functions {a} and {b}");
    Some([a.to_owned(), b.to_owned()])
}
