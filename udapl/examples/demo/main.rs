//! Moves a file over the wire with every kind of DTO, between two functions on one link. The functions are those of the
//! built-in simulator, or functions named with `--functions`, opened as by any program.
//!
//! The program reads a file from disk directly into registered memory, and moves its bytes across the wire once by each
//! of: Send/Recv, Recv through a shared receive queue fed by two connections, RDMA Write, RDMA Read. It compares every
//! copy with the source, writes one back to disk, and frees everything. It succeeds only if no resource is left.
//!
//! Side A is active: it has the file and sends. Side B listens. The first connection uses the link-local IPv6 address
//! and an IB service ID, the others an IPv4 address and an RDMA-CM port, so that the capture shows both. Between named
//! functions all connections use the link-local address, which contains the MAC and so needs no address resolution.
#![forbid(unsafe_code)]

mod kind;
mod setup;
mod table;
mod transfer;
mod world;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};
use udapl::DmaMemory;
use udapl::fabric::Fabric;
use udapl::reactor::{Clock, File, Reactor, RealClock};

use self::kind::Kind;
use self::setup::Job;
use self::table::{Row, print_bring_up, print_table};
use self::world::World;

/// Number of bytes sent if no file is named. The number is small, because the capture contains all bytes four times.
const DEFAULT_BYTES: usize = 4 << 20;

/// Moves a file over one link between two functions, with every kind of DTO.
#[derive(Parser)]
#[command(name = "demo")]
struct Arguments {
    /// The file whose bytes cross the wire [default: the first 4 MiB of the running executable].
    file: Option<PathBuf>,
    /// File for the capture of the wire.
    #[arg(long, default_value = "target/demo.pcapng")]
    pcap: PathBuf,
    /// Bytes per message; the last may be shorter.
    #[arg(long, default_value_t = 256 * 1024)]
    chunk: usize,
    /// Seed of the simulator.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Two functions on one link, such as 0000:3b:00.2,0000:3b:00.3; the second one listens [default: simulated ones].
    #[arg(long, value_delimiter = ',')]
    functions: Vec<String>,
}

impl Arguments {
    /// Creates the simulated functions with their capture, or returns the named ones.
    fn world(&self) -> Result<World> {
        match &self.functions[..] {
            [] => {}
            [a, b] => return Ok(World::Named([a.clone(), b.clone()])),
            other => bail!(
                "--functions: two with a comma between them, not {}",
                other.len()
            ),
        }
        let fabric = Fabric::pair(self.seed);
        let capture =
            std::fs::File::create(&self.pcap).with_context(|| self.pcap.display().to_string())?;
        fabric.sim.pcap(std::io::BufWriter::new(capture))?;
        Ok(World::Simulated(fabric))
    }
}

fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    run(&Arguments::parse())
}

/// Runs the job.
fn run(arguments: &Arguments) -> Result<()> {
    let (path, most) = match &arguments.file {
        Some(path) => (path.clone(), usize::MAX),
        None => (std::env::current_exe()?, DEFAULT_BYTES),
    };
    ensure!(
        (1..=1 << 30).contains(&arguments.chunk),
        "--chunk: 1 to 2^30 bytes, not {}",
        arguments.chunk
    );
    let bytes = usize::try_from(
        std::fs::metadata(&path)
            .with_context(|| path.display().to_string())?
            .len(),
    )?
    .min(most);
    ensure!(bytes > 0, "{} is empty: nothing to move", path.display());
    let began = Instant::now();
    println!(
        "{:.1} MB of {} in messages of {} bytes, by each kind of DTO",
        mega(bytes),
        path.display(),
        arguments.chunk
    );

    if let Some(folder) = arguments.pcap.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let world = arguments.world()?;
    let mut job = Job::open(&world, bytes)?;
    print_bring_up(&job);
    job.connect(&world)?;

    let mut reactor = Reactor::new(64)?;
    let source = job.source().clone();
    read_file(&mut reactor, &path, &source, bytes)?;
    let digest = sha256(&source, bytes)?;

    let progress = ProgressBar::new(4 * bytes as u64);
    progress.set_style(ProgressStyle::with_template(
        "{msg:16} {wide_bar} {bytes}/{total_bytes}",
    )?);
    let mut rows = Vec::new();
    for kind in Kind::ALL {
        progress.set_message(kind.name());
        let before = world.counters();
        let started = Instant::now();
        let (messages, completions) = job.transfer(kind, arguments.chunk, &progress)?;
        let took = started.elapsed();
        let after = world.counters();
        let counted = after.zip(before).map(|(after, before)| after.since(before));
        let verified = sha256(job.sink(kind), bytes)? == digest;
        rows.push(Row {
            kind,
            messages,
            bytes,
            counted,
            completions,
            took,
            verified,
        });
    }
    progress.finish_and_clear();
    print_table(&rows);

    let copy = write_back(&mut reactor, &arguments.pcap, job.sink(Kind::Read), bytes)?;
    let copied = Sha256::digest(std::fs::read(&copy)?) == digest;
    println!(
        "written back by io_uring from registered memory: {} ({})",
        copy.display(),
        yes_no(copied)
    );
    drop(source);

    println!("{}", job.close(&world)?);
    if let Some(fabric) = world.fabric() {
        fabric.sim.flush_pcap()?;
        println!("capture of the wire: {}", arguments.pcap.display());
    }
    println!("the whole job: {:.1} s", began.elapsed().as_secs_f64());
    let failed: Vec<&str> = rows
        .iter()
        .filter(|row| !row.verified)
        .map(|row| row.kind.name())
        .collect();
    if !failed.is_empty() || !copied {
        bail!(
            "bytes differ from the source: {failed:?}, copy on disk: {}",
            yes_no(copied)
        );
    }
    Ok(())
}

fn deadline() -> driver::Instant {
    RealClock::new().now() + Duration::from_secs(50)
}

/// Reads the first `bytes` bytes of a file into memory, in pieces of 1 MiB, all queued at once.
fn read_file(reactor: &mut Reactor, path: &Path, memory: &DmaMemory, bytes: usize) -> Result<()> {
    let file = File::open(path)?;
    for (offset, length) in pieces(bytes, 1 << 20) {
        let (buffer, at) = place(memory, offset)?;
        reactor.queue_read(&file, offset as u64, buffer, at, length)?;
    }
    finish(reactor, bytes)
}

fn write_back(
    reactor: &mut Reactor,
    beside: &Path,
    memory: &DmaMemory,
    bytes: usize,
) -> Result<PathBuf> {
    let path = beside.with_extension("copy");
    let file = File::open_with(
        std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true),
        &path,
    )?;
    for (offset, length) in pieces(bytes, 1 << 20) {
        let (buffer, at) = place(memory, offset)?;
        reactor.queue_write(&file, offset as u64, buffer, at, length)?;
    }
    finish(reactor, bytes)?;
    Ok(path)
}

fn finish(reactor: &mut Reactor, bytes: usize) -> Result<()> {
    let mut moved = 0;
    for completion in reactor.wait_all(deadline())? {
        moved += completion.result?;
    }
    ensure!(moved == bytes, "io_uring moved {moved} of {bytes} bytes");
    Ok(())
}

fn place(memory: &DmaMemory, offset: usize) -> Result<(&udapl::memory::DmaBuffer, usize)> {
    match memory {
        DmaMemory::Arena {
            buffer,
            offset: start,
            ..
        } => Ok((buffer, start + offset)),
        DmaMemory::Lent(_) => bail!("the demo's memory comes from the arena"),
    }
}

/// Splits `bytes` into pieces: the offset and length of each.
fn pieces(bytes: usize, piece: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..bytes)
        .step_by(piece)
        .map(move |offset| (offset, piece.min(bytes - offset)))
}

fn sha256(memory: &DmaMemory, bytes: usize) -> Result<sha2::digest::Output<Sha256>> {
    let mut hash = Sha256::new();
    for (offset, length) in pieces(bytes, 1 << 20) {
        hash.update(memory.read(offset, length)?);
    }
    Ok(hash.finalize())
}

fn mega(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

const fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "NO" }
}
