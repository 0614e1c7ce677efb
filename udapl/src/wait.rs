//! Waiting for events: EVDs, event loops, and notification objects.
//!
//! | To wait | Call |
//! |---|---|
//! | in one EVD, inside the library | [`Ia::evd_wait`](crate::Ia::evd_wait), which fails with a [`WaitError`](crate::error::WaitError) |
//! | in one EVD, in steps between which the program sleeps | [`Ia::evd_wait_begin`](crate::Ia::evd_wait_begin): returns an [`EvdWait`]; each [`Ia::evd_wait_check`](crate::Ia::evd_wait_check) returns an [`EvdWaitStatus`] |
//! | in an event loop with other descriptors | [`Ia::arm`](crate::Ia::arm): an [`Armed`] has the descriptor and the time limit of the sleep |
//! | for many EVDs | a consumer notification object, [`CnoHandle`]: [`Ia::cno_wait`](crate::Ia::cno_wait), or in steps with [`CnoWait`] and [`CnoWaitStatus`] |
//!
//! An event that arrives between the last poll and the sleep must end the sleep. So each way asks the device for an
//! interrupt first, and polls again before it sleeps. An [`Armed`] borrows the `Ia`, so no call can consume an event
//! before the sleep. An [`Agent`] is a function that a CNO calls when it is triggered. Between two waits an EVD can be
//! polled: [`Ia::evd_poll`](crate::Ia::evd_poll), [`Ia::evd_dequeue`](crate::Ia::evd_dequeue).

pub use dat_core::{
    Agent, Arm, Armed, CnoHandle, CnoParam, CnoWait, CnoWaitStatus, EvdParam, EvdState, EvdWait,
    EvdWaitStatus,
};
