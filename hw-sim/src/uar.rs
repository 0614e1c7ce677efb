//! Doorbell pages: decoding of writes to a UAR.
//!
//! | offset | bytes | meaning |
//! |---|---|---|
//! | 0x020 | 8 | arm a CQ: sequence, kind and consumer counter, then CQN |
//! | 0x040 | 4 | EQ consumer counter, and arm |
//! | 0x048 | 4 | EQ consumer counter only |
//! | 0x800 + n·0x100 | 8 | send doorbell: the first 8 bytes of the last WQE |
//!
//! An 8-byte doorbell may arrive as two 4-byte stores, low address first, as 32-bit hosts write it. A whole doorbell
//! discards the first half that its register holds. This is inferred: no driver mixes the two forms. A doorbell is
//! valid only on the UAR page with which its queue was created. Any other write is ignored and reported as a driver
//! bug, except the rest of a WQE in a BlueFlame register, which is only ignored.

use crate::cq::Armed;
use crate::env::Env;
use crate::eq::Rung;
use crate::nic::Nic;

const CQ_ARM: u32 = 0x20;
const EQ_ARM: u32 = 0x40;
const EQ_UPDATE: u32 = 0x48;
const SEND: u32 = 0x800;
/// Distance between the send doorbell registers of a page, in bytes.
const SEND_HALF: u32 = 0x100;

/// Returns whether a register takes doorbells of 8 bytes.
fn is_doorbell(register: u32) -> bool {
    register == CQ_ARM || is_send_register(register)
}

impl Nic {
    /// Handles a write of `length` bytes of `value` to a UAR page, at `offset` in BAR 0.
    pub fn uar_written(&mut self, env: &mut Env, offset: u64, value: [u8; 8], length: usize) {
        let page = u32::try_from(offset >> 12).unwrap_or(u32::MAX);
        let register = u32::try_from(offset & 0xfff).unwrap_or(0);
        if !self.objects.uars.contains(page) {
            self.driver_bug(
                env,
                format!("doorbell in UAR page {page:#x}, which is not allocated"),
            );
            return;
        }
        let [a, b, c, d, ..] = value;
        let word = u32::from_be_bytes([a, b, c, d]);
        match (register, length) {
            (EQ_ARM, 4) => self.eq_doorbell(env, page, word, true),
            (EQ_UPDATE, 4) => self.eq_doorbell(env, page, word, false),
            (_, 8) if is_doorbell(register) => {
                self.halves.remove(&(page, register));
                self.whole_doorbell(env, page, register, value);
            }
            (_, 4) if is_doorbell(register) => {
                self.halves.insert((page, register), [a, b, c, d]);
            }
            (_, 4) if register % 8 == 4 && is_doorbell(register - 4) => {
                let Some([e, f, g, h]) = self.halves.remove(&(page, register - 4)) else {
                    self.driver_bug(
                        env,
                        format!("second half of a doorbell at {register:#x} without the first"),
                    );
                    return;
                };
                self.whole_doorbell(env, page, register - 4, [e, f, g, h, a, b, c, d]);
            }
            // A write of the rest of a WQE to a BlueFlame register is ignored: the WQE is in memory as well. UCX copies
            // the whole WQE regardless of the BlueFlame capability (`uct_ib_mlx5_bf_copy` in
            // src/uct/ib/mlx5/ib_mlx5.inl).
            _ if register >= SEND && self.takes_whole_wqes() => {}
            _ => self.driver_bug(
                env,
                format!("{length}-byte write to UAR offset {register:#x}, which is no doorbell"),
            ),
        }
    }

    fn takes_whole_wqes(&self) -> bool {
        let caps = &self.caps.general;
        caps.bf() || caps.log_max_uctx() > 0
    }

    fn whole_doorbell(&mut self, env: &mut Env, page: u32, register: u32, value: [u8; 8]) {
        if register == CQ_ARM {
            self.cq_arm_doorbell(env, page, value);
        } else {
            self.send_doorbell(env, page, value);
        }
    }

    fn eq_doorbell(&mut self, env: &mut Env, page: u32, word: u32, arm: bool) {
        let (eqn, counter) = (word >> 24, word & 0x00ff_ffff);
        let rung = match self.objects.eqs.get_mut(eqn) {
            Some(eq) if eq.uar == page => Ok((eq.ring(counter, arm), eq.vector)),
            Some(eq) => Err(format!(
                "EQ {eqn:#x} doorbell in UAR {page:#x}, the queue has {:#x}",
                eq.uar
            )),
            None => Err(format!("doorbell for EQ {eqn:#x}, which does not exist")),
        };
        env.note(
            self.index,
            format_args!("eq {eqn:#x} ci={counter:#x} arm={arm}"),
        );
        match rung {
            Ok((Rung::Taken { interrupt: true }, vector)) => self.raise(env, vector),
            Ok((Rung::Taken { interrupt: false }, _)) => {}
            Ok((Rung::Ahead { producer }, _)) => self.driver_bug(
                env,
                format!("EQ {eqn:#x} consumer counter {counter:#x} is ahead of the producer {producer:#x}"),
            ),
            Err(bug) => self.driver_bug(env, bug),
        }
        if arm {
            self.first_page_request(env, eqn);
        }
    }

    /// Sends the profile's run-time page request when the driver first arms the EQ that page request events use.
    fn first_page_request(&mut self, env: &mut Env, eqn: u32) {
        let pages = self.profile.pages.runtime;
        if pages == 0 || self.pages.runtime_requested {
            return;
        }
        if self.carrier_of(mlx_prm::EventType::PAGE_REQUEST) == Some(eqn) {
            self.pages.runtime_requested = true;
            self.request_pages(env, i32::try_from(pages).unwrap_or(i32::MAX));
        }
    }

    fn cq_arm_doorbell(&mut self, env: &mut Env, page: u32, value: [u8; 8]) {
        let [a, b, c, d, e, f, g, h] = value;
        let (word, cqn) = (
            u32::from_be_bytes([a, b, c, d]),
            u32::from_be_bytes([e, f, g, h]),
        );
        env.note(self.index, format_args!("cq {cqn:#x} arm {word:#010x}"));
        let Some(cq) = self.objects.cqs.get_mut(cqn) else {
            self.driver_bug(
                env,
                format!("arm doorbell for CQ {cqn:#x}, which does not exist"),
            );
            return;
        };
        if cq.uar != page {
            let bug = format!(
                "CQ {cqn:#x} armed in UAR {page:#x}, the queue has {:#x}",
                cq.uar
            );
            self.driver_bug(env, bug);
            return;
        }
        let (eqn, record) = (cq.eqn, cq.doorbell_record);
        // The second word of the doorbell record must equal the doorbell's first word. The driver writes the record
        // before the doorbell (PRM, CQ doorbell record).
        let mut recorded = [0; 4];
        let read = self
            .iommu
            .read(record + 4, &mut recorded, crate::iommu::Who::Cq(cqn));
        let recorded = u32::from_be_bytes(recorded);
        // The counter has 24 bits. If MMIO writes are posted, the record may already have a later counter than the
        // doorbell.
        let newer = recorded.wrapping_sub(word) & 0xff_ffff < 0x80_0000;
        if read.is_ok() && recorded != word && !(env.posted_writes && newer) {
            self.driver_bug(
                env,
                format!("CQ {cqn:#x} armed with {word:#010x} while its doorbell record says {recorded:#010x}"),
            );
        }
        let armed = self.objects.cqs.get_mut(cqn).map(|cq| cq.ring_arm(word));
        match armed {
            Some(Armed::Taken { event: true }) => self.completion_event(env, eqn, cqn),
            Some(Armed::Taken { event: false } | Armed::Stale) | None => {}
            Some(Armed::Ahead) => {
                self.driver_bug(
                    env,
                    format!("CQ {cqn:#x} armed with a consumer counter ahead of the producer"),
                );
            }
        }
    }

    fn send_doorbell(&mut self, env: &mut Env, page: u32, value: [u8; 8]) {
        self.record.send_doorbells += 1;
        let [_, _, _, _, e, f, g, _] = value;
        let qpn = u32::from_be_bytes([0, e, f, g]);
        env.note(
            self.index,
            format_args!("send doorbell qp {qpn:#x} {value:02x?}"),
        );
        if self.faults.loses_doorbell() {
            return;
        }
        self.faults.count_doorbell();
        if let Some(slot) = self.objects.eth.sqs.get(qpn) {
            if slot.uar == page {
                self.with_sq(env, qpn, |sq, view| sq.doorbell(value, view));
            } else {
                let bug = format!(
                    "SQ {qpn:#x} doorbell in UAR {page:#x}, the queue has {:#x}",
                    slot.uar
                );
                self.driver_bug(env, bug);
            }
            return;
        }
        match self.objects.qps.get(qpn).map(|slot| slot.refs.uar) {
            None => self.driver_bug(
                env,
                format!("send doorbell for QP {qpn:#x}, which does not exist"),
            ),
            Some(uar) if uar != Some(page) => {
                self.driver_bug(
                    env,
                    format!("QP {qpn:#x} doorbell in UAR {page:#x}, the queue pair has {uar:#x?}"),
                );
            }
            Some(_) => {
                self.with_qp(env, qpn, |qp, view| qp.doorbell(value, view));
            }
        }
    }
}

fn is_send_register(register: u32) -> bool {
    register >= SEND && register.is_multiple_of(SEND_HALF)
}
