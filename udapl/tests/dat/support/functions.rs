//! Functions of this machine, for tests that otherwise create simulated ones.
//!
//! `DAT_TEST_FUNCTIONS=0000:00:03.0,0000:00:04.0` names two functions on one link with the addresses that
//! `Fabric::options` uses.

/// Environment variable.
const FUNCTIONS: &str = "DAT_TEST_FUNCTIONS";

/// Returns the two functions, if the environment names them. The test prints a line about it, which the caller relies
/// on.
pub fn named() -> Option<[String; 2]> {
    let names = std::env::var(FUNCTIONS).ok()?;
    let Some((a, b)) = names.split_once(',') else {
        panic!("{FUNCTIONS}={names}: two functions with a comma between them");
    };
    println!("on functions {a} and {b}");
    Some([a.to_owned(), b.to_owned()])
}
