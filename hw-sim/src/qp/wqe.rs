//! A send WQE: parsing the bytes in the ring into an operation.
//!
//! A WQE is a control segment, transport segments that depend on its opcode, and then data: pointers, inline segments,
//! or both in any order (PRM "Work Queue Entry Formats"). The device parses a WQE once, when it fetches the WQE, into a
//! private copy. A retransmission reads the data behind pointers again, but not the WQE.

use super::state::Service;
use crate::host::{Host, KeyError, KeyScope};
use mlx_prm::{
    AtomicSeg, Av, CtrlSeg, DataSeg, InlineSeg, RaddrSeg, UmrCtrlSeg, WqeOpcode, XrcSeg,
};
use zerocopy::FromBytes;

/// Unit of `ds` in bytes: the size of a segment.
pub(crate) const SEGMENT_BYTES: usize = 16;
/// Maximum value of `ds`.
pub(super) const MAX_SEGMENTS: u32 = 0x3f;
/// Number of segments in a WQEBB.
pub(crate) const SEGMENTS_PER_BLOCK: u32 = 4;
/// Maximum number of local segments of an RDMA Read, whose WQE has at most 512 bytes (Linux `MLX5_MAX_SGE_RD`).
const MAX_READ_SEGMENTS: usize = 30;
/// Size of a WQEBB in bytes.
const WQEBB_BYTES: u64 = SEGMENT_BYTES as u64 * SEGMENTS_PER_BLOCK as u64;
/// Size of a memory key context segment in bytes.
const MKEY_CONTEXT_BYTES: usize = 64;

/// Reason, for the log, why a WQE is malformed. The error CQE has the syndrome "local QP operation error".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Source of bytes to send, or target of received bytes.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    Memory { key: u32, va: u64, bytes: u32 },
    Inline(Vec<u8>),
}

impl Data {
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Memory { bytes, .. } => u64::from(*bytes),
            Self::Inline(data) => data.len() as u64,
        }
    }
}

/// Condition under which a WQE gets a CQE (PRM "Ctrl Segment", `ce`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    OnError,
    Always,
    AlwaysWithEvent,
}

/// Condition for the start of a WQE (control segment, `fm`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fence {
    None,
    /// The WQE starts after all earlier reads and atomics have completed.
    Reads,
    /// The WQE starts after every earlier WQE has completed.
    All,
}

/// Operation of a WQE, with the fields that depend on the opcode.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Nop,
    Send {
        immediate: Option<[u8; 4]>,
        invalidate: Option<u32>,
    },
    Write {
        va: u64,
        rkey: u32,
        immediate: Option<[u8; 4]>,
    },
    Read {
        va: u64,
        rkey: u32,
    },
    CompareSwap {
        va: u64,
        rkey: u32,
        swap: u64,
        compare: u64,
    },
    FetchAdd {
        va: u64,
        rkey: u32,
        add: u64,
    },
    Datagram {
        av: Box<Av>,
        immediate: Option<[u8; 4]>,
    },
    Umr {
        key: u32,
        control: Box<[u8; 48]>,
        context: Box<[u8; MKEY_CONTEXT_BYTES]>,
    },
}

impl Action {
    /// Returns whether the peer responds with data. For that the peer needs a responder resource.
    pub(super) const fn is_read_or_atomic(&self) -> bool {
        matches!(
            self,
            Self::Read { .. } | Self::CompareSwap { .. } | Self::FetchAdd { .. }
        )
    }

    /// Returns whether the operation is an atomic.
    pub(super) const fn is_atomic(&self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Returns whether the operation makes a key usable, so that the next WQE on a reliable queue pair has to be
    /// fenced. A local invalidation makes its key unusable, and Linux does not fence the WQE that follows it
    /// (`next_fence` in `mlx5_ib_post_send`, drivers/infiniband/hw/mlx5/wr.c).
    pub(super) fn makes_a_key_usable(&self) -> bool {
        let Self::Umr {
            control, context, ..
        } = self
        else {
            return false;
        };
        !crate::umr::frees(control, context)
    }

    /// Returns whether the operation sends no packet.
    pub(super) const fn is_local(&self) -> bool {
        matches!(self, Self::Nop | Self::Umr { .. })
    }
}

/// A parsed send WQE.
#[derive(Clone, Debug)]
pub(super) struct SendWqe {
    /// Index of the first WQEBB of the WQE.
    pub(super) index: u16,
    /// Number of WQEBBs of the WQE.
    pub(super) blocks: u16,
    pub(super) opcode: WqeOpcode,
    pub(super) signal: Signal,
    pub(super) fence: Fence,
    /// True if the WQE waits for a UMR right before it.
    pub(super) fences_umr: bool,
    pub(super) solicited: bool,
    /// Number of the peer's XRC SRQ that the WQE names.
    pub(super) xrc_srq: Option<u32>,
    pub(super) action: Action,
    pub(super) data: Vec<Data>,
    /// Number of bytes in `data`.
    pub(super) length: u32,
}

impl SendWqe {
    /// Parses the `ds` segments of a WQE. The caller has checked the control segment's index and size.
    pub(super) fn parse(service: Service, bytes: &[u8]) -> Result<Self, Malformed> {
        let mut rest = Segments {
            rest: bytes,
            bare: None,
        };
        let control: CtrlSeg = rest.take("control segment")?;
        let opcode = WqeOpcode::from_bits(control.opcode());
        if !is_allowed(service, opcode) {
            return Err(Malformed("opcode the service type does not have"));
        }
        if control.opmod() != 0 && !matches!(opcode, WqeOpcode::NOP | WqeOpcode::UMR) {
            return Err(Malformed("opcode modifier"));
        }
        let local = matches!(opcode, WqeOpcode::NOP | WqeOpcode::UMR);
        let xrc_srq = if service == Service::Xrc && !local {
            Some(rest.take::<XrcSeg>("XRC segment")?.xrc_srqn())
        } else {
            None
        };
        let action = parse_action(service, opcode, control.imm(), &mut rest)?;
        let data = parse_data(&mut rest)?;
        check_data(&action, &data)?;
        let length: u64 = data.iter().map(Data::bytes).sum();
        let length = u32::try_from(length).map_err(|_| Malformed("more than 4 GiB of data"))?;
        Ok(Self {
            // CAST: the fields have 16 and 6 bits.
            index: u16::try_from(control.wqe_index()).unwrap_or(0),
            blocks: u16::try_from(control.ds().div_ceil(SEGMENTS_PER_BLOCK)).unwrap_or(0),
            opcode,
            signal: match control.ce() {
                2 => Signal::Always,
                3 => Signal::AlwaysWithEvent,
                _ => Signal::OnError,
            },
            fence: match control.fm() {
                2 | 4 => Fence::Reads,
                3 => Fence::All,
                // Mode 1 waits for the UMR before this WQE. That UMR has completed, because it completes when it
                // starts.
                0 | 1 => Fence::None,
                _ => return Err(Malformed("fence mode")),
            },
            fences_umr: matches!(control.fm(), 1 | 3 | 4),
            solicited: control.se(),
            xrc_srq,
            action,
            data,
            length,
        })
    }

    /// Returns a placeholder for a WQE that could not be fetched, so that the WQE can fail in order.
    pub(super) const fn failed(index: u16, opcode: WqeOpcode) -> Self {
        Self {
            index,
            blocks: 1,
            opcode,
            signal: Signal::OnError,
            fence: Fence::None,
            fences_umr: true,
            solicited: false,
            xrc_srq: None,
            action: Action::Nop,
            data: Vec::new(),
            length: 0,
        }
    }

    /// Reads `out.len()` bytes from byte `offset` of the message.
    pub(super) fn gather(
        &self,
        host: &mut dyn Host,
        scope: KeyScope,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), KeyError> {
        gather(&self.data, host, scope, offset, out)
    }

    /// Writes `data` to byte `offset` of the local buffer of a read or atomic.
    pub(super) fn scatter(
        &self,
        host: &mut dyn Host,
        scope: KeyScope,
        offset: u64,
        data: &[u8],
    ) -> Result<(), KeyError> {
        let mut skip = offset;
        let mut rest = data;
        for segment in &self.data {
            let Data::Memory { key, va, bytes } = segment else {
                continue;
            };
            let here = u64::from(*bytes);
            if skip >= here {
                skip -= here;
                continue;
            }
            let bytes = usize::try_from(here - skip)
                .unwrap_or(usize::MAX)
                .min(rest.len());
            let (now, later) = rest.split_at(bytes);
            if !now.is_empty() {
                host.key_write(*key, scope, va.wrapping_add(skip), now)?;
            }
            skip = 0;
            rest = later;
        }
        Ok(())
    }
}

/// Reads `out.len()` bytes from byte `offset` of the concatenated `data`.
pub(crate) fn gather(
    data: &[Data],
    host: &mut dyn Host,
    scope: KeyScope,
    offset: u64,
    out: &mut [u8],
) -> Result<(), KeyError> {
    let mut skip = offset;
    let mut rest = out;
    for data in data {
        if rest.is_empty() {
            break;
        }
        let here = data.bytes();
        if skip >= here {
            skip -= here;
            continue;
        }
        let bytes = usize::try_from(here - skip)
            .unwrap_or(usize::MAX)
            .min(rest.len());
        let (now, later) = rest.split_at_mut(bytes);
        match data {
            Data::Memory { key, va, .. } => {
                host.key_read(*key, scope, va.wrapping_add(skip), now)?;
            }
            Data::Inline(inline) => {
                // PANIC: `skip` is below the length of `inline`, and `bytes` is at most the rest of it.
                let from = usize::try_from(skip).unwrap_or(usize::MAX);
                now.copy_from_slice(&inline[from..from + bytes]);
            }
        }
        skip = 0;
        rest = later;
    }
    Ok(())
}

/// Returns whether a service type supports an opcode.
const fn is_allowed(service: Service, opcode: WqeOpcode) -> bool {
    match opcode {
        WqeOpcode::NOP => true,
        WqeOpcode::SEND | WqeOpcode::SEND_IMM => !matches!(service, Service::Umr),
        WqeOpcode::RDMA_WRITE | WqeOpcode::RDMA_WRITE_IMM => service.is_connected(),
        WqeOpcode::RDMA_READ
        | WqeOpcode::ATOMIC_CS
        | WqeOpcode::ATOMIC_FA
        | WqeOpcode::SEND_INVAL => service.is_reliable(),
        WqeOpcode::UMR => service.is_connected() || matches!(service, Service::Umr),
        _ => false,
    }
}

fn parse_action(
    service: Service,
    opcode: WqeOpcode,
    last_word: u32,
    rest: &mut Segments<'_>,
) -> Result<Action, Malformed> {
    let with_immediate = matches!(opcode, WqeOpcode::SEND_IMM | WqeOpcode::RDMA_WRITE_IMM);
    let immediate = with_immediate.then(|| last_word.to_be_bytes());
    Ok(match opcode {
        WqeOpcode::NOP => {
            rest.rest = &[];
            Action::Nop
        }
        WqeOpcode::SEND | WqeOpcode::SEND_IMM if service.is_datagram() => {
            let av = address_vector(rest)?;
            Action::Datagram {
                av: Box::new(av),
                immediate,
            }
        }
        WqeOpcode::SEND | WqeOpcode::SEND_IMM => Action::Send {
            immediate,
            invalidate: None,
        },
        WqeOpcode::SEND_INVAL => Action::Send {
            immediate: None,
            invalidate: Some(last_word),
        },
        WqeOpcode::RDMA_WRITE | WqeOpcode::RDMA_WRITE_IMM => {
            let remote: RaddrSeg = rest.take("remote address segment")?;
            Action::Write {
                va: remote.raddr(),
                rkey: remote.rkey(),
                immediate,
            }
        }
        WqeOpcode::RDMA_READ => {
            let remote: RaddrSeg = rest.take("remote address segment")?;
            Action::Read {
                va: remote.raddr(),
                rkey: remote.rkey(),
            }
        }
        WqeOpcode::ATOMIC_CS | WqeOpcode::ATOMIC_FA => {
            let remote: RaddrSeg = rest.take("remote address segment")?;
            let atomic: AtomicSeg = rest.take("atomic segment")?;
            let (va, rkey) = (remote.raddr(), remote.rkey());
            if opcode == WqeOpcode::ATOMIC_CS {
                let (swap, compare) = (atomic.swap_add(), atomic.compare());
                Action::CompareSwap {
                    va,
                    rkey,
                    swap,
                    compare,
                }
            } else {
                Action::FetchAdd {
                    va,
                    rkey,
                    add: atomic.swap_add(),
                }
            }
        }
        WqeOpcode::UMR => {
            let control: UmrCtrlSeg = rest.take("UMR control segment")?;
            let context = rest.take_bytes::<MKEY_CONTEXT_BYTES>("memory key context segment")?;
            let action = Action::Umr {
                key: last_word,
                control: Box::new(*control.as_array()),
                context: Box::new(context),
            };
            if control.inline() {
                rest.bare = Some(std::mem::take(&mut rest.rest));
            }
            action
        }
        _ => return Err(Malformed("opcode")),
    })
}

/// Parses a datagram's address vector. The vector has 16 bytes if its extension bit is clear. This short form suffices
/// inside an InfiniBand subnet (`compact_address_vector`; UCX's `uct_ib_mlx5_wqe_av_size`).
fn address_vector(rest: &mut Segments<'_>) -> Result<Av, Malformed> {
    const SHORT: usize = 16;
    let mut bytes = [0; Av::SIZE];
    bytes[..SHORT].copy_from_slice(&rest.take_bytes::<SHORT>("address vector")?);
    if Av::from_array(bytes).ext() {
        let extension = rest.take_bytes::<{ Av::SIZE - SHORT }>("address vector")?;
        bytes[SHORT..].copy_from_slice(&extension);
    }
    Ok(Av::from_array(bytes))
}

/// Parses `bytes` as data segments.
pub(crate) fn data_segments(bytes: &[u8]) -> Result<Vec<Data>, Malformed> {
    parse_data(&mut Segments {
        rest: bytes,
        bare: None,
    })
}

fn parse_data(rest: &mut Segments<'_>) -> Result<Vec<Data>, Malformed> {
    let mut data = Vec::new();
    if let Some(entries) = rest.bare.take() {
        data.push(Data::Inline(entries.to_vec()));
        return Ok(data);
    }
    while !rest.rest.is_empty() {
        let header = InlineSeg::read_from_prefix(rest.rest).map(|(header, _)| header);
        let header = header.map_err(|_| Malformed("data segment"))?;
        if header.inline() {
            let bytes = usize::try_from(header.byte_count()).unwrap_or(usize::MAX);
            let start = InlineSeg::SIZE;
            let inline = rest.rest.get(start..start + bytes);
            data.push(Data::Inline(
                inline.ok_or(Malformed("inline data"))?.to_vec(),
            ));
            let whole = (start + bytes).next_multiple_of(SEGMENT_BYTES);
            rest.rest = rest.rest.get(whole..).ok_or(Malformed("inline data"))?;
        } else {
            let pointer: DataSeg = rest.take("data segment")?;
            if pointer.byte_count() == 0 {
                return Err(Malformed("data segment of zero bytes, which means 2 GiB"));
            }
            data.push(Data::Memory {
                key: pointer.lkey(),
                va: pointer.addr(),
                bytes: pointer.byte_count(),
            });
        }
    }
    Ok(data)
}

/// Checks the rules about data that depend on the opcode.
fn check_data(action: &Action, data: &[Data]) -> Result<(), Malformed> {
    if action.is_read_or_atomic() && data.iter().any(|data| matches!(data, Data::Inline(_))) {
        return Err(Malformed(
            "inline segment as the target of a read or atomic",
        ));
    }
    match action {
        Action::Read { .. } if data.len() > MAX_READ_SEGMENTS => {
            Err(Malformed("RDMA read with more than 30 local segments"))
        }
        Action::CompareSwap { .. } | Action::FetchAdd { .. }
            if data.iter().map(Data::bytes).sum::<u64>() != 8 =>
        {
            Err(Malformed("atomic whose local buffer is not 8 bytes"))
        }
        Action::Umr { control, .. } if !carries_its_table(control, data) => Err(Malformed(
            "UMR whose entries are not as many as its control segment says",
        )),
        Action::Nop
        | Action::Send { .. }
        | Action::Write { .. }
        | Action::Read { .. }
        | Action::CompareSwap { .. }
        | Action::FetchAdd { .. }
        | Action::Datagram { .. }
        | Action::Umr { .. } => Ok(()),
    }
}

/// Returns whether a UMR carries exactly as many bytes of translation entries as it announces. Inline entries are
/// padded to whole blocks; a UMR without entries has no such block (rdma-core `set_bind_wr` and `set_umr_data_seg`,
/// Linux `set_reg_wr` and `handle_local_inv`). For entries behind a pointer the pointer's byte count is compared
/// (`mlx5r_umr_update_mr_pas`).
fn carries_its_table(control: &[u8; 48], data: &[Data]) -> bool {
    let control = UmrCtrlSeg::from_array(*control);
    let announced = u64::from(control.klm_octwords()) * SEGMENT_BYTES as u64;
    let carried: u64 = data.iter().map(Data::bytes).sum();
    if control.inline() {
        carried == announced.next_multiple_of(WQEBB_BYTES)
    } else {
        carried == announced
    }
}

/// The segments of a WQE that are not parsed yet.
struct Segments<'a> {
    rest: &'a [u8],
    /// Data without a segment header, which are a UMR's inline translation entries.
    bare: Option<&'a [u8]>,
}

impl Segments<'_> {
    fn take<T: FromBytes>(&mut self, what: &'static str) -> Result<T, Malformed> {
        let (segment, rest) = T::read_from_prefix(self.rest).map_err(|_| Malformed(what))?;
        self.rest = rest;
        Ok(segment)
    }

    fn take_bytes<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Malformed(what))?;
        self.rest = rest;
        Ok(*bytes)
    }
}
