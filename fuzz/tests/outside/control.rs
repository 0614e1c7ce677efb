//! A control socket and clients that send anything: lines of JSON close to a request, arbitrary bytes, and endless
//! lines, in pieces of any size. A refusal has a code, only a line that is too long ends a client, and the next
//! client is served. An honest client, connected from the beginning, gets an answer to each request while another
//! client has sent part of a line.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bolero::{TypeGenerator, check};
use control::rpc::{INVALID_PARAMS, Refusal};
use control::{Access, Client, Subject, Tell, serve};
use serde_json::{Value, json};

use super::{Effort, directory};

/// Most bytes of a request (docs/control.md).
const LONGEST: usize = 64 * 1024;
/// Number of requests that are always answered, even if the client reads nothing meanwhile: an answer to one of these
/// has less than 200 bytes, and 16 MiB may be unread.
const ALWAYS_ANSWERED: usize = 50_000;

/// Answers with the request. The socket exists as long as `Tell` does, which sends notices.
struct Echo(#[expect(dead_code, reason = "kept")] Tell);

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

/// A line, or a part of one.
#[derive(Clone, Debug, TypeGenerator)]
enum Piece {
    Bytes(Vec<u8>),
    Known(u8),
    End,
    /// A request with members of these kinds.
    Request(u8, u8, u8),
    /// This many kibibytes of one byte.
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

/// Sends all bytes, in pieces of this size, and then a good request; returns the answers.
fn said(path: &Path, bytes: &[u8], at_once: usize) -> String {
    let mut stream = UnixStream::connect(path).expect("it listens");
    let good = b"\n{\"jsonrpc\":\"2.0\",\"id\":\"last\",\"method\":\"x\"}\n";
    for piece in bytes.chunks(at_once).chain([good.as_slice()]) {
        // The rest of the writes fails once the server has disconnected the client.
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
    let effort = Effort::new("control socket");
    let honest = Mutex::new(Client::connect(&path).expect("it listens"));
    let answered = AtomicU64::new(0);
    check!()
        .with_type::<(Vec<Piece>, u16)>()
        .with_iterations(Effort::iterations(500))
        .for_each(|(pieces, at_once)| {
            effort.one();
            let bytes = text(pieces);
            let said = said(&path, &bytes, usize::from(*at_once).max(64));
            // A client that sends no more than the beginning of a line.
            let mut begun = UnixStream::connect(&path).expect("it listens");
            let first = bytes.split(|byte| *byte == b'\n').next();
            let first = first.unwrap_or_default();
            let _ = begun.write_all(&first[..first.len().min(1000)]);
            let params = json!({ "round": answered.fetch_add(1, Ordering::Relaxed) });
            let mut honest = honest.lock().unwrap_or_else(PoisonError::into_inner);
            let echoed: Value = honest.call("x", params.clone()).expect("an answer");
            assert_eq!(echoed["params"], params);
            // A client that leaves too many answers unread is disconnected, perhaps in the middle of one.
            let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
            let stays = lines <= ALWAYS_ANSWERED;
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
            let longest = bytes.split(|byte| *byte == b'\n').map(<[u8]>::len).max();
            if stays && longest.is_none_or(|longest| longest <= LONGEST) {
                let last = last.expect("the last request is answered");
                assert_eq!(last["id"], "last", "{said}");
                assert_eq!(last["result"]["method"], "x", "{said}");
            }
        });
    let answered = answered.load(Ordering::Relaxed);
    println!("{answered} requests of the honest client were answered");
    assert!(answered > 0);
}
