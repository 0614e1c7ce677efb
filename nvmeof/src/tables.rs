//! Compares tables of state machines with checked-in files.

use std::fmt::Debug;

use strum::VariantArray;

/// Compares each pair of state and step with the checked-in table. `refused` is the text in the table for a pair
/// without a next state.
#[track_caller]
pub(crate) fn assert_table<S, T>(next: impl Fn(S, T) -> Option<S>, refused: &str, checked_in: &str)
where
    S: VariantArray + Copy + Debug,
    T: VariantArray + Copy + Debug,
{
    let mut table = String::new();
    for state in S::VARIANTS {
        for step in T::VARIANTS {
            let row = match next(*state, *step) {
                Some(to) => format!("{state:?} + {step:?} -> {to:?}\n"),
                None => format!("{state:?} + {step:?} {refused}\n"),
            };
            table.push_str(&row);
        }
    }
    assert_eq!(table, checked_in, "\n{table}");
}
