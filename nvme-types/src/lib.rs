//! Structures and codes of the NVMe specifications, for hosts and controllers.
//!
//! The sources are NVM Express Base Specification 2.0, NVM Command Set Specification 1.0 and RDMA Transport
//! Specification 1.0; each module names its sections. All integers are little-endian. Types that a host sends
//! accept any bytes: an unknown code stays a number and is no parse error.

#![forbid(unsafe_code)]

pub mod command;
pub mod completion;
pub mod discovery;
pub mod fabrics;
pub mod feature;
pub mod identify;
pub mod log;
pub mod nqn;
pub mod rdma;
pub mod sgl;
pub mod status;

pub use command::Sqe;
pub use completion::Cqe;
pub use nqn::Nqn;
pub use status::Status;
