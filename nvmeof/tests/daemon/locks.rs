//! Only one daemon serves a file, and the daemon keeps the file that it has opened.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Result;
use nvmeof::nvme::Status;
use nvmeof::nvme::command::io;

use crate::host::{command, transfer};
use crate::process::{Place, run, subsystem};

/// Returns the surroundings of a second daemon with this namespace table, which uses another wire and control socket.
fn second(place: &Place, namespace: &str) -> Result<Place> {
    let second = Place::new()?;
    second.configure(
        &place
            .subsystem("")
            .replace("[[subsystem.namespace]]\n", namespace),
    )?;
    Ok(second)
}

#[test]
fn a_file_that_a_daemon_serves_is_refused_to_a_second_one_with_its_name_and_the_holder()
-> Result<()> {
    let place = Place::new()?;
    let process = place.start()?;
    let other = second(&place, "[[subsystem.namespace]]\n")?;
    let path = other.path("nvmeofd.toml");
    let path = path.to_str().expect("a text");
    let (content, said) = run(&[path])?;
    let disk = place.path("disk");
    assert!(
        !content
            && said.contains(&format!(
                "namespace 1 of nqn.2026-11.test:disks: {} is in use: ",
                disk.display()
            ))
            && said.contains("has it locked; key `lock = false` serves it all the same"),
        "{said}"
    );
    // On an overlay file system, /proc/locks names another device than the file's, so the process may not be found.
    let pid = format!("process {} (nvmeofd)", process.pid());
    assert!(
        said.contains(&pid) || said.contains("another program"),
        "{said}"
    );
    // A daemon without locks is not refused, and does not prevent others from using the file.
    let other = second(&place, "[[subsystem.namespace]]\nlock = false\n")?;
    other.start()?.end()?;
    // Daemons that open the file read-only can use it at once.
    process.end()?;
    place.configure(&place.subsystem("read_only = true\n"))?;
    let process = place.start()?;
    let other = second(&place, "[[subsystem.namespace]]\nread_only = true\n")?;
    other.start()?.end()?;
    let other = second(&place, "[[subsystem.namespace]]\n")?;
    let path = other.path("nvmeofd.toml");
    assert!(!run(&[path.to_str().expect("a text")])?.0, "it would write");
    process.end()
}

#[test]
fn two_namespaces_of_a_daemon_share_a_file_if_both_say_so() -> Result<()> {
    let place = Place::new()?;
    let twice = |lock: &str| {
        let disk = place.path("disk");
        let more = format!(
            "{lock}[[subsystem.namespace]]\nfile = \"{}\"\n{lock}",
            disk.display()
        );
        place.configure(&place.subsystem(&more))
    };
    twice("")?;
    let path = place.path("nvmeofd.toml");
    let (content, said) = run(&[path.to_str().expect("a text")])?;
    assert!(!content && said.contains("namespace 2 of"), "{said}");
    assert!(
        said.contains("another namespace of this process lies on it")
            || said.contains("another program has it locked"),
        "{said}"
    );
    twice("lock = false\n")?;
    place.start()?.end()
}

/// SIGHUP keeps the open file. With new settings for the same file, the lock moves to the new namespace. If another
/// file has taken the path, nothing changes.
#[test]
fn sighup_keeps_the_file_that_is_open_and_hands_its_lock_over() -> Result<()> {
    let place = Place::new()?;
    let process = place.start()?;
    let mut host = place.host()?;
    let (_admin, controller) = host.controller(&subsystem())?;
    let mut queue = host.io_queue(&subsystem(), controller, 1, 32)?;
    let read = |host: &mut crate::host::Host, queue: &mut _, bytes: u32| -> Result<Status> {
        let mut sqe = transfer(io::READ, 0, 1);
        sqe.sgl = host.data(0, bytes);
        Ok(host.command(queue, sqe)?.status())
    };
    let reload = |tables: &str| -> Result<()> {
        place.configure(tables)?;
        process.reload(&place)?;
        Ok(())
    };
    reload(&place.subsystem("block_size = 4096\n"))?;
    assert_eq!(read(&mut host, &mut queue, 4096)?, Status::SUCCESS);
    let other = second(&place, "[[subsystem.namespace]]\n")?;
    let path = other.path("nvmeofd.toml");
    assert!(
        !run(&[path.to_str().expect("a text")])?.0,
        "it is locked still"
    );
    // Another file takes the path; the daemon reloads with the same settings, and then with other ones.
    host.memory.write_from(0, &[0x11; 4096])?;
    assert_eq!(host.write(&mut queue, 0, 1, 0, 4096)?, Status::SUCCESS);
    let new = place.path("new");
    File::create(&new)?.set_len(1 << 20)?;
    fs::rename(&new, place.path("disk"))?;
    for tables in ["block_size = 4096\n", "block_size = 512\n"] {
        reload(&place.subsystem(tables))?;
        host.memory.write_from(0, &[0; 4096])?;
        assert_eq!(
            read(&mut host, &mut queue, 4096)?,
            Status::SUCCESS,
            "{tables}"
        );
        assert_eq!(host.memory.read(0, 1)?, [0x11], "{tables}");
    }
    let mut client = place.client()?;
    let params = serde_json::json!({ "subsystem": crate::process::SUBSYSTEM, "nsid": 1 });
    let said = client
        .call::<serde_json::Value>("namespace.resize", params)
        .expect_err("another file")
        .to_string();
    assert!(said.contains("; the namespace keeps inode "), "{said}");
    drop(host);
    process.end()
}

/// If the new file of a namespace is locked, by another program or by a namespace that stays, the namespace stays, with
/// its reservations. A file that another namespace of the same reload leaves is not locked.
#[test]
fn sighup_keeps_a_namespace_and_its_reservations_if_its_new_file_is_locked() -> Result<()> {
    let place = Place::new()?;
    let process = place.start()?;
    let (disk, second) = (place.path("disk"), place.path("second"));
    let file = File::create(&second)?;
    file.set_len(1 << 20)?;
    file.write_all_at(&[0x22; 512], 0)?;
    let mut host = place.host()?;
    let (_admin, controller) = host.controller(&subsystem())?;
    let mut a = host.io_queue(&subsystem(), controller, 1, 32)?;
    host.id = [0x22; 16];
    let (_admin, controller) = host.controller(&subsystem())?;
    let mut b = host.io_queue(&subsystem(), controller, 1, 32)?;
    // A registers its key, and acquires Exclusive Access (type 2).
    for (opcode, dword, keys) in [
        (io::RESERVATION_REGISTER, 0, [0, 1]),
        (io::RESERVATION_ACQUIRE, 2 << 8, [1, 0]),
    ] {
        let mut data = [0; 16];
        (data[0], data[8]) = (keys[0], keys[1]);
        host.memory.write_from(0, &data)?;
        let mut sqe = command(opcode);
        (sqe.nsid, sqe.cdw10) = (1.into(), dword.into());
        sqe.sgl = host.data(0, 16);
        assert_eq!(host.command(&mut a, sqe)?.status(), Status::SUCCESS);
    }
    let reload = |tables: &str| -> Result<()> {
        place.configure(tables)?;
        process.reload(&place)?;
        Ok(())
    };
    let conflict = Status::RESERVATION.dnr();
    assert_eq!(host.write(&mut b, 0, 1, 0, 512)?, conflict);
    file.lock()?;
    let moved = place.subsystem("").replace("/disk", "/second");
    reload(&moved)?;
    assert_eq!(host.write(&mut b, 0, 1, 0, 512)?, conflict, "it is there");
    file.unlock()?;
    let two = |first: &Path, next: &Path| {
        let next = format!("[[subsystem.namespace]]\nfile = \"{}\"\n", next.display());
        let first = first.display().to_string();
        let tables = place.subsystem(&next);
        tables.replacen(&disk.display().to_string(), &first, 1)
    };
    // Namespace 2 is to leave the file that namespace 1 is to get, and stays because its own new file is missing.
    for (first, next) in [(&disk, &second), (&second, &place.path("missing"))] {
        reload(&two(first, next))?;
        assert_eq!(host.write(&mut b, 0, 1, 0, 512)?, conflict, "as before");
    }
    for (first, next, content) in [(&second, &disk, 0x22), (&disk, &second, 0)] {
        reload(&two(first, next))?;
        assert_eq!(host.read(&mut b, 0, 1, 0, 512)?, Status::SUCCESS);
        assert_eq!(host.memory.read(0, 1)?, [content], "{}", first.display());
    }
    drop(host);
    process.end()
}

#[test]
fn a_size_that_is_no_multiple_of_the_block_is_told_or_refused() -> Result<()> {
    let place = Place::new()?;
    File::options()
        .write(true)
        .open(place.path("disk"))?
        .set_len(1_000_001)?;
    let path = place.path("nvmeofd.toml");
    let path = path.to_str().expect("a text");
    let wanted = format!(
        "namespace 1 of nqn.2026-11.test:disks: {} has 65 bytes behind its last block of 512, which no host reaches",
        place.path("disk").display()
    );
    let (content, said) = run(&["--check", path])?;
    let checked =
        "1000001 bytes are 1953 blocks of 512 bytes, and the last 65 bytes belong to none";
    assert!(content && said.contains(checked), "{said}");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_nvmeofd"));
    let log = place.path("log");
    command.arg(path).stderr(File::create(&log)?);
    place.start_by(command)?.end()?;
    let said = fs::read_to_string(&log)?;
    assert!(said.contains(&wanted), "{said}");
    let more = "[[subsystem.namespace]]\nmemory = \"1000\"\n[[subsystem.namespace]]\nnull = 4608\nblock_size = 4096\n";
    place.configure(&place.subsystem(more))?;
    let (content, said) = run(&["--check", path])?;
    assert!(!content, "{said}");
    for message in [
        "this is no multiple of the block, 512 bytes: 488 are over",
        "this is no multiple of the block, 4096 bytes: 512 are over",
    ] {
        assert!(said.contains(message), "{said}");
    }
    Ok(())
}
