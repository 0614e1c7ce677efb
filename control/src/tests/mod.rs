//! Tests of a control socket with honest and hostile clients.

mod metrics;

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::connection::{Connection, MAX_REQUEST_BYTES, MAX_UNREAD_BYTES};
use crate::rpc::{self, Refusal};
use crate::schema;
use crate::server::CLIENTS;
use crate::{Access, Client, ClientError, Notifier, Service, Subject, serve, serve_handed_in};

/// A subject that echoes requests and sends the notices that a test puts into it.
struct Echo {
    notices: Arc<Mutex<Vec<Value>>>,
    /// Arguments of all calls of `measure`.
    measured: Arc<Mutex<Vec<bool>>>,
}

impl Subject for Echo {
    fn call(&mut self, method: &str, params: &Value) -> Result<Value, Refusal> {
        match method {
            "echo" => Ok(params.clone()),
            "much" => {
                let bytes = params.get("bytes").and_then(Value::as_u64);
                let bytes = usize::try_from(bytes.unwrap_or(1 << 20)).expect("a size");
                Ok(Value::String("x".repeat(bytes)))
            }
            _ => Err(Refusal::unknown(method, &["echo", "much"])),
        }
    }

    fn notices(&mut self) -> Vec<Value> {
        core::mem::take(&mut *self.notices.lock().expect("nobody panics"))
    }

    fn measure(&mut self, on: bool) -> bool {
        self.measured.lock().expect("nobody panics").push(on);
        true
    }
}

struct World {
    service: Service,
    notices: Arc<Mutex<Vec<Value>>>,
    measured: Arc<Mutex<Vec<bool>>>,
    notifier: Notifier,
    _directory: tempfile::TempDir,
}

fn world() -> World {
    let directory = tempfile::tempdir().expect("a directory");
    let notices = Arc::new(Mutex::new(Vec::new()));
    let given = Arc::clone(&notices);
    let measured = Arc::<Mutex<Vec<bool>>>::default();
    let told = Arc::clone(&measured);
    let (sender, receiver) = std::sync::mpsc::channel();
    let service = serve(&directory.path().join("s"), Access::default(), |notifier| {
        sender.send(notifier).expect("it is waited for");
        Echo {
            notices: given,
            measured: told,
        }
    });
    World {
        service: service.expect("a socket"),
        notices,
        measured,
        notifier: receiver.recv().expect("it was made"),
        _directory: directory,
    }
}

/// Sends bytes to the control socket as a new client. Returns all answers until the server closes the connection.
fn answers(world: &World, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(world.service.path()).expect("it listens");
    // Writing fails if the server disconnects the client meanwhile; the error is ignored.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answers = Vec::new();
    let _ = stream.read_to_end(&mut answers);
    String::from_utf8(answers).expect("text")
}

#[test]
fn a_request_is_answered_under_its_name() {
    let world = world();
    let mut client = Client::connect(world.service.path()).expect("it listens");
    for number in 0..100 {
        let echoed: Value = client
            .call("echo", json!({ "number": number }))
            .expect("an answer");
        assert_eq!(echoed, json!({ "number": number }));
    }
    let refused = client.call::<Value>("nothing", Value::Null);
    let Err(ClientError::Refused(refusal)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(refusal.code, rpc::METHOD_NOT_FOUND);
    assert_eq!(
        refusal.message,
        "no method \"nothing\"; there are echo, much"
    );
}

/// An invalid request is refused with its error code, and the next request is answered (jsonrpc.org/specification,
/// section 5.1 and the examples of section 7).
#[test]
fn an_invalid_request_is_refused_with_its_code_and_the_next_one_is_answered() {
    let world = world();
    for (line, code) in [
        (
            "{\"jsonrpc\": \"2.0\", \"method\": \"foobar, \"params\": \"bar\", \"baz]",
            -32_700,
        ),
        ("", -32_700),
        ("[]", -32_600),
        ("[1]", -32_600),
        (
            "{\"jsonrpc\": \"2.0\", \"method\": 1, \"params\": {}}",
            -32_600,
        ),
        (
            "{\"jsonrpc\": \"1.0\", \"id\": 1, \"method\": \"echo\"}",
            -32_600,
        ),
        (
            "{\"jsonrpc\": \"2.0\", \"id\": [1], \"method\": \"echo\"}",
            -32_600,
        ),
        (
            "{\"jsonrpc\": \"2.0\", \"id\": \"1\", \"method\": \"foobar\"}",
            -32_601,
        ),
        (
            "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"echo\", \"params\": [1]}",
            -32_602,
        ),
    ] {
        let good = "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"echo\"}";
        let said = answers(&world, format!("{line}\n{good}\n").as_bytes());
        let lines: Vec<Value> = said
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert_eq!(lines.len(), 2, "{line}: {said}");
        assert_eq!(lines[0]["error"]["code"], code, "{line}");
        assert_eq!(lines[1]["id"], 7);
    }
}

/// The server answers all of 100 requests that one client sends at once, of which it handles at most 16 per loop
/// iteration. This also holds if the client has closed its sending side.
#[test]
fn every_request_of_many_at_once_is_answered_and_so_are_those_before_the_end() {
    let world = world();
    let ask = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\"}\n".repeat(100);
    assert_eq!(answers(&world, ask.as_bytes()).lines().count(), 100);
    let mut stream = UnixStream::connect(world.service.path()).expect("it listens");
    stream.write_all(ask.as_bytes()).expect("it reads");
    let patience = Some(Duration::from_secs(300));
    stream.set_read_timeout(patience).expect("a time");
    let lines = std::io::BufRead::lines(std::io::BufReader::new(stream));
    let told = lines.take(100).filter(Result::is_ok).count();
    assert_eq!(told, 100);
}

#[test]
fn a_request_without_a_name_is_not_answered() {
    let world = world();
    let silent = "{\"jsonrpc\":\"2.0\",\"method\":\"echo\"}\n";
    assert_eq!(answers(&world, silent.as_bytes()), "");
}

#[test]
fn a_request_longer_than_64_kib_ends_its_client_and_no_other() {
    let world = world();
    let mut other = Client::connect(world.service.path()).expect("it listens");
    let _: Value = other.call("echo", json!({})).expect("an answer");
    assert_eq!(answers(&world, &vec![b'x'; 4 * MAX_REQUEST_BYTES]), "");
    let _: Value = other.call("echo", json!({})).expect("an answer");
}

#[test]
fn a_client_that_reads_nothing_is_let_go() {
    let world = world();
    let mut stream = UnixStream::connect(world.service.path()).expect("it listens");
    let ask = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"much\"}\n";
    // The server permits 16 MiB of unread answers; the system buffers some more.
    let asked = (0..100).try_for_each(|_| stream.write_all(ask.as_bytes()));
    let mut all = Vec::new();
    let read = stream.read_to_end(&mut all);
    assert!(asked.is_err() || read.is_err() || all.len() < 100 << 20);
    let mut other = Client::connect(world.service.path()).expect("it listens");
    let _: Value = other.call("echo", json!({})).expect("an answer");
}

/// The limit on unread answers is 16 MiB, so an answer of 17 MiB could never be received.
#[test]
fn an_answer_that_is_too_long_is_refused_with_both_numbers() {
    let world = world();
    let (most, bytes) = (MAX_UNREAD_BYTES, 17 << 20);
    let ask = |id: u32, bytes: usize| {
        let line =
            json!({ "jsonrpc": "2.0", "id": id, "method": "much", "params": { "bytes": bytes } });
        format!("{line}\n")
    };
    let said = answers(&world, (ask(1, bytes) + &ask(2, 3)).as_bytes());
    let lines: Vec<rpc::Answer> = said
        .lines()
        .map(|line| serde_json::from_str(line).expect("an answer"))
        .collect();
    assert_eq!(lines.len(), 2, "{said}");
    let refusal = lines[0].error.as_ref().expect("a refusal");
    let whole = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"\"}\n".len() + bytes;
    assert_eq!((&lines[0].id, refusal.code), (&json!(1), rpc::FAILED));
    assert!(
        refusal.message.contains(&whole.to_string()) && refusal.message.contains(&most.to_string()),
        "{refusal}"
    );
    assert_eq!(lines[1].result, Some(json!("xxx")));
}

/// A signal of the program must neither run its handler on the socket's thread nor interrupt a system call there.
#[test]
fn the_sockets_thread_takes_no_signal() {
    let world = world();
    assert_eq!(answers(&world, b"\n").lines().count(), 1, "it has its name");
    // Other tests have threads of this name, which may end meanwhile.
    let tasks = std::fs::read_dir("/proc/self/task").expect("our threads");
    let blocked: Vec<u64> = tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok())
        .filter(|status| status.starts_with("Name:\tudapl-control\n"))
        .filter_map(|status| {
            let (_, mask) = status.split_once("\nSigBlk:\t")?;
            u64::from_str_radix(mask.lines().next()?, 16).ok()
        })
        .collect();
    assert!(!blocked.is_empty());
    for signal in [
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGALRM,
        Signal::SIGCHLD,
        Signal::SIGUSR1,
    ] {
        let bit = 1 << (signal as i32 - 1);
        assert!(blocked.iter().all(|mask| mask & bit != 0), "{signal}");
    }
    assert!(
        !SigSet::thread_get_mask()
            .expect("a mask")
            .contains(Signal::SIGINT)
    );
}

/// A subject whose notices report the processor time of the server's thread.
struct Times(Sender<Duration>);

impl Subject for Times {
    fn call(&mut self, method: &str, _: &Value) -> Result<Value, Refusal> {
        Err(Refusal::unknown(method, &[]))
    }

    fn notices(&mut self) -> Vec<Value> {
        let used = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock");
        self.0.send(used.into()).expect("it is waited for");
        Vec::new()
    }
}

/// The listener of this test is a socket whose other end is closed. poll(2) always reports it as readable, and
/// accept(2) always fails, as if the process had no descriptor left.
#[test]
fn a_client_that_cannot_be_accepted_does_not_keep_the_thread_busy() {
    let (end, other) = UnixStream::pair().expect("a pair of sockets");
    drop(other);
    let (times, time) = std::sync::mpsc::channel();
    let mut notifier = None;
    let service = serve_handed_in(
        UnixListener::from(OwnedFd::from(end)),
        "a socket of a test",
        Access::default(),
        |given| {
            notifier = Some(given);
            Times(times)
        },
    );
    let service = service.expect("a thread");
    let notifier = notifier.expect("it was made");
    let used = || {
        notifier.notify();
        time.recv_timeout(Duration::from_secs(300)).expect("lives")
    };
    let before = used();
    let _nothing = time.recv_timeout(Duration::from_millis(500));
    let busy = used() - before;
    assert!(busy < Duration::from_millis(100), "{busy:?} of 500 ms");
    drop(service);
}

/// Returns whether the server has disconnected a client. Discards other received bytes.
fn is_disconnected(mut stream: &UnixStream) -> bool {
    stream.set_nonblocking(true).expect("a socket");
    loop {
        match stream.read(&mut [0; 64]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn a_client_too_many_takes_the_place_of_the_one_that_has_asked_for_nothing_longest() {
    let world = world();
    let connect = || UnixStream::connect(world.service.path()).expect("it listens");
    let mut honest = Client::connect(world.service.path()).expect("it listens");
    let mut ask = || {
        let echoed: Result<Value, _> = honest.call("echo", json!({}));
        echoed.expect("whoever asks keeps his place");
    };
    ask();
    let silent: Vec<UnixStream> = (1..CLIENTS).map(|_| connect()).collect();
    // Each loop iteration accepts one client, and each answer takes one iteration. So by now all clients are connected,
    // and the honest one has sent requests since.
    (0..2 * CLIENTS).for_each(|_| ask());
    assert_eq!(answers(&world, b"\n").lines().count(), 1);
    ask();
    let gone: Vec<bool> = silent.iter().map(is_disconnected).collect();
    let first_alone: Vec<bool> = (1..CLIENTS).map(|number| number == 1).collect();
    assert_eq!(gone, first_alone);
}

/// An honest client is answered although `CLIENTS` slow clients send one byte of an unfinished request in each round
/// and reconnect whenever they are disconnected.
#[test]
fn an_honest_client_is_answered_while_slow_ones_hold_all_places() {
    let world = world();
    let connect = || UnixStream::connect(world.service.path()).expect("it listens");
    let mut drips: Vec<UnixStream> = (0..CLIENTS).map(|_| connect()).collect();
    let mut honest = Client::connect(world.service.path()).expect("it listens");
    for round in 0..200 {
        for drip in &mut drips {
            if drip.write_all(b"x").is_err() || is_disconnected(drip) {
                *drip = connect();
            }
        }
        let echoed: Result<Value, _> = honest.call("echo", json!({ "round": round }));
        assert_eq!(echoed.expect("an answer"), json!({ "round": round }));
        let mut newcomer = Client::connect(world.service.path()).expect("it listens");
        let echoed: Result<Value, _> = newcomer.call("echo", json!({}));
        echoed.expect("an answer for whoever comes now");
    }
}

#[test]
fn a_subscribed_client_gets_notices_and_others_get_none() {
    let world = world();
    let mut wants = Client::connect(world.service.path()).expect("it listens");
    let mut other = Client::connect(world.service.path()).expect("it listens");
    let _: bool = wants.call("subscribe", Value::Null).expect("an answer");
    let _: Value = other.call("echo", json!({})).expect("an answer");
    for number in 0..3 {
        world
            .notices
            .lock()
            .expect("nobody panics")
            .push(json!({ "number": number }));
        world.notifier.notify();
        let told: Option<Value> = wants.notice(Some(Duration::from_secs(300))).expect("lives");
        assert_eq!(told, Some(json!({ "number": number })));
    }
    let none: Option<Value> = other.notice(Some(Duration::from_millis(1))).expect("lives");
    assert_eq!(none, None);
}

/// When the server sends a notice to a client that has gone, it removes this client. The clients after it in the
/// server's list move to other places, and are still served. The lock keeps the server from sending the notice before
/// the client has gone.
#[test]
fn a_subscribed_client_that_is_gone_when_a_notice_comes_ends_alone() {
    for gone in 0..3 {
        let world = world();
        let mut clients: Vec<Client> = (0..3)
            .map(|_| {
                let mut client = Client::connect(world.service.path()).expect("it listens");
                let _: bool = client.call("subscribe", Value::Null).expect("an answer");
                client
            })
            .collect();
        let mut notices = world.notices.lock().expect("nobody panics");
        notices.push(json!({ "gone": gone }));
        world.notifier.notify();
        drop(clients.remove(gone));
        drop(notices);
        for client in &mut clients {
            let told: Option<Value> = client
                .notice(Some(Duration::from_secs(300)))
                .expect("lives");
            assert_eq!(told, Some(json!({ "gone": gone })));
            let echoed: Value = client.call("echo", json!({})).expect("an answer");
            assert_eq!(echoed, json!({}));
        }
    }
}

#[test]
fn a_notice_that_does_not_fit_is_counted_with_those_that_were_lost_before() {
    let (server, mut client) = UnixStream::pair().expect("a pair of sockets");
    let mut connection = Connection::new(server, 0, 0).expect("a socket");
    connection.lost = 3;
    connection.queue_notice(&json!({ "text": "x".repeat(MAX_UNREAD_BYTES) }));
    assert_eq!((connection.lost, connection.has_unread()), (4, false));
    connection.queue_notice(&json!({ "number": 7 }));
    assert_eq!(connection.lost, 0);
    connection.flush().expect("there is room");
    drop(connection);
    let mut line = String::new();
    client.read_to_string(&mut line).expect("the notice");
    let told: rpc::Notification = serde_json::from_str(&line).expect("one notice");
    assert_eq!(told.params, json!({ "number": 7, "lost": 4 }));
}

/// Returns a client that is connected to the test instead of a server, and the server's end of the connection.
fn client_of_a_test() -> (Client, UnixStream) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("s");
    let listener = UnixListener::bind(&path).expect("a socket");
    let client = Client::connect(&path).expect("it listens");
    let (server, _) = listener.accept().expect("a client waits");
    (client, server)
}

const NOTICE: &[u8] = b"{\"jsonrpc\":\"2.0\",\"method\":\"event\",\"params\":{\"number\":7}}\n";
const ANSWERS: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"late\"}\n\
    {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":\"in time\"}\n";

/// A call with a time limit of zero still takes one line that has arrived. If this line is a notice, the call keeps the
/// notice and fails.
#[test]
fn a_notice_gives_a_call_no_more_time_and_is_kept() {
    let (mut client, mut server) = client_of_a_test();
    client.patience = Duration::ZERO;
    server
        .write_all(&[NOTICE, ANSWERS].concat())
        .expect("there is room");
    let late = client.call::<String>("echo", Value::Null);
    let Err(ClientError::System { error, .. }) = late else {
        panic!("{late:?}");
    };
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    client.patience = Duration::from_secs(300);
    let answer: String = client.call("echo", Value::Null).expect("an answer");
    assert_eq!(answer, "in time");
    let told: Option<Value> = client.notice(Some(Duration::ZERO)).expect("lives");
    assert_eq!(told, Some(json!({ "number": 7 })));
}

/// A wait that ends within a line keeps the bytes that have arrived.
#[test]
fn a_line_that_arrives_in_parts_over_several_waits_is_read_whole() {
    let (mut client, mut server) = client_of_a_test();
    let (begin, end) = NOTICE.split_at(20);
    for part in [begin, end] {
        let none: Option<Value> = client.notice(Some(Duration::ZERO)).expect("lives");
        assert_eq!(none, None);
        server.write_all(part).expect("there is room");
    }
    let told: Option<Value> = client.notice(Some(Duration::ZERO)).expect("lives");
    assert_eq!(told, Some(json!({ "number": 7 })));
    client.patience = Duration::ZERO;
    let (begin, end) = ANSWERS.split_at(20);
    server.write_all(begin).expect("there is room");
    let late = client.call::<String>("echo", Value::Null);
    assert!(
        matches!(&late, Err(ClientError::System { error, .. }) if error.kind() == ErrorKind::TimedOut),
        "{late:?}"
    );
    server.write_all(end).expect("there is room");
    client.patience = Duration::from_secs(300);
    let answer: String = client.call("echo", Value::Null).expect("an answer");
    assert_eq!(answer, "in time");
    server
        .shutdown(std::net::Shutdown::Write)
        .expect("it is connected");
    let over = client.notice::<Value>(None);
    assert!(matches!(over, Err(ClientError::Over(_))), "{over:?}");
}

#[test]
fn it_is_measured_as_long_as_one_client_wants_it() {
    let world = world();
    let told = || world.measured.lock().expect("nobody panics").clone();
    let mut one = Client::connect(world.service.path()).expect("it listens");
    let mut other = Client::connect(world.service.path()).expect("it listens");
    for client in [&mut one, &mut other] {
        let _: bool = client.call("measure", Value::Null).expect("an answer");
    }
    let _: bool = one.call("unmeasure", Value::Null).expect("an answer");
    assert_eq!(told(), [true]);
    drop(other);
    // The server notices the end of the client in its next loop iteration.
    while told() != [true, false] {
        let _: Value = one.call("echo", json!({})).expect("an answer");
    }
}

/// A quantile is the end of the interval that contains it. The measurements are 90 in [8 us, 9 us), 9 in
/// [16 us, 18 us) and one in [1 ms, 1.1 ms).
#[test]
fn a_quantile_is_the_time_that_so_many_were_quicker_than() {
    let buckets = vec![(9_000, 90), (18_000, 9), (1_100_000, 1)];
    let taken = schema::Histogram {
        count: 100,
        sum: 2_000_000,
        buckets,
    };
    let of = |quantile| taken.quantile(quantile);
    assert_eq!(
        [of(500), of(900), of(990)],
        [Some(9_000), Some(9_000), Some(18_000)]
    );
    assert_eq!(of(999), Some(1_100_000));
    let before = schema::Histogram {
        count: 90,
        sum: 800_000,
        buckets: vec![(9_000, 90)],
    };
    let since = taken.since(&before);
    assert_eq!(
        (since.count, since.sum, since.quantile(500)),
        (10, 1_200_000, Some(18_000))
    );
    assert_eq!(taken.since(&taken).quantile(500), None);
}

#[test]
fn a_detached_service_serves_until_the_last_notifier_is_dropped() {
    let world = world();
    let path = world.service.path().to_owned();
    world.service.detach();
    for _ in 0..10 {
        let mut client = Client::connect(&path).expect("it listens");
        let _: Value = client.call("echo", json!({})).expect("an answer");
    }
    let mut waits = Client::connect(&path).expect("it listens");
    let _: bool = waits.call("subscribe", Value::Null).expect("an answer");
    drop(world.notifier);
    let over = waits.notice::<Value>(Some(Duration::from_secs(300)));
    assert!(matches!(over, Err(ClientError::Over(_))), "{over:?}");
}

#[test]
fn the_socket_is_its_owners_alone_and_goes_with_its_service() {
    let world = world();
    let path = world.service.path().to_owned();
    let mode = std::fs::metadata(&path)
        .expect("it is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let taken = serve(&path, Access::default(), |_| Echo {
        notices: Arc::default(),
        measured: Arc::default(),
    });
    assert!(
        taken.is_err(),
        "a socket that somebody has open is left alone"
    );
    drop(world.service);
    assert!(!path.exists());
}

/// Returns the example with this name from docs/control.md.
fn example(name: &str) -> Value {
    let page = include_str!("../../../docs/control.md");
    let (_, block) = page
        .split_once(&format!("```json {name}\n"))
        .expect("an example");
    let (json, _) = block.split_once("```").expect("its end");
    serde_json::from_str(json).expect("JSON")
}

/// Checks that an example parses as `T`, and that `T` has all fields of the example with the same values.
fn check<T: serde::de::DeserializeOwned + serde::Serialize>(name: &str) {
    let example = example(name);
    let read: T = serde_json::from_value(example.clone()).expect(name);
    let told = serde_json::to_value(&read).expect(name);
    assert_eq!(told, example, "{name}");
}

#[test]
fn the_examples_of_the_document_are_of_the_types() {
    check::<rpc::Request>("request");
    check::<schema::Version>("version");
    check::<schema::Resource>("resource");
    check::<schema::Stat>("stat");
    check::<schema::Recorder>("recorder");
    check::<schema::Event>("event");
    assert_eq!(example("version")["schema"], schema::SCHEMA);
}
