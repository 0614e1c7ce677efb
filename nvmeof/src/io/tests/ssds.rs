//! Commands on an SSD that the process drives itself: the simulated one, served by vfio-user.

use std::thread;

use driver::VfioUserServer;

use super::*;
use crate::disk::ssd::SsdAddress;
use crate::pci;

/// Number of blocks of the disk.
const END: u64 = BYTES / BLOCK as u64;

/// A simulated SSD that is served on a socket.
struct Served {
    ssd: Arc<pci::Ssd>,
    source: Source,
    _path: driver::TakenPath,
    _folder: tempfile::TempDir,
}

fn served(backing: Source) -> Served {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("ssd.sock");
    let (listener, taken) = driver::listen_at(&path).expect("a socket");
    let config = pci::SsdConfig::new("nqn.2026-11.test:ssd".parse().expect("a name"));
    let namespace = NamespaceConfig {
        nsid: Some(1),
        uuid: Uuid::from_u128(7),
        group: 1,
        hosts: None,
        disk: Disk::open(backing, 9, false).expect("a disk"),
    };
    let ssd = pci::Ssd::new(config, [namespace]).expect("an SSD");
    let device = Arc::clone(&ssd) as Arc<dyn driver::Device>;
    thread::spawn(move || VfioUserServer::serve(device, listener));
    Served {
        ssd,
        source: Source::Ssd(SsdAddress {
            function: format!("vfio-user:{}", path.display()),
            nsid: 1,
        }),
        _path: taken,
        _folder: folder,
    }
}

#[test]
fn commands_on_an_ssd_do_what_they_do_on_a_file() {
    let served = served(Source::Memory(BYTES));
    let mut host = Loop::new(served.source.clone());
    assert_eq!(host.namespace().blocks(), END);
    let pattern: Vec<u8> = (0..=250).cycle().take(256 * BLOCK).collect();
    for blocks in [1, 8, 9, 255, 256] {
        let content = &pattern[..blocks * BLOCK];
        assert_eq!(host.write(3, content), DONE, "{blocks}");
        let count = u32::try_from(blocks).expect("small");
        assert!(host.read(3, count) == content, "{blocks}");
    }
    assert_eq!(host.command(command(opcode::FLUSH), no_data()), DONE);
    let mut forced = transfer(opcode::WRITE, 0, 1);
    forced.cdw12 = (forced.cdw12.get() | 1 << 30).into();
    host.host[..BLOCK].fill(9);
    assert_eq!(host.command(forced, memory(0, BLOCK)), DONE);
    let compare = transfer(opcode::COMPARE, 0, 1);
    assert_eq!(host.command(compare, memory(0, BLOCK)), DONE);
    host.host[0] = 8;
    let different = host.command(compare, memory(0, BLOCK));
    assert_eq!(different, Status::COMPARE.dnr());
    let verify = transfer(opcode::VERIFY, 0, 400);
    assert_eq!(host.command(verify, no_data()), DONE);
    let zeroes = transfer(opcode::WRITE_ZEROES, 0, 2);
    assert_eq!(host.command(zeroes, no_data()), DONE);
    assert_eq!(host.blocks(0, 2), [0, 0]);
    assert_eq!(host.write(END - 1, &[5; BLOCK]), DONE);
    let behind = host.command(transfer(opcode::READ, END - 1, 2), memory(0, 2 * BLOCK));
    assert_eq!(behind, Status::LBA_RANGE.dnr());
    // Dataset Management with the deallocate attribute, for the last block.
    host.host[..16].fill(0);
    host.host[4] = 1;
    host.host[8..16].copy_from_slice(&zerocopy::little_endian::U64::new(END - 1).to_bytes());
    let mut deallocation = command(opcode::DATASET_MANAGEMENT);
    deallocation.cdw11 = 4.into();
    assert_eq!(host.command(deallocation, memory(0, 16)), DONE);
    assert_eq!(host.blocks(END - 1, 1), [0]);
    host.assert_free();
}

/// Zeros for the whole disk take several commands of the SSD, which end as one.
#[test]
fn an_operation_of_several_commands_ends_once() {
    let bytes = 96 << 20;
    let served = served(Source::Memory(bytes));
    let mut host = Loop::new(served.source.clone());
    assert_eq!(host.write(65_535, &[7; 2 * BLOCK]), DONE);
    // Each reads the blocks in pieces, one after the other.
    let cids: Vec<u16> = (0..4)
        .map(|_| host.send(transfer(opcode::VERIFY, 0, 65_536), no_data()).0)
        .collect();
    for cid in cids {
        assert_eq!(host.answer(cid), DONE);
    }
    let zeroes = transfer(opcode::WRITE_ZEROES, 0, 65_536);
    assert_eq!(host.command(zeroes, no_data()), DONE);
    assert_eq!(host.blocks(65_535, 2), [0, 7]);
    host.assert_free();
}

#[test]
fn a_command_that_the_ssd_fails_is_refused_and_the_next_one_is_not() {
    let served = served(Source::Faulty(BYTES));
    let mut host = Loop::new(served.source.clone());
    served.ssd.with(|model, name| {
        let namespace = model.namespace(name, 1).expect("it is there");
        let faults = namespace.disk().faults().expect("a faulty disk");
        faults.order(Some(Orders {
            of: Of::Reads,
            error: Some(nix::errno::Errno::EIO),
            times: Some(1),
            ..Orders::default()
        }));
    });
    let read = transfer(opcode::READ, 0, 1);
    let failed = host.command(read, memory(0, BLOCK));
    assert_eq!(failed, Status::UNRECOVERED_READ.dnr());
    assert_eq!(host.command(read, memory(0, BLOCK)), DONE);
    host.assert_free();
}

/// The commands of an SSD that is pulled out fail, each once. It can be opened again once its namespace was removed.
#[test]
fn the_commands_of_an_ssd_that_is_pulled_out_fail() {
    let served = served(Source::Faulty(BYTES));
    let mut host = Loop::new(served.source.clone());
    assert_eq!(host.write(0, &[1; BLOCK]), DONE);
    served.ssd.with(|model, name| {
        let namespace = model.namespace(name, 1).expect("it is there");
        let faults = namespace.disk().faults().expect("a faulty disk");
        faults.order(Some(Orders {
            of: Of::Reads,
            delay: LONGEST_DELAY,
            ..Orders::default()
        }));
    });
    let cids: Vec<u16> = (0..4)
        .map(|at| host.send(transfer(opcode::READ, at, 1), memory(0, BLOCK)).0)
        .collect();
    host.run_once();
    served.ssd.remove();
    for cid in cids {
        assert_eq!(host.answer(cid), Status::UNRECOVERED_READ.dnr());
    }
    let write = host.command(transfer(opcode::WRITE, 0, 1), memory(0, BLOCK));
    assert_eq!(write, Status::WRITE_FAULT.dnr());
    host.assert_free();
    // An SSD that was pulled out cannot be opened again.
    host.remove_namespace();
    let again = Disk::open(served.source.clone(), 9, false);
    let refused = again.expect_err("it is gone").to_string();
    assert!(refused.contains("class code ffffff"), "{refused}");
}

/// An SSD that has ended is opened anew for a namespace that is added afterwards.
#[test]
fn an_ssd_that_has_ended_is_opened_again() {
    let served = served(Source::Faulty(BYTES));
    let mut host = Loop::new(served.source.clone());
    assert_eq!(host.write(0, &[7; BLOCK]), DONE);
    let Source::Ssd(address) = &served.source else {
        panic!("an SSD");
    };
    crate::disk::ssd::end(&address.function);
    let read = host.command(transfer(opcode::READ, 0, 1), memory(0, BLOCK));
    assert_eq!(read, Status::UNRECOVERED_READ.dnr());
    host.namespace().disk().give_up();
    host.remove_namespace();
    // The queue of the worker is dropped, and with it the function is closed.
    while host.commands.disks.has_ssds() {
        host.run_once();
    }
    host.add_namespace(served.source.clone());
    assert_eq!(host.blocks(0, 1), [7]);
}

/// With the earlier block size, a command of the host would move more bytes than its buffer has.
#[test]
fn a_namespace_that_was_formatted_with_other_blocks_fails_all_operations() {
    let served = served(Source::Memory(BYTES));
    let mut host = Loop::new(served.source.clone());
    assert_eq!(host.write(0, &[7; BLOCK]), DONE);
    served.ssd.with(|model, name| {
        model.remove_namespace(name, 1).expect("it is there");
        let namespace = NamespaceConfig {
            nsid: Some(1),
            uuid: Uuid::from_u128(7),
            group: 1,
            hosts: None,
            disk: Disk::open(Source::Memory(BYTES), 12, false).expect("a disk"),
        };
        assert_eq!(model.add_namespace(name, namespace), Ok(1));
    });
    let refused = host.namespace().reread_size().expect_err("other blocks");
    let refused = refused.to_string();
    assert!(
        refused.contains("namespace 1 has blocks of 4096 bytes now, and had 512"),
        "{refused}"
    );
    let read = host.command(transfer(opcode::READ, 0, 1), memory(0, BLOCK));
    assert_eq!(read, Status::UNRECOVERED_READ.dnr());
    let write = host.command(transfer(opcode::WRITE, 0, 1), memory(0, BLOCK));
    assert_eq!(write, Status::WRITE_FAULT.dnr());
}

/// As with files: a second disk on the same blocks is refused, unless both only read.
#[test]
fn a_namespace_of_an_ssd_has_one_disk_or_several_that_only_read() {
    let served = served(Source::Memory(BYTES));
    let open = |read_only| Disk::open(served.source.clone(), 9, read_only);
    let one = open(false).expect("the first");
    for read_only in [false, true] {
        let refused = open(read_only).expect_err("the second").to_string();
        assert!(
            refused.contains("is in use: another namespace"),
            "{refused}"
        );
    }
    one.give_up();
    let readers = [(); 2].map(|()| open(true).expect("a reader"));
    assert!(open(false).is_err());
    drop(readers);
    open(false).expect("the only one");
}
