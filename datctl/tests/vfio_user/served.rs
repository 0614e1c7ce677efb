//! Servers, clients, and helpers for both.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use tempfile::TempDir;
use udapl::endpoint::EpAttr;
use udapl::memory::{LmrCreated, LmrTriplet, PzHandle, RmrTriplet};
use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind, DmaMemory, DtoStatus,
    EpEvds, EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags, OpenOptions, PspFlags, Qos,
    Timeout,
};

use crate::functions;

pub(crate) const CONN_QUAL: ConnQual = ConnQual::service_id(0x1_0000_0042);
pub(crate) const NONE: CompletionFlags = CompletionFlags::empty();
/// Time limit for a wait: far longer than any step takes, and short enough to end a stuck test. In microseconds.
pub(crate) const LONG: Timeout = Timeout::from_micros(300_000_000);

/// A child that is killed when the test ends.
pub(crate) struct Process {
    pub(crate) child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn datctl(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_datctl"));
        Self::start(command.args(arguments).stdout(Stdio::piped()))
    }

    /// Starts a command whose standard output is a pipe.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().expect("it runs");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, output }
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("its output");
        line.trim_end().to_owned()
    }

    pub(crate) fn kill(&mut self) {
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

/// Two functions on a link, served by another process.
pub(crate) struct Served {
    pub(crate) directory: TempDir,
    pub(crate) server: Process,
}

impl Served {
    pub(crate) fn new(options: &[&str]) -> Self {
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

    pub(crate) fn name(&self, side: &str) -> String {
        format!("vfio-user:{}", self.directory.path().join(side).display())
    }
}

/// Two functions on a link. Another process serves them, unless the environment names two functions in PCI slots.
pub(crate) struct Link {
    names: [String; 2],
    /// The server, if this process started one.
    served: Option<Served>,
}

impl Link {
    pub(crate) fn new() -> Self {
        if let Some(names) = functions::named() {
            return Self {
                names,
                served: None,
            };
        }
        let served = Served::new(&[]);
        Self {
            names: ["a", "b"].map(|side| served.name(side)),
            served: Some(served),
        }
    }

    /// Returns the process ID of the server, if the server is a child of this process.
    pub(crate) fn server(&self) -> Option<u32> {
        self.served.as_ref().map(|served| served.server.child.id())
    }

    pub(crate) fn name(&self, side: usize) -> &str {
        &self.names[side]
    }
}

/// Memory of an adapter, and its registration.
pub(crate) struct Buffer {
    pub(crate) memory: DmaMemory,
    lmr: LmrCreated,
    bytes: usize,
}

impl Buffer {
    pub(crate) fn local(&self) -> LmrTriplet {
        LmrTriplet {
            lmr_context: self.lmr.lmr_context,
            virtual_address: self.lmr.registered_address,
            segment_length: self.bytes as u64,
        }
    }

    pub(crate) fn remote(&self) -> RmrTriplet {
        RmrTriplet {
            rmr_context: self.lmr.rmr_context,
            target_address: self.lmr.registered_address,
            segment_length: self.bytes as u64,
        }
    }

    pub(crate) fn holds(&self, data: &[u8]) -> bool {
        self.memory.read(0, self.bytes).expect("inside") == data
    }
}

pub(crate) struct Side {
    pub(crate) ia: Ia,
    pub(crate) pz: PzHandle,
    pub(crate) events: EvdHandle,
    pub(crate) ep: EpHandle,
}

impl Side {
    pub(crate) fn open(name: &str) -> Self {
        let mut ia = udapl::ia_open(name, &OpenOptions::default()).expect("the adapter opens");
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
            .ep_create(Some(pz), EpEvds::all(events), Some(&attr))
            .expect("an endpoint");
        Self { ia, pz, events, ep }
    }

    pub(crate) fn buffer(&mut self, fill: Option<&[u8]>, bytes: usize) -> Buffer {
        let memory = udapl::alloc(&self.ia, bytes).expect("memory");
        if let Some(data) = fill {
            memory.write_from(0, data).expect("inside");
        }
        let lmr = self
            .ia
            .lmr_create(memory.clone(), self.pz, MemPrivFlags::all())
            .expect("an LMR");
        Buffer { memory, lmr, bytes }
    }

    pub(crate) fn event(&mut self) -> Event {
        self.ia
            .evd_wait(self.events, LONG, 1)
            .expect("an event in time")
            .0
    }

    pub(crate) fn completes(&mut self, cookie: u64) {
        let event = self.event();
        let Event::Dto(done) = event else {
            panic!("the completion of {cookie}, not {event:?}");
        };
        assert_eq!((done.cookie.0, done.status), (cookie, DtoStatus::Success));
    }

    pub(crate) fn established(&mut self) {
        let event = self.event();
        let Event::Connection(event) = event else {
            panic!("a connection, not {event:?}");
        };
        assert_eq!(event.kind, ConnectionEventKind::Established);
    }

    pub(crate) fn close(self) {
        let report = udapl::ia_close(self.ia, CloseFlags::Abrupt).expect("it closes");
        assert_eq!((report.pages_not_returned, report.dead), (0, None));
    }
}

pub(crate) fn connected(served: &Served) -> [Side; 2] {
    let [a, b] = ["a", "b"].map(|side| Side::open(&served.name(side)));
    connect(a, b)
}

/// Connects the first side to the second.
pub(crate) fn connect(mut a: Side, mut b: Side) -> [Side; 2] {
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
    let event = called(&mut a, &mut b);
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

/// Returns the called side's first event. The caller makes progress meanwhile, so that it resends a request that was
/// lost while the link trained.
fn called(caller: &mut Side, called: &mut Side) -> Event {
    let moment = Timeout::from_micros(1_000);
    for _ in 0..20_000 {
        caller.ia.progress();
        if let Ok((event, _)) = called.ia.evd_wait(called.events, moment, 1) {
            return event;
        }
    }
    panic!("an event in time");
}

/// Returns bytes in which adjacent bytes differ, and which differ from one packet to the next.
pub(crate) fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
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
