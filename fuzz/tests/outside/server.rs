//! A vfio-user server and clients that send anything.
//!
//! Messages are well-formed for the most part, so that they pass the header check: each command with fields of any
//! value, unexpected descriptors, wrong sizes, and arbitrary bytes. The session ends when the client has sent all its
//! messages. An honest client connects during every hundredth session and is served after it, and in the end all
//! descriptors are closed.

use std::io::{IoSlice, Read};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use bolero::{TypeGenerator, check};
use driver::{Function, VfioUserServer};
use hw_sim::{Profile, Sim, SimConfig};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use tempfile::TempDir;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::{COUNTS, ExecutionCount, descriptors, directory, wait_for_descriptors};

/// Time limit of a session. A session that exceeds it hangs.
const PATIENCE: Duration = Duration::from_secs(300);
/// Number of command values that a client sends: those of the protocol and two invalid ones.
const COMMANDS: u16 = 15;

/// Starts a vfio-user server of a simulated function. Returns the path of its socket in this directory.
pub fn served(name: &'static str, directory: &TempDir) -> PathBuf {
    let path = directory.path().join(name);
    let sim = Sim::new(SimConfig {
        seed: 0,
        event_log: false,
    });
    let function = sim.add_function(Profile::named(name, [2, 0, 0, 0, 0, 1]));
    let (listener, taken) = driver::listen_at(&path).expect("a path");
    thread::spawn(move || {
        let _taken = taken;
        panic!("{}", VfioUserServer::serve(function, listener));
    });
    path
}

/// A number at which implementations often fail, or any number.
#[derive(Clone, Copy, Debug, TypeGenerator)]
enum Number {
    Small(u8),
    Page(u8),
    Any(u64),
    Bit(u8),
    Last,
}

impl Number {
    fn wide(self) -> u64 {
        match self {
            Self::Small(value) => value.into(),
            Self::Page(pages) => u64::from(pages) << 12,
            Self::Any(value) => value,
            Self::Bit(bit) => 1 << (bit % 64),
            Self::Last => u64::MAX,
        }
    }

    fn word(self) -> u32 {
        u32::try_from(self.wide() & u64::from(u32::MAX)).expect("masked")
    }
}

/// Content of a message after its header.
#[derive(Clone, Debug, TypeGenerator)]
enum Body {
    Bytes(Vec<u8>),
    Version {
        major: u8,
        minor: u16,
        json: Vec<u8>,
    },
    Words([Number; 5]),
    Map {
        flags: u8,
        offset: Number,
        iova: Number,
        size: Number,
    },
    Unmap {
        flags: u8,
        iova: Number,
        size: Number,
    },
    Interrupts {
        flags: u8,
        index: u8,
        start: u8,
        count: Number,
    },
    Access {
        offset: Number,
        region: u8,
        count: Option<Number>,
        data: Vec<u8>,
    },
}

/// Maximum number of descriptors in a message. The server takes 16.
const MOST_IN_MESSAGE: usize = 20;
/// Maximum number of descriptors in the messages of a session. If all processes of a user together have more in
/// messages that were not received than a process may have open, nobody can send one (unix(7), ETOOMANYREFS).
const MOST_IN_FLIGHT: usize = 200;

/// A descriptor sent with a message.
#[derive(Clone, Copy, Debug, TypeGenerator)]
enum Descriptor {
    Memory,
    Event,
    File,
}

/// A message.
#[derive(Clone, Debug, TypeGenerator)]
struct Message {
    id: u16,
    /// Command; chosen by the body if `None`.
    command: Option<u16>,
    /// Flags. If `None`, the message has the right flags.
    flags: Option<u32>,
    /// Difference between the size field and the real size. `None` is no difference.
    size: Option<i8>,
    body: Body,
    descriptors: Vec<Descriptor>,
}

/// A session: the messages of a client.
#[derive(Clone, Debug, TypeGenerator)]
struct ClientSession {
    /// True if the session starts with the version message. Without it, the server accepts nothing else.
    begins: bool,
    messages: Vec<Message>,
}

fn version(major: u16, minor: u16, json: &[u8]) -> Vec<u8> {
    [U16::new(major).as_bytes(), U16::new(minor).as_bytes(), json].concat()
}

impl Body {
    fn bytes(&self) -> (u16, Vec<u8>) {
        let word = |value: u32| U32::new(value).as_bytes().to_vec();
        let wide = |value: Number| U64::new(value.wide()).as_bytes().to_vec();
        match self {
            Self::Bytes(bytes) => (9, bytes.clone()),
            Self::Version { major, minor, json } => {
                (1, version(u16::from(*major % 2), *minor, json))
            }
            Self::Words(words) => {
                let bytes: Vec<u8> = words
                    .iter()
                    .flat_map(|number| word(number.word()))
                    .collect();
                let command = 4 + words[4].word() % 4;
                (u16::try_from(command).expect("small"), bytes)
            }
            Self::Map {
                flags,
                offset,
                iova,
                size,
            } => {
                let head = [word(32), word(u32::from(*flags % 8))].concat();
                (2, [head, wide(*offset), wide(*iova), wide(*size)].concat())
            }
            Self::Unmap { flags, iova, size } => {
                let head = [word(24), word(u32::from(*flags % 4))].concat();
                (3, [head, wide(*iova), wide(*size)].concat())
            }
            Self::Interrupts {
                flags,
                index,
                start,
                count,
            } => {
                let (flags, index) = (1 << (flags % 8), u32::from(*index % 8));
                let words = [20, flags, index, u32::from(*start), count.word()];
                (8, words.into_iter().flat_map(word).collect())
            }
            Self::Access {
                offset,
                region,
                count,
                data,
            } => {
                let honest = u32::try_from(data.len()).expect("short");
                let count = count.map_or(honest, Number::word);
                let head = [wide(*offset), word(u32::from(*region % 10)), word(count)].concat();
                // A read request has no data.
                let command = if data.len() % 2 == 0 { 9 } else { 10 };
                let data = if command == 9 { &[] } else { &data[..] };
                (command, [head, data.to_vec()].concat())
            }
        }
    }
}

fn header(id: u16, command: u16, size: u32, flags: u32) -> Vec<u8> {
    let (id, command) = (U16::new(id), U16::new(command));
    let (size, flags) = (U32::new(size), U32::new(flags));
    [
        id.as_bytes(),
        command.as_bytes(),
        size.as_bytes(),
        flags.as_bytes(),
        &[0; 4],
    ]
    .concat()
}

impl Message {
    fn bytes(&self) -> Vec<u8> {
        let (command, body) = self.body.bytes();
        let command = self.command.map_or(command, |command| command % COMMANDS);
        let honest = u32::try_from(16 + body.len()).expect("short");
        let size = honest.saturating_add_signed(i32::from(self.size.unwrap_or(0)));
        [
            header(self.id, command, size, self.flags.unwrap_or(0)),
            body,
        ]
        .concat()
    }
}

impl Descriptor {
    fn open(self) -> OwnedFd {
        match self {
            Self::Memory => {
                let file = memfd_create("fuzz-memory", MFdFlags::MFD_ALLOW_SEALING);
                file.expect("a file")
            }
            Self::Event => {
                let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK);
                event.expect("an eventfd").into()
            }
            Self::File => std::fs::File::open("/dev/null")
                .expect("it is there")
                .into(),
        }
    }
}

/// Sends the bytes. Returns false if the other side has closed the connection.
fn send_bytes(stream: &UnixStream, bytes: &[u8], descriptors: &[Descriptor]) -> bool {
    let open: Vec<OwnedFd> = descriptors.iter().map(|kind| kind.open()).collect();
    let numbers: Vec<RawFd> = open.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let control = if numbers.is_empty() {
        &[][..]
    } else {
        &rights[..]
    };
    let slices = [IoSlice::new(bytes)];
    sendmsg::<()>(
        stream.as_raw_fd(),
        &slices,
        control,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )
    .is_ok_and(|sent| sent == bytes.len())
}

/// Checks that an honest client can read the function's vendor ID.
pub fn honest(path: &PathBuf) {
    let function = Function::vfio_user(path).expect("a server");
    let vendor = function
        .config_read_u16(0)
        .expect("its configuration space");
    assert_eq!(vendor, 0x15b3);
}

#[test]
fn a_server_survives_what_any_client_says() {
    let effort = ExecutionCount::new("vfio-user, client to server");
    let _alone = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = directory();
    let path = served("fuzz-server", &directory);
    honest(&path);
    let usual = descriptors("fuzz-memory");
    let sessions = AtomicU64::new(0);
    check!()
        .with_type::<ClientSession>()
        .with_iterations(ExecutionCount::iterations(3_000))
        .for_each(|talk| {
            effort.one();
            let mut stream = UnixStream::connect(&path).expect("a server");
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
            let begin = version(0, 1, b"{\"twin_socket\":{\"supported\":true}}\0");
            let mut bytes = header(0, 1, 16 + u32::try_from(begin.len()).expect("short"), 0);
            bytes.extend(begin);
            let mut goes_on = !talk.begins || send_bytes(&stream, &bytes, &[]);
            let mut left = MOST_IN_FLIGHT;
            for message in &talk.messages {
                let count = message.descriptors.len().min(MOST_IN_MESSAGE).min(left);
                left -= count;
                let descriptors = &message.descriptors[..count];
                goes_on = goes_on && send_bytes(&stream, &message.bytes(), descriptors);
            }
            thread::scope(|scope| {
                // The honest client waits in the listener's queue until the other client has ended or has reached its
                // time limit.
                let asks = sessions.fetch_add(1, Ordering::Relaxed).is_multiple_of(100);
                let waits = asks.then(|| scope.spawn(|| honest(&path)));
                // The server may have closed the connection already.
                let _gone = stream.shutdown(Shutdown::Write);
                let mut answers = Vec::new();
                if let Err(error) = stream.read_to_end(&mut answers) {
                    let reset = error.kind() == std::io::ErrorKind::ConnectionReset;
                    assert!(reset, "after {} bytes: {error}", answers.len());
                }
                if let Some(waits) = waits {
                    waits.join().expect("the honest one is served");
                }
            });
        });
    honest(&path);
    wait_for_descriptors(usual, "fuzz-memory", "files of clients that are gone");
}
