//! Commands: the table of opcodes, the checks that all of them share, and one handler each.
//!
//! A command is looked up by opcode and passes these checks, in order: known opcode (status 0x02), allowed at this
//! stage of bring-up (0x04), known op_mod (0x02), input long enough (0x50), output long enough for a status (0x51),
//! no bit set that the layout does not name (0x03), uid of the driver itself, of an existing user context, or the
//! shared uid (0x05). Then the command's handler runs. The handler reads the input once, checks everything, and only
//! then changes state.
//!
//! A refusal carries a reason as text. The syndrome in the output is a hash of the reason, or a real card's syndrome if
//! one was recorded. So the same refusal has the same syndrome in every run, and a log of syndromes can be compared
//! with the event log. Hardware's syndromes are not published, so no driver may depend on their values.

pub mod access_reg;
pub mod caps;
mod congestion;
mod coverage;
mod cq;
mod device_memory;
mod eq;
pub(crate) mod eswitch;
mod flow;
mod flow_counter;
mod function;
mod hca_vport;
mod interface;
mod mad_ifc;
mod mcg;
mod mkey;
mod module;
mod port_counters;
mod qp;
pub(crate) mod refusal;
mod register;
mod resources;
mod rq;
mod rqt;
pub(crate) mod slots;
mod sq;
mod srq;
mod table;
mod tir;
mod tis;
mod traffic_class;
mod ts_format;
mod uctx;
mod umem;
pub(crate) mod vport;
mod xrc_srq;

pub use refusal::Refusal;
pub(crate) use refusal::{must_exist, refuse};
pub use slots::{CommandInterface, SLOTS};

use crate::buffer::QueueBuffer;
use crate::env::Env;
use crate::nic::{Nic, Stage};
use crate::objects::{DRIVER, SHARED};
use crate::port::Port;
use crate::report::Refused;
use mlx_prm::{InputHeader, Layout, Opcode};
use std::borrow::Cow;
use table::{Entry, lookup};

/// Shortest output in bytes: status, syndrome, and the dword that follows them in every output.
const MIN_OUTPUT: usize = 12;

/// The answer of a command.
pub struct Answer {
    /// The whole output, from its first byte.
    pub bytes: Vec<u8>,
}

impl Answer {
    /// Returns the answer of a failed command: this status and syndrome, and zeros. Used for refusals and for failures
    /// that a test injects.
    pub fn injected(status: u8, syndrome: u32) -> Self {
        let mut bytes = vec![0; 16];
        bytes[0] = status;
        bytes[4..8].copy_from_slice(&syndrome.to_be_bytes());
        Self { bytes }
    }
}

/// Context of a handler.
pub struct Cmd<'a> {
    /// The function.
    pub nic: &'a mut Nic,
    /// The state outside of the function: time, random numbers, log, cards, pending events.
    pub env: &'a mut Env,
    /// The whole input.
    pub input: &'a [u8],
    /// op_mod of the command.
    pub op_mod: u32,
    /// Capacity of the output, in bytes.
    pub room: usize,
}

/// Result of a handler: the output, with status 0 (OK).
pub type Outcome = Result<Vec<u8>, Refusal>;

impl Cmd<'_> {
    /// Returns the fixed part of the input. Fields beyond the end of a shorter input are zero (fields newer than the
    /// driver).
    pub fn read<T: Layout>(&self) -> T {
        read_padded(self.input)
    }

    /// Returns the command's uid: that of a user context, or that of the driver itself.
    pub fn user(&self) -> u16 {
        owner(&self.read())
    }

    /// Returns whether the command's uid has this right of user contexts. The driver has all rights.
    pub fn may(&self, right: u32) -> bool {
        let user = self.user();
        let context = self.nic.objects.uctxs.get(u32::from(user));
        user == DRIVER || context.is_some_and(|context| context.rights & right != 0)
    }

    /// Refuses a feature that only the driver may use, if the command requests it (`is_asked`) for a user context.
    ///
    /// # Errors
    /// BAD_PARAM: a user context asks for the feature.
    pub fn of_the_driver(&self, is_asked: bool, what: &'static str) -> Result<(), Refusal> {
        match self.user() {
            user if is_asked && user != DRIVER => Err(refuse!(
                BAD_PARAM,
                "the driver's alone",
                "{what}, for user context {user:#x}"
            )),
            _ => Ok(()),
        }
    }

    /// Returns the part of the port's state that belongs to the function.
    pub fn port(&self) -> &Port {
        self.env.port(self.nic.seat)
    }

    /// Returns the part of the port's state that belongs to the function, to change it.
    pub fn port_mut(&mut self) -> &mut Port {
        self.env.port_mut(self.nic.seat)
    }

    /// Returns `count` 64-bit numbers from `offset` on.
    ///
    /// # Errors
    /// BAD_INPUT_LEN: the input ends before the list does.
    pub fn list(&self, offset: usize, count: usize) -> Result<Vec<u64>, Refusal> {
        let bytes = count
            .checked_mul(8)
            .and_then(|length| self.input.get(offset..offset.checked_add(length)?));
        let Some(bytes) = bytes else {
            return Err(refuse!(
                BAD_INPUT_LEN,
                "list longer than the input",
                "{count} entries"
            ));
        };
        Ok(words(bytes))
    }

    /// Returns every 64-bit number from `offset` to the end of the input.
    pub fn rest(&self, offset: usize) -> Vec<u64> {
        words(self.input.get(offset..).unwrap_or_default())
    }

    /// Returns the buffer that the page list at 0x110 describes.
    ///
    /// # Errors
    /// BAD_PARAM: pages larger than 2^31 bytes, or a buffer that is not completely mapped for the device. The refusal
    /// of a `BufferError`: a list that is too short, or an address that is not aligned.
    pub fn buffer(
        &self,
        log_page_size: u32,
        page_offset: u32,
        bytes: u64,
    ) -> Result<QueueBuffer, Refusal> {
        if log_page_size > 19 {
            return Err(refuse!(BAD_PARAM, "page size", "2^{}", 12 + log_page_size));
        }
        let buffer = QueueBuffer::new(&self.rest(PAGE_LIST), log_page_size, page_offset, bytes)?;
        self.mapped(buffer, bytes)
    }

    /// Returns the buffer, if all of it is mapped for the device.
    fn mapped(&self, buffer: QueueBuffer, bytes: u64) -> Result<QueueBuffer, Refusal> {
        if !buffer.reachable(&self.nic.iommu, bytes) {
            // Hardware would fail at the first access only. A driver that maps the buffer later is wrong nevertheless.
            return Err(refuse!(BAD_PARAM, "queue buffer is not mapped"));
        }
        Ok(buffer)
    }

    /// Returns a doorbell record's address, which must be 8-byte aligned and not zero.
    ///
    /// # Errors
    /// BAD_PARAM: any other address.
    pub fn doorbell_record(&self, address: u64) -> Result<u64, Refusal> {
        if address == 0 || !address.is_multiple_of(8) {
            return Err(refuse!(BAD_PARAM, "doorbell record address"));
        }
        Ok(address)
    }
}

/// Offset of page lists in CREATE commands.
pub const PAGE_LIST: usize = 0x110;

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|chunk| u64::from_be_bytes(*chunk))
        .collect()
}

fn read_padded<T: Layout>(input: &[u8]) -> T {
    let mut layout = T::new_zeroed();
    let known = input.len().min(T::SIZE);
    layout.as_mut_bytes()[..known].copy_from_slice(&input[..known]);
    layout
}

/// Returns an output layout as bytes.
///
/// # Errors
/// Never. The return type is that of handlers, which end with this call.
pub fn output<T: Layout>(layout: &T) -> Outcome {
    Ok(layout.as_bytes().to_vec())
}

/// Returns whether the command creates an object that needs the firmware's memory.
pub fn creates(input: &[u8]) -> bool {
    let header: InputHeader = read_padded(input);
    lookup(header.opcode()).is_some_and(|entry| entry.creates)
}

/// Returns every opcode of the table.
pub fn opcodes() -> impl Iterator<Item = Opcode> {
    table::opcodes()
}

/// Runs a command.
pub fn dispatch(nic: &mut Nic, env: &mut Env, input: &[u8], room: usize) -> Answer {
    let header: InputHeader = read_padded(input);
    let opcode = header.opcode();
    let entry = lookup(opcode);
    let outcome = check(nic, entry, &header, input, room).and_then(|entry| {
        nic.objects.act_for(owner(&header));
        let outcome = (entry.handler)(&mut Cmd {
            nic,
            env,
            input,
            op_mod: header.op_mod(),
            room,
        });
        nic.objects.act_for(DRIVER);
        outcome
    });
    let function = nic.index;
    let op_mod = header.op_mod();
    match outcome {
        Ok(bytes) => {
            env.note(
                function,
                format_args!(
                    "cmd {opcode:?} op_mod={op_mod:#x} in={:#x} ok {}",
                    input.len(),
                    Hex(&bytes)
                ),
            );
            Answer { bytes }
        }
        Err(Refusal {
            status,
            reason,
            detail,
        }) => {
            let syndrome = syndrome_of(reason);
            env.note(
                function,
                format_args!("cmd {opcode:?} op_mod={op_mod:#x} in={:#x} {status:?} {syndrome:#010x}: {reason} {detail}", input.len()),
            );
            tracing::debug!(function = %nic.profile.name, ?opcode, ?status, syndrome, "{reason} {detail}");
            let reason = format!("{reason} {detail}").trim_end().to_owned();
            nic.count_refusal(Refused {
                opcode: opcode.0,
                status: status.0,
                syndrome,
                reason,
            });
            Answer::injected(status.0, syndrome)
        }
    }
}

fn check<'t>(
    nic: &Nic,
    entry: Option<&'t Entry>,
    header: &InputHeader,
    input: &[u8],
    room: usize,
) -> Result<&'t Entry, Refusal> {
    let Some(entry) = entry else {
        return Err(refuse!(BAD_OP, "unknown opcode"));
    };
    if entry.stages & stage_bit(nic) == 0 {
        return Err(refuse!(BAD_SYS_STATE, "not at this stage of bring-up"));
    }
    if !entry.op_mods.allow(header.op_mod()) {
        return Err(refuse!(BAD_OP, "unknown op_mod", "{:#x}", header.op_mod()));
    }
    if input.len() < entry.min_input {
        return Err(refuse!(
            BAD_INPUT_LEN,
            "input too short",
            "{:#x} of {:#x}",
            input.len(),
            entry.min_input
        ));
    }
    if room < MIN_OUTPUT {
        return Err(refuse!(BAD_OUTPUT_LEN, "output too short", "{room:#x}"));
    }
    let anonymous = without_user(header.opcode(), input);
    if let Some(at) = (entry.reserved)(&anonymous) {
        return Err(refuse!(
            BAD_PARAM,
            "reserved bit set",
            "in the dword at {at:#x}"
        ));
    }
    let user = header.uid();
    let shares = user == u32::from(SHARED) && nic.caps.general.log_max_uctx() > 0;
    let context = nic.objects.uctxs.get(user);
    let may_use_uid = context.is_some_and(|context| uctx::may_use_uid(context, header.opcode()));
    if user != 0 && !shares && !may_use_uid {
        return Err(refuse!(
            BAD_RESOURCE,
            "no such user context",
            "{:#x}",
            header.uid()
        ));
    }
    Ok(entry)
}

/// Returns the uid of a command.
fn owner(header: &InputHeader) -> u16 {
    u16::try_from(header.uid()).unwrap_or(DRIVER)
}

/// Returns the input. Clears the uid of a command whose layout has no uid field but which user contexts may send. In
/// all other commands without a uid field those bits are reserved.
fn without_user(opcode: Opcode, input: &[u8]) -> Cow<'_, [u8]> {
    let mut input = Cow::Borrowed(input);
    if uctx::may_carry_uid(opcode) && input.get(2..4).is_some_and(|user| user != [0, 0]) {
        input.to_mut()[2..4].fill(0);
    }
    input
}

fn stage_bit(nic: &Nic) -> u8 {
    match nic.stage {
        Stage::Reset => table::RESET,
        Stage::Enabled if nic.pages.booted() => table::BOOTED,
        Stage::Enabled => table::ENABLED,
        Stage::Initialised => table::INITIALISED,
    }
}

/// Reasons whose syndromes on real cards are known. The first is that of a send queue on a ConnectX-6 Dx in real time
/// mode (Linux commit 0f3caaa2c6fb). The second is that of an address on a function without RoCE v1 (linux-rdma, April
/// 2021, mlx5_ib `set_roce_addr`).
const RECORDED: [(&str, u32); 2] = [
    (
        "SQ with time stamps of a clock that is not there",
        0xd6_1c0b,
    ),
    ("RoCE version that the device does not have", 0x12_822d),
];

/// Returns the syndrome of a reason: that of a real card if it is recorded, otherwise FNV-1a folded to 24 bits, the
/// width of hardware's syndromes.
pub fn syndrome_of(reason: &str) -> u32 {
    if let Some((_, syndrome)) = RECORDED.iter().find(|(recorded, _)| *recorded == reason) {
        return *syndrome;
    }
    let hash = reason.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    (hash >> 8) ^ (hash & 0xff)
}

/// Formats bytes 8 to 15 of an output, which the queue entry holds inline.
struct Hex<'a>(&'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0
            .iter()
            .skip(8)
            .take(8)
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
