//! The parts that a child runs, and their reports.
//!
//! A session opens two adapters, registers memory, connects, moves bytes by each kind of DTO, disconnects and closes.
//! It never panics: it returns every error. The test reads the lines that begin with `@`.
//!
//! On functions that another process serves, one of the two adapters lends memory of its own, which that process
//! accesses by messages.

// UNSAFETY: the session lends its own memory to an adapter.
#![expect(unsafe_code, reason = "memory of the session's own is lent")]

use std::fmt::Display;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

use nix::unistd::getppid;
use udapl::endpoint::EpAttr;
use udapl::memory::{LentMemory, LmrCreated, LmrTriplet, PzHandle, RmrTriplet};
use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind, DmaMemory, DtoCookie,
    DtoStatus, EpEvds, EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags, OpenOptions,
    PspFlags, Qos, Timeout, adapter,
};

use super::tracer::PART;
use super::{files, serve};

const CONN_QUAL: ConnQual = ConnQual::service_id(0x1_0000_0042);
const NONE: CompletionFlags = CompletionFlags::empty();
/// Time limit that is far longer than anything takes, even if virtual time falls behind the machine's because the
/// processor is busy.
const LONG: Timeout = Timeout::from_micros(120_000_000);
/// The same limit, as a number of waits of a millisecond.
const MOMENTS: u32 = 120_000;
/// Size of a message, in bytes.
const BYTES: usize = 3000;

/// Environment variable: directory of the sockets, for a child that needs some.
pub const DIRECTORY: &str = "DAT_TEST_SYSCALLS_DIRECTORY";

#[test]
fn played_by_a_child() {
    let Ok(part) = std::env::var(PART) else {
        return; // not a child
    };
    let directory = std::env::var(DIRECTORY).map(PathBuf::from);
    let directory = directory.expect("a directory");
    let names = match part.as_str() {
        "simulator" => ["sim:a,time=virtual", "sim:b,time=virtual"].map(str::to_owned),
        "wire" => [1, 2].map(|side| {
            let wire = directory.join("wire");
            let wire = wire.display();
            format!("sim:wired{side},mac=02:00:00:00:00:0{side},link=unix:{wire}")
        }),
        "client" => served(&directory),
        "server" => return serve::played(&directory, serve::Between::Link),
        "datagrams" => return serve::played(&directory, serve::Between::Datagrams),
        part if files::is_a_program(part) => return files::played(part, &directory),
        other => panic!("no part is called {other}"),
    };
    println!("\nready");
    heard();
    let _mark = getppid();
    let first = session(&names);
    let _mark = getppid();
    report("first", &first);
    println!("@kept {}", kept());
    report("second", &session(&names));
    println!("@kept {}", kept());
}

/// Returns the names of two functions that are served in a directory.
pub fn served(directory: &Path) -> [String; 2] {
    ["a", "b"].map(|side| format!("vfio-user:{}", directory.join(side).display()))
}

/// Reads the next line that the test writes.
pub(crate) fn heard() -> String {
    let mut line = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut line)
        .expect("a line");
    line
}

pub(crate) fn report(what: &str, outcome: &Result<(), String>) {
    let text = match outcome {
        Ok(()) => "ok".to_owned(),
        Err(error) => error.replace('\n', " "),
    };
    println!("@{what} {text}");
    std::io::stdout().flush().expect("a pipe");
}

/// Returns the number of open descriptors, and the total size of the mappings that the project makes: memory files,
/// rings, and reserved addresses.
pub(crate) fn kept() -> String {
    // The failed call may be one of these reads, which are not the project's. So they are repeated.
    let again = || (0..3).find_map(|_| count_of(Path::new("/proc/self/fd")).ok());
    let descriptors = again().expect("readable");
    let again = || (0..3).find_map(|_| std::fs::read_to_string("/proc/self/maps").ok());
    let maps = again().expect("readable");
    let mut bytes: u64 = 0;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (range, access) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let length = range.split_once('-').and_then(|(start, end)| {
            Some(u64::from_str_radix(end, 16).ok()? - u64::from_str_radix(start, 16).ok()?)
        });
        let is_ours = line.contains("memfd:driver") || line.contains("io_uring");
        // A smaller mapping without access is the guard page of a stack.
        let is_reserved = access == "---p" && line.contains(" 00:00 0") && length > Some(64 << 10);
        if is_ours || is_reserved {
            bytes += length.unwrap_or(0);
        }
    }
    format!("{descriptors} descriptors, {bytes} bytes")
}

/// Returns the number of entries of a directory.
///
/// # Errors
/// The directory cannot be read to its end. (An iterator over its entries yields the error as one more element.)
fn count_of(directory: &Path) -> std::io::Result<usize> {
    let mut count = 0;
    for entry in std::fs::read_dir(directory)? {
        entry?;
        count += 1;
    }
    Ok(count)
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// Adds the step of a session to its error.
trait About<T> {
    fn about(self, what: &str) -> Result<T, String>;
}

impl<T, E: Display> About<T> for Result<T, E> {
    fn about(self, what: &str) -> Result<T, String> {
        self.map_err(|error| format!("{what}: {error}"))
    }
}

enum Memory {
    Adapter(DmaMemory),
    /// `BYTES` bytes of the session's own memory, which are never freed.
    Own(*mut u8),
}

impl Memory {
    fn fill(&self, value: u8) {
        match self {
            Self::Adapter(memory) => memory.write_from(0, &[value; BYTES]).expect("inside"),
            Self::Own(at) => {
                for index in 0..BYTES {
                    // SAFETY: the index is inside the buffer.
                    unsafe { at.wrapping_add(index).write_volatile(value) };
                }
            }
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Adapter(memory) => memory.read(0, BYTES).expect("inside"),
            Self::Own(at) => (0..BYTES)
                // SAFETY: the index is inside the buffer; a device that writes meanwhile writes whole bytes.
                .map(|index| unsafe { at.wrapping_add(index).read_volatile() })
                .collect(),
        }
    }
}

struct Buffer {
    memory: Memory,
    lmr: LmrCreated,
}

impl Buffer {
    fn local(&self) -> LmrTriplet {
        LmrTriplet {
            lmr_context: self.lmr.lmr_context,
            virtual_address: self.lmr.registered_address,
            segment_length: BYTES as u64,
        }
    }

    fn remote(&self) -> RmrTriplet {
        RmrTriplet {
            rmr_context: self.lmr.rmr_context,
            target_address: self.lmr.registered_address,
            segment_length: BYTES as u64,
        }
    }

    fn expect(&self, value: u8) -> Result<(), String> {
        if self.memory.bytes() == [value; BYTES] {
            return Ok(());
        }
        Err(format!("WRONG BYTES instead of {value}"))
    }
}

struct Side {
    ia: Ia,
    pz: PzHandle,
    events: EvdHandle,
    ep: EpHandle,
}

impl Side {
    fn open(name: &str) -> Result<Self, String> {
        let mut ia = udapl::ia_open(name, &OpenOptions::default()).about("open")?;
        match Self::objects(&mut ia) {
            Ok((pz, events, ep)) => Ok(Self { ia, pz, events, ep }),
            Err(error) => {
                let last = ia.last_device_error().map(text);
                // The first error is reported; the result of the close is ignored.
                let _closed = udapl::ia_close(ia, CloseFlags::Abrupt);
                Err(format!("{error} {last:?}"))
            }
        }
    }

    fn objects(ia: &mut Ia) -> Result<(PzHandle, EvdHandle, EpHandle), String> {
        let pz = ia.pz_create().about("pz_create")?;
        let streams = EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::DTO;
        let events = ia.evd_create(64, streams).about("evd_create")?;
        let attr = EpAttr {
            max_rdma_read_in: 1,
            max_rdma_read_out: 1,
            ..EpAttr::defaults(ia.query().ia)
        };
        let ep = ia.ep_create(Some(pz), EpEvds::all(events), Some(&attr));
        Ok((pz, events, ep.about("ep_create")?))
    }

    fn buffer(&mut self, value: u8) -> Result<Buffer, String> {
        let memory = udapl::alloc(&self.ia, BYTES).about("alloc")?;
        self.registered(memory.clone(), Memory::Adapter(memory), value)
    }

    /// Registers a buffer in memory of the program, which the function borrows, instead of memory of the adapter.
    fn lent(&mut self, value: u8) -> Result<Buffer, String> {
        let at = vec![0; BYTES].leak().as_mut_ptr();
        let function = adapter::function(&self.ia);
        // SAFETY: the memory is never freed, and all accesses are volatile copies.
        let lent = unsafe { LentMemory::new(function, at, BYTES) };
        self.registered(DmaMemory::Lent(lent.about("lend")?), Memory::Own(at), value)
    }

    fn registered(
        &mut self,
        named: DmaMemory,
        memory: Memory,
        value: u8,
    ) -> Result<Buffer, String> {
        memory.fill(value);
        let lmr = self.ia.lmr_create(named, self.pz, MemPrivFlags::all());
        let lmr = lmr.about("lmr_create")?;
        Ok(Buffer { memory, lmr })
    }

    fn event(&mut self) -> Result<Event, String> {
        let (event, _left) = self.ia.evd_wait(self.events, LONG, 1).about("evd_wait")?;
        Ok(event)
    }

    fn completes(&mut self, cookie: u64) -> Result<(), String> {
        let event = self.event()?;
        if let Event::Dto(done) = &event
            && (done.cookie.0, done.status) == (cookie, DtoStatus::Success)
        {
            return Ok(());
        }
        Err(format!("the completion of {cookie}: {event:?}"))
    }

    /// Returns the next event. The other side makes progress meanwhile, and resends lost packets.
    fn event_beside(&mut self, other: &mut Self) -> Result<Event, String> {
        let moment = Timeout::from_micros(1_000);
        let mut last = String::new();
        for _ in 0..MOMENTS {
            other.ia.progress();
            match self.ia.evd_wait(self.events, moment, 1) {
                Ok((event, _left)) => return Ok(event),
                Err(error) => last = error.to_string(),
            }
            // If the function of either side is dead, neither side gets another event.
            for side in [&*self, &*other] {
                if let Some(cause) = adapter::dead_cause(&side.ia) {
                    return Err(format!("evd_wait: {last}; the device is dead: {cause}"));
                }
            }
        }
        Err(format!("evd_wait: {last}"))
    }

    fn happens(&mut self, other: &mut Self, kind: ConnectionEventKind) -> Result<(), String> {
        let event = self.event_beside(other)?;
        if let Event::Connection(event) = &event
            && event.kind == kind
        {
            return Ok(());
        }
        Err(format!("{kind:?}: {event:?}"))
    }

    fn close(self) -> Result<(), String> {
        let report = udapl::ia_close(self.ia, CloseFlags::Abrupt).about("close")?;
        match report.dead {
            None => Ok(()),
            Some(dead) => Err(format!("the close finds it dead: {dead}")),
        }
    }
}

/// Opens both adapters, moves bytes by each kind of DTO, and closes both adapters.
pub(crate) fn session(names: &[String; 2]) -> Result<(), String> {
    let mut a = Side::open(&names[0])?;
    let b = Side::open(&names[1]);
    let outcome = match b {
        Ok(mut b) => {
            let lends = names[0].starts_with("vfio-user:");
            let said = both(&mut a, &mut b, lends).map_err(|error| {
                let last = [&a, &b].map(|side| side.ia.last_device_error().map(text));
                format!("{error} {last:?}")
            });
            beside(said, b.close())
        }
        Err(error) => Err(error),
    };
    beside(outcome, a.close())
}

/// Returns both errors if both operations failed. If one side times out, the error of the other side's close has the
/// reason.
fn beside(one: Result<(), String>, other: Result<(), String>) -> Result<(), String> {
    match (one, other) {
        (Err(one), Err(other)) => Err(format!("{one}; {other}")),
        (one, other) => one.and(other),
    }
}

fn both(a: &mut Side, b: &mut Side, lends: bool) -> Result<(), String> {
    connect(a, b)?;
    let from = if lends { a.lent(1)? } else { a.buffer(1)? };
    let to = b.buffer(0)?;
    b.ia.ep_post_recv(b.ep, &[to.local()], DtoCookie(1), NONE)
        .about("recv")?;
    a.ia.ep_post_send(a.ep, &[from.local()], DtoCookie(2), NONE)
        .about("send")?;
    a.completes(2)?;
    b.completes(1)?;
    to.expect(1)?;

    from.memory.fill(2);
    let written =
        a.ia.ep_post_rdma_write(a.ep, &[from.local()], DtoCookie(3), &to.remote(), NONE);
    written.about("rdma_write")?;
    a.completes(3)?;
    to.expect(2)?;

    to.memory.fill(3);
    let read =
        a.ia.ep_post_rdma_read(a.ep, &[from.local()], DtoCookie(4), &to.remote(), NONE);
    read.about("rdma_read")?;
    a.completes(4)?;
    from.expect(3)?;

    let gone = a.ia.ep_disconnect(a.ep, CloseFlags::Abrupt);
    gone.about("disconnect")?;
    a.happens(b, ConnectionEventKind::Disconnected)?;
    b.happens(a, ConnectionEventKind::Disconnected)?;
    for (side, buffer) in [(a, from), (b, to)] {
        side.ia.lmr_free(buffer.lmr.lmr).map_err(text)?;
    }
    Ok(())
}

fn connect(a: &mut Side, b: &mut Side) -> Result<(), String> {
    let listens = b.ia.psp_create(CONN_QUAL, b.events, PspFlags::CONSUMER);
    listens.about("psp_create")?;
    let address = b.ia.query().ia.ia_address;
    let none = ConnectFlags::empty();
    let (ep, best) = (a.ep, Qos::BEST_EFFORT);
    let called =
        a.ia.ep_connect(ep, address, CONN_QUAL, LONG, b"hello", best, none);
    called.about("ep_connect")?;
    let event = b.event_beside(a)?;
    let Event::ConnectionRequest(request) = event else {
        return Err(format!("a connection request: {event:?}"));
    };
    b.ia.cr_accept(request.cr, Some(b.ep), b"")
        .about("cr_accept")?;
    a.happens(b, ConnectionEventKind::Established)?;
    b.happens(a, ConnectionEventKind::Established)
}
