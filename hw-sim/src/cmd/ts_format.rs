//! Clocks of a queue's time stamps: `ts_format` in its context, and the capabilities for it.
//!
//! A device has a free-running clock, a real-time clock, or both (firmware setting REAL_TIME_CLOCK_ENABLE). A context
//! selects one of them, or the device's default. If the device has only the free-running clock, only that clock's value
//! is valid and all others are reserved (mlx5_ifc.h, `MLX5_TIMESTAMP_FORMAT_*`; Linux `mlx5_get_sq_default_ts`). Queue
//! pairs are an exception, see [`of_queue_pair`].

use super::{Refusal, refuse};

/// Values of `ts_format` in a context.
const FREE_RUNNING: u32 = 0;
const DEFAULT: u32 = 1;
const REAL_TIME: u32 = 2;
/// Values of the capabilities `sq_ts_format`, `rq_ts_format` and (in the RoCE page) `qp_ts_format`.
const ONLY_FREE_RUNNING: u32 = 0;
const ONLY_REAL_TIME: u32 = 1;
const BOTH: u32 = 2;

/// Returns whether a device with this capability has the clock that a format selects.
fn has(capability: u32, format: u32) -> bool {
    match capability {
        ONLY_FREE_RUNNING => format == FREE_RUNNING,
        ONLY_REAL_TIME => matches!(format, DEFAULT | REAL_TIME),
        BOTH => matches!(format, FREE_RUNNING | DEFAULT | REAL_TIME),
        _ => false,
    }
}

/// Refuses a send queue whose time stamps need a clock that the device does not have.
///
/// # Errors
/// BAD_PARAM with the syndrome of ConnectX-6 Dx (Linux commit 0f3caaa2c6fb).
pub(super) fn of_send_queue(capability: u32, format: u32) -> Result<(), Refusal> {
    if has(capability, format) {
        return Ok(());
    }
    Err(refuse!(
        BAD_PARAM,
        "SQ with time stamps of a clock that is not there",
        "ts_format {format}, sq_ts_format {capability}"
    ))
}

/// Refuses a receive queue whose time stamps need a clock that the device does not have.
///
/// # Errors
/// BAD_PARAM. Inferred from the recorded status of a send queue.
pub(super) fn of_receive_queue(capability: u32, format: u32) -> Result<(), Refusal> {
    if has(capability, format) {
        return Ok(());
    }
    Err(refuse!(
        BAD_PARAM,
        "RQ with time stamps of a clock that is not there",
        "ts_format {format}, rq_ts_format {capability}"
    ))
}

/// Refuses a queue pair whose time stamps need a clock that the device does not have.
///
/// Inferred: the default is accepted whatever the capability says. UCX selects the default in each queue pair that it
/// creates by DevX, without checking the capability (`uct_ib_mlx5_devx_create_qp_common`), and a ConnectX-6 Dx
/// announces the free-running clock only. Linux does not use the default on such a device (`mlx5_get_qp_default_ts`).
///
/// # Errors
/// BAD_PARAM. Inferred from the recorded status of a send queue.
pub(super) fn of_queue_pair(capability: u32, format: u32) -> Result<(), Refusal> {
    if format == DEFAULT || has(capability, format) {
        return Ok(());
    }
    Err(refuse!(
        BAD_PARAM,
        "QP with time stamps of a clock that is not there",
        "ts_format {format}, qp_ts_format {capability}"
    ))
}
