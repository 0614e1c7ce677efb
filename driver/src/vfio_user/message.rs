//! The messages: header, payloads, and their numbers (libvfio-user, `docs/vfio-user.rst`).
//!
//! A message is a header of 16 bytes and a payload whose length the header gives. Both processes are on one machine;
//! this crate reads and writes the fields as little-endian. Numbers that VFIO defines (regions, interrupts, flags)
//! have VFIO's values (`linux/vfio.h`).

use std::fmt;

use static_assertions::const_assert_eq;
use vfio_bindings::bindings::vfio;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Kind of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Command(pub u16);

macro_rules! commands {
    ($($name:ident = $value:literal),* $(,)?) => {
        #[allow(missing_docs, dead_code, reason = "the protocol's names; not all are spoken")]
        impl Command {
            $(pub(crate) const $name: Self = Self($value);)*
        }

        impl fmt::Display for Command {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$name => f.write_str(stringify!($name)),)*
                    Self(other) => write!(f, "command {other}"),
                }
            }
        }
    };
}
commands! {
    VERSION = 1,
    DMA_MAP = 2,
    DMA_UNMAP = 3,
    DEVICE_GET_INFO = 4,
    DEVICE_GET_REGION_INFO = 5,
    DEVICE_GET_REGION_IO_FDS = 6,
    DEVICE_GET_IRQ_INFO = 7,
    DEVICE_SET_IRQS = 8,
    REGION_READ = 9,
    REGION_WRITE = 10,
    DMA_READ = 11,
    DMA_WRITE = 12,
    DEVICE_RESET = 13,
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Maximum number of mappings that is announced to a client. It is the kernel's own limit for a container; QEMU refuses
/// a server that announces more ("can only lower it", `check_max_dma` of its `hw/vfio-user/proxy.c`).
pub(super) const ANNOUNCED_MAPPINGS: usize = 65_535;
/// Header flags, bits 3:0: 0 is a command, 1 a reply.
pub(crate) const TYPE_MASK: u32 = 0xf;
pub(crate) const TYPE_COMMAND: u32 = 0;
pub(crate) const TYPE_REPLY: u32 = 1;
/// Header flag: the sender wants no reply.
pub(crate) const NO_REPLY: u32 = 1 << 4;
/// Header flag: the message is a refusal, and the header contains an errno.
pub(crate) const ERROR: u32 = 1 << 5;

/// Length of a header in bytes.
pub(crate) const HEADER_BYTES: usize = 16;
/// Maximum number of data bytes in a message; announced in VERSION as `max_data_xfer_size`.
pub(crate) const MAX_DATA: usize = 1 << 16;
/// Maximum number of payload bytes in a message: 64 for the fixed part, and the data.
pub(crate) const MAX_PAYLOAD: usize = MAX_DATA + 64;
/// Maximum number of descriptors in a message; announced in VERSION as `max_msg_fds`. QEMU refuses a server that
/// announces more.
pub(crate) const MAX_FDS: usize = 16;
/// Version of the protocol.
pub(crate) const MAJOR: u16 = 0;
pub(crate) const MINOR: u16 = 1;

/// Number of regions of a PCI function in VFIO's numbering: six BARs, ROM, configuration space, VGA.
pub(crate) const REGIONS: u32 = vfio::VFIO_PCI_NUM_REGIONS;
/// Index of the configuration space region.
pub(crate) const CONFIG_REGION: u32 = vfio::VFIO_PCI_CONFIG_REGION_INDEX;
/// Index of the last BAR's region.
pub(crate) const LAST_BAR: u32 = vfio::VFIO_PCI_BAR5_REGION_INDEX;
/// Number of interrupt kinds of a PCI function in VFIO's numbering.
pub(crate) const IRQS: u32 = vfio::VFIO_PCI_NUM_IRQS;
/// Indices of two of these kinds: "the bus reports an error", and "the device is being removed".
pub(crate) const ERROR_NOTICE: u32 = vfio::VFIO_PCI_ERR_IRQ_INDEX;
pub(crate) const REQUEST_NOTICE: u32 = vfio::VFIO_PCI_REQ_IRQ_INDEX;
/// Index of the MSI-X interrupts.
pub(crate) const MSIX: u32 = vfio::VFIO_PCI_MSIX_IRQ_INDEX;

/// Header of every message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    pub id: U16,
    pub command: U16,
    /// Length of the message in bytes, header included.
    pub size: U32,
    pub flags: U32,
    pub error: U32,
}
const_assert_eq!(size_of::<Header>(), HEADER_BYTES);

/// Fixed part of VERSION. A NUL-terminated JSON object may follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Version {
    pub major: U16,
    pub minor: U16,
}
const_assert_eq!(size_of::<Version>(), 4);

/// Payload of DMA_MAP, which usually comes with a descriptor.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DmaMap {
    pub argsz: U32,
    /// Bit 0: the device may read. Bit 1: the device may write.
    pub flags: U32,
    /// Offset in the file.
    pub offset: U64,
    pub iova: U64,
    pub size: U64,
}
const_assert_eq!(size_of::<DmaMap>(), 32);
/// DMA_MAP flags: the device may read and write.
pub(crate) const DMA_READ_WRITE: u32 = vfio::VFIO_DMA_MAP_FLAG_READ | vfio::VFIO_DMA_MAP_FLAG_WRITE;
/// DMA_MAP flag: the device may only read.
pub(crate) const DMA_READ_ONLY: u32 = vfio::VFIO_DMA_MAP_FLAG_READ;

/// Payload of DMA_UNMAP and of its reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DmaUnmap {
    pub argsz: U32,
    pub flags: U32,
    pub iova: U64,
    pub size: U64,
}
const_assert_eq!(size_of::<DmaUnmap>(), 24);
/// DMA_UNMAP flag: unmaps everything; address and size are 0.
pub(crate) const UNMAP_ALL: u32 = 1 << 1;

/// Payload of DEVICE_GET_INFO and of its reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DeviceInfo {
    pub argsz: U32,
    pub flags: U32,
    pub num_regions: U32,
    pub num_irqs: U32,
}
const_assert_eq!(size_of::<DeviceInfo>(), 16);
/// DEVICE_GET_INFO flags: the device can be reset; it is a PCI function.
pub(crate) const DEVICE_RESETTABLE: u32 = vfio::VFIO_DEVICE_FLAGS_RESET;
pub(crate) const DEVICE_PCI: u32 = vfio::VFIO_DEVICE_FLAGS_PCI;

/// Payload of DEVICE_GET_REGION_INFO and of its reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RegionInfo {
    pub argsz: U32,
    pub flags: U32,
    pub index: U32,
    pub cap_offset: U32,
    pub size: U64,
    /// Offset of a mappable region in its file; always 0, because no region is mappable.
    pub offset: U64,
}
const_assert_eq!(size_of::<RegionInfo>(), 32);
/// DEVICE_GET_REGION_INFO flags: the region can be read and written.
pub(crate) const REGION_READ_WRITE: u32 =
    vfio::VFIO_REGION_INFO_FLAG_READ | vfio::VFIO_REGION_INFO_FLAG_WRITE;

/// Payload of DEVICE_GET_IRQ_INFO and of its reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct IrqInfo {
    pub argsz: U32,
    pub flags: U32,
    pub index: U32,
    pub count: U32,
}
const_assert_eq!(size_of::<IrqInfo>(), 16);
/// DEVICE_GET_IRQ_INFO flag: signalled by eventfd.
pub(crate) const IRQ_EVENTFD: u32 = vfio::VFIO_IRQ_INFO_EVENTFD;

/// Payload of DEVICE_SET_IRQS, which comes with descriptors.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SetIrqs {
    pub argsz: U32,
    pub flags: U32,
    pub index: U32,
    pub start: U32,
    pub count: U32,
}
const_assert_eq!(size_of::<SetIrqs>(), 20);
/// DEVICE_SET_IRQS flags: these vectors signal the descriptors of the message.
pub(crate) const SET_EVENTFDS: u32 =
    vfio::VFIO_IRQ_SET_DATA_EVENTFD | vfio::VFIO_IRQ_SET_ACTION_TRIGGER;
/// DEVICE_SET_IRQS flags: with a count of 0, disables all vectors.
pub(crate) const SET_NOTHING: u32 =
    vfio::VFIO_IRQ_SET_DATA_NONE | vfio::VFIO_IRQ_SET_ACTION_TRIGGER;

/// Fixed part of REGION_READ, REGION_WRITE and their replies. Data follows in a write and in the reply to a read.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RegionAccess {
    pub offset: U64,
    pub region: U32,
    pub count: U32,
}
const_assert_eq!(size_of::<RegionAccess>(), 16);

/// Fixed part of DMA_READ, DMA_WRITE and their replies. Data follows in a write and in the reply to a read. In the
/// reply to a write, the count has 4 bytes in the document and 8 in libvfio-user
/// (`struct vfio_user_dma_region_access`). This crate reads only the common part ([`DmaWritten`]) and writes the
/// longer form.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DmaAccess {
    pub address: U64,
    pub count: U64,
}
const_assert_eq!(size_of::<DmaAccess>(), 16);

/// Common start of every reply to DMA_WRITE.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DmaWritten {
    pub address: U64,
    pub count: U32,
}
const_assert_eq!(size_of::<DmaWritten>(), 12);

/// The twin socket in a VERSION message. A client requests it without an index; a server gives the index of its
/// descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Twin {
    pub fd_index: Option<usize>,
}

/// Returns our capabilities for VERSION, NUL included.
pub(crate) fn capabilities(twin: Option<Twin>) -> Vec<u8> {
    let twin = match twin {
        None => String::new(),
        Some(Twin { fd_index: None }) => ",\"twin_socket\":{\"supported\":true}".to_owned(),
        Some(Twin {
            fd_index: Some(index),
        }) => format!(",\"twin_socket\":{{\"supported\":true,\"fd_index\":{index}}}"),
    };
    format!(
        "{{\"capabilities\":{{\"max_msg_fds\":{MAX_FDS},\"max_data_xfer_size\":{MAX_DATA},\"max_dma_maps\":{ANNOUNCED_MAPPINGS}{twin}}}}}\0"
    )
    .into_bytes()
}

/// Returns the JSON text after a name, starting with its value.
fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("\"{name}\""))?;
    Some(rest.trim_start().strip_prefix(':')?.trim_start())
}

/// Returns the number of a capability in the other side's JSON; `None` if it is absent.
///
/// The search ignores nesting, because each name occurs only once.
pub(crate) fn capability(json: &[u8], name: &str) -> Option<usize> {
    number(std::str::from_utf8(json).ok()?, name)
}

/// Returns the other side's twin socket, if it supports one.
pub(crate) fn twin_socket(json: &[u8]) -> Option<Twin> {
    let object = value(std::str::from_utf8(json).ok()?, "twin_socket")?.strip_prefix('{')?;
    let object = object.split_once('}').map_or(object, |(inside, _)| inside);
    value(object, "supported")?
        .starts_with("true")
        .then(|| Twin {
            fd_index: number(object, "fd_index"),
        })
}

fn number(text: &str, name: &str) -> Option<usize> {
    let digits = value(text, name)?;
    let end = digits
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// Size of a message's fixed part.
pub(super) const fn length_of<T>() -> u32 {
    assert!(size_of::<T>() < 64);
    // CAST: the assertion has checked that the size is below 64.
    #[expect(clippy::cast_possible_truncation, reason = "below 64")]
    {
        size_of::<T>() as u32
    }
}
