//! Commands that allocate and free device memory. The memory itself is in [`crate::device_memory`].

use super::{Cmd, Outcome, Refusal, output, refuse};
use crate::device_memory::{LOG_MOST_ALIGNMENT, LOG_UNIT, MOST, window};
use mlx_prm::{AllocMemicIn, AllocMemicOut, DeallocMemicIn, DeallocMemicOut};
use std::ops::Range;

/// Page size in bytes by which Linux divides the window.
const PAGE: u64 = 4096;

/// Returns the window of the device, if it has device memory. The driver shares the window among programs. The
/// commands have no uid field (mlx5_ifc.h has none in them), so a command that names a user context is refused for a
/// reserved bit.
fn driver_window(cmd: &Cmd<'_>) -> Result<Range<u64>, Refusal> {
    let window = window(&cmd.nic.profile, &cmd.nic.caps.general);
    if window.is_empty() {
        return Err(refuse!(BAD_OP, "device memory is not supported"));
    }
    Ok(window)
}

pub(super) fn alloc_memic(cmd: &mut Cmd<'_>) -> Outcome {
    let window = driver_window(cmd)?;
    let input: AllocMemicIn = cmd.read();
    let (start, size) = (input.range_start_addr(), u64::from(input.range_size()));
    let bytes = input.memic_size();
    let range = start..start.saturating_add(size);
    if !(start | size).is_multiple_of(PAGE) || range.start < window.start || range.end > window.end
    {
        return Err(refuse!(
            BAD_PARAM,
            "range of device memory outside of the window or its pages",
            "{start:#x}+{size:#x}"
        ));
    }
    if bytes == 0 || !bytes.is_multiple_of(1 << LOG_UNIT) || u64::from(bytes) > size {
        return Err(refuse!(BAD_PARAM, "size of device memory", "{bytes}"));
    }
    let log_alignment = input.log_memic_addr_alignment();
    if log_alignment > LOG_MOST_ALIGNMENT {
        return Err(refuse!(
            BAD_PARAM,
            "alignment of device memory",
            "{log_alignment}"
        ));
    }
    let memory = &mut cmd.nic.objects.device_memory;
    if memory.bytes() + bytes > MOST {
        return Err(refuse!(
            EXCEED_LIM,
            "device memory",
            "{bytes} bytes and {} of {MOST}",
            memory.bytes()
        ));
    }
    // Linux tries another range if the answer is EAGAIN (`mlx5_cmd_alloc_memic`), which this status maps to.
    let Some(at) = memory.take(range, bytes, 1 << (LOG_UNIT + log_alignment)) else {
        return Err(refuse!(
            NO_RESOURCES,
            "no such place in the range of device memory",
            "{bytes} bytes in {size:#x}"
        ));
    };
    let [first, bytes] =
        [at, bytes.into()].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
    cmd.nic.bar.fill(first, bytes, 0);
    let mut out = AllocMemicOut::new();
    out.set_memic_start_addr(at);
    output(&out)
}

pub(super) fn dealloc_memic(cmd: &mut Cmd<'_>) -> Outcome {
    driver_window(cmd)?;
    let input: DeallocMemicIn = cmd.read();
    let memory = &mut cmd.nic.objects.device_memory;
    memory.give_back(input.memic_start_addr(), input.memic_size())?;
    output(&DeallocMemicOut::new())
}
