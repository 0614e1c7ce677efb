//! The states of an SRQ, and when its low watermark speaks.
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
//! *Short* says that fewer buffers than the mark are on the queue. It may be said any number of times, by the device
//! and by our own count; the mark speaks once for each time it is set. A queue in error has nothing left to say.
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

/// Whether the low watermark is to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub enum Watermark {
    /// There is none.
    Off,
    /// When it is undercut.
    Armed,
    /// It has spoken.
    Fired,
}

/// Both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqMode {
    /// The state.
    pub state: SrqState,
    /// The low watermark.
    pub watermark: Watermark,
}

/// What can happen to an SRQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub enum SrqInput {
    /// `srq_set_lw` with 0.
    SetNone,
    /// `srq_set_lw`, and at least so many buffers are there.
    SetEnough,
    /// `srq_set_lw`, and fewer buffers are there.
    SetTooFew,
    /// Fewer buffers than the mark are there.
    Short,
    /// `srq_resize`.
    Resize,
    /// The device has given it up.
    Fail,
}

/// What a step tells the asynchronous EVD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SrqTell {
    /// Nothing.
    Nothing,
    /// The low watermark is undercut.
    LowWatermark,
    /// It is in error.
    Error,
}

impl SrqMode {
    /// As created.
    pub const NEW: Self = Self {
        state: SrqState::Operational,
        watermark: Watermark::Off,
    };

    /// The transition table: the next state and what is told.
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
