//! Builder of send WQEs, encoded by hand.

use super::*;
use mlx_prm::{Av, Mkc, UmrCtrlSeg};

pub fn data_segment(key: u32, va: u64, bytes: u32) -> Vec<u8> {
    [
        &bytes.to_be_bytes()[..],
        &key.to_be_bytes(),
        &va.to_be_bytes(),
    ]
    .concat()
}

/// A send WQE under construction.
#[derive(Clone, Debug)]
pub struct Wqe {
    pub opcode: u8,
    /// Byte 0x0b of the control segment: fence, completion and solicited bits.
    pub flags: u8,
    pub last_word: u32,
    pub body: Vec<u8>,
}

pub const SIGNALLED: u8 = 2 << 2;
pub const SOLICITED: u8 = 1 << 1;
pub const FENCED: u8 = 2 << 5;
pub const UMR_FENCED: u8 = 1 << 5;

impl Wqe {
    fn new(opcode: u8) -> Self {
        Self {
            opcode,
            flags: SIGNALLED,
            last_word: 0,
            body: Vec::new(),
        }
    }

    pub fn nop() -> Self {
        Self::new(0)
    }

    pub fn send(va: u64, bytes: u32) -> Self {
        Self::new(0x0a).data(KEY, va, bytes)
    }

    pub fn send_immediate(va: u64, bytes: u32, immediate: u32) -> Self {
        let mut wqe = Self::new(0x0b).data(KEY, va, bytes);
        wqe.last_word = immediate;
        wqe
    }

    pub fn send_invalidate(va: u64, bytes: u32, key: u32) -> Self {
        let mut wqe = Self::new(0x01).data(KEY, va, bytes);
        wqe.last_word = key;
        wqe
    }

    pub fn send_inline(data: &[u8]) -> Self {
        Self::new(0x0a).inline(data)
    }

    pub fn write(va: u64, bytes: u32, to: u64, rkey: u32) -> Self {
        Self::new(0x08).remote(to, rkey).data(KEY, va, bytes)
    }

    pub fn write_immediate(va: u64, bytes: u32, to: u64, immediate: u32) -> Self {
        let mut wqe = Self::new(0x09).remote(to, KEY).data(KEY, va, bytes);
        wqe.last_word = immediate;
        wqe
    }

    pub fn read(to: u64, bytes: u32, from: u64, rkey: u32) -> Self {
        Self::new(0x10).remote(from, rkey).data(KEY, to, bytes)
    }

    pub fn fetch_add(to: u64, at: u64, rkey: u32, add: u64) -> Self {
        Self::new(0x12)
            .remote(at, rkey)
            .words(add, 0)
            .data(KEY, to, 8)
    }

    pub fn compare_swap(to: u64, at: u64, compare: u64, swap: u64) -> Self {
        Self::new(0x11)
            .remote(at, KEY)
            .words(swap, compare)
            .data(KEY, to, 8)
    }

    pub fn datagram(to: u8, q_key: u32, gid_index: u32, va: u64, bytes: u32) -> Self {
        let mut av = Av::new();
        av.set_q_key(q_key)
            .set_ext(true)
            .set_dqp(qpn(to))
            .set_rlid(0xc777)
            .set_rmac(&mac(to))
            .set_hop_limit(64)
            .set_grh(true)
            .set_src_addr_index(gid_index)
            .set_rgid(&if gid_index == 0 { gid(to) } else { gid6(to) });
        let mut wqe = Self::new(0x0a);
        wqe.body.extend(av.as_array());
        wqe.data(KEY, va, bytes)
    }

    pub fn umr(key: u32, entries: &[u8]) -> Self {
        let mut wqe = Self::new(0x25);
        wqe.last_word = key;
        let mut control = UmrCtrlSeg::new();
        let octowords = u32::try_from(entries.len() / 16).expect("small");
        control.set_inline(true).set_klm_octwords(octowords);
        wqe.body.extend(control.as_array());
        wqe.body.extend([0; 64]);
        wqe.body.extend(entries);
        // Entries are padded to a multiple of 64 bytes.
        let whole = 48 + 64 + entries.len().next_multiple_of(64);
        wqe.body.resize(whole, 0);
        wqe
    }

    /// Returns a local invalidation, as Linux posts it.
    pub fn invalidate(key: u32) -> Self {
        let mut wqe = Self::umr(key, &[]);
        let mut control = UmrCtrlSeg::new();
        control.set_inline(true).set_mkey_mask(1 << 29);
        let mut context = Mkc::new();
        context.set_free(true);
        wqe.body.clear();
        wqe.body.extend(control.as_array());
        wqe.body.extend(context.as_array());
        wqe
    }

    /// Returns a UMR whose entries are in memory, not inline.
    pub fn umr_pointed(key: u32, va: u64, bytes: u32) -> Self {
        let mut control = UmrCtrlSeg::new();
        control.set_klm_octwords(bytes / 16);
        let mut wqe = Self::umr(key, &[]);
        wqe.body.clear();
        wqe.body.extend(control.as_array());
        wqe.body.extend([0; 64]);
        wqe.data(KEY, va, bytes)
    }

    fn remote(mut self, va: u64, rkey: u32) -> Self {
        self.body.extend(va.to_be_bytes());
        self.body.extend(rkey.to_be_bytes());
        self.body.extend([0; 4]);
        self
    }

    fn words(mut self, first: u64, second: u64) -> Self {
        self.body.extend(first.to_be_bytes());
        self.body.extend(second.to_be_bytes());
        self
    }

    /// Adds a data segment. Adds none for zero bytes, as drivers do.
    pub fn data(mut self, key: u32, va: u64, bytes: u32) -> Self {
        if bytes > 0 {
            self.body.extend(data_segment(key, va, bytes));
        }
        self
    }

    pub fn inline(mut self, data: &[u8]) -> Self {
        let header = 1 << 31 | u32::try_from(data.len()).expect("small");
        self.body.extend(header.to_be_bytes());
        self.body.extend(data);
        self.body.resize(self.body.len().next_multiple_of(16), 0);
        self
    }

    pub fn unsignalled(mut self) -> Self {
        self.flags &= !SIGNALLED;
        self
    }

    pub fn flags(mut self, flags: u8) -> Self {
        self.flags |= flags;
        self
    }

    pub fn encode(&self, index: u16, qpn: u32) -> Vec<u8> {
        let [high, low] = index.to_be_bytes();
        let ds = u32::try_from(1 + self.body.len().div_ceil(16)).expect("small");
        let mut bytes = vec![0, high, low, self.opcode];
        bytes.extend((qpn << 8 | ds).to_be_bytes());
        bytes.extend([0, 0, 0, self.flags]);
        bytes.extend(self.last_word.to_be_bytes());
        bytes.extend(&self.body);
        bytes
    }
}
