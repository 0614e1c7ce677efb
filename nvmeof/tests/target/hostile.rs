//! A host that sends arbitrary capsules: the target must answer them or end the connection, and must write only where
//! the capsule says.

use anyhow::Result;
use nvmeof::disk::Source;
use nvmeof::nvme::Sqe;
use nvmeof::nvme::command::{FUSE, FUSE_FIRST, PSDT, PSDT_SGL, admin, io};
use nvmeof::nvme::sgl::Sgl;
use nvmeof::serve::WorkerConfig;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use zerocopy::FromBytes;

use crate::host::{Host, Queue};
use crate::world::World;

/// Number of capsules, unless the environment variable `HOSTILE_CAPSULES` has another.
const CAPSULES: usize = 1500;
/// Size of the host's memory that commands name, and the byte that fills it.
const MEMORY: usize = 1 << 18;
const GUARD: u8 = 0xa5;

/// Returns a random capsule: a plausible command with in-capsule data or an SGL descriptor. About one of four
/// descriptors is wrong. For a right keyed descriptor, also returns the range of the host's memory that it names.
fn capsule(
    host: &Host,
    random: &mut ChaCha8Rng,
    is_admin: bool,
) -> Result<(Sqe, Vec<u8>, std::ops::Range<usize>)> {
    const ADMIN: [u8; 8] = [
        admin::IDENTIFY,
        admin::GET_LOG_PAGE,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::KEEP_ALIVE,
        admin::ABORT,
        admin::FABRICS,
        0x80,
    ];
    const IO: [u8; 12] = [
        io::FLUSH,
        io::READ,
        io::WRITE,
        io::COMPARE,
        io::WRITE_ZEROES,
        io::DATASET_MANAGEMENT,
        io::VERIFY,
        io::COPY,
        io::RESERVATION_REPORT,
        io::RESERVATION_REGISTER,
        admin::FABRICS,
        io::READ,
    ];
    let mut bytes = [0; 64];
    random.fill_bytes(&mut bytes);
    let mut sqe = Sqe::read_from_bytes(&bytes).expect("64 bytes");
    let mut upto = |most: u32| random.next_u32() % most;
    let set: &[u8] = if is_admin { &ADMIN } else { &IO };
    if upto(8) != 0 {
        sqe.opcode = set[upto(u32::try_from(set.len())?) as usize];
    }
    if upto(8) != 0 {
        sqe.flags = PSDT_SGL;
    }
    if sqe.opcode == admin::FABRICS && upto(4) != 0 {
        // Property Set is not in this list, so it is rare: it would soon end the controller.
        sqe.nsid = [4, 5, 6, 1][upto(4) as usize].into();
    } else if upto(8) != 0 {
        sqe.nsid = [0, 1, 1, 1, 2, u32::MAX][upto(6) as usize].into();
    }
    let blocks = 1 + upto(16);
    if upto(4) != 0 {
        (sqe.cdw10, sqe.cdw11) = (upto(2060).into(), 0.into());
        sqe.cdw12 = ((blocks - 1) | upto(4) << 29).into();
    }
    if is_admin && upto(2) == 0 {
        sqe.cdw10 = (upto(20) | 0x3f << 16).into();
        sqe.cdw11 = 0.into();
    }
    let (at, length) = (
        4096 + 512 * upto(256) as usize,
        if upto(4) == 0 {
            upto(9000)
        } else {
            blocks * 512
        },
    );
    let mut data = Vec::new();
    let mut named = 0..0;
    match upto(16) {
        0 => {
            sqe.sgl = Sgl::keyed(
                host.region.registered_address,
                length,
                upto(u32::MAX),
                upto(2) == 0,
            );
        }
        1 => {
            sqe.sgl = Sgl::keyed(
                u64::from(upto(u32::MAX)) << 20,
                length,
                host.region.rmr_context,
                false,
            )
        }
        2..=4 => {
            data = vec![0x5a; length.min(4096) as usize & !511];
            sqe.sgl = Sgl::in_capsule(if upto(4) == 0 {
                length
            } else {
                u32::try_from(data.len())?
            });
        }
        5 => {}
        _ => {
            sqe.sgl = host.data(at, length);
            named = at..at + length as usize;
        }
    }
    Ok((sqe, data, named))
}

/// Makes a controller with an admin queue and an I/O queue.
fn queues(host: &mut Host, world: &World) -> Result<[Queue; 2]> {
    let subsystem = world.subsystem.clone();
    let (admin, controller) = host.controller(&subsystem)?;
    let queue = host.io_queue(&subsystem, controller, 1, 16)?;
    host.memory.write_from(0, &[GUARD; MEMORY])?;
    Ok([admin, queue])
}

#[test]
fn capsules_of_any_kind_are_answered_or_end_the_connection_and_write_where_they_say() -> Result<()>
{
    let capsules = match std::env::var("HOSTILE_CAPSULES") {
        Ok(asked) => asked.parse()?,
        Err(_) => CAPSULES,
    };
    let config = WorkerConfig {
        ios: 48,
        buffers: 3,
        ..WorkerConfig::default()
    };
    let mut world = World::with(1, Source::Memory(1 << 20), 9, config)?;
    let mut host = world.host()?;
    let mut random = ChaCha8Rng::seed_from_u64(0x1ca9);
    let (mut answered, mut ended) = (0, 0);
    let mut both = queues(&mut host, &world)?;
    for round in 0..capsules {
        let which = usize::from(!round.is_multiple_of(3));
        let (sqe, data, named) = capsule(&host, &mut random, which == 0)?;
        let is_request = which == 0 && sqe.opcode == admin::ASYNC_EVENT;
        // The first command of a fused pair and an event request have no response for now, so they are not sent.
        let is_first =
            sqe.opcode == io::COMPARE && sqe.flags & (FUSE | PSDT) == FUSE_FIRST | PSDT_SGL;
        if is_request || is_first {
            continue;
        }
        host.send(&mut both[which], sqe, &data)?;
        match host.response(&mut both[which]) {
            Ok(cqe) => {
                answered += 1;
                assert_eq!(cqe.cid.get().wrapping_add(1), both[which].sent(), "{sqe:?}");
                let now = host.memory.read(0, MEMORY)?;
                let outside = |(at, byte): (usize, &u8)| *byte != GUARD && !named.contains(&at);
                let spoilt = now.iter().enumerate().find(|one| outside(*one));
                assert_eq!(spoilt, None, "outside of {named:?}: {sqe:?}");
                host.memory
                    .write_from(named.start, &vec![GUARD; named.len()])?;
            }
            Err(_) => {
                ended += 1;
                for queue in &both {
                    // The other queue's connection may still exist, so both are disconnected.
                    let _ = host.ia.ep_disconnect(queue.ep, udapl::CloseFlags::Abrupt);
                    host.ia.ep_free(queue.ep)?;
                    host.ia.evd_free(queue.events)?;
                }
                both = queues(&mut host, &world)?;
            }
        }
    }
    assert!(
        answered > capsules / 2 && ended > 10,
        "{answered} answered, {ended} ended"
    );
    drop(host);
    world.stop()?;
    Ok(())
}
