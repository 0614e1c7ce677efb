//! A card: its port, its functions, and the switch between them in legacy mode. Expected is what Linux relies on
//! (6.12, `drivers/net/ethernet/mellanox/mlx5/core`); each test names the place.

mod delivery;
mod functions;
mod manager;
mod ports;
mod rig;
