//! Transfers and connections as futures, for programs written with `async`; needs the feature `async`.
//!
//! ```text
//!   tasks:  Endpoint   Listener   Transfer   Buffer                    the program, by turns:
//!               |          |         |          |
//!             Handle ------+---------+----------'                      Driver::turn, then a sleep
//!               '--------------- one table --------------------------------'
//!                    endpoints, what is in flight, who waits
//! ```
//!
//! A [`Driver`] owns an [`Ia`](crate::Ia). It takes events in and wakes the tasks they are for, whenever
//! [`Driver::turn`] is called; nothing is taken in elsewhere, and there is no thread. Everything else goes through a
//! [`Handle`] of it. Futures and their driver are one thread's: a program with several threads gives each an instance
//! of the adapter ([`Adapter`](crate::Adapter)) and a driver.
//!
//! Buffers are owned. A [`Buffer`] is moved into the call that posts it and comes back with the result, as in
//! [`Endpoint::send`]. The request is posted by the call itself, not when the future is first polled: a receive has to
//! be there before the peer sends.
//!
//! A [`Transfer`] that is dropped is not undone. What the card has been told to do it does, so the buffer stays with
//! the driver until the completion has come, or its endpoint has ended in the device, and then goes back to its
//! [`Pool`]; until then nobody is given that memory. A message that comes for a receive that was dropped is lost with
//! it, so who waits for one of several things waits for `&mut transfer`.
//!
//! Sleeping is the program's, and any runtime's. After [`Turn::Armed`] the descriptor of the driver
//! ([`Driver::descriptor`]) is readable when there is something to take in. Whoever posts meanwhile may disturb that,
//! so the driver is then turned again before the next sleep: [`Driver::run`] does this with the sleep it is given,
//! [`Driver::block_on`] with the function's own.
//!
//! A transfer is an entry of a table, which is used again for a later one.

mod buffer;
mod connecting;
mod driver;
mod endpoint;
mod error;
mod listener;
mod table;
mod transfer;
mod waiting;

pub use buffer::{Buffer, Pool};
pub use connecting::{Connecting, Disconnecting};
pub use driver::{Driver, Refused, Turn};
pub use endpoint::{Endpoint, Handle};
pub use error::Error;
pub use listener::{Listener, Next, Request};
pub use transfer::Transfer;
