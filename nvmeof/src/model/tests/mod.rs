//! Answers of the model. Offsets and values are copied from the specifications' figures, independently of the
//! structures that the model fills.

mod authenticate;
mod connect;
mod features;
mod hosts;
mod identify;
mod identity;
mod letters;
mod lives;
mod logs;
mod masks;
mod parking;

use std::net::IpAddr;

pub(crate) use authenticate::authenticating;
use uuid::Uuid;
use zerocopy::{FromBytes, FromZeros};

use super::*;
use crate::disk::{Disk, Source};
use crate::nvme::Sqe;
use crate::nvme::fabrics::{Connect, ConnectData};

pub(super) const DNR: u16 = 0x4000;
pub(super) const HOST: &str = "nqn.2026-11.test:host";
pub(super) const OTHER: &str = "nqn.2026-11.test:other";
pub(super) const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

pub(super) fn name(text: &str) -> Nqn {
    text.parse().expect("a name")
}

pub(super) fn disks() -> Nqn {
    name("nqn.2026-11.test:disks")
}

pub(super) fn disk() -> NamespaceConfig {
    NamespaceConfig {
        nsid: None,
        uuid: Uuid::new_v5_like(),
        group: 1,
        hosts: None,
        disk: Disk::open(Source::Null(1 << 20), 9, false).expect("a disk"),
    }
}

/// Makes unique identifiers.
trait Fresh {
    fn new_v5_like() -> Self;
}

impl Fresh for Uuid {
    fn new_v5_like() -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self::from_u64_pair(0x4e, NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

pub(super) fn place(queue: u16) -> Place {
    Place {
        port: 1,
        worker: 0,
        queue,
        entries: if queue == 0 { 32 } else { 128 },
        source: IpAddr::from([192, 0, 2, 9]),
    }
}

/// Returns a model with one port, and one subsystem with one namespace.
pub(super) fn model(any_host: bool) -> Model {
    let mut model = Model::new();
    let at = "192.0.2.1:4420".parse().expect("an address");
    model.add_port(1, vec![at]).expect("a port");
    let config = SubsystemConfig {
        name: disks(),
        serial: "S1".to_owned(),
        model: "M1".to_owned(),
        any_host,
        queues: QUEUES,
    };
    model.add_subsystem(config).expect("a subsystem");
    model.add_namespace(&disks(), disk()).expect("a namespace");
    model
}

/// Returns the Connect that Linux sends for a queue.
pub(super) fn asked(queue: u16) -> Connect {
    Connect {
        format: 0,
        queue,
        size: if queue == 0 { 31 } else { 127 },
        attributes: 0,
        keep_alive_ms: if queue == 0 { 5000 } else { 0 },
    }
}

pub(super) fn data(subsystem: &Nqn, host: &str, controller: u16) -> ConnectData {
    // Each host has an identifier of its own, because an identifier belongs to one host.
    let id = if host == OTHER { [17; 16] } else { [7; 16] };
    ConnectData::new(id, controller, subsystem.field(), name(host).field())
}

pub(super) const fn secs(secs: u64) -> Moment {
    Moment::from_secs(secs)
}

/// Connects an admin queue; returns the number of its controller, which is not enabled yet.
pub(super) fn admin(model: &mut Model, subsystem: &Nqn, host: &str) -> u16 {
    let data = data(subsystem, host, 0xffff);
    let made = model.connect(place(0), asked(0), &data, secs(0));
    made.expect("a controller").controller
}

/// Returns the number of a new, enabled controller.
pub(super) fn ready(model: &mut Model, subsystem: &Nqn, host: &str) -> u16 {
    let id = admin(model, subsystem, host);
    set(model, id, 0x14, 0x0046_0001);
    model.take_notices();
    id
}

/// Returns a command with this opcode, and dwords 1 (NSID) and 10 to 13.
pub(super) fn sqe(opcode: u8, nsid: u32, dwords: [u32; 4]) -> Sqe {
    let mut bytes = [0; 64];
    bytes[0] = opcode;
    bytes[1] = 0x40;
    bytes[39] = 0x40;
    for (at, dword) in [(4, nsid)].into_iter().chain((40..).step_by(4).zip(dwords)) {
        for (byte, shift) in (at..at + 4).zip([0, 8, 16, 24]) {
            bytes[byte] = u8::try_from(dword >> shift & 0xff).expect("eight bits");
        }
    }
    Sqe::read_from_bytes(&bytes).unwrap_or_else(|_| Sqe::new_zeroed())
}

pub(super) fn command(model: &mut Model, id: u16, sqe: &Sqe) -> Answer {
    match model.command(id, 0, sqe, 1 << 17, secs(1)) {
        Outcome::Answered(answer) => answer,
        other @ (Outcome::Waits | Outcome::Preempted(_) | Outcome::Abort { .. }) => {
            panic!("{other:?}")
        }
    }
}

pub(super) fn set(model: &mut Model, id: u16, property: u32, value: u32) -> Answer {
    command(model, id, &sqe(0x7f, 0, [0, property, value, 0]))
}

pub(super) fn get(model: &mut Model, id: u16, property: u32, is_long: bool) -> Answer {
    command(
        model,
        id,
        &sqe(0x7f, 4, [u32::from(is_long), property, 0, 0]),
    )
}

/// Reads `bytes` bytes of a log page from an offset.
pub(super) fn log(model: &mut Model, id: u16, page: u32, bytes: u32, offset: u32) -> Answer {
    let dwords = [page | (bytes / 4 - 1) << 16, 0, offset, 0];
    command(model, id, &sqe(0x02, u32::MAX, dwords))
}

/// Sends an Asynchronous Event Request, which must stay outstanding.
pub(super) fn wait(model: &mut Model, id: u16) {
    let outcome = model.command(id, 0, &sqe(0x0c, 0, [0; 4]), 0, secs(1));
    assert_eq!(outcome, Outcome::Waits);
}

/// Returns the little-endian integer of `length` bytes at an offset of a page.
pub(super) fn at(bytes: &[u8], offset: usize, length: usize) -> u64 {
    let bytes = bytes[offset..offset + length].iter().rev();
    bytes.fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// Returns the status code type, status code and DNR: the completion's field shifted right by one.
pub(super) fn code(status: Status) -> u16 {
    status.field() >> 1
}
