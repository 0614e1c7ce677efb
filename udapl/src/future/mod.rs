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
//! A [`Driver`] owns an [`Ia`](crate::Ia). [`Driver::turn`] takes in events and wakes their tasks. There is no
//! thread. Everything else goes through a [`Handle`] of the driver. Futures stay on the thread of their driver: a
//! program with several threads gives each an instance of the adapter ([`Adapter`](crate::Adapter)) and a driver.
//!
//! Buffers are owned. A [`Buffer`] is moved into the call that posts it and comes back with the result, as in
//! [`Endpoint::send`]. The call itself posts the request, not the first poll of the future: a receive has to be
//! posted before the peer sends.
//!
//! Dropping a [`Transfer`] does not cancel it: the card still executes the request. The driver keeps the buffer until
//! the completion has come, or until the endpoint has been freed in the device. Then it returns the buffer to its
//! [`Pool`]. A message for a dropped receive is lost. A task that waits for one of several futures therefore awaits
//! `&mut transfer`.
//!
//! The program sleeps in its own way, with any runtime. After [`Turn::Armed`] the descriptor of the driver
//! ([`Driver::descriptor`]) becomes readable when there is an event. A post in the meantime may take in events, so
//! call [`Driver::turn`] again before the next sleep. [`Driver::run`] does this with a sleep given by the caller,
//! [`Driver::block_on`] with the function's own, and `drive` in a runtime of tokio (feature `tokio`).
//!
//! | Of an [`Ia`](crate::Ia) | Here |
//! |---|---|
//! | `ep_post_send`, `ep_post_recv`, `ep_post_rdma_write`, `ep_post_rdma_read` | [`Endpoint::send`], [`recv`](Endpoint::recv), [`write`](Endpoint::write), [`read`](Endpoint::read) |
//! | `ep_post_send_immediate`, `ep_post_rdma_write_immediate` | [`Endpoint::send_immediate`], [`write_immediate`](Endpoint::write_immediate) |
//! | `ep_post_send_invalidate` | [`Endpoint::send_invalidate`] |
//! | `ep_post_fetch_add`, `ep_post_compare_swap` | [`Endpoint::fetch_add`], [`compare_swap`](Endpoint::compare_swap) |
//! | `ep_post_send_inline`, `…_immediate`, `…_invalidate` | [`Endpoint::send_inline`], [`send_inline_immediate`](Endpoint::send_inline_immediate), [`send_inline_invalidate`](Endpoint::send_inline_invalidate) |
//! | `batch` | [`Endpoint::batch`] |
//! | `srq_create`, `ep_create_with_srq`, `srq_post_recv` | [`Handle::srq`], [`Handle::endpoint_with_srq`], [`Srq::recv`] |
//! | `ep_end_cause` | [`Endpoint::end_cause`], [`Error::Ended`] |
//! | a completion's `detail` and `ep` | [`Buffer::completion`] |
//! | a region's bytes, for the [reactor](crate::reactor) | [`Buffer::bytes`] |

mod batch;
mod buffer;
mod connecting;
mod driver;
mod endpoint;
mod error;
mod listener;
mod srq;
mod table;
#[cfg(feature = "tokio")]
mod tokio;
mod transfer;
mod waiting;
mod what;

pub use batch::Batch;
pub use buffer::{Buffer, Pool};
pub use connecting::{Connecting, Disconnecting};
pub use driver::{Driver, Refused, Turn};
pub use endpoint::{Endpoint, Handle};
pub use error::Error;
pub use listener::{Listener, Next, Request};
pub use srq::Srq;
#[cfg(feature = "tokio")]
pub use tokio::drive;
pub use transfer::{InlineTransfer, Transfer};
