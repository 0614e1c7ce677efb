//! The initialization segment before the first command, and the device's time limits.
//!
//! Firmware boots in two parts. In the first part, just after a reset, the segment is not valid: registers may read as
//! ones, and a written address is lost. This part ends when `initializing` clears for the first time. Then the driver
//! can read the interface revision and the queue's geometry and write the queue's address. The firmware continues to
//! boot until `initializing` clears again (Linux `main.c` `mlx5_function_enable`, `wait_fw_init`).
//!
//! If a register reads as all ones, the device did not answer the read. In the first part that is normal. If
//! configuration space reads as all ones too, the function is not on the bus any more.

use std::time::Duration;

use driver::{Block, Function};

use crate::control::milliseconds;
use crate::error::MlxError;
use mlx_prm::InitSegment;

/// Time between two reads of `initializing`, as in mlx5_core.
const BOOT_PAUSE: Duration = Duration::from_millis(2);
/// Bits of the register `initializing`: the firmware is booting; the function is that of the adapter's own processor
/// (Linux `ecpf.c` `mlx5_read_embedded_cpu`).
const INITIALIZING: u32 = 1 << 31;
const EMBEDDED_CPU: u32 = 1 << 23;
/// Offsets in configuration space: vendor id, device id, revision.
const CONFIG_VENDOR: u16 = 0x00;
const CONFIG_DEVICE: u16 = 0x02;
const CONFIG_REVISION: u16 = 0x08;
/// PCI Express capability, the offset of Device Control in it, and the bit Enable Relaxed Ordering.
const PCI_EXPRESS: u8 = 0x10;
const DEVICE_CONTROL: u16 = 0x08;
const ENABLE_RELAXED_ORDERING: u16 = 1 << 4;
/// Longest time limit that is accepted. No device asks for a longer one; a longer value means that the device does
/// not answer.
const LONGEST_LIMIT: Duration = Duration::from_secs(3600);

/// Waits until `initializing` clears: the firmware has finished the part of its boot that is under way.
pub(crate) fn wait_for_firmware(
    function: &Function,
    registers: &Block<InitSegment>,
    limit: Duration,
) -> Result<(), MlxError> {
    let clock = function.clock();
    let begun = clock.now();
    loop {
        let word = registers.read(|segment| &segment.initializing).get();
        if word & INITIALIZING == 0 {
            return Ok(());
        }
        let silent = word == u32::MAX;
        if silent && function.config_read_u16(CONFIG_VENDOR)? == u16::MAX {
            return Err(MlxError::Gone);
        }
        let now = clock.now();
        if now >= begun + limit {
            let waited_ms = milliseconds(now - begun);
            return Err(if silent {
                MlxError::Silent { waited_ms }
            } else {
                MlxError::Initializing { waited_ms }
            });
        }
        clock.wait(&[], now + BOOT_PAUSE);
    }
}

/// Returns whether the firmware is booting.
pub(crate) fn is_initializing(registers: &Block<InitSegment>) -> bool {
    registers.read(|segment| &segment.initializing).get() & INITIALIZING != 0
}

/// Returns whether this is the function of the adapter's own processor (BlueField's Arm side). Some commands must state
/// that.
pub(crate) fn is_embedded_cpu(registers: &Block<InitSegment>) -> bool {
    registers.read(|segment| &segment.initializing).get() & EMBEDDED_CPU != 0
}

/// Returns the time limits of a command and of the firmware's boot, if the device reports them (Linux `lib/tout.c`
/// `mlx5_tout_query_iseg`).
pub(crate) fn limits(registers: &Block<InitSegment>) -> Option<(Duration, Duration)> {
    let boot = registers.read(|segment| &segment.cmd_q_init_to).get();
    let command = registers.read(|segment| &segment.cmd_exec_to).get();
    (boot != 0).then(|| (from_word(command), from_word(boot)))
}

/// Decodes a time limit of the segment: unit in 31:29, value in 19:0.
fn from_word(word: u32) -> Duration {
    time_limit(word >> 29, word & 0xf_ffff)
}

/// Reads both halves of the device's clock at one time (PRM "Initialization Segment", `internal_timer_h` and `_l`).
/// Returns `None` if no consistent pair could be read; the device was then removed or is in error.
pub(crate) fn ticks(registers: &Block<InitSegment>) -> Option<u64> {
    const MAX_READS: usize = 3;
    let high = || registers.read(|segment| &segment.internal_timer_h).get();
    let low = || registers.read(|segment| &segment.internal_timer_l).get();
    let mut before = high();
    for _ in 0..MAX_READS {
        let (low, after) = (low(), high());
        if before == after {
            return Some(u64::from(after) << 32 | u64::from(low));
        }
        before = after;
    }
    None
}

/// Decodes a time limit of a register: unit 0 milliseconds, 1 seconds, 2 minutes, 3 hours.
pub(crate) fn time_limit(unit: u32, value: u32) -> Duration {
    let value = u64::from(value);
    let limit = match unit & 3 {
        0 => Duration::from_millis(value),
        1 => Duration::from_secs(value),
        2 => Duration::from_secs(value * 60),
        _ => Duration::from_secs(value * 3600),
    };
    limit.min(LONGEST_LIMIT)
}

/// Identity of the function, and what its PCI configuration allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hardware {
    /// PCI device id.
    pub(crate) device_id: u16,
    /// PCI revision.
    pub(crate) revision: u8,
    /// Firmware major, minor, sub-minor.
    pub(crate) firmware: (u16, u16, u16),
    /// True if PCI configuration allows the function's accesses to pass others (Enable Relaxed Ordering). In a virtual
    /// function the bit reads 0, because the physical function's bit decides (PCI Express Base Specification, SR-IOV).
    pub(crate) relaxed_ordering: bool,
}

/// Reads the identity of the function, and whether its PCI configuration enables relaxed ordering.
pub(crate) fn hardware(
    function: &Function,
    registers: &Block<InitSegment>,
) -> Result<Hardware, MlxError> {
    let (minor, major) = words(registers.read(|segment| &segment.fw_rev).get());
    let (_, sub_minor) = words(registers.read(|segment| &segment.cmdif_rev_fw_sub).get());
    Ok(Hardware {
        device_id: function.config_read_u16(CONFIG_DEVICE)?,
        revision: function.config_read_u8(CONFIG_REVISION)?,
        firmware: (major, minor, sub_minor),
        relaxed_ordering: relaxed_ordering(function).unwrap_or_else(|error| {
            tracing::warn!(%error, "the PCI capabilities cannot be read; reads are not relaxed by Enable Relaxed Ordering");
            false
        }),
    })
}

/// Reads the bit Enable Relaxed Ordering of the function; false if it has no PCI Express capability (Linux
/// `pcie_relaxed_ordering_enabled`).
fn relaxed_ordering(function: &Function) -> Result<bool, MlxError> {
    let Some(place) = function.capability(PCI_EXPRESS)? else {
        return Ok(false);
    };
    let control = function.config_read_u16(place + DEVICE_CONTROL)?;
    Ok(control & ENABLE_RELAXED_ORDERING != 0)
}

/// Returns the upper and the lower half of a register.
fn words(register: u32) -> (u16, u16) {
    let [a, b, c, d] = register.to_be_bytes();
    (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A time limit is decoded from a unit and a value, and has an upper bound. Linux decodes it in
    /// `tout_convert_iseg_to_ms`.
    #[test]
    fn time_limits_have_a_unit_and_a_value_and_an_end() {
        for (word, limit) in [
            (0, Duration::ZERO),
            (0x0000_ea60, Duration::from_secs(60)),
            (0x2000_0078, Duration::from_secs(120)),
            (0x4000_0003, Duration::from_secs(180)),
            (0x6000_0001, Duration::from_secs(3600)),
            (u32::MAX, LONGEST_LIMIT),
        ] {
            assert_eq!(from_word(word), limit, "{word:#010x}");
        }
    }
}
