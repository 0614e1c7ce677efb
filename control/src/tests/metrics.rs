//! Tests of the metrics server with honest and hostile scrapers. The test controls the clock.

use std::cell::Cell;
use std::convert::Infallible;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::metrics::{CLIENTS, PATIENCE, Scrapers};

const ASK: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
/// Limit on the server's loop iterations until an honest client has a short answer while `CLIENTS` hostile clients
/// connect at the same time. Each iteration accepts one client: 16 hostile clients, then the honest client. One more
/// iteration answers.
const ITERATIONS: usize = 20;
/// Limit on the server's loop iterations until a client that reads without delay has an answer of 8 MiB.
const LONG_ITERATIONS: usize = 200;

/// Function that runs one loop iteration of the server.
type RunOnce<'a> = &'a mut dyn FnMut();

/// Runs a test with a server whose metrics text is `bytes` long.
fn with_server(bytes: usize, test: impl FnOnce(&TcpListener, &Cell<Duration>, RunOnce<'_>)) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let now = Cell::new(Duration::ZERO);
    let text = || Ok::<_, Infallible>("x".repeat(bytes));
    let mut scrapers = Scrapers::new(&listener, text, || now.get());
    test(&listener, &now, &mut || {
        let Ok(()) = scrapers.run_once();
    });
}

fn connect(listener: &TcpListener) -> TcpStream {
    let stream = TcpStream::connect(listener.local_addr().expect("an address"));
    let stream = stream.expect("it listens");
    stream.set_nonblocking(true).expect("a socket");
    stream
}

/// Reads the available bytes. Returns whether the stream has ended or failed.
fn heard(mut stream: &TcpStream, said: &mut Vec<u8>) -> bool {
    let mut some = [0; 4096];
    loop {
        match stream.read(&mut some) {
            Ok(0) => return true,
            Ok(read) => said.extend_from_slice(&some[..read]),
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// Sends a request, and reads the answer within at most `most` loop iterations of the server.
fn scrape(listener: &TcpListener, ask: &[u8], most: usize, run_once: RunOnce<'_>) -> String {
    let mut stream = connect(listener);
    stream.write_all(ask).expect("room for a head");
    let mut said = Vec::new();
    for iterations in 1..=most {
        run_once();
        if heard(&stream, &mut said) {
            println!("answered in {iterations} iterations");
            return String::from_utf8(said).expect("text");
        }
    }
    panic!("no answer in {most} iterations: {} bytes", said.len());
}

#[test]
fn metrics_are_answered_and_other_requests_are_pointed_to_them() {
    with_server(8 << 20, |listener, _, run_once| {
        let said = scrape(listener, ASK, LONG_ITERATIONS, run_once);
        assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{:.60}", said);
        assert!(said.contains("Content-Length: 8388608\r\n") && said.ends_with("xxx"));
        for (ask, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "400"),
            (b"\r\n\r\n", "400"),
            (&[b'x'; 8200], "400"),
        ] {
            let said = scrape(listener, ask, ITERATIONS, run_once);
            assert_eq!(said.split(' ').nth(1), Some(status), "{ask:?}");
        }
    });
}

/// An honest scraper is answered although `CLIENTS` slow clients send one byte of a head per second and reconnect
/// whenever they are disconnected.
#[test]
fn an_honest_scraper_is_answered_while_slow_ones_hold_all_places() {
    with_server(10, |listener, now, run_once| {
        let mut drips: Vec<TcpStream> = (0..CLIENTS).map(|_| connect(listener)).collect();
        for _ in 0..30 {
            now.set(now.get() + Duration::from_secs(1));
            for drip in &mut drips {
                if drip.write_all(b"G").is_err() || heard(drip, &mut Vec::new()) {
                    *drip = connect(listener);
                }
            }
            let said = scrape(listener, ASK, ITERATIONS, run_once);
            assert!(said.ends_with("\r\n\r\nxxxxxxxxxx"), "{said}");
        }
    });
}

#[test]
fn a_client_has_one_deadline_for_its_head_and_its_answer() {
    with_server(64 << 20, |listener, now, run_once| {
        let mut drips = connect(listener);
        // This client sends a request and reads nothing of the answer, which is too long for the system's buffers.
        let mut takes_nothing = connect(listener);
        takes_nothing.write_all(ASK).expect("room for a head");
        run_once();
        run_once();
        for _ in 1..PATIENCE.as_secs() {
            now.set(now.get() + Duration::from_secs(1));
            drips.write_all(b"G").expect("it is heard");
            run_once();
            assert!(!heard(&drips, &mut Vec::new()), "before its time");
        }
        now.set(PATIENCE);
        run_once();
        assert!(heard(&drips, &mut Vec::new()), "after its time");
        let mut said = Vec::new();
        assert!(heard(&takes_nothing, &mut said), "after its time");
        assert!(said.len() < 64 << 20, "cut off");
        // Both clients are removed completely, so the next client is served in time.
        let said = scrape(listener, b"GET / HTTP/1.1\r\n\r\n", ITERATIONS, run_once);
        assert!(said.starts_with("HTTP/1.1 404"), "{said}");
    });
}
