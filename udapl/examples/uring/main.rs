//! Blocks of a file, served over RDMA by one thread with one io_uring: the pattern of an NVMe over Fabrics target.
//!
//! ```text
//! cargo run --example uring                                        # two simulated functions, a file in the temporary folder
//! cargo run --example uring -- 0000:3b:00.2 0000:3b:00.3 /dev/nvme0n1
//!                                                                  # the client's function, the target's, and its disk: WRITTEN TO
//!
//!   client                              target                          disk
//!     Send: write block 7, my buffer --->  RDMA Read of the buffer
//!                                          io_uring write --------------->
//!     <------------ Send: done
//!     Send: read block 7, my buffer ---->  io_uring read <----------------
//!     <- RDMA Write into the buffer
//!     <------------ Send: done
//! ```
//!
//! A block passes through registered memory of the target, and the program never copies it. The network card and the
//! disk both read and write that memory; the disk bypasses the page cache where the file allows it (O_DIRECT). The
//! target sleeps in its reactor, on disk transfers and on the adapter's descriptor at once.
#![forbid(unsafe_code)]

mod client;
mod target;
mod wire;

use std::path::Path;
use std::thread;

use anyhow::{Context, Result, bail};
use client::Client;
use target::Target;

/// Size of a block in bytes, and the number of commands in flight.
const BLOCK: usize = 4096;
const DEPTH: usize = 8;
/// Number of blocks written and read back.
const BLOCKS: u64 = 256;

/// Results of the run.
#[derive(Debug)]
struct Report {
    /// Number of blocks read back unchanged.
    blocks: u64,
    /// Number of transfers between the disk and registered memory.
    transfers: u64,
    /// Number of times that the target slept.
    sleeps: u64,
    /// True if the disk was accessed with O_DIRECT.
    direct: bool,
}

/// Runs a target with a disk in a thread, and a client in this thread.
fn serve_and_use(names: &[String; 2], disk: &Path) -> Result<Report> {
    let mut client = Client::open(&names[0]).context("the client's adapter")?;
    let target = Target::open(&names[1], disk).context("the target")?;
    let address = target.address();
    thread::scope(|scope| {
        let target = scope.spawn(move || target.serve());
        let used = client.use_blocks(address);
        let served = target.join().expect("the target's thread");
        let (transfers, sleeps, direct) = served.context("the target")?;
        Ok(Report {
            blocks: used?,
            transfers,
            sleeps,
            direct,
        })
    })
}

/// Runs the example between these functions and on this disk, or between simulated ones with a temporary file.
fn run(arguments: &[String]) -> Result<Report> {
    let folder = tempfile::tempdir().context("a folder for the wire")?;
    match arguments {
        [] => {
            let wire = folder.path().join("wire");
            let names = [("client", 1), ("target", 2)].map(|(name, end)| {
                let wire = wire.display();
                format!("sim:{name},mac=02:00:00:00:01:0{end},link=unix:{wire}")
            });
            let disk = tempfile::NamedTempFile::new()?;
            disk.as_file().set_len(BLOCKS * BLOCK as u64)?;
            serve_and_use(&names, disk.path())
        }
        [client, target, disk] => serve_and_use(
            &[client.clone(), target.clone()],
            std::path::Path::new(disk),
        ),
        other => bail!(
            "{} arguments: none, or two adapters and a disk",
            other.len()
        ),
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let report = run(&arguments)?;
    println!(
        "{} blocks written and read back; {} disk transfers{}; the target slept {} times",
        report.blocks,
        report.transfers,
        if report.direct { " (O_DIRECT)" } else { "" },
        report.sleeps,
    );
    Ok(())
}

#[test]
fn every_block_comes_back_from_the_disk() {
    let report = run(&[]).expect("it works");
    assert_eq!((report.blocks, report.transfers), (BLOCKS, 2 * BLOCKS));
    assert!(report.sleeps > 0, "the target never slept");
}
