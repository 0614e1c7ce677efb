//! The path of a namespace's file changes while the target serves the file.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Result;
use nvmeof::disk::{Disk, Source};
use nvmeof::nvme::Status;
use nvmeof::nvme::command::io;
use nvmeof::nvme::sgl::Sgl;

use crate::host::{Host, Queue, transfer};
use crate::world::World;

const BYTES: u64 = 1 << 20;
const BLOCKS: u64 = BYTES >> 9;

/// Makes a file of this size, filled with one byte value.
fn made(path: &Path, bytes: u64, byte: u8) -> Result<File> {
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)?;
    file.set_len(bytes)?;
    file.write_all_at(&vec![byte; usize::try_from(bytes)?], 0)?;
    Ok(file)
}

fn first_byte(host: &mut Host, queue: &mut Queue, block: u64) -> Result<u8> {
    assert_eq!(host.read(queue, block, 1, 0, 512)?, Status::SUCCESS);
    Ok(host.memory.read(0, 1)?[0])
}

/// A change of a path: its name, its action, and the error that a later resize reports.
type Change = (&'static str, fn(&Path) -> Result<()>, &'static str);

const CHANGES: [Change; 5] = [
    (
        "another file of the same name",
        |path| {
            let other = path.with_extension("new");
            made(&other, 4 * BYTES, 0x99)?;
            Ok(fs::rename(other, path)?)
        },
        " is inode ",
    ),
    (
        "a link",
        |path| {
            let other = path.with_extension("other");
            made(&other, 4 * BYTES, 0x99)?;
            fs::remove_file(path)?;
            Ok(std::os::unix::fs::symlink(other, path)?)
        },
        " is inode ",
    ),
    (
        "nothing",
        |path| Ok(fs::remove_file(path)?),
        " is not to be found (No such file",
    ),
    (
        "a folder",
        |path| {
            fs::remove_file(path)?;
            Ok(fs::create_dir(path)?)
        },
        " is inode ",
    ),
    (
        "a link to nothing",
        |path| {
            fs::remove_file(path)?;
            Ok(std::os::unix::fs::symlink("/nowhere", path)?)
        },
        " is not to be found (No such file",
    ),
];

#[test]
fn a_namespace_keeps_the_file_that_it_opened_whatever_takes_its_path() -> Result<()> {
    for (what, change, refusal) in CHANGES {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("disk");
        let opened = made(&path, BYTES, 0x11)?;
        let mut world = World::new(2, Source::File(path.clone()), 9)?;
        let mut host = world.host()?;
        let subsystem = world.subsystem.clone();
        let (_admin, controller) = host.controller(&subsystem)?;
        let mut queues = vec![host.io_queue(&subsystem, controller, 1, 16)?];
        assert_eq!(first_byte(&mut host, &mut queues[0], 0)?, 0x11);
        change(&path)?;
        // New queues go to the worker that has the disk open already, and to the one that opens it only now.
        for number in 2..=5 {
            queues.push(host.io_queue(&subsystem, controller, number, 16)?);
        }
        for (queue, block) in queues.iter_mut().zip(10..) {
            assert_eq!(first_byte(&mut host, queue, 0)?, 0x11, "{what}");
            host.memory.write_from(0, &[0x22; 512])?;
            assert_eq!(host.write(queue, block, 1, 0, 512)?, Status::SUCCESS);
        }
        for queue in &mut queues {
            for block in 10..15 {
                assert_eq!(first_byte(&mut host, queue, block)?, 0x22, "{what}");
            }
            let past = host.write(queue, BLOCKS, 1, 0, 512)?;
            assert_eq!(past, Status::LBA_RANGE.dnr(), "{what}");
        }
        assert_eq!(opened.metadata()?.len(), BYTES, "{what}");
        // A resize takes the size from the open file, and fails if the path is another file.
        let said = world
            .target
            .resize_namespace(&subsystem, 1)
            .expect_err(what)
            .to_string();
        assert!(
            said.starts_with("namespace 1 of nqn.2026-11.test:disks: ")
                && said.contains(&format!("{}{refusal}", path.display()))
                && said.contains("; the namespace keeps inode "),
            "{what}: {said}"
        );
        let namespace = world.target.with(|model| model.namespace(&subsystem, 1))?;
        assert_eq!(namespace.blocks(), BLOCKS, "{what}");
        if let Ok(there) = File::open(&path)
            && there.metadata()?.is_file()
        {
            let mut bytes = vec![0; usize::try_from(4 * BYTES)?];
            there.read_exact_at(&mut bytes, 0)?;
            assert!(bytes.iter().all(|byte| *byte == 0x99), "{what}");
        }
        drop(host);
        world.stop()?;
    }
    Ok(())
}

#[test]
fn a_file_that_is_cut_ends_where_it_ends_and_a_namespace_keeps_at_least_a_block() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("disk");
    let file = made(&path, BYTES, 0x11)?;
    let mut world = World::new(1, Source::File(path.clone()), 9)?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let (_admin, controller) = host.controller(&subsystem)?;
    let mut queue = host.io_queue(&subsystem, controller, 1, 16)?;
    let past = Status::LBA_RANGE.dnr();
    let none = Sgl::keyed(0, 0, 0, false);
    for bytes in [BYTES / 2, 777, 0] {
        file.set_len(bytes)?;
        let last = bytes >> 9;
        assert_eq!(host.read(&mut queue, last, 1, 0, 512)?, past, "{bytes}");
        for first in [0, last] {
            let blocks = u32::try_from(BLOCKS - first)?;
            let verify = transfer(io::VERIFY, first, blocks);
            assert_eq!(host.status(&mut queue, verify, none)?, past, "{bytes}");
        }
        let resized = world.target.resize_namespace(&subsystem, 1);
        match (resized, last) {
            (Err(error), 0) => {
                let wanted = format!("{}: 0 bytes are less than a block of 512", path.display());
                assert!(error.to_string().contains(&wanted), "{error}");
            }
            (resized, _) => assert_eq!(resized?, last),
        }
        // The target would refuse a Verify beyond the new end at once, so each round restores the old end.
        file.set_len(BYTES)?;
        world.target.resize_namespace(&subsystem, 1)?;
    }
    assert_eq!(
        host.write(&mut queue, BLOCKS - 1, 1, 0, 512)?,
        Status::SUCCESS
    );
    drop(host);
    world.stop()?;
    Ok(())
}

/// A disk reports how many bytes of its file follow the last whole block and are unused. A memory disk has whole blocks
/// only.
#[test]
fn a_disk_says_how_many_bytes_behind_its_last_block_it_leaves_out() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("disk");
    let file = made(&path, 1_000_001, 0)?;
    for (shift, blocks, left) in [(9, 1953, 65), (12, 244, 577)] {
        let disk = Disk::open(Source::File(path.clone()), shift, false)?;
        assert_eq!((disk.blocks()?, disk.left_out()?), (blocks, left));
    }
    file.set_len(BYTES)?;
    let disk = Disk::open(Source::File(path), 12, true)?;
    assert_eq!(disk.left_out()?, 0);
    Ok(())
}
