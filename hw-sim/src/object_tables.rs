//! A function's tables of numbered objects, and the references between them.
//!
//! Most kinds of objects have a first number of their own, so that a number used for the wrong kind is likely to be
//! noticed. A queue pair refers to more objects than any other object. Its references are stored next to it, because a
//! state transition may change its context.

use crate::capabilities::Capabilities;
use crate::cq::Cq;
use crate::device_memory::{self, DeviceMemory};
use crate::eq::Eq;
use crate::eth::{EthObjects, FIRST_SQN};
use crate::mcg::Groups;
use crate::mkey::Mkey;
use crate::objects::{SHARED, Table};
use crate::profile::Profile;
use crate::q_counters::{Counters, QCounter};
use crate::qp::Qp;
use crate::srq::Srq;
use crate::uctx::Uctx;
use crate::umem::{Places, Umem};
use std::collections::BTreeMap;

/// First UAR index that is allocated. Pages 0 to 3 are the initialization segment and the MSI-X structures. Page 4 is
/// never allocated.
const FIRST_UAR: u32 = 5;
/// A queue pair and its references.
pub struct QpSlot {
    /// The queue pair, or `None` while one of its methods runs.
    pub qp: Option<Box<Qp>>,
    /// Service type of the queue pair.
    pub service: u32,
    /// Objects that the queue pair refers to.
    pub refs: QpRefs,
    /// Page list of the work queues, as the driver gave it.
    pub pages: Vec<u64>,
    /// True if the queue pair is in the simulation's run queue.
    pub queued: bool,
    /// Virtual time in ns at which the queue pair's timer is due; `None` if no timer is set.
    pub timer: Option<u64>,
}

/// Objects that a queue pair refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpRefs {
    /// Protection domain. The UMR queue pair has none.
    pub pd: Option<u32>,
    /// UAR page. A queue pair without queues of its own has none.
    pub uar: Option<u32>,
    /// Number of the completion queue of the send queue.
    pub cqn_snd: u32,
    /// Number of the completion queue of the receive queue.
    pub cqn_rcv: u32,
    /// Number of the shared receive queue (RMP or XRC SRQ), if any.
    pub srqn: Option<u32>,
    /// XRC domain, if any.
    pub xrcd: Option<u32>,
    /// Number of the counter set, if any.
    pub counter: Option<u32>,
    /// User memory that holds the work queues and the doorbell record.
    pub places: Places,
}

/// All numbered objects of a function.
pub struct Objects {
    /// UAR pages.
    pub uars: Table<()>,
    /// Protection domains.
    pub pds: Table<()>,
    /// Transport domains.
    pub tds: Table<()>,
    /// XRC domains.
    pub xrcds: Table<()>,
    /// Counter sets.
    pub counters: Table<Counters>,
    /// The default counter set, for queues that name no counter set.
    pub default_counters: Counters,
    /// Event queues.
    pub eqs: Table<Eq>,
    /// Completion queues.
    pub cqs: Table<Cq>,
    /// Memory keys, by index.
    pub mkeys: Table<Mkey>,
    /// Number of bytes that the keys and their tables use.
    pub key_memory: usize,
    /// Queue pairs.
    pub qps: Table<QpSlot>,
    /// Receive memory pools and XRC SRQs.
    pub rmps: Table<Srq>,
    /// Ethernet queues and steering.
    pub eth: EthObjects,
    /// User contexts.
    pub uctxs: Table<Uctx>,
    /// User memory.
    pub umems: Table<Umem>,
    /// Multicast groups.
    pub groups: Groups,
    /// Allocated pieces of the device's own memory.
    pub device_memory: DeviceMemory,
}

impl Objects {
    /// Returns empty tables, as large as the current capabilities allow.
    pub fn new(profile: &Profile, caps: &Capabilities) -> Self {
        const LAST: u32 = 0x00ff_ffff;
        let general = &caps.general;
        // Device memory follows the doorbell pages.
        let pages = device_memory::window(profile, general).start >> 12;
        let last_uar = u32::try_from(pages).unwrap_or(u32::MAX) - 1;
        let some = |log: u32| 1_u32.checked_shl(log).unwrap_or(u32::MAX);
        Self {
            uars: Table::new("UAR", FIRST_UAR, last_uar, LAST),
            pds: Table::new("PD", 0x11, LAST, some(general.log_max_pd())),
            tds: Table::new(
                "transport domain",
                0x21,
                LAST,
                some(general.log_max_transport_domain()),
            ),
            xrcds: Table::new("XRC domain", 0x31, LAST, some(general.log_max_xrcd())),
            counters: Table::new("counter set", 1, 0xff, general.max_qp_cnt().max(1)),
            default_counters: Counters::default(),
            eqs: Table::new("EQ", 1, 0xff, some(general.log_max_eq())),
            cqs: Table::new("CQ", 0x401, LAST, some(general.log_max_cq())),
            key_memory: 0,
            mkeys: Table::new("mkey", 0x1003, LAST, some(general.log_max_mkey())),
            // The numbers of send queues follow, because a doorbell names a queue pair or a send queue by its number
            // alone.
            qps: Table::new("QP", 0x58, FIRST_SQN - 1, some(general.log_max_qp())),
            rmps: Table::new("RMP", 0x81, LAST, some(general.log_max_rmp())),
            eth: EthObjects::new(caps),
            uctxs: Table::new(
                "user context",
                1,
                u32::from(SHARED) - 1,
                some(general.log_max_uctx()),
            ),
            umems: Table::new("UMEM", 0x41, LAST, some(general.log_max_umem())),
            groups: Groups::default(),
            device_memory: DeviceMemory::default(),
        }
    }

    /// Returns the number of objects of each kind that has objects.
    pub fn census(&self) -> BTreeMap<&'static str, usize> {
        [
            (self.uars.kind(), self.uars.len()),
            (self.pds.kind(), self.pds.len()),
            (self.tds.kind(), self.tds.len()),
            (self.xrcds.kind(), self.xrcds.len()),
            (self.counters.kind(), self.counters.len()),
            (self.eqs.kind(), self.eqs.len()),
            (self.cqs.kind(), self.cqs.len()),
            (self.mkeys.kind(), self.mkeys.len()),
            (self.qps.kind(), self.qps.len()),
            (self.rmps.kind(), self.rmps.len()),
            (self.uctxs.kind(), self.uctxs.len()),
            (self.umems.kind(), self.umems.len()),
            ("multicast group", self.groups.len()),
            (DeviceMemory::KIND, self.device_memory.len()),
        ]
        .into_iter()
        .chain(self.eth.census())
        .filter(|&(_, count)| count > 0)
        .collect()
    }

    /// Drops every object. New objects get numbers that follow the previous ones.
    pub fn clear(&mut self) {
        self.uars.clear();
        self.pds.clear();
        self.tds.clear();
        self.xrcds.clear();
        self.counters.clear();
        self.default_counters = Counters::default();
        self.eqs.clear();
        self.cqs.clear();
        self.mkeys.clear();
        self.key_memory = 0;
        self.qps.clear();
        self.rmps.clear();
        self.eth.clear();
        self.uctxs.clear();
        self.umems.clear();
        self.groups.clear();
        self.device_memory.clear();
    }

    /// Sets the acting owner of the tables for the next command ([`Table::act_for`]).
    pub fn act_for(&mut self, owner: u16) {
        self.uars.act_for(owner);
        self.pds.act_for(owner);
        self.tds.act_for(owner);
        self.xrcds.act_for(owner);
        self.counters.act_for(owner);
        self.eqs.act_for(owner);
        self.cqs.act_for(owner);
        self.mkeys.act_for(owner);
        self.qps.act_for(owner);
        self.rmps.act_for(owner);
        self.umems.act_for(owner);
        self.eth.act_for(owner);
    }

    /// Returns the kind and number of each object that a user context owns.
    pub fn owned_by(&self, owner: u16) -> impl Iterator<Item = (&'static str, u32)> {
        self.uars
            .owned_by(owner)
            .chain(self.pds.owned_by(owner))
            .chain(self.tds.owned_by(owner))
            .chain(self.xrcds.owned_by(owner))
            .chain(self.counters.owned_by(owner))
            .chain(self.eqs.owned_by(owner))
            .chain(self.cqs.owned_by(owner))
            .chain(self.mkeys.owned_by(owner))
            .chain(self.qps.owned_by(owner))
            .chain(self.rmps.owned_by(owner))
            .chain(self.umems.owned_by(owner))
            .chain(self.eth.owned_by(owner))
    }

    /// Returns the counter set of this number; number 0 is the default set.
    pub fn counters_of(&mut self, set: u32) -> Option<&mut Counters> {
        match set {
            0 => Some(&mut self.default_counters),
            set => self.counters.get_mut(set),
        }
    }

    /// Increments a counter of a counter set.
    pub fn count(&mut self, set: u32, what: QCounter) {
        if let Some(counters) = self.counters_of(set) {
            counters.count(what);
        }
    }

    /// Applies the object limits of the current capabilities, which SET_HCA_CAP may have lowered.
    pub fn set_limits(&mut self, caps: &Capabilities) {
        let some = |log: u32| 1_u32.checked_shl(log).unwrap_or(u32::MAX);
        self.qps.set_limit(some(caps.general.log_max_qp()));
        self.cqs.set_limit(some(caps.general.log_max_cq()));
        self.mkeys.set_limit(some(caps.general.log_max_mkey()));
        self.eqs.set_limit(some(caps.general.log_max_eq()));
        self.pds.set_limit(some(caps.general.log_max_pd()));
        self.rmps.set_limit(some(caps.general.log_max_rmp()));
        self.eth.set_limits(caps);
        self.uctxs.set_limit(some(caps.general.log_max_uctx()));
        self.umems.set_limit(some(caps.general.log_max_umem()));
    }
}
