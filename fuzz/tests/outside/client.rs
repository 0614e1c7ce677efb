//! A vfio-user client and servers that return any bytes.
//!
//! A proxy between a client and an honest server changes replies: fields, lengths, numbers, or the whole reply. It may
//! also close the connection at any time. Each request of the client returns an answer or an error. Afterwards the
//! server serves a client without the proxy, and no descriptor of the former clients' memory is open.

use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use bolero::{TypeGenerator, check};
use driver::{Function, Iova, SharedMemory};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::server::{honest, served};
use super::{COUNTS, ExecutionCount, descriptors, directory, wait_for_descriptors};

/// Length of a message header in bytes.
const HEADER: usize = 16;
/// Time that the proxy waits for bytes of the client or of the server.
const PATIENCE: Duration = Duration::from_secs(300);

/// Change that the proxy makes to a reply.
#[derive(Clone, Debug, TypeGenerator)]
enum Reply {
    True,
    /// One byte is replaced.
    Byte {
        at: u8,
        value: u8,
    },
    /// Four bytes are replaced.
    Word {
        at: u8,
        value: u32,
    },
    /// One word of the reply is replaced by a word with one bit set, or none.
    Bit {
        at: u8,
        bit: u8,
    },
    /// The reply is truncated, and its length field matches.
    Shorter {
        by: u8,
    },
    /// Bytes are appended to the reply, and its length field matches.
    Longer {
        by: u8,
    },
    /// The reply's length field has this value, and no further bytes follow.
    Size(u32),
    /// The reply is replaced by arbitrary bytes.
    Noise(Vec<u8>),
    /// The proxy sends no reply and closes the connection.
    Gone,
}

impl Reply {
    /// Returns the bytes to pass on, and whether the connection continues.
    fn of(&self, reply: &[u8]) -> (Vec<u8>, bool) {
        let mut bytes = reply.to_vec();
        let put = |bytes: &mut Vec<u8>, at: u8, new: &[u8]| {
            let at = usize::from(at) % bytes.len();
            for (to, from) in bytes[at..].iter_mut().zip(new) {
                *to = *from;
            }
            // If the length field is above the actual length, the client waits for more bytes, so the proxy closes the
            // connection.
            size(bytes) <= bytes.len()
        };
        let resized = |mut bytes: Vec<u8>| {
            let length = u32::try_from(bytes.len()).expect("short");
            put_size(&mut bytes, length);
            (bytes, true)
        };
        match self {
            Self::True => (bytes, true),
            Self::Byte { at, value } => {
                let on = put(&mut bytes, *at, &[*value]);
                (bytes, on)
            }
            Self::Word { at, value } => {
                let on = put(
                    &mut bytes,
                    *at,
                    zerocopy::IntoBytes::as_bytes(&U32::new(*value)),
                );
                (bytes, on)
            }
            Self::Bit { at, bit } => {
                let value = 1_u32.checked_shl(u32::from(*bit % 33)).unwrap_or(0);
                let on = put(
                    &mut bytes,
                    *at & !3,
                    zerocopy::IntoBytes::as_bytes(&U32::new(value)),
                );
                (bytes, on)
            }
            Self::Shorter { by } => {
                bytes.truncate(bytes.len().saturating_sub(usize::from(*by)).max(HEADER));
                resized(bytes)
            }
            Self::Longer { by } => {
                bytes.resize(bytes.len() + usize::from(*by), 0xa5);
                resized(bytes)
            }
            Self::Size(length) => {
                put_size(&mut bytes, *length);
                (bytes, false)
            }
            Self::Noise(noise) => (noise.clone(), false),
            Self::Gone => (Vec::new(), false),
        }
    }
}

fn size(message: &[u8]) -> usize {
    let size = message
        .get(4..8)
        .and_then(|size| U32::read_from_bytes(size).ok());
    size.map_or(0, |size| usize::try_from(size.get()).unwrap_or(usize::MAX))
}

fn put_size(message: &mut [u8], size: u32) {
    let size = U32::new(size);
    message[4..8].copy_from_slice(zerocopy::IntoBytes::as_bytes(&size));
}

/// Reads one message with its descriptors. Returns `None` at the end of the connection and after an error.
fn message(from: &mut UnixStream) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; HEADER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(&*from, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC);
    let received = received.ok()?.bytes;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    from.read_exact(&mut bytes[received..]).ok()?;
    if received == 0 {
        return None;
    }
    let length = size(&bytes);
    bytes.resize(length.max(HEADER), 0);
    from.read_exact(&mut bytes[HEADER..]).ok()?;
    Some((bytes, descriptors))
}

/// Sends bytes with descriptors; returns whether that succeeded.
fn pass_on(to: &UnixStream, bytes: &[u8], descriptors: &[OwnedFd]) -> bool {
    let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let control = if numbers.is_empty() {
        &[][..]
    } else {
        &rights[..]
    };
    let (slices, flags) = ([IoSlice::new(bytes)], MsgFlags::MSG_NOSIGNAL);
    sendmsg::<()>(to.as_raw_fd(), &slices, control, flags, None) == Ok(bytes.len())
}

/// Passes messages on, with replies changed as the script says, until one side closes its connection or a change ends
/// the connection.
fn between(mut client: UnixStream, mut server: UnixStream, script: &[Reply]) {
    let mut script = script.iter();
    while let Some((asked, descriptors)) = message(&mut client) {
        if !pass_on(&server, &asked, &descriptors) {
            return;
        }
        // The server sends no reply if bit 4 of the message's flags is set.
        if asked[8] & 1 << 4 != 0 {
            continue;
        }
        let Some((reply, descriptors)) = message(&mut server) else {
            return;
        };
        let (reply, goes_on) = script.next().unwrap_or(&Reply::True).of(&reply);
        if !reply.is_empty() && !pass_on(&client, &reply, &descriptors) || !goes_on {
            return;
        }
    }
}

/// Serves one client after the other, each with its script.
fn run_proxy(listener: &UnixListener, server: &PathBuf, scripts: &Receiver<Vec<Reply>>) {
    for script in scripts {
        let (client, _) = listener.accept().expect("a client");
        let server = UnixStream::connect(server).expect("a server");
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        }
        between(client, server, &script);
    }
}

/// Makes a driver's first requests, and continues whatever each request returns.
fn exercise(function: &Function) {
    let _configuration = function.config_read_u32(0);
    let _interrupts = function.enable_interrupts(8);
    let _master = function.set_bus_master(true);
    for index in 0..7 {
        let _bar = function.bar(index);
    }
    let memory = SharedMemory::anonymous(8192).expect("memory");
    let _mapped = function.dma_map(Iova(1 << 20), &memory, 0, 8192);
    let _unmapped = function.dma_unmap(Iova(1 << 20), 8192);
    // The message for this memory carries no descriptor, because it is memory of this process.
    let asked = SharedMemory::of_this_process(8192).expect("memory");
    let _mapped = function.dma_map(Iova(1 << 21), &asked, 0, 8192);
    let _unmapped = function.dma_unmap(Iova(1 << 21), 8192);
    let _stopped = function.stop();
    let _lost = function.lost();
}

#[test]
fn a_client_survives_what_any_server_answers() {
    let effort = ExecutionCount::new("vfio-user, server to client");
    let _alone = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = directory();
    let server = served("fuzz-honest", &directory);
    let path = directory.path().join("fuzz-between");
    let (listener, _taken) = driver::listen_at(&path).expect("a path");
    let (scripts, next) = channel();
    let behind = server.clone();
    thread::spawn(move || run_proxy(&listener, &behind, &next));
    honest(&server);
    let before = descriptors("memfd:driver");
    check!()
        .with_type::<Vec<Reply>>()
        .with_iterations(ExecutionCount::iterations(2_000))
        .for_each(|script| {
            effort.one();
            scripts.send(script.clone()).expect("somebody between");
            if let Ok(function) = Function::vfio_user(&path) {
                exercise(&function);
            }
        });
    honest(&server);
    wait_for_descriptors(before, "memfd:driver", "memory of functions that are gone");
}
