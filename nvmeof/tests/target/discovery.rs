//! Discovery log entries that a host gets.

use anyhow::Result;
use nvmeof::disk::Source;
use nvmeof::nvme::log::page;
use nvmeof::nvme::{Nqn, Status};

use crate::world::World;

/// A host gets the discovery service itself and each subsystem that it may use. Base specification, "Discovery Log
/// Page": the header has the number of entries at byte 8; entries begin at byte 1,024, with the subsystem's name at
/// byte 256 and the service at byte 32 of the entry.
#[test]
fn a_host_is_told_of_the_service_itself_and_of_a_subsystem_that_it_may_use() -> Result<()> {
    let mut world = World::new(1, Source::Null(1 << 20), 12)?;
    let mut host = world.host()?;
    let (mut admin, _) = host.controller(&Nqn::discovery())?;
    let (status, said) = host.log(&mut admin, page::DISCOVERY, 4096)?;
    assert_eq!(status, Status::SUCCESS);
    assert_eq!(said[8..16], [2, 0, 0, 0, 0, 0, 0, 0]);
    let name = |entry: usize| {
        Nqn::of_field(
            said[1024 * entry + 256..][..256]
                .try_into()
                .expect("256 bytes"),
        )
    };
    assert_eq!(name(1), Ok(Nqn::discovery()));
    assert_eq!(name(2), Ok(world.subsystem.clone()));
    assert_eq!(&said[2048 + 32..][..5], b"4420\0");
    drop(host);
    world.stop()?;
    Ok(())
}
