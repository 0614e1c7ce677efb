//! An mlx5 network card in software.
//!
//! Functions of the simulator for other processes. [`serve`] makes them answer vfio-user on sockets, with a link
//! between them. [`steer`] changes the world of such functions while they are served. [`replay`] repeats a recorded
//! world. The program `simnic` boots a stock kernel on them; `datctl sim` serves them for a user's own QEMU.
//!
//! The crate depends on the simulator only; the driver of a function is at the other side of a socket. Feature
//! `fabric` adds a module of that name, which has a driver: functions on switches that send to each other, and
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
