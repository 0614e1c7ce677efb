//! DAT 2.0 over the C ABI of DAT 1.2: the provider that the registry `libdat2.so.2` loads, for programs linked to that.
//!
//! ```text
//!    program --dat_ep_post_send--> libdat2.so.2 --table of functions--> here --dat_ep_post_send of DAT 1.2--> Ia
//! ```
//!
//! A function of the table translates what is different and makes the call of the same name in [`capi`](crate::capi):
//! handles (`cells`), return values (`code`), structures ([`types`]), bits of masks. What a call means is said there.
//! Where DAT 2.0 means something else, it is said here:
//!
//! - The adapter's name leads to the device by `dat.conf`: a record's instance data is what
//!   [`ia_open`](crate::ia_open) takes.
//! - Adapters are opened as thread safe. The header of DAT 2.0 asks for the opposite for every program, and the
//!   programs use threads all the same; so the lane without locks is not for them.
//! - An endpoint is given the longest messages and RDMA transfers the adapter has. Programs ask for less than they use,
//!   since no provider of DAT 2.0 holds them to it. And a region may be read by its owner, asked for or not.
//! - What came with DAT 2.0 is there where DAT 1.2 has the same thing under another name, and DAT_NOT_IMPLEMENTED where
//!   not: common service points, windows for one endpoint, CNOs with a file descriptor. Of the extensions for
//!   InfiniBand `ext` has some.

mod cells;
mod cno;
mod code;
mod connect;
mod ep;
mod evd;
mod ext;
mod functions;
mod generic;
mod ia;
mod made;
mod memory;
mod post;
mod provider;
mod srq;
pub mod types;
mod variadic;

pub(super) use cells::pages as cells;
pub use functions::LAYOUT;
pub(super) use functions::init;
pub(super) use provider::fini;
