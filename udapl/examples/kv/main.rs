//! A key-value server on four cores behind one address, and its clients.
//!
//! ```text
//! cargo run --example kv                                  # two simulated functions on a wire
//! cargo run --example kv -- 0000:3b:00.2 0000:3b:00.3     # the clients' function and the server's
//!
//!   client: PUT, or GET by message      client: GET by RDMA Read
//!        |  Send                             |
//!        v                                   v
//!   +-- instance 1 --+ +-- instance 2 --+ +-- instance 3 --+ +-- instance 4 --+   threads of the server, each with an SRQ
//!        |                     |        .         |                  |
//!        v                     v        .         v                  v
//!   +------------------------------ values ------------------------------------+   memory of the function, registered by all
//! ```
//!
//! All instances listen at one connection qualifier. Each new connection goes to the instance with the fewest
//! connections. Request buffers come from a shared receive queue, so that their number depends on the concurrent
//! requests, not on the connected clients. Each client gets the address of the values and reads them by RDMA, without
//! work for the server. The server may write a value during such a read, so each value has a checksum, and a client
//! that reads half a value reads again.
#![forbid(unsafe_code)]

mod client;
mod server;
mod values;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};
use comfy_table::Table;
use udapl::adapter::IaConfig;
use udapl::{Adapter, ConnQual, Ia, OpenOptions, ia_open};

use client::Asked;
use server::{Served, Server};
use values::Values;

/// Connection qualifier of the server.
const SERVICE: ConnQual = ConnQual::service_id(0x1_0000_000b);
/// Number of instances of the server's adapter.
const INSTANCES: usize = 4;
/// Number of instances of the clients' adapter, and of connections of each.
const THREADS: usize = 4;
const CLIENTS: usize = 4;
/// Number of requests of each connection.
const REQUESTS: u64 = 200;

/// Counters of all threads.
struct Report {
    served: Vec<Served>,
    asked: Asked,
}

/// Opens an adapter with this many instances.
fn instances(name: &str, count: usize) -> Result<Vec<Ia>> {
    let mut all = vec![ia_open(name, &OpenOptions::default())?];
    let adapter = Adapter::of(&all[0]);
    while all.len() < count {
        all.push(adapter.instance(IaConfig::default())?);
    }
    Ok(all)
}

fn run(names: &[String; 2]) -> Result<Report> {
    let clients = instances(&names[0], THREADS).context("the clients' adapter")?;
    let servers = instances(&names[1], INSTANCES).context("the server's adapter")?;
    let address = servers[0].query().ia.ia_address;
    let values = Values::new(&servers[0])?;
    let servers = servers.into_iter().map(|ia| Server::new(ia, &values));
    let servers = servers.collect::<Result<Vec<_>>>()?;
    let over = AtomicBool::new(false);
    let over = &over;
    thread::scope(|scope| {
        let servers: Vec<_> = servers
            .into_iter()
            .map(|server| scope.spawn(move || server.serve(over)))
            .collect();
        let clients: Vec<_> = (0..)
            .zip(clients)
            .map(|(number, ia)| scope.spawn(move || client::use_values(ia, number, address)))
            .collect();
        let clients: Vec<_> = clients
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        over.store(true, Ordering::Release);
        let mut report = Report {
            served: Vec::new(),
            asked: Asked::default(),
        };
        for server in servers {
            let served = server.join().expect("a thread of the server");
            report.served.push(served.context("the server")?);
        }
        for client in clients {
            report
                .asked
                .add(&client.expect("a thread of clients").context("a client")?);
        }
        Ok(report)
    })
}

/// Runs the example between the functions of these names, or between two simulated ones.
fn between(names: &[String]) -> Result<Report> {
    let folder = tempfile::tempdir().context("a folder for the wire")?;
    match names {
        [] => {
            let wire = folder.path().join("wire");
            run(&[("clients", 1), ("server", 2)].map(|(name, end)| {
                let wire = wire.display();
                format!("sim:{name},mac=02:00:00:00:03:0{end},link=unix:{wire}")
            }))
        }
        [clients, server] => run(&[clients.clone(), server.clone()]),
        other => bail!(
            "{} names: none, or the clients' and the server's",
            other.len()
        ),
    }
}

fn main() -> Result<()> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let Report { served, asked } = between(&names)?;
    let mut table = Table::new();
    table.set_header(["instance", "connections", "PUT", "GET by message"]);
    for (number, served) in (1..).zip(&served) {
        let Served {
            connections,
            puts,
            gets,
        } = served;
        table.add_row([number, *connections, *puts, *gets]);
    }
    println!("{table}");
    println!(
        "{} values read directly, {} of them again because they were being written",
        asked.reads, asked.torn
    );
    Ok(())
}

#[test]
fn every_instance_serves_its_share_and_every_answer_is_right() {
    let Report { served, asked } = between(&[]).expect("it works");
    let has_worked = |one: &Served| one.connections > 0 && one.puts > 0 && one.gets > 0;
    assert!(served.iter().all(has_worked), "{served:?}");
    let sum = |of: fn(&Served) -> u64| served.iter().map(of).sum::<u64>();
    assert_eq!(sum(|one| one.connections), (THREADS * CLIENTS) as u64);
    assert_eq!(sum(|one| one.puts), asked.puts);
    assert_eq!(sum(|one| one.gets), asked.gets);
    let all = (THREADS * CLIENTS) as u64 * REQUESTS;
    assert_eq!(asked.puts + asked.gets + asked.reads - asked.torn, all);
}
