//! A host that must authenticate on each of its queues.

use anyhow::{Result, ensure};
use hmac::{Hmac, Mac};
use nvmeof::auth::Keys;
use nvmeof::disk::Source;
use nvmeof::nvme::command::{admin, io};
use nvmeof::nvme::fabrics::{ANY_CONTROLLER, kind, property};
use nvmeof::nvme::{Sqe, Status};
use sha2::Sha256;

use crate::host::{HOST, Host, Queue, command, transfer};
use crate::world::World;

const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

fn authentication(what: u8, bytes: u32) -> Sqe {
    let mut sqe = command(admin::FABRICS);
    sqe.nsid = u32::from(what).into();
    (sqe.cdw10, sqe.cdw11) = (0xe901_0100.into(), bytes.into());
    sqe
}

fn say(host: &mut Host, queue: &mut Queue, message: &[u8]) -> Result<Status> {
    host.memory.write_from(0, message)?;
    let bytes = u32::try_from(message.len())?;
    let data = host.data(0, bytes);
    host.status(
        queue,
        authentication(kind::AUTHENTICATION_SEND, bytes),
        data,
    )
}

fn hear(host: &mut Host, queue: &mut Queue) -> Result<Vec<u8>> {
    let data = host.data(0, 4096);
    let status = host.status(
        queue,
        authentication(kind::AUTHENTICATION_RECEIVE, 4096),
        data,
    )?;
    ensure!(status.is_success(), "{status}");
    Ok(host.memory.read(0, 4096)?)
}

/// Authenticates by SHA-256 without a group, with the right response (`spoil` is 0) or a wrong one. Returns the
/// identifier of the target's message and its byte 6: the reason code of FAILURE1, or the hash length of SUCCESS1.
fn authenticate(
    host: &mut Host,
    queue: &mut Queue,
    subsystem: &str,
    spoil: u8,
) -> Result<(u8, u8)> {
    let mut ask = [0; 72];
    (ask[4], ask[7], ask[8], ask[10], ask[11], ask[12]) = (9, 1, 1, 1, 1, 1);
    assert_eq!(say(host, queue, &ask)?, Status::SUCCESS);
    let challenge = hear(host, queue)?;
    assert_eq!(&challenge[..10], [1, 1, 0, 0, 9, 0, 32, 0, 1, 0]);
    let mut mac = Hmac::<Sha256>::new_from_slice(&(0..32).collect::<Vec<u8>>())?;
    for part in [
        &challenge[16..48],
        &challenge[12..16],
        &[9, 0, 0],
        b"HostHost",
        HOST.as_bytes(),
        &[0],
        subsystem.as_bytes(),
    ] {
        mac.update(part);
    }
    let mut reply = vec![1, 2, 0, 0, 9, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    reply.extend_from_slice(&mac.finalize().into_bytes());
    reply.resize(80, 0);
    reply[20] ^= spoil;
    assert_eq!(say(host, queue, &reply)?, Status::SUCCESS);
    let said = hear(host, queue)?;
    Ok((said[1], said[6]))
}

#[test]
fn a_host_with_a_key_is_told_nothing_before_it_has_shown_it_on_that_queue() -> Result<()> {
    const REQUIRED: Status = Status::AUTHENTICATION_REQUIRED.dnr();
    let mut world = World::new(1, Source::Memory(1 << 20), 9)?;
    let keys = Keys {
        host: KEY.parse()?,
        controller: None,
        hash: None,
        group: None,
    };
    world.target.with(|model| -> Result<()> {
        model.set_keys(HOST.parse()?, Some(keys));
        Ok(())
    })?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let mut admin_queue = host.queue(0, 32)?;
    let connected = host.connect(&mut admin_queue, &subsystem, ANY_CONTROLLER)?;
    assert_eq!(
        (connected.status(), connected.result.get() >> 16),
        (Status::SUCCESS, 0b10),
        "ATR"
    );
    assert_eq!(
        host.set(&mut admin_queue, property::CC, 0x0046_0001)?
            .status(),
        REQUIRED
    );
    for opcode in [
        admin::IDENTIFY,
        admin::GET_LOG_PAGE,
        admin::KEEP_ALIVE,
        admin::ASYNC_EVENT,
        0xff,
    ] {
        assert_eq!(
            host.command(&mut admin_queue, command(opcode))?.status(),
            REQUIRED,
            "{opcode:#x}"
        );
    }
    assert_eq!(
        authenticate(&mut host, &mut admin_queue, subsystem.as_str(), 1)?,
        (0xf1, 1)
    );
    // A host has one attempt for each connection.
    host.expect_end(&admin_queue)?;
    let mut admin_queue = host.queue(0, 32)?;
    let connected = host.connect(&mut admin_queue, &subsystem, ANY_CONTROLLER)?;
    let controller = u16::try_from(connected.result.get() & 0xffff)?;
    assert_eq!(
        authenticate(&mut host, &mut admin_queue, subsystem.as_str(), 0)?,
        (3, 32)
    );
    host.set(&mut admin_queue, property::CC, 0x0046_0001)?;
    assert_eq!(host.get(&mut admin_queue, property::CSTS)?, 1);
    // Each I/O queue must authenticate for itself.
    let mut queue = host.queue(1, 16)?;
    let connected = host.connect(&mut queue, &subsystem, controller)?;
    assert_eq!(connected.result.get(), 0b10 << 16 | u64::from(controller));
    assert_eq!(host.read(&mut queue, 0, 1, 0, 512)?, REQUIRED);
    assert_eq!(
        host.command(&mut queue, command(io::FLUSH))?.status(),
        REQUIRED
    );
    // A failed authentication on an I/O queue ends only that queue, because the host has not proved that the controller
    // is its own.
    assert_eq!(
        authenticate(&mut host, &mut queue, subsystem.as_str(), 1)?,
        (0xf1, 1)
    );
    host.expect_end(&queue)?;
    let mut queue = host.queue(1, 16)?;
    host.connect(&mut queue, &subsystem, controller)?;
    assert_eq!(
        authenticate(&mut host, &mut queue, subsystem.as_str(), 0)?,
        (3, 32)
    );
    assert_eq!(host.read(&mut queue, 0, 1, 0, 512)?, Status::SUCCESS);
    let data = host.data(0, 512);
    assert_eq!(
        host.status(&mut queue, transfer(io::WRITE, 0, 1), data)?,
        Status::SUCCESS
    );
    // A message out of sequence, and a message of another security protocol, are refused.
    assert_eq!(
        say(&mut host, &mut queue, &[0; 72])?,
        Status::SEQUENCE.dnr()
    );
    let mut odd = authentication(kind::AUTHENTICATION_RECEIVE, 4096);
    odd.cdw10 = 0xe801_0100.into();
    assert_eq!(
        host.command(&mut queue, odd)?.status(),
        Status::INVALID_FIELD.dnr()
    );
    odd = authentication(kind::AUTHENTICATION_SEND, 0);
    assert_eq!(
        host.command(&mut queue, odd)?.status(),
        Status::INVALID_FIELD.dnr()
    );
    drop(host);
    world.stop()?;
    Ok(())
}
