//! Compares tables of state machines with checked-in files.

use std::fmt::Debug;

use strum::VariantArray;

/// Compares what each event does in each state with the checked-in table: the next state, and the action.
#[track_caller]
pub(crate) fn assert_table<S, E, A>(step: impl Fn(S, E) -> (S, A), checked_in: &str)
where
    S: VariantArray + Copy + Debug,
    E: VariantArray + Copy + Debug,
    A: Debug,
{
    let mut table = String::new();
    for state in S::VARIANTS {
        for event in E::VARIANTS {
            let (next, action) = step(*state, *event);
            table.push_str(&format!("{state:?} + {event:?} -> {next:?}, {action:?}\n"));
        }
    }
    assert_eq!(table, checked_in, "\n{table}");
}
