//! A card: its port, its functions, and the switch between them in legacy mode. What is expected is what Linux relies on
//! (6.12, `drivers/net/ethernet/mellanox/mlx5/core`), and each test names the place.

#[path = "../bench/mod.rs"]
mod bench;
mod delivery;
#[path = "../eth_support/mod.rs"]
mod eth_support;
mod functions;
mod manager;
mod ports;
mod rig;
