//! Changes while a host is connected.

use anyhow::{Context, Result};
use nvmeof::disk::{Disk, Source};
use nvmeof::model::NamespaceConfig;
use nvmeof::nvme::Status;
use nvmeof::nvme::command::{admin, io};
use nvmeof::nvme::log::{Access, page};
use nvmeof::nvme::sgl::Sgl;
use udapl::memory::{LmrTriplet, RmrCookie};
use udapl::{CompletionFlags, Event, MemPrivFlags};
use uuid::Uuid;

use crate::host::{Host, Queue, command, transfer};
use crate::world::World;

const NONE: CompletionFlags = CompletionFlags::empty();

/// Enables events of namespaces and of ANA changes, and sends an event request.
fn listen(host: &mut Host, queue: &mut Queue) -> Result<()> {
    let mut sqe = command(admin::SET_FEATURES);
    (sqe.cdw10, sqe.cdw11) = (0x0b.into(), 0x900.into());
    assert_eq!(host.command(queue, sqe)?.status(), Status::SUCCESS);
    host.send(queue, command(admin::ASYNC_EVENT), &[])?;
    Ok(())
}

#[test]
fn a_host_hears_of_a_new_size_of_removal_and_of_access_and_commands_answer_accordingly()
-> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("disk");
    let file = std::fs::File::create(&path)?;
    file.set_len(1 << 20)?;
    let mut world = World::new(1, Source::File(path), 9)?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let (mut admin, controller) = host.controller(&subsystem)?;
    let mut queue = host.io_queue(&subsystem, controller, 1, 16)?;
    listen(&mut host, &mut admin)?;
    assert_eq!(
        host.read(&mut queue, 2048, 1, 0, 512)?,
        Status::LBA_RANGE.dnr()
    );
    file.set_len(2 << 20)?;
    assert_eq!(world.target.resize_namespace(&subsystem, 1)?, 4096);
    assert_eq!(host.response(&mut admin)?.result.get(), 0x0004_0002);
    let (status, said) = host.log(&mut admin, page::CHANGED_NAMESPACES, 4096)?;
    assert_eq!(
        (status, &said[..8]),
        (Status::SUCCESS, &[1, 0, 0, 0, 0, 0, 0, 0][..])
    );
    assert_eq!(host.read(&mut queue, 2048, 1, 0, 512)?, Status::SUCCESS);
    // The host itself sets write protection, and gets an event for that, too.
    host.send(&mut admin, command(admin::ASYNC_EVENT), &[])?;
    let mut protect = command(admin::SET_FEATURES);
    protect.nsid = 1.into();
    (protect.cdw10, protect.cdw11) = (0x84.into(), 1.into());
    host.send(&mut admin, protect, &[])?;
    let mut results = [
        host.response(&mut admin)?.result.get(),
        host.response(&mut admin)?.result.get(),
    ];
    results.sort_unstable();
    assert_eq!(results, [0, 0x0004_0002]);
    host.log(&mut admin, page::CHANGED_NAMESPACES, 4096)?;
    let refused = Status::WRITE_PROTECTED.dnr();
    assert_eq!(host.write(&mut queue, 0, 1, 0, 512)?, refused);
    let none = Sgl::keyed(0, 0, 0, false);
    assert_eq!(
        host.status(&mut queue, transfer(io::WRITE_ZEROES, 0, 1), none)?,
        refused
    );
    assert_eq!(host.read(&mut queue, 0, 1, 0, 512)?, Status::SUCCESS);
    // The ANA state changes.
    host.send(&mut admin, command(admin::ASYNC_EVENT), &[])?;
    for (state, status) in [
        (Access::Inaccessible, Status::ANA_INACCESSIBLE),
        (Access::PersistentLoss, Status::ANA_LOSS),
        (Access::Change, Status::ANA_CHANGE),
        (Access::NonOptimized, Status::SUCCESS),
    ] {
        world.target.with(|model| model.set_access(1, 1, state))?;
        assert_eq!(host.read(&mut queue, 0, 1, 0, 512)?, status);
    }
    let told = host.response(&mut admin)?;
    assert_eq!(told.result.get(), 0x000c_0302, "{told:?}");
    // The namespace is removed.
    host.send(&mut admin, command(admin::ASYNC_EVENT), &[])?;
    world
        .target
        .with(|model| model.remove_namespace(&subsystem, 1))?;
    assert_eq!(host.response(&mut admin)?.result.get(), 0x0004_0002);
    assert_eq!(
        host.read(&mut queue, 0, 1, 0, 512)?,
        Status::INVALID_NAMESPACE.dnr()
    );
    // A read-only namespace replaces it.
    let reader = NamespaceConfig {
        nsid: Some(1),
        uuid: Uuid::from_u128(9),
        group: 1,
        hosts: None,
        disk: Disk::open(Source::File(folder.path().join("disk")), 9, true)?,
    };
    world
        .target
        .with(|model| model.add_namespace(&subsystem, reader))?;
    assert_eq!(host.read(&mut queue, 0, 1, 0, 512)?, Status::SUCCESS);
    assert_eq!(host.write(&mut queue, 0, 1, 0, 512)?, refused);
    protect.cdw11 = 0.into();
    assert_eq!(
        host.command(&mut admin, protect)?.status(),
        Status::NOT_CHANGEABLE.dnr()
    );
    drop(host);
    world.stop()?;
    Ok(())
}

#[test]
fn the_key_of_a_window_is_invalidated_with_the_response_if_the_host_wants_that() -> Result<()> {
    let mut world = World::new(1, Source::Memory(1 << 20), 9)?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let (_admin, controller) = host.controller(&subsystem)?;
    let mut queue = host.io_queue(&subsystem, controller, 1, 16)?;
    let rmr = host.ia.rmr_create(host.zone)?;
    let address = host.region.registered_address;
    let window = LmrTriplet {
        lmr_context: host.region.lmr_context,
        virtual_address: address,
        segment_length: 4096,
    };
    let rights =
        MemPrivFlags::REMOTE_READ | MemPrivFlags::REMOTE_WRITE | MemPrivFlags::REMOTE_INVALIDATE;
    let mut keys = Vec::new();
    for first in [0, 4000] {
        let key = host
            .ia
            .rmr_bind(rmr, &window, rights, queue.ep, RmrCookie(1), NONE)?;
        let event = host
            .ia
            .evd_wait(queue.events, std::time::Duration::from_secs(20), 1)?
            .0;
        assert!(matches!(event, Event::RmrBind(_)), "{event:?}");
        assert!(host.ia.rmr_query(rmr)?.binding.is_some());
        let status = host.status(
            &mut queue,
            transfer(io::READ, first, 8),
            Sgl::keyed(address, 4096, key, true),
        )?;
        // The key is invalidated also if the status is a failure.
        assert_eq!(status.is_success(), first == 0, "{status}");
        assert_eq!(host.ia.rmr_query(rmr)?.binding, None);
        keys.push(key);
    }
    // The key is invalid now: a host that uses it loses the connection.
    let key = keys.first().context("a key")?;
    let mut sqe = transfer(io::READ, 0, 8);
    sqe.sgl = Sgl::keyed(address, 4096, *key, false);
    host.send(&mut queue, sqe, &[])?;
    host.expect_end(&queue)?;
    drop(host);
    world.stop()?;
    Ok(())
}
