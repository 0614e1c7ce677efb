//! Transfers and connections as futures, for programs written with `async`; needs the feature `async`.
//!
//! ```text
//!   tasks:  Endpoint   Listener   Transfer   Buffer                    the program, by turns:
//!               |          |         |          |
//!             Handle ------+---------+----------'                      Driver::run_once, then a sleep
//!               '--------------- one table --------------------------------'
//!                    endpoints, what is in flight, who waits
//! ```
//!
//! A [`Driver`] owns an [`Ia`](crate::Ia). [`Driver::run_once`] processes events and wakes their tasks. The module
//! starts no thread. Everything else is created through a [`Handle`] of the driver. Futures stay on the thread of their
//! driver: a program with several threads gives each an instance of the adapter ([`Adapter`](crate::Adapter)) and a
//! driver.
//!
//! Buffers are owned. A program moves a [`Buffer`] into the call that posts it, and gets it back with the result, as in
//! [`Endpoint::send`]. The call itself posts the request, not the first poll of the future, because a receive has to be
//! posted before the peer sends.
//!
//! Dropping a [`Transfer`] does not cancel it: the card still executes the request. The driver keeps the buffer until
//! the completion has come, or until the endpoint has been freed in the device. Then the driver returns the buffer to
//! its [`Pool`]. A message for a dropped receive is lost. So a task that waits for one of several futures should await
//! `&mut transfer`.
//!
//! The program sleeps in its own way, with any runtime. After [`Progress::Armed`] the descriptor of the driver
//! ([`Driver::descriptor`]) becomes readable when there is an event. A post in the meantime may process events, so the
//! program must call [`Driver::run_once`] again before the next sleep. [`Driver::run`] does this with a sleep given by
//! the caller, [`Driver::block_on`] with a sleep by the function's clock, and `drive` in a runtime of tokio (feature
//! `tokio`).
//!
//! | Of an [`Ia`](crate::Ia) | Here |
//! |---|---|
//! | `ep_post_send`, `ep_post_recv` | [`Endpoint::send`], [`recv`](Endpoint::recv) |
//! | `ep_post_rdma_write`, `ep_post_rdma_read` | [`Endpoint::write`], [`read`](Endpoint::read) |
//! | `ep_post_send_immediate` | [`Endpoint::send_immediate`] |
//! | `ep_post_rdma_write_immediate` | [`Endpoint::write_immediate`] |
//! | `ep_post_send_invalidate` | [`Endpoint::send_invalidate`] |
//! | `ep_post_fetch_add`, `ep_post_compare_swap` | [`Endpoint::fetch_add`], [`compare_swap`](Endpoint::compare_swap) |
//! | `ep_post_send_inline` | [`Endpoint::send_inline`] |
//! | `ep_post_send_inline_immediate` | [`Endpoint::send_inline_immediate`] |
//! | `ep_post_send_inline_invalidate` | [`Endpoint::send_inline_invalidate`] |
//! | `batch` | [`Endpoint::batch`] |
//! | `srq_create`, `srq_post_recv` | [`Handle::srq`], [`Srq::recv`] |
//! | `ep_create_with_srq` | [`Handle::endpoint_with_srq`] |
//! | `ep_end_cause` | [`Endpoint::end_cause`], [`Error::Ended`] |
//! | a completion's `detail` and `ep` | [`Buffer::completion`] |
//! | a region's bytes, for the [reactor](crate::reactor) | [`Buffer::bytes`] |

mod batch;
mod buffer;
mod connecting;
mod driver;
mod endpoint;
mod error;
mod handle;
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
pub use driver::{Driver, Progress, Refused};
pub use endpoint::Endpoint;
pub use error::Error;
pub use handle::Handle;
pub use listener::{Listener, Next, Request};
pub use srq::Srq;
#[cfg(feature = "tokio")]
pub use tokio::drive;
pub use transfer::{InlineTransfer, Transfer};
