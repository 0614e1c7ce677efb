//! Tokio tasks over RDMA: a server with one task for each client, and clients that give up if an answer does not come
//! in time.
//!
//! ```text
//! cargo run --example tokio                               # two simulated functions on a wire
//! cargo run --example tokio -- 0000:3b:00.2 0000:3b:00.3
//! ```
//!
//! The adapter's driver (`drive`) runs beside the tasks that use the adapter. The driver polls events, wakes the tasks,
//! and sleeps on the adapter's descriptor, which tokio polls with all others. Everything here runs in one thread,
//! because a driver, its handles and their endpoints must stay in one thread. A program with several threads has a
//! single-threaded runtime and an instance (`udapl::Adapter`) in each of them. This example needs the feature `tokio`
//! of crate `udapl`.
#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;
use udapl::connection::EndCause;
use udapl::future::{Buffer, Driver, Endpoint, Error, Handle, Pool, Request, drive};
use udapl::{CloseFlags, ConnQual, MemPrivFlags, OpenOptions, ia_open};

const SERVICE: ConnQual = ConnQual::service_id(0x1_0000_000a);
const PATIENCE: Duration = Duration::from_secs(60);
const CLIENTS: usize = 4;
/// Number of buffers of a pool: more than all clients use at once.
const BUFFERS: u32 = 16;
const QUESTIONS: usize = 100;
/// Question that the server does not answer.
const UNANSWERED: &[u8] = b"why?";

fn open(name: &str) -> Result<Driver> {
    let ia = ia_open(name, &OpenOptions::default())?;
    Driver::new(ia, 256).map_err(|refused| refused.error.into())
}

fn pool(handle: &Handle) -> Result<Pool> {
    let rights = MemPrivFlags::LOCAL_READ | MemPrivFlags::LOCAL_WRITE;
    Ok(handle.pool(BUFFERS, 64, rights)?)
}

/// Starts a task for each client.
async fn serve(handle: Handle) -> Result<()> {
    let pool = pool(&handle)?;
    let listener = handle.listen(SERVICE)?;
    loop {
        let request = listener.next().await?;
        spawn_local(talk(handle.clone(), pool.clone(), request));
    }
}

/// Answers one client until it disconnects.
async fn talk(handle: Handle, pool: Pool, request: Request) -> Result<()> {
    let endpoint = handle.endpoint()?;
    let mut question = endpoint.recv(buffer(&pool)?);
    request.accept(&endpoint, b"").await?;
    loop {
        let (came, mut text) = question.await;
        match came {
            Ok(_bytes) => {}
            Err(Error::Ended(EndCause::PeerDisconnected)) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        question = endpoint.recv(buffer(&pool)?);
        let said = text.to_vec();
        if said != UNANSWERED {
            text.fill(&said.to_ascii_uppercase())?;
            endpoint.send(text).await.0?;
        }
    }
}

fn buffer(pool: &Pool) -> Result<Buffer> {
    pool.take().context("more buffers in use than there are")
}

/// Asks a question. `None`: no answer came in time.
async fn ask(endpoint: &Endpoint, pool: &Pool, text: &[u8]) -> Result<Option<Vec<u8>>> {
    let answer = endpoint.recv(buffer(pool)?);
    let mut question = buffer(pool)?;
    question.fill(text)?;
    endpoint.send(question).await.0?;
    let limit = Duration::from_millis(if text == UNANSWERED { 20 } else { 10_000 });
    // A receive whose future is dropped stays posted, and keeps its buffer out of the pool.
    let Ok((came, answer)) = timeout(limit, answer).await else {
        return Ok(None);
    };
    came?;
    Ok(Some(answer.to_vec()))
}

/// Sends many questions, and one that the server does not answer. Returns the number of correct answers.
async fn client(handle: Handle, server: IpAddr, number: usize) -> Result<usize> {
    let pool = pool(&handle)?;
    let all = pool.available();
    let endpoint = handle.endpoint()?;
    endpoint.connect(server, SERVICE, PATIENCE, b"").await?;
    let mut right = 0;
    for question in 0..QUESTIONS {
        let text = format!("client {number} asks {question}");
        let answer = ask(&endpoint, &pool, text.as_bytes()).await?;
        right += usize::from(answer == Some(text.to_ascii_uppercase().into_bytes()));
    }
    ensure!(ask(&endpoint, &pool, UNANSWERED).await?.is_none(), "why?");
    ensure!(pool.available() == all - 1, "the card may still write it");
    endpoint.disconnect(CloseFlags::Graceful).await?;
    drop(endpoint);
    ensure!(pool.available() == all, "a buffer is missing");
    Ok(right)
}

/// Runs all clients. Returns the number of correct answers.
async fn clients(handle: Handle, server: IpAddr) -> Result<usize> {
    let tasks = (0..CLIENTS).map(|number| spawn_local(client(handle.clone(), server, number)));
    let mut right = 0;
    for task in tasks.collect::<Vec<_>>() {
        right += task.await??;
    }
    Ok(right)
}

async fn both(names: &[String; 2]) -> Result<usize> {
    let (mut client, mut server) = (open(&names[0])?, open(&names[1])?);
    let (asks, answers) = (client.handle(), server.handle());
    let address = answers.address()?;
    let result = tokio::select! {
        error = drive(&mut client) => Err(error).context("the client's adapter"),
        error = drive(&mut server) => Err(error).context("the server's adapter"),
        ended = serve(answers) => ended.map(|()| 0).context("the server"),
        right = clients(asks, address) => right.context("the clients"),
    };
    // Closing the driver ends the futures that are still pending.
    client.close()?;
    server.close()?;
    result
}

/// Runs the example between the functions of these names, or between two simulated ones.
fn run(names: &[String]) -> Result<usize> {
    let folder = tempfile::tempdir().context("a folder for the wire")?;
    let wire = folder.path().join("wire");
    let names = match names {
        [] => [("client", 1), ("server", 2)].map(|(name, end)| {
            let wire = wire.display();
            format!("sim:{name},mac=02:00:00:00:02:0{end},link=unix:{wire}")
        }),
        [client, server] => [client.clone(), server.clone()],
        other => bail!(
            "{} names: none, or the client's and the server's",
            other.len()
        ),
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, both(&names))
}

fn main() -> Result<()> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let right = run(&names)?;
    println!("{right} questions of {CLIENTS} clients were answered, and {CLIENTS} were given up");
    Ok(())
}

#[test]
fn every_question_is_answered_but_those_that_are_given_up() {
    assert_eq!(run(&[]).expect("it works"), CLIENTS * QUESTIONS);
}
