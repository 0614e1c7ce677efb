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
//! In the diagram, *tells* names the asynchronous event of a transition. *Set to none* also leads from Armed to Off.
//! *Short* means that fewer buffers than the mark are on the queue. The device may report *Short* any number of times,
//! but the mark triggers only once each time it is set. A queue in error reports nothing more.
//!
//! (uDAPL 1.2: dat_srq_set_lw, dat_srq_post_recv, DAT_SRQ_STATE.)

use crate::error::Subtype;

/// State of an SRQ (`DAT_SRQ_STATE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[cfg_attr(test, derive(strum::VariantArray))]
#[repr(u32)]
pub enum SrqState {
    /// The SRQ works.
    Operational = 0,
    /// The device takes no more buffers from the SRQ.
    Error = 1,
}

/// State of the low watermark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub enum Watermark {
    /// No watermark is set.
    Off,
    /// A watermark is set, and triggers when fewer buffers are left.
    Armed,
    /// The watermark has triggered.
    Fired,
}

/// State of an SRQ and of its low watermark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct SrqMode {
    /// State of the SRQ.
    pub state: SrqState,
    /// State of the low watermark.
    pub watermark: Watermark,
}

/// Inputs that change the state of an SRQ, or that the state may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub enum SrqInput {
    /// `srq_set_lw` was called with 0.
    SetNone,
    /// `srq_set_lw` was called, and at least as many buffers as the mark are on the queue.
    SetEnough,
    /// `srq_set_lw` was called, and fewer buffers than the mark are on the queue.
    SetTooFew,
    /// Fewer buffers than the mark are on the queue.
    Short,
    /// `srq_resize` was called.
    Resize,
    /// The device stops taking buffers from the SRQ, because of an error.
    Fail,
}

/// Asynchronous event that a transition reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SrqReport {
    /// No event.
    Nothing,
    /// Fewer buffers than the low watermark are left.
    LowWatermark,
    /// The SRQ is in error.
    Error,
}

impl SrqMode {
    /// State of a new SRQ.
    pub const NEW: Self = Self {
        state: SrqState::Operational,
        watermark: Watermark::Off,
    };

    /// Returns the next state and the event to report, according to the transition table.
    ///
    /// # Errors
    /// The subtype of the DAT_INVALID_STATE error with which the call is refused.
    pub const fn next(self, input: SrqInput) -> Result<(Self, SrqReport), Subtype> {
        use SrqInput as I;
        let mut to = self;
        let mut report = SrqReport::Nothing;
        match (self.state, input) {
            (SrqState::Error, I::Short | I::Fail) => {}
            (SrqState::Error, _) => return Err(Subtype::StateSrqError),
            (SrqState::Operational, I::SetNone) => to.watermark = Watermark::Off,
            (SrqState::Operational, I::SetEnough) => to.watermark = Watermark::Armed,
            (SrqState::Operational, I::SetTooFew) => {
                to.watermark = Watermark::Fired;
                report = SrqReport::LowWatermark;
            }
            (SrqState::Operational, I::Short) => {
                if let Watermark::Armed = self.watermark {
                    to.watermark = Watermark::Fired;
                    report = SrqReport::LowWatermark;
                }
            }
            (SrqState::Operational, I::Resize) => {}
            (SrqState::Operational, I::Fail) => {
                to.state = SrqState::Error;
                report = SrqReport::Error;
            }
        }
        Ok((to, report))
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
                        Ok((to, report)) => format!(
                            "{state:?}, {watermark:?} + {input:?} -> {:?}, {:?}; tells {report:?}",
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
