//! The self test of a function ([`hw_mlx::selftest`]) as a sentence, for `datctl info --selftest` and `datctl accept`.

use std::error::Error;

use driver::Function;
use hw_mlx::HcaConfig;
use hw_mlx::selftest::{self, Passed};

/// Makes an unused function send to itself, and describes the result in a sentence.
///
/// # Errors
/// The error names the layer that failed, the failure, and the things to check.
pub(crate) fn sentence(function: Function) -> Result<String, Box<dyn Error>> {
    let passed = selftest::run(function, HcaConfig::new()).map_err(|failed| {
        format!(
            "the self test ends at the layer {failed}; {}",
            failed.layer.advice()
        )
    })?;
    let Passed { forced, bytes } = passed;
    let way = if forced {
        "by forced loopback"
    } else {
        "by its own address, since the device has no forced loopback"
    };
    Ok(format!(
        "a queue pair of the function reached itself {way}: Send, RDMA Write and RDMA Read of {bytes} bytes each, compared; interrupts come"
    ))
}
