//! The messages between perftest's programs, as bytes.
//!
//! Each message has the same length in both directions. Numbers are big-endian; a version and an MTU are text.
//!
//! ```text
//! version      text 16, with zeros behind it: "6.24"
//! number       4: the size of the buffer that bandwidth cycles through; the size of a cache line
//! MTU          text 2: the code of verbs, "1" for 256 bytes to "5" for 4096
//! destination  LID 4 | outstanding Reads 4 | QPN 4 | PSN 4 | R_Key 4 | nothing 4 | address 8 |
//!              address of the markers 8, from 6.29 on | GID 16 | SRQ number 4 | GID index 4
//! value        8; a report has five: bytes, operations, and as IEEE 754: peak, average in MiB/s, 10^6 messages/s
//! ```
//!
//! Source: perftest, `src/perftest_communication.c`, `struct pingpong_dest` and `struct bw_report_data`.

use std::net::IpAddr;

/// Size of a version message, in bytes.
const VERSION_BYTES: usize = 16;
/// Version that we send. It is below 6.28, because later versions also compare the limits of both devices.
const OURS: &str = "6.24";
/// Size of the longest message, in bytes.
pub(super) const MAX_MESSAGE_BYTES: usize = Layout::WithMarkers.bytes();

/// A version of perftest, multiplied by 100: 624 is 6.24.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version(u32);

/// Layout of a destination message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    Usual,
    WithMarkers,
}

/// One end of a data connection, as it is sent to the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Destination {
    pub(super) reads: u32,
    pub(super) r_key: u32,
    pub(super) address: u64,
    pub(super) gid: [u8; 16],
}

/// The bandwidth that the active end reports to the passive one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Report {
    pub(super) bytes: u64,
    pub(super) operations: u64,
    pub(super) mib_per_second: f64,
    pub(super) millions_per_second: f64,
}

impl Version {
    /// Returns our version as a message.
    pub(super) fn ours() -> [u8; VERSION_BYTES] {
        let mut text = [0; VERSION_BYTES];
        text[..OURS.len()].copy_from_slice(OURS.as_bytes());
        text
    }

    /// Decodes a peer's version.
    pub(super) fn decode(message: &[u8]) -> Result<Self, String> {
        let read = || {
            let end = message.iter().position(|&byte| byte == 0)?;
            let (major, minor) = std::str::from_utf8(&message[..end]).ok()?.split_once('.')?;
            let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            let minor: u32 = match (digits(major) && digits(minor), minor.len()) {
                (true, 1) => 10 * minor.parse::<u32>().ok()?,
                (true, 2) => minor.parse().ok()?,
                _ => return None,
            };
            Some(Self(u32::from(major.parse::<u16>().ok()?) * 100 + minor))
        };
        read().ok_or_else(|| {
            format!("no program of perftest: it says {message:02x?} where its version should be")
        })
    }

    /// Returns the layout of later messages for this version.
    pub(super) fn layout(self) -> Result<Layout, String> {
        match self.0 {
            570..=627 => Ok(Layout::Usual),
            629 => Ok(Layout::WithMarkers),
            _ => Err(format!(
                "perftest {self} speaks a language that is not known here: 5.70 to 6.27 and 6.29 are (ib_write_bw --version)"
            )),
        }
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

/// Returns the text of an MTU of this many bytes.
pub(super) const fn mtu(bytes: u32) -> [u8; 2] {
    let text = match bytes {
        0..512 => b'1',
        512..1024 => b'2',
        1024..2048 => b'3',
        2048..4096 => b'4',
        4096.. => b'5',
    };
    [text, 0]
}

impl Layout {
    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::Usual => 56,
            Self::WithMarkers => 64,
        }
    }
}

impl Destination {
    /// Returns an address as a GID; an IPv4 address is mapped to IPv6.
    pub(super) const fn gid(address: IpAddr) -> [u8; 16] {
        match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        }
    }

    pub(super) fn encode(&self, layout: Layout) -> Vec<u8> {
        let mut message = [0, self.reads, 0, 0, self.r_key, 0]
            .map(u32::to_be_bytes)
            .concat();
        message.extend(self.address.to_be_bytes());
        if layout == Layout::WithMarkers {
            message.extend([0; 8]);
        }
        message.extend(self.gid);
        message.extend([0; 8]);
        message
    }

    /// Decodes a peer's destination; returns `None` if the message has another length.
    pub(super) fn decode(layout: Layout, message: &[u8]) -> Option<Self> {
        if message.len() != layout.bytes() {
            return None;
        }
        let number = |at: usize| Some(u32::from_be_bytes(*message.get(at..)?.first_chunk()?));
        let gid = 32 + layout.bytes() - Layout::Usual.bytes();
        Some(Self {
            reads: number(4)?,
            r_key: number(16)?,
            address: u64::from_be_bytes(*message.get(24..)?.first_chunk()?),
            gid: *message.get(gid..)?.first_chunk()?,
        })
    }
}

impl Report {
    /// Returns one message for each value. A peak of 0 means that it was not measured.
    pub(super) const fn values(&self) -> [[u8; 8]; 5] {
        [
            self.bytes.to_be_bytes(),
            self.operations.to_be_bytes(),
            [0; 8],
            self.mib_per_second.to_bits().to_be_bytes(),
            self.millions_per_second.to_bits().to_be_bytes(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
        (0..hex.len()).step_by(2).map(digits).collect()
    }

    /// The destination of the passive end, recorded on the wire between `ib_write_bw -R -n 5 -s 64` and the same
    /// program with its peer's address (perftest 25.01 in Debian 13).
    const DESTINATION: &str = "00000000000000010000006400ac7fa6008727d400000000000055b26c54b000\
                               00000000000000000000ffffc00002020000000000000003";
    const SAID: &str = "362e3234000000000000000000000000";

    #[test]
    fn what_perftest_says_is_understood() {
        let version = Version::decode(&bytes(SAID)).expect("a version");
        assert_eq!(
            (version, version.to_string()),
            (Version(624), "6.24".to_owned())
        );
        assert_eq!(version.layout(), Ok(Layout::Usual));
        let told = Destination::decode(Layout::Usual, &bytes(DESTINATION)).expect("long enough");
        let address = "192.0.2.2".parse().expect("an address");
        let expected = Destination {
            reads: 1,
            r_key: 0x0087_27d4,
            address: 0x55b2_6c54_b000,
            gid: Destination::gid(address),
        };
        assert_eq!(told, expected);
    }

    #[test]
    fn what_we_say_is_what_perftest_says_in_our_place() {
        assert_eq!(Version::ours()[..], bytes(SAID));
        assert_eq!(mtu(1024)[..], bytes("3300"));
        // The program also sends its QPN, its PSN and the index of its GID, which are only printed.
        let mut said = bytes(DESTINATION);
        said[8..16].fill(0);
        said[55] = 0;
        let told = Destination::decode(Layout::Usual, &said).expect("long enough");
        assert_eq!(told.encode(Layout::Usual), said);
        let report = Report {
            bytes: 64,
            operations: 5,
            mib_per_second: f64::from_bits(0x3f9c_c534_ae38_6456),
            millions_per_second: f64::from_bits(0x3f3e_2afa_5f7c_d090),
        };
        let mut values = [
            "0000000000000040",
            "0000000000000005",
            // The peak bandwidth, which we do not send.
            "3f9cc534d07429e9",
            "3f9cc534ae386456",
            "3f3e2afa5f7cd090",
        ]
        .map(bytes);
        values[2].fill(0);
        assert_eq!(report.values().map(Vec::from), values);
    }

    #[test]
    fn each_version_that_is_known_has_a_layout_and_others_are_refused_with_what_is() {
        let layout = |text: &str| {
            let mut message = text.as_bytes().to_vec();
            message.resize(VERSION_BYTES, 0);
            Version::decode(&message)?.layout()
        };
        for usual in ["5.70", "6.06", "6.1", "6.27"] {
            assert_eq!(layout(usual), Ok(Layout::Usual), "{usual}");
        }
        assert_eq!(layout("6.29"), Ok(Layout::WithMarkers));
        for (unknown, said) in [
            ("5.69", "perftest 5.69 speaks"),
            ("6.28", "perftest 6.28 speaks"),
            ("6.30", "5.70 to 6.27 and 6.29 are"),
            ("7.00", "perftest 7.00 speaks"),
        ] {
            let error = layout(unknown).expect_err(unknown);
            assert!(error.contains(said), "{error}");
        }
        for nonsense in [
            "",
            "6",
            "6.",
            "6.240",
            "-6.24",
            "6.2x",
            "99999.10",
            ".",
            "\u{e9}.10",
        ] {
            let error = layout(nonsense).expect_err(nonsense);
            assert!(error.starts_with("no program of perftest"), "{error}");
        }
        assert!(Version::decode(&[b'6'; 16]).is_err(), "no end");
    }

    #[test]
    fn a_destination_of_another_length_is_none() {
        for layout in [Layout::Usual, Layout::WithMarkers] {
            let told = Destination {
                reads: 16,
                r_key: 7,
                address: 8,
                gid: [9; 16],
            };
            let message = told.encode(layout);
            assert_eq!(message.len(), layout.bytes());
            assert_eq!(Destination::decode(layout, &message), Some(told));
            for length in (0..80).filter(|&length| length != message.len()) {
                let mut other = message.clone();
                other.resize(length, 0);
                assert_eq!(Destination::decode(layout, &other), None, "{length}");
            }
        }
    }
}
