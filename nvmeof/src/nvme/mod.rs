//! Bytes and numbers of the NVMe specifications.
//!
//! NVM Express Base Specification 2.0, NVM Command Set Specification 1.0 and RDMA Transport Specification 1.0; each
//! type names its figure or section. All integers are little-endian. Types that a host
//! sends accept any bytes; unknown codes stay numbers.

pub mod command;
pub mod completion;
pub mod discovery;
pub mod fabrics;
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
