//! The shortest target: one subsystem, one namespace, and one worker for each processor.
//!
//! ```text
//! cargo run -p nvmeof --example target -- 0000:3b:00.2 /dev/nvme0n1     # WRITTEN TO by whoever connects
//! cargo run -p nvmeof --example target -- sim:target,link=unix:/tmp/wire,mac=02:00:00:00:0f:01 disk.img
//! ```
//!
//! It serves until its standard input ends. For real use take `nvmeofd`, which has a configuration file, a list of
//! hosts that may connect, and a control socket.
#![forbid(unsafe_code)]

use std::io::Read;
use std::net::SocketAddr;
use std::thread;

use anyhow::{Context, Result, bail};
use nvmeof::disk::{Disk, Source};
use nvmeof::model::{NamespaceConfig, QUEUES, SubsystemConfig};
use nvmeof::serve::{Target, Worker, WorkerConfig};
use udapl::adapter::IaConfig;
use udapl::{Adapter, OpenOptions, ia_open};
use uuid::Uuid;

const SUBSYSTEM: &str = "nqn.2026-11.example:disk";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [adapter, disk] = &arguments[..] else {
        bail!("an adapter and a disk, for example 0000:3b:00.2 /dev/nvme0n1");
    };
    let config = WorkerConfig::default();
    let mut instances = vec![ia_open(adapter, &OpenOptions::default())?];
    let opened = Adapter::of(&instances[0]);
    for _ in 1..thread::available_parallelism()?.get() {
        instances.push(opened.instance(IaConfig::default())?);
    }
    let all = instances[0].addresses();
    let all = all
        .iter()
        .map(|one| SocketAddr::new(one.address, config.service));
    let addresses: Vec<SocketAddr> = all.collect();
    println!("{SUBSYSTEM} at {addresses:?}");
    let target = Target::default();
    target.with(|model| -> Result<()> {
        model.add_port(config.port, addresses)?;
        let name = SUBSYSTEM.parse()?;
        model.add_subsystem(SubsystemConfig {
            name,
            serial: "1".to_owned(),
            model: "example".to_owned(),
            any_host: true,
            queues: QUEUES,
        })?;
        let namespace = NamespaceConfig {
            nsid: None,
            uuid: Uuid::from_u128(0x9c0b_2d8e_6c4f_4a52_9b1e_0d5f_7a3c_1e68),
            group: 1,
            hosts: None,
            disk: Disk::open(Source::File(disk.into()), 9, false)?,
        };
        model.add_namespace(&SUBSYSTEM.parse()?, namespace)?;
        Ok(())
    })?;
    let workers = instances.into_iter().map(|ia| {
        let worker = Worker::new(&target, ia, config)?;
        Ok(thread::spawn(move || worker.run()))
    });
    let workers = workers.collect::<Result<Vec<_>>>()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    target.stop();
    for worker in workers {
        let over = worker.join().expect("no panic").context("a worker")?;
        println!("{over:?}");
    }
    Ok(())
}
