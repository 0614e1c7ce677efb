//! Bolero harnesses, as plain tests in `tests/`: hostile bytes against the simulator, the driver, the transport and the
//! connection manager. This library is empty; the crate consists of its tests.
#![forbid(unsafe_code)]
