//! An mlx5 network card in software.
//!
//! This crate offers functions of the simulator to other processes. [`serve`] makes functions answer vfio-user on
//! sockets, with a link between them. [`steer`] changes the simulation while its functions are served. [`replay`]
//! repeats a recorded simulation. The program `simnic` boots a stock kernel on such functions; `datctl sim` serves them
//! for a user's own QEMU.
//!
//! The crate does not depend on the library `udapl`, because the driver of a function is at the other side of a socket.
//! Feature `fabric` adds the module `fabric` and this dependency. In that module functions on switches send to each
//! other, and the queues are drawn.
#![forbid(unsafe_code)]

mod address;
mod card;
#[cfg(feature = "fabric")]
pub mod fabric;
pub mod manual;
pub mod palette;
pub mod replay;
pub mod serve;
pub mod signals;
pub mod simulated;
pub mod steer;
pub mod switch;

pub use self::card::{CardOptions, RuleOptions, VfOptions};
