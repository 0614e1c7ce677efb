//! Bolero harnesses, as plain tests in `tests/`: hostile bytes against the simulator, the driver, the
//! transport and the connection manager. This library is empty; the harnesses are the crate.
#![forbid(unsafe_code)]
