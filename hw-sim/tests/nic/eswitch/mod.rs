//! Tests of a card with its port, its functions, and the switch between them in legacy mode. The tests expect the
//! behaviour that Linux relies on (6.12, `drivers/net/ethernet/mellanox/mlx5/core`). Most of their comments name the
//! Linux function.

mod delivery;
mod functions;
mod manager;
mod ports;
mod rig;
