//! The lines that the guest writes to its second serial port (`guest/init` writes them).
//!
//! ```text
//!   @step NAME: COMMAND      a step begins
//!   | TEXT                   a line of the step's output
//!   @done CODE MILLISECONDS  the step has ended, with this exit status, after this time
//!   @card SETTINGS           requests a setting of a virtual function; the step waits for an answer
//!   @beside WORDS            requests an action on the process beside the guest; the step waits for an answer
//!   @lost                    requests that the guest be ended now, in the middle of the step
//!   @steer WORDS             requests a command of `datctl sim ctl`; the step waits for an answer
//!   @over                    the script has ended
//! ```

use std::time::Duration;

/// A parsed line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Line {
    /// A step begins.
    Step {
        /// Name of the step in the table.
        name: String,
        /// Command line of the step.
        command: String,
    },
    /// A line of output of the running step.
    Said(String),
    /// The step has ended.
    Done {
        /// Exit status of the command.
        code: i32,
        /// Duration of the step by the guest's clock.
        took: Duration,
    },
    /// Requests a setting of the simulated card, as `ip link set PF vf` would make it. The guest waits for a line with
    /// the result.
    Card(String),
    /// Requests a command of `datctl sim ctl` to the simulator. The guest waits for a line with the result.
    Steer(String),
    /// The suite's script has ended.
    Over,
    /// Requests an action on the host process beside the guest. The guest waits for a line with the result.
    Beside(String),
    /// Requests that the guest be ended at once, in the middle of a step.
    Lost,
    /// Any other line, which is an error.
    Stray(String),
}

impl Line {
    /// Parses a line without its line end.
    pub fn parse(text: &str) -> Self {
        let stray = || Self::Stray(text.to_owned());
        if let Some(said) = text.strip_prefix("| ") {
            return Self::Said(said.to_owned());
        }
        // This is an empty line of output. The caller has trimmed the blank after the bar.
        if text == "|" {
            return Self::Said(String::new());
        }
        match text {
            "@over" => return Self::Over,
            "@lost" => return Self::Lost,
            _ => {}
        }
        if let Some(settings) = text.strip_prefix("@card ") {
            return Self::Card(settings.to_owned());
        }
        if let Some(words) = text.strip_prefix("@beside ") {
            return Self::Beside(words.to_owned());
        }
        if let Some(words) = text.strip_prefix("@steer ") {
            return Self::Steer(words.to_owned());
        }
        if let Some(step) = text.strip_prefix("@step ") {
            return step
                .split_once(": ")
                .map_or_else(stray, |(name, command)| Self::Step {
                    name: name.to_owned(),
                    command: command.to_owned(),
                });
        }
        let numbers = text.strip_prefix("@done ").and_then(|numbers| {
            let (code, milliseconds) = numbers.split_once(' ')?;
            Some((code.parse().ok()?, milliseconds.parse().ok()?))
        });
        numbers.map_or_else(stray, |(code, milliseconds)| Self::Done {
            code,
            took: Duration::from_millis(milliseconds),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_a_step_is_says_and_how_it_ended() {
        assert_eq!(
            Line::parse("@step info: datctl info 00:03.0"),
            Line::Step {
                name: "info".to_owned(),
                command: "datctl info 00:03.0".to_owned()
            }
        );
        assert_eq!(
            Line::parse("| @done 0 1"),
            Line::Said("@done 0 1".to_owned())
        );
        assert_eq!(
            Line::parse("@done 124 5010"),
            Line::Done {
                code: 124,
                took: Duration::from_millis(5010)
            }
        );
        assert_eq!(Line::parse("|"), Line::Said(String::new()));
        assert_eq!(
            Line::parse("@card 0:trust"),
            Line::Card("0:trust".to_owned())
        );
        assert_eq!(
            Line::parse("@steer function link-down"),
            Line::Steer("function link-down".to_owned())
        );
        assert_eq!(Line::parse("@over"), Line::Over);
        assert_eq!(Line::parse("@lost"), Line::Lost);
    }

    #[test]
    fn anything_else_is_stray() {
        for text in ["", "@done", "@done x 1", "@step nothing", "Oops"] {
            assert_eq!(Line::parse(text), Line::Stray(text.to_owned()));
        }
    }
}
