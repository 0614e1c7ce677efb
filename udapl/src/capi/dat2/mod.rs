//! DAT 2.0 on top of the C ABI of DAT 1.2: the provider for the registry `libdat2.so.2` and the programs linked to
//! that registry.
//!
//! ```text
//!    program --dat_ep_post_send--> libdat2.so.2 --table of functions--> here --dat_ep_post_send of DAT 1.2--> Ia
//! ```
//!
//! Most functions of the table convert their arguments and call the function of the same name in
//! [`capi`](crate::capi), where the call is documented. Posts and dequeues call the method of the IA. The conversion
//! concerns handles (`cells`), return codes (`code`), structures ([`types`]) and mask bits. DAT 2.0 differs in these
//! points:
//!
//! - `dat.conf` maps the adapter's name to a device: the record's instance data is the name for
//!   [`ia_open`](crate::ia_open).
//! - Adapters are opened as thread safe. The header of DAT 2.0 declares every program as not thread safe, but
//!   programs use threads nevertheless. So DAT 2.0 programs do not use the fast lane (`gate`).
//! - An endpoint gets the adapter's maximum sizes of messages and RDMA transfers. Programs request smaller sizes than
//!   they use, because no other provider of DAT 2.0 enforces the sizes. A region always has local read access,
//!   which DAT 2.0 programs do not request.
//! - A call that is new in DAT 2.0 works if DAT 1.2 has the same feature under another name. Otherwise the call returns
//!   DAT_NOT_IMPLEMENTED: common service points, RMRs for one endpoint, CNOs with a file descriptor. `ext` has some of
//!   the extensions for InfiniBand.

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
