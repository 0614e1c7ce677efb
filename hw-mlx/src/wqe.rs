//! Work queue entries (WQEs) and their 16-byte units.
//!
//! Everything the device fetches from a work queue is made of 16-byte units. A send WQE is a control unit, transport
//! units (remote address, atomic, or three units of address vector) and data units. A receive WQE is data units only
//! (PRM "WQE format"; `providers/mlx5/wqe.h` of rdma-core lists the same). A WQE occupies whole 64-byte basic blocks
//! (WQEBBs) and may run over the end of the ring, but a unit never does, because the ring's size is a multiple of 16
//! bytes.
//!
//! The hot path writes units, not fields: it computes a unit as two 64-bit words in registers, swaps their bytes and
//! stores them. The layouts in [`mlx_prm`] define the same bits field by field. The tests compare both, so a change of
//! one alone is found.
//!
//! This driver uses no WQE signatures (`wq_signature` is never set, the signature byte stays 0), and no data units of
//! length zero, which the device would take as 2 GiB.

use driver::DmaBlock;
use mlx_prm::{EthSeg, WqeOpcode};
use rdma_types::{DataSegment, Qpn};
use zerocopy::big_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a unit. The field `ds` of a control segment counts units.
pub const UNIT_BYTES: usize = 16;
/// Bytes of a basic block. WQE indices count basic blocks.
pub const BLOCK_BYTES: usize = 64;
/// Number of units of a basic block.
pub const BLOCK_UNITS: usize = BLOCK_BYTES / UNIT_BYTES;
/// Bytes of a unit, and units of a block, as `u32` for contexts.
pub(crate) const UNIT_BYTES_U32: u32 = 16;
pub(crate) const BLOCK_UNITS_U32: u32 = 4;
/// Maximum number of units of a WQE: the field `ds` has six bits.
pub const MAX_UNITS: usize = 0x3f;
/// Maximum number of local segments of an RDMA Read. Its WQE is limited to 512 bytes, whatever `max_wqe_sz_sq`
/// says (`MLX5_MAX_SGE_RD` in Linux include/linux/mlx5/device.h).
pub const MAX_READ_SEGMENTS: u32 = 30;
/// Local key of the data unit that ends a receive's scatter list (`MLX5_INVALID_LKEY` in rdma-core).
pub const TERMINATOR_LKEY: u32 = 0x100;

/// Flags in the low byte of the control segment's flags dword (`fm_ce_se` in rdma-core).
pub mod flag {
    /// Bit 1: solicited event. The completion of the peer's receive is a solicited one.
    pub const SOLICITED: u8 = 1 << 1;
    /// Bits 3:2 = 2: the device writes a CQE in every case. With 0 it writes one on error only.
    pub const COMPLETE: u8 = 2 << 2;
    /// Bits 7:5 = 4: the fence of `IBV_SEND_FENCE` in rdma-core (`MLX5_WQE_CTRL_FENCE`), which Linux calls "small and
    /// fence". The device holds this WQE until earlier RDMA Reads and atomics of the queue are done. Linux's own posts
    /// use 2 ("fence"), and 4 only right after a UMR; both wait for reads. User-space drivers are tested with 4.
    pub const FENCE: u8 = 4 << 5;
}

/// Sixteen bytes of a WQE in memory order.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Unit([U64; 2]);

impl Unit {
    #[inline]
    const fn new(first: u64, second: u64) -> Self {
        Self([U64::new(first), U64::new(second)])
    }

    /// Makes a unit of sixteen bytes.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: [u8; UNIT_BYTES]) -> Self {
        zerocopy::transmute!(bytes)
    }

    /// Returns the first eight bytes as a big-endian number. For a control segment this is the doorbell's value.
    #[inline]
    #[must_use]
    pub const fn doorbell(self) -> u64 {
        self.0[0].get()
    }
}

/// Returns the first eight bytes of a control segment whose index is 0. `qpn_ds` is the queue pair number in bits
/// 31:8 and the WQE's size in units in bits 5:0.
#[inline]
#[must_use]
pub const fn head(opcode: WqeOpcode, qpn_ds: u32) -> u64 {
    (opcode.bits() as u64) << 32 | qpn_ds as u64
}

/// Returns the control segment of a WQE that starts at WQEBB `index`. `head` is its first eight bytes.
#[inline]
#[must_use]
pub const fn control(head: u64, index: u16, flags: u8) -> Unit {
    control_with(head, index, flags, 0)
}

/// Returns a control segment with a given last word (`imm` in `struct mlx5_wqe_ctrl_seg` of Linux
/// include/linux/mlx5/qp.h). The word is immediate data (a number that is sent in big-endian order), the key that a
/// Send invalidates, or the key that a UMR changes.
#[inline]
#[must_use]
pub const fn control_with(head: u64, index: u16, flags: u8, word: u32) -> Unit {
    Unit::new(
        head | (index as u64) << 40,
        (flags as u64) << 32 | word as u64,
    )
}

/// Returns the remote address segment of an RDMA Read, an RDMA Write or an atomic operation.
#[inline]
#[must_use]
pub const fn remote_address(address: u64, rkey: u32) -> Unit {
    Unit::new(address, (rkey as u64) << 32)
}

/// Returns the operands unit of an atomic operation: the value to swap in or to add, and the value to compare with
/// (unused when adding). The device applies them to the peer's memory in the byte order of the peer's host.
#[inline]
#[must_use]
pub const fn atomic(swap_or_add: u64, compare: u64) -> Unit {
    Unit::new(swap_or_add, compare)
}

/// Returns a data pointer segment. `bytes` must not be 0, which the device would take as 2 GiB.
#[inline]
#[must_use]
pub const fn data(bytes: u32, lkey: u32, address: u64) -> Unit {
    Unit::new((bytes as u64) << 32 | lkey as u64, address)
}

/// Returns the data segment that ends a receive's scatter list early.
#[inline]
#[must_use]
pub const fn terminator() -> Unit {
    Unit::new(TERMINATOR_LKEY as u64, 0)
}

/// Returns the first unit of a shared receive queue's WQE, which links it to the entry `next`.
#[inline]
#[must_use]
pub const fn next_segment(next: u16) -> Unit {
    Unit::new((next as u64) << 32, 0)
}

/// Destination of a datagram, encoded as the three units of an address vector (`struct mlx5_av` in Linux
/// include/linux/mlx5/qp.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// Q_Key of the destination.
    pub q_key: u32,
    /// Priority of the frame's VLAN tag, 0..=7.
    pub priority: u8,
    /// Queue pair of the destination.
    pub qpn: Qpn,
    /// UDP source port.
    pub udp_source_port: u16,
    /// MAC of the next station on the link: the destination or a gateway.
    pub mac: [u8; 6],
    /// IP traffic class.
    pub traffic_class: u8,
    /// IP hop limit.
    pub hop_limit: u8,
    /// Index of our source GID.
    pub source_gid_index: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// GID of the destination.
    pub gid: [u8; 16],
}

impl AddressVector {
    /// Returns the three units of the address vector.
    #[must_use]
    pub fn units(&self) -> [Unit; 3] {
        let [m0, m1, m2, m3, m4, m5] = self.mac;
        // Bit 31, "extended": the vector is complete, not the short form without GRH.
        let qpn = 1 << 31 | u64::from(self.qpn.get());
        // Bit 30: the GRH fields are valid. They become the IP header.
        let grh = 1 << 30 | u32::from(self.source_gid_index) << 20 | self.flow_label;
        let gid = u128::from_be_bytes(self.gid);
        #[expect(clippy::cast_possible_truncation, reason = "the two halves of a GID")]
        let (gid_high, gid_low) = ((gid >> 64) as u64, gid as u64);
        [
            Unit::new(
                u64::from(self.q_key) << 32,
                // The position of the service level. Its upper three bits are the priority.
                qpn << 32 | u64::from(self.priority) << 25 | u64::from(self.udp_source_port),
            ),
            Unit::new(
                u64::from(u32::from_be_bytes([m0, m1, m2, m3])),
                u64::from(u32::from_be_bytes([
                    m4,
                    m5,
                    self.traffic_class,
                    self.hop_limit,
                ])) << 32
                    | u64::from(grh),
            ),
            Unit::new(gid_high, gid_low),
        ]
    }
}

/// Returns the Ethernet segment of a frame that begins with `inline`, and the units for the bytes of `inline` that do
/// not fit in that segment (`struct mlx5_wqe_eth_seg` in Linux include/linux/mlx5/qp.h).
pub fn ethernet(inline: &[u8]) -> (Unit, impl ExactSizeIterator<Item = Unit>) {
    let (start, more) = inline.split_at(inline.len().min(EthSeg::INLINE_BYTES));
    let mut segment = EthSeg::new();
    // CAST: a WQE is shorter than 1,024 bytes, so `inline` is too.
    #[expect(clippy::cast_possible_truncation, reason = "a WQE is shorter")]
    segment.set_inline_hdr_sz(inline.len() as u16);
    let mut bytes = *segment.as_array();
    bytes[UNIT_BYTES - EthSeg::INLINE_BYTES..][..start.len()].copy_from_slice(start);
    let units = more.chunks(UNIT_BYTES).map(|chunk| {
        let mut unit = [0; UNIT_BYTES];
        unit[..chunk.len()].copy_from_slice(chunk);
        Unit::from_bytes(unit)
    });
    (Unit::from_bytes(bytes), units)
}

/// Returns the four-byte header of inline data: bit 31, and the length in bits 9:0.
#[inline]
#[must_use]
pub const fn inline_header(bytes: u32) -> u32 {
    1 << 31 | bytes & 0x3ff
}

/// Returns the maximum number of inline bytes of a WQE of `units` units, of which `head` come before the data. The
/// limit is the space after the inline header, but at most the largest value of the header's length field.
#[inline]
#[must_use]
pub const fn inline_limit(units: usize, head: usize) -> usize {
    let room = (units - head) * UNIT_BYTES - 4;
    if room < 0x3ff { room } else { 0x3ff }
}

/// Returns the number of units that an inline segment of `bytes` bytes takes, its header included.
#[inline]
#[must_use]
pub const fn inline_units(bytes: usize) -> usize {
    (4 + bytes).div_ceil(UNIT_BYTES)
}

/// Returns the number of blocks that a WQE of `units` units takes.
#[inline]
#[must_use]
pub const fn blocks(units: usize) -> usize {
    units.div_ceil(BLOCK_UNITS)
}

/// Writes a scatter list into at most `room` units from `first` on, with a terminator behind it if a unit is left.
/// Returns the total number of bytes of the segments, at most `u32::MAX`.
///
/// # Panics
/// If the list is longer than `room`.
#[inline(always)]
pub(crate) fn write_scatter<'a, I>(
    unit: impl Fn(u32) -> DmaBlock<'a, UNIT_BYTES>,
    first: u32,
    room: u32,
    segments: I,
) -> u32
where
    I: Iterator<Item = DataSegment>,
{
    let mut units = 0;
    let mut bytes = 0_u32;
    for segment in segments {
        // PANIC: the caller checked the count against the sizes it created the queue with.
        assert!(units < room, "a scatter list of more than {room} units");
        let written = data(segment.bytes, segment.lmr_context, segment.address);
        unit(first.wrapping_add(units)).write(&written);
        bytes = bytes.saturating_add(segment.bytes);
        units += 1;
    }
    if units < room {
        unit(first.wrapping_add(units)).write(&terminator());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlx_prm::{AtomicSeg, CtrlSeg, DataSeg, RaddrSeg, SrqNextSeg};

    /// A control unit has the bytes of the documented segment. The example is an RDMA Write: WQE index 0x1234, QP
    /// 0xabcdef, 3 units, completion and solicited bits, in the field order of `struct mlx5_wqe_ctrl_seg` in
    /// rdma-core's mlx5dv.h.
    #[test]
    fn control_unit_has_the_bytes_of_the_documented_segment() {
        let unit = control(
            head(WqeOpcode::RDMA_WRITE, 0xabcd_ef03),
            0x1234,
            flag::COMPLETE | flag::SOLICITED,
        );
        assert_eq!(
            unit.as_bytes(),
            [
                0x00, 0x12, 0x34, 0x08, // op_mod, wqe_index, opcode
                0xab, 0xcd, 0xef, 0x03, // qpn, ds
                0x00, 0x00, 0x00, 0x0a, // signature, stream, fm_ce_se
                0x00, 0x00, 0x00, 0x00, // imm
            ]
        );
        assert_eq!(unit.doorbell(), 0x0012_3408_abcd_ef03);
        assert_eq!(flag::FENCE, 0x80);
    }

    /// The immediate data of a Send is the last word of its control unit, in network byte order (`send_ieth` in
    /// providers/mlx5/qp.c of rdma-core copies the consumer's big-endian word there unchanged).
    #[test]
    fn control_unit_ends_with_what_goes_along() {
        let head = head(WqeOpcode::SEND_IMM, 0xabcd_ef02);
        let unit = control_with(head, 1, 0, 0x0102_0304);
        assert_eq!(unit.as_bytes()[12..], [1, 2, 3, 4]);
        assert_eq!(unit.as_bytes()[..12], control(head, 1, 0).as_bytes()[..12]);
    }

    #[test]
    fn data_units_have_the_bytes_of_the_documented_segments() {
        assert_eq!(
            data(0x0102_0304, 0x1122_3344, 0x5566_7788_99aa_bbcc).as_bytes(),
            [
                1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc
            ]
        );
        assert_eq!(
            remote_address(0x0102_0304_0506_0708, 0xa1a2_a3a4).as_bytes(),
            [1, 2, 3, 4, 5, 6, 7, 8, 0xa1, 0xa2, 0xa3, 0xa4, 0, 0, 0, 0]
        );
        assert_eq!(
            terminator().as_bytes(),
            [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(
            next_segment(0x1234).as_bytes(),
            [0, 0, 0x12, 0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(inline_header(0x2c), 0x8000_002c);
    }

    #[test]
    fn units_agree_with_the_layouts_field_by_field() {
        let mut ctrl = CtrlSeg::new();
        ctrl.set_opcode(WqeOpcode::RDMA_READ.bits())
            .set_wqe_index(0xfedc)
            .set_qp_or_sq(0x12_3456)
            .set_ds(5);
        ctrl.set_fm(4).set_ce(2).set_se(true);
        let flags = flag::FENCE | flag::COMPLETE | flag::SOLICITED;
        assert_eq!(
            control(
                head(WqeOpcode::RDMA_READ, 0x12_3456 << 8 | 5),
                0xfedc,
                flags
            )
            .as_bytes(),
            ctrl.as_bytes()
        );

        let mut pointer = DataSeg::new();
        pointer
            .set_byte_count(0x7fff_ffff)
            .set_lkey(0xdead_beef)
            .set_addr(0x0123_4567_89ab_cdef);
        assert_eq!(
            data(0x7fff_ffff, 0xdead_beef, 0x0123_4567_89ab_cdef).as_bytes(),
            pointer.as_bytes()
        );

        let mut remote = RaddrSeg::new();
        remote
            .set_raddr(0x0123_4567_89ab_cdef)
            .set_rkey(0xdead_beef);
        assert_eq!(
            remote_address(0x0123_4567_89ab_cdef, 0xdead_beef).as_bytes(),
            remote.as_bytes()
        );

        let mut operands = AtomicSeg::new();
        operands
            .set_swap_add(0x0123_4567_89ab_cdef)
            .set_compare(0xfedc_ba98_7654_3210);
        assert_eq!(
            atomic(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210).as_bytes(),
            operands.as_bytes()
        );

        let mut next = SrqNextSeg::new();
        next.set_next_wqe_index(0xbeef);
        assert_eq!(next_segment(0xbeef).as_bytes(), next.as_bytes());
    }

    #[test]
    fn an_address_vector_has_the_bytes_of_the_documented_structure() {
        let vector = AddressVector {
            q_key: 0x8001_0000,
            priority: 5,
            qpn: Qpn::GSI,
            udp_source_port: 0xc123,
            mac: [0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5],
            traffic_class: 0x02,
            hop_limit: 64,
            source_gid_index: 3,
            flow_label: 0x12345,
            gid: [0xfe, 0x80, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        };
        let expected = [
            0x80, 0x01, 0, 0, 0, 0, 0, 0, // q_key, reserved
            0x80, 0, 0, 1, 0x0a, 0, 0xc1,
            0x23, // extended | qpn, stat_rate_sl, fl_mlid, udp_sport
            0, 0, 0, 0, 0xa0, 0xa1, 0xa2, 0xa3, // reserved, rmac
            0xa4, 0xa5, 0x02, 64, 0x40, 0x31, 0x23,
            0x45, // rmac, tclass, hop_limit, grh | index | label
            0xfe, 0x80, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, // rgid
        ];
        assert_eq!(vector.units().as_bytes(), expected);
    }

    #[test]
    fn inline_segments_round_up_with_their_header() {
        assert_eq!([0, 1, 12, 13, 28, 29].map(inline_units), [1, 1, 1, 2, 2, 3]);
        assert_eq!([1, 4, 5, 8, 63].map(blocks), [1, 1, 2, 2, 16]);
    }
}
