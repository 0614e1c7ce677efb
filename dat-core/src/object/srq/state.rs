//! The states of an SRQ and of its low watermark.
//!
//! ```text
//!      Off <---------- Set to none ----------.          Operational ---- Fail ----> Error
//!       |                                    |                tells: error
//!       | Set, enough there                  |
//!       v             tells: low watermark   |
//!     Armed ----------- Short ----------> Fired
//!       ^                                    |
//!       '------ Set, enough there -----------'     Set, too few there: Fired at once, from anywhere
//! ```
//!
//! *Short* says that fewer buffers than the mark are on the queue. The device and our own count may report it any
//! number of times; the mark triggers once for each time it is set. A queue in error reports nothing more.
//!
//! (uDAPL 1.2: dat_srq_set_lw, dat_srq_post_recv, DAT_SRQ_STATE.)

use crate::error::Subtype;

/// `DAT_SRQ_STATE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(strum::VariantArray))]
#[repr(u32)]
pub enum SrqState {
    /// In use.
    Operational = 0,
    /// The device takes no more buffers from it.
    Error = 1,
}

/// State of the low watermark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub enum Watermark {
    /// No watermark is set.
    Off,
    /// Set; it triggers when fewer buffers are left.
    Armed,
    /// It has triggered.
    Fired,
}

/// State of an SRQ and of its low watermark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqMode {
    /// The state.
    pub state: SrqState,
    /// The low watermark.
    pub watermark: Watermark,
}

/// Inputs of an SRQ's mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub enum SrqInput {
    /// `srq_set_lw` with 0.
    SetNone,
    /// `srq_set_lw`, and at least as many buffers are on the queue.
    SetEnough,
    /// `srq_set_lw`, and fewer buffers are on the queue.
    SetTooFew,
    /// Fewer buffers than the mark are on the queue.
    Short,
    /// `srq_resize`.
    Resize,
    /// The device takes no more buffers from it.
    Fail,
}

/// Asynchronous event that a step reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SrqTell {
    /// None.
    Nothing,
    /// Fewer buffers than the low watermark are left.
    LowWatermark,
    /// It is in error.
    Error,
}

impl SrqMode {
    /// The mode at creation.
    pub const NEW: Self = Self {
        state: SrqState::Operational,
        watermark: Watermark::Off,
    };

    /// Returns the next mode and the event to report, by the transition table.
    ///
    /// # Errors
    /// The subtype of the DAT_INVALID_STATE that refuses the call.
    pub const fn next(self, input: SrqInput) -> Result<(Self, SrqTell), Subtype> {
        use SrqInput as I;
        let mut to = self;
        let mut tell = SrqTell::Nothing;
        match (self.state, input) {
            (SrqState::Error, I::Short | I::Fail) => {}
            (SrqState::Error, _) => return Err(Subtype::StateSrqError),
            (SrqState::Operational, I::SetNone) => to.watermark = Watermark::Off,
            (SrqState::Operational, I::SetEnough) => to.watermark = Watermark::Armed,
            (SrqState::Operational, I::SetTooFew) => {
                to.watermark = Watermark::Fired;
                tell = SrqTell::LowWatermark;
            }
            (SrqState::Operational, I::Short) => {
                if let Watermark::Armed = self.watermark {
                    to.watermark = Watermark::Fired;
                    tell = SrqTell::LowWatermark;
                }
            }
            (SrqState::Operational, I::Resize) => {}
            (SrqState::Operational, I::Fail) => {
                to.state = SrqState::Error;
                tell = SrqTell::Error;
            }
        }
        Ok((to, tell))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::assert_table;
    use strum::VariantArray;

    #[test]
    fn every_pair_of_state_and_input_is_as_the_checked_in_table_says() {
        let mut rows = Vec::new();
        for &state in SrqState::VARIANTS {
            for &watermark in Watermark::VARIANTS {
                rows.extend(SrqInput::VARIANTS.iter().map(|&input| {
                    match (SrqMode { state, watermark }).next(input) {
                        Ok((to, tell)) => format!(
                            "{state:?}, {watermark:?} + {input:?} -> {:?}, {:?}; tells {tell:?}",
                            to.state, to.watermark
                        ),
                        Err(subtype) => format!(
                            "{state:?}, {watermark:?} + {input:?} refused, {}",
                            subtype.name()
                        ),
                    }
                }));
            }
        }
        assert_table(rows, include_str!("state.table"));
    }
}
