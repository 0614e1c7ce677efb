//! A control socket and clients that send anything: lines of JSON that are close to a request, arbitrary bytes, and
//! lines that are too long, in pieces of any size. Each refusal has an error code. The server disconnects a client only
//! after a line that is too long or too many unread answers, and then serves the next client. An honest client that is
//! connected from the beginning gets an answer to each request, even while another client has sent only a part of a
//! line.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bolero::{TypeGenerator, check};
use control::rpc::{INVALID_PARAMS, Refusal};
use control::{Access, Client, Notifier, Subject, serve};
use serde_json::{Value, json};

use super::{ExecutionCount, directory};

/// Largest request in bytes (docs/control.md).
const LONGEST: usize = 64 * 1024;
/// Number of requests that are always answered, even if the client does not read meanwhile. An answer to one of these
/// requests has less than 200 bytes, and the server buffers up to 16 MiB.
const ALWAYS_ANSWERED: usize = 50_000;

/// A subject that answers with the request. It keeps its `Notifier`, because the server stops when the last `Notifier`
/// is dropped.
struct Echo(#[expect(dead_code, reason = "kept")] Notifier);

impl Subject for Echo {
    fn call(&mut self, method: &str, params: &Value) -> Result<Value, Refusal> {
        if method == "refuse" {
            return Err(Refusal::new(INVALID_PARAMS, "as asked"));
        }
        Ok(json!({ "method": method, "params": params }))
    }

    fn notices(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn measure(&mut self, _on: bool) -> bool {
        true
    }
}

/// A line or a part of a line that a client sends.
#[derive(Clone, Debug, TypeGenerator)]
enum Piece {
    Bytes(Vec<u8>),
    Known(u8),
    End,
    /// A request whose members are of these kinds.
    Request(u8, u8, u8),
    /// Some kibibytes of one byte: number and byte.
    Long(u8, u8),
}

const KNOWN: [&str; 14] = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"jsonrpc\"",
    "\"2.0\"",
    "\"id\"",
    "\"method\"",
    "\"params\"",
    "null",
    "1e999",
    "\"\\ud800\"",
];
const IDS: [&str; 6] = ["1", "\"a\"", "null", "[1]", "{}", "1.5"];
const METHODS: [&str; 8] = [
    "\"subscribe\"",
    "\"unsubscribe\"",
    "\"measure\"",
    "\"unmeasure\"",
    "\"refuse\"",
    "\"x\"",
    "7",
    "null",
];
const PARAMS: [&str; 5] = ["{}", "{\"objects\": 1}", "[1]", "null", "\"x\""];

fn one<'a>(of: &[&'a str], which: u8) -> &'a str {
    of[usize::from(which) % of.len()]
}

fn text(pieces: &[Piece]) -> Vec<u8> {
    let bytes = |piece: &Piece| match piece {
        Piece::Bytes(bytes) => bytes.clone(),
        Piece::Known(which) => one(&KNOWN, *which).into(),
        Piece::End => b"\n".to_vec(),
        Piece::Request(id, method, params) => format!(
            "{{\"jsonrpc\": \"2.0\", \"id\": {}, \"method\": {}, \"params\": {}}}\n",
            one(&IDS, *id),
            one(&METHODS, *method),
            one(&PARAMS, *params)
        )
        .into(),
        Piece::Long(kibibytes, byte) => vec![*byte; usize::from(*kibibytes) * 1024],
    };
    pieces.iter().flat_map(bytes).collect()
}

/// Sends all bytes in pieces of `at_once` bytes, then a valid request. Returns all answers.
fn said(path: &Path, bytes: &[u8], at_once: usize) -> String {
    let mut stream = UnixStream::connect(path).expect("it listens");
    let good = b"\n{\"jsonrpc\":\"2.0\",\"id\":\"last\",\"method\":\"x\"}\n";
    for piece in bytes.chunks(at_once).chain([good.as_slice()]) {
        // Once the server has disconnected the client, writes fail.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
    let mut answers = Vec::new();
    let _ = stream.read_to_end(&mut answers);
    String::from_utf8(answers).expect("JSON is text")
}

#[test]
fn any_bytes_are_requests_or_are_refused_with_a_code() {
    let directory = directory();
    let path = directory.path().join("control");
    let _service = serve(&path, Access::default(), Echo).expect("a socket");
    let effort = ExecutionCount::new("control socket");
    let honest = Mutex::new(Client::connect(&path).expect("it listens"));
    let answered = AtomicU64::new(0);
    check!()
        .with_type::<(Vec<Piece>, u16)>()
        .with_iterations(ExecutionCount::iterations(500))
        .for_each(|(pieces, at_once)| {
            effort.one();
            let bytes = text(pieces);
            let said = said(&path, &bytes, usize::from(*at_once).max(64));
            // This client sends only the beginning of a line.
            let mut begun = UnixStream::connect(&path).expect("it listens");
            let first = bytes.split(|byte| *byte == b'\n').next();
            let first = first.unwrap_or_default();
            let _ = begun.write_all(&first[..first.len().min(1000)]);
            let params = json!({ "round": answered.fetch_add(1, Ordering::Relaxed) });
            let mut honest = honest.lock().unwrap_or_else(PoisonError::into_inner);
            let echoed: Value = honest.call("x", params.clone()).expect("an answer");
            assert_eq!(echoed["params"], params);
            // The server disconnects a client that leaves too many answers unread, or whose line is too long, possibly
            // in the middle of an answer.
            let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
            let longest = bytes.split(|byte| *byte == b'\n').map(<[u8]>::len).max();
            let stays =
                lines <= ALWAYS_ANSWERED && longest.is_none_or(|longest| longest <= LONGEST);
            let mut last = None;
            for line in said.split_inclusive('\n') {
                if !stays && !line.ends_with('\n') {
                    break;
                }
                let answer: Value = serde_json::from_str(line).expect("an answer is JSON");
                assert_eq!(answer["jsonrpc"], "2.0", "{line}");
                let code = answer["error"]["code"].as_i64();
                let refused = code.is_some_and(|code| (-32_768..=-32_000).contains(&code));
                assert!(refused != answer.get("result").is_some(), "{line}");
                last = Some(answer);
            }
            if stays {
                let last = last.expect("the last request is answered");
                assert_eq!(last["id"], "last", "{said}");
                assert_eq!(last["result"]["method"], "x", "{said}");
            }
        });
    let answered = answered.load(Ordering::Relaxed);
    println!("{answered} requests of the honest client were answered");
    assert!(answered > 0);
}
