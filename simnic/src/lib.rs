//! An mlx5 network card in software.
//!
//! Functions of the simulator for other processes: [`serve`] has them answer vfio-user on sockets, with a link between
//! them, [`steer`] is how the world of such functions is changed while it is served, and [`replay`] has one once more
//! that was recorded. The program `simnic` boots a stock kernel on them; `datctl sim` has them for a person's own QEMU.
//!
//! It stands on the simulator alone; whatever drives a function is at the other side of a socket. With feature `fabric`
//! there is a module of that name besides, which has a driver: functions on switches that send to each other, and
//! pictures of their queues.
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

pub use self::card::{RuleOptions, VfOptions};
