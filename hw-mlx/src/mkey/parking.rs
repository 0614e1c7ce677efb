//! Memory keys of a function that is handed over to another process.

use mlx_prm::{Mkc, Opcode, QueryMkeyIn};
use rdma_types::Access;

use super::{ACCESS_MODE_MTT, KeyRequest};
use crate::device::Hca;
use crate::error::{CmdError, MlxError, ResumeError};

/// Takes over the key with an index, and compares it with the request by which it was created. `memory` is the owner of
/// the key's memory, which the caller has claimed at the address that it had. It is returned.
///
/// # Errors
/// [`ResumeError`]: the device has no such key, or the key is another one. The function then keeps `memory` out of use,
/// because the device may still use it.
pub fn resume<T: Send + 'static>(
    hca: &mut Hca,
    index: u32,
    request: &KeyRequest,
    memory: T,
) -> Result<T, ResumeError> {
    match confirm(hca, index, request) {
        Ok(()) => Ok(memory),
        Err(error) => {
            hca.arena().downgrade().keep(memory);
            Err(error)
        }
    }
}

/// Takes over the key with an index, and compares it with the request by which it was created. The caller is the owner
/// of the key's memory. If this is refused, the device may still use the memory: the caller keeps it until
/// [`Hca::finish_resuming`] has succeeded, which confirms that all keys are known.
///
/// # Errors
/// As [`resume`].
pub fn confirm(hca: &mut Hca, index: u32, request: &KeyRequest) -> Result<(), ResumeError> {
    let context = query(hca, index)?;
    let ours = (
        request.pd,
        request.address,
        request.bytes,
        u32::from(request.variant),
        [
            request.access.contains(Access::LOCAL_WRITE),
            request.access.contains(Access::REMOTE_READ),
            request.access.contains(Access::REMOTE_WRITE),
            request.access.contains(Access::REMOTE_ATOMIC),
        ],
    );
    let devices = (
        context.pd(),
        context.start_addr(),
        context.len(),
        context.mkey_7_0(),
        [context.lw(), context.rr(), context.rw(), context.a()],
    );
    let is_region = context.access_mode_1_0() == ACCESS_MODE_MTT && !context.free();
    if ours != devices || !is_region {
        return Err(ResumeError::changed(format!(
            "key {index:#x} has pd, start_addr, len, mkey_7_0 and lw, rr, rw and a {devices:x?}, and not {ours:x?}"
        )));
    }
    hca.count_resumed(Opcode::CREATE_MKEY, index)
}

/// Reads a key's context from the device.
///
/// # Errors
/// [`ResumeError::Snapshot`]: the index is no number of 24 bits. [`ResumeError::Device`]: the device refused, or does
/// not answer.
pub fn query(hca: &mut Hca, index: u32) -> Result<Mkc, ResumeError> {
    if index > 0xff_ffff {
        return Err(ResumeError::snapshot("a key", format!("index {index:#x}")));
    }
    let mut input = QueryMkeyIn::new();
    input.set_mkey_index(index);
    let answer: Result<_, CmdError> = hca.exec(&input);
    let answer = answer.map_err(MlxError::from)?;
    Ok(answer.memory_key_mkey_entry().clone())
}
