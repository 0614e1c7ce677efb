//! A wire between processes: a message from the other process is either delivered as the frame that was sent, or
//! refused with an error.

use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

use bolero::{TypeGenerator, check};
use driver::{FrameDatagrams, FrameEnd};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, send, socket,
};

use super::{ExecutionCount, directory};

/// Largest frame in bytes (driver, `frame_ring`).
const FRAME_BYTES: usize = 16 << 10;

/// A message of an attacker.
#[derive(Clone, Debug, TypeGenerator)]
enum Message {
    Short(Vec<u8>),
    Long {
        bytes: u16,
        value: u8,
    },
    /// A message whose length is close to that of the largest frame.
    About {
        above: i8,
    },
}

impl Message {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Short(bytes) => bytes.clone(),
            Self::Long { bytes, value } => vec![*value; usize::from(*bytes)],
            Self::About { above } => {
                vec![7; FRAME_BYTES.saturating_add_signed(isize::from(*above))]
            }
        }
    }
}

#[test]
fn a_stranger_at_a_wire_sends_frames_or_what_is_none() {
    let effort = ExecutionCount::new("wires, seqpacket");
    let directory = directory();
    let (path, open) = (directory.path().join("wire"), SockFlag::SOCK_CLOEXEC);
    check!()
        .with_type::<Vec<Message>>()
        .with_iterations(ExecutionCount::iterations(3_000))
        .for_each(|messages| {
            effort.one();
            let FrameEnd::First(listener) = FrameEnd::at(&path).expect("a path") else {
                panic!("nobody was there");
            };
            let stranger = socket(AddressFamily::Unix, SockType::SeqPacket, open, None);
            let stranger = stranger.expect("a socket");
            let address = UnixAddr::new(&path).expect("a path");
            connect(stranger.as_raw_fd(), &address).expect("somebody listens");
            let end = listener.accept().expect("the stranger");
            drop(listener);
            for message in messages {
                let bytes = message.bytes();
                send(stranger.as_raw_fd(), &bytes, MsgFlags::empty()).expect("room");
                match end.receive() {
                    Ok(Some(frame)) => assert_eq!(frame, bytes),
                    // An empty message is indistinguishable from the end of the connection (recv(2)).
                    Ok(None) => assert!(bytes.is_empty()),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
                        assert!(bytes.len() > FRAME_BYTES);
                    }
                }
            }
            drop(stranger);
            assert_eq!(end.receive().expect("the end"), None);
        });
}

#[test]
fn a_stranger_sends_datagrams_that_are_frames_or_none() {
    let effort = ExecutionCount::new("wires, datagrams");
    let directory = directory();
    let [here, there] = ["here", "there"].map(|end| directory.path().join(end));
    let end = FrameDatagrams::bind(&here, &there).expect("a path");
    let stranger = UnixDatagram::unbound().expect("a socket");
    check!()
        .with_type::<Message>()
        .with_iterations(ExecutionCount::iterations(20_000))
        .for_each(|message| {
            effort.one();
            let bytes = message.bytes();
            stranger.send_to(&bytes, &here).expect("room");
            match end.receive() {
                Ok(frame) => assert_eq!(frame, bytes),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
                    assert!(bytes.is_empty() || bytes.len() > FRAME_BYTES);
                }
            }
        });
}
