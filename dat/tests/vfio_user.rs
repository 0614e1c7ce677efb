//! The data path between processes: `datctl sim serve` plays two functions on one link, and this process, or another,
//! opens them by their sockets. No virtual machine, no privilege, no kernel module.
//!
//! Time is the machine's here. Waits have bounds, and nothing is asserted about how long something takes.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use dat::{
    CloseFlags, CompletionFlags, ConnectFlags, ConnectionEventKind, DmaMemory, DtoStatus, EpAttr,
    EpHandle, EvdFlags, EvdHandle, Event, Ia, LmrCreated, LmrTriplet, MemPrivFlags, OpenOptions,
    PspFlags, PzHandle, Qos, RmrTriplet, Timeout,
};
use tempfile::TempDir;

const CONN_QUAL: u64 = 0x1_0000_0042;
const NONE: CompletionFlags = CompletionFlags::empty();
/// Far longer than anything takes, short enough to end a stuck test.
const LONG: Timeout = Timeout::from_micros(20_000_000);

/// A child that is killed when the test ends.
struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn datctl(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_datctl"))
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("datctl runs");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("its output");
        line.trim_end().to_owned()
    }

    fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two functions on a link, in another process.
struct Served {
    directory: TempDir,
    server: Process,
}

impl Served {
    fn new(options: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let [a, b] = ["a", "b"].map(|side| directory.path().join(side).display().to_string());
        let mut arguments = ["sim", "serve", "--socket", &a, "--socket", &b].to_vec();
        arguments.extend_from_slice(options);
        let mut server = Process::datctl(&arguments);
        assert_eq!(
            [server.line(), server.line()],
            [format!("vfio-user:{a}"), format!("vfio-user:{b}")]
        );
        Self { directory, server }
    }

    fn name(&self, side: &str) -> String {
        format!("vfio-user:{}", self.directory.path().join(side).display())
    }
}

/// Registered memory.
struct Buffer {
    memory: DmaMemory,
    lmr: LmrCreated,
    bytes: usize,
}

impl Buffer {
    fn local(&self) -> LmrTriplet {
        LmrTriplet {
            lmr_context: self.lmr.lmr_context,
            virtual_address: self.lmr.registered_address,
            segment_length: self.bytes as u64,
        }
    }

    fn remote(&self) -> RmrTriplet {
        RmrTriplet {
            rmr_context: self.lmr.rmr_context,
            target_address: self.lmr.registered_address,
            segment_length: self.bytes as u64,
        }
    }

    fn holds(&self, data: &[u8]) -> bool {
        dat::read(&self.memory, 0, self.bytes) == data
    }
}

struct Side {
    ia: Ia,
    pz: PzHandle,
    events: EvdHandle,
    ep: EpHandle,
}

impl Side {
    fn open(name: &str) -> Self {
        let mut ia = dat::ia_open(name, &OpenOptions::default()).expect("the adapter opens");
        let pz = ia.pz_create().expect("a PZ");
        let events = ia
            .evd_create(64, EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::DTO)
            .expect("an EVD");
        let attr = EpAttr {
            max_rdma_read_in: 1,
            max_rdma_read_out: 1,
            ..EpAttr::defaults(ia.query().ia)
        };
        let ep = ia
            .ep_create(
                Some(pz),
                Some(events),
                Some(events),
                Some(events),
                Some(&attr),
            )
            .expect("an endpoint");
        Self { ia, pz, events, ep }
    }

    fn buffer(&mut self, fill: Option<&[u8]>, bytes: usize) -> Buffer {
        let memory = dat::alloc(&self.ia, bytes).expect("memory");
        if let Some(data) = fill {
            dat::write(&memory, 0, data);
        }
        let lmr = self
            .ia
            .lmr_create(memory.clone(), self.pz, MemPrivFlags::all())
            .expect("an LMR");
        Buffer { memory, lmr, bytes }
    }

    fn event(&mut self) -> Event {
        self.ia
            .evd_wait(self.events, LONG, 1)
            .expect("an event in time")
            .0
    }

    fn completes(&mut self, cookie: u64) {
        let event = self.event();
        let Event::Dto(done) = event else {
            panic!("the completion of {cookie}, not {event:?}");
        };
        assert_eq!((done.cookie, done.status), (cookie, DtoStatus::Success));
    }

    fn established(&mut self) {
        let event = self.event();
        let Event::Connection(event) = event else {
            panic!("a connection, not {event:?}");
        };
        assert_eq!(event.kind, ConnectionEventKind::Established);
    }

    fn close(self) {
        let report = dat::ia_close(self.ia, CloseFlags::Abrupt).expect("it closes");
        assert_eq!((report.pages_not_returned, report.dead), (0, None));
    }
}

fn connected(served: &Served) -> [Side; 2] {
    let [mut a, mut b] = ["a", "b"].map(|side| Side::open(&served.name(side)));
    b.ia.psp_create(CONN_QUAL, b.events, PspFlags::CONSUMER)
        .expect("a PSP");
    let address = b.ia.query().ia.ia_address;
    a.ia.ep_connect(
        a.ep,
        address,
        CONN_QUAL,
        LONG,
        b"hello",
        Qos::BEST_EFFORT,
        ConnectFlags::empty(),
    )
    .expect("a connect");
    let event = b.event();
    let Event::ConnectionRequest(request) = event else {
        panic!("a connection request, not {event:?}");
    };
    assert_eq!(
        b.ia.cr_query(request.cr).expect("the request").private_data,
        b"hello"
    );
    b.ia.cr_accept(request.cr, Some(b.ep), b"")
        .expect("an accept");
    a.established();
    b.established();
    [a, b]
}

/// Bytes that differ from their neighbours, packet after packet.
fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    (0..=250)
        .cycle()
        .zip(
            (0..=255)
                .flat_map(|row| std::iter::repeat_n(row, 251))
                .cycle(),
        )
        .map(|(at, row): (u8, u8)| at ^ row ^ seed)
        .take(bytes)
        .collect()
}

#[test]
fn all_four_kinds_of_dto_move_bytes_between_functions_of_another_process() {
    let served = Served::new(&[]);
    let [mut a, mut b] = connected(&served);
    let bytes = 50_000;
    let (sent, written, asked) = (pattern(1, bytes), pattern(2, bytes), pattern(3, bytes));

    let (from, to) = (a.buffer(Some(&sent), bytes), b.buffer(None, bytes));
    b.ia.ep_post_recv(b.ep, &[to.local()], 1, NONE)
        .expect("a receive");
    a.ia.ep_post_send(a.ep, &[from.local()], 2, NONE)
        .expect("a send");
    a.completes(2);
    b.completes(1);
    assert!(to.holds(&sent));

    dat::write(&from.memory, 0, &written);
    a.ia.ep_post_rdma_write(a.ep, &[from.local()], 3, &to.remote(), NONE)
        .expect("a write");
    a.completes(3);
    assert!(to.holds(&written));

    let (source, target) = (b.buffer(Some(&asked), bytes), a.buffer(None, bytes));
    a.ia.ep_post_rdma_read(a.ep, &[target.local()], 4, &source.remote(), NONE)
        .expect("a read");
    a.completes(4);
    assert!(target.holds(&asked));

    a.close();
    b.close();
}

#[test]
fn a_capture_of_what_two_processes_said_is_whole_while_the_server_still_runs() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("wire.pcapng");
    let mut served = Served::new(&["--pcap", &file.display().to_string(), "--seed", "7"]);
    let mut listener = Process::datctl(&["ping", &served.name("a"), "--listen"]);
    let address = listener
        .line()
        .strip_prefix("listening on ")
        .expect("an address")
        .to_owned();
    let mut pinger = Process::datctl(&[
        "ping",
        &served.name("b"),
        "--connect",
        &address,
        "--count",
        "5",
    ]);
    assert!(pinger.child.wait().expect("it ends").success());
    assert_eq!(listener.line(), "answered 5 messages");
    assert!(listener.child.wait().expect("it ends").success());
    // A quiet moment has passed when a function that was opened afterwards is up.
    Side::open(&served.name("a")).close();
    served.server.kill();
    let capture = std::fs::read(&file).expect("the capture");
    assert!(capture.len() > 10 * 64, "{} bytes", capture.len());
}

#[test]
fn a_client_that_is_killed_leaves_a_function_that_the_next_one_can_use() {
    let served = Served::new(&[]);
    for _ in 0..3 {
        let mut listener = Process::datctl(&["ping", &served.name("a"), "--listen"]);
        assert!(listener.line().starts_with("listening on fe80::"));
        listener.kill();
    }
    let [a, b] = connected(&served);
    a.close();
    b.close();
}

#[test]
fn a_server_that_is_killed_is_a_dead_device_and_not_a_dead_client() {
    let mut served = Served::new(&[]);
    let [mut a, _b] = connected(&served);
    served.server.kill();
    let memory = dat::alloc(&a.ia, 4096).expect("memory that is mapped already");
    let region = a.ia.lmr_create(memory, a.pz, MemPrivFlags::all());
    assert!(
        region.is_err(),
        "a region of a device that is gone: {region:?}"
    );
    // The teardown of a dead device says that it was one; nothing panics and nothing waits for ever.
    let report = dat::ia_close(a.ia, CloseFlags::Abrupt).expect("the adapter is gone");
    assert!(report.dead.is_some(), "{report:?}");
}

#[test]
fn a_socket_that_nobody_serves_is_an_error_with_its_path() {
    let error = dat::ia_open("vfio-user:/nonexistent/nic.sock", &OpenOptions::default())
        .expect_err("nobody is there")
        .to_string();
    assert!(
        error.contains("/nonexistent/nic.sock: connect: No such file"),
        "{error}"
    );
    assert!(matches!(
        dat::ia_open("vfio-user:", &OpenOptions::default()),
        Err(dat::OpenError::NotFound { .. })
    ));
}
