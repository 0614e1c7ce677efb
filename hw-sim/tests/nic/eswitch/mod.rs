//! Tests of a card with its port, its functions, and the switch between them in legacy mode. The expected behaviour is
//! what Linux relies on (6.12, `drivers/net/ethernet/mellanox/mlx5/core`); each test names the function of Linux.

mod delivery;
mod functions;
mod manager;
mod ports;
mod rig;
