//! Event queues: context, entry, commands (PRM "Event Queues").
//!
//! The last byte of an entry has the owner bit. The device writes that byte last.

use layout::codes;
use layout::layout;

use super::command::command;
use super::{CmdStatus, Opcode};

layout! {
    /// Event queue context (PRM "Event Queue Context").
    pub struct Eqc(0x40) {
        /// Status: 0 ok, 0xa EQ write failure.
        status: 0x00[31:28],
        /// Event collapse; always 0.
        ec: 0x00[18],
        /// Overrun ignore: 1 = device may overwrite unread entries.
        oi: 0x00[17],
        /// State, read only: 9 armed, 0xa fired.
        st: 0x00[11:8],
        /// Offset in the first page; always 0.
        page_offset: 0x08[11:6],
        /// log2 of the number of entries (64 bytes each).
        log_eq_size: 0x0c[28:24],
        /// Index of the UAR whose page has this EQ's doorbells.
        uar_page: 0x0c[23:0],
        /// MSI-X vector.
        intr: 0x14[11:0],
        /// log2 of the page size in bytes, minus 12.
        log_page_size: 0x18[28:24],
        /// Consumer counter, 24 bits, as the last doorbell wrote it.
        consumer_counter: 0x28[23:0],
        /// Producer counter of the device, 24 bits.
        producer_counter: 0x2c[23:0],
    }

    /// Event queue entry (PRM "Event Queue Entry Format"). The contents of `event_data` depend on the type.
    pub struct Eqe(0x40) {
        /// Type of the event; see [`EventType`].
        event_type: 0x01 u8,
        /// Sub-type; its meaning depends on the type.
        event_sub_type: 0x03 u8,
        /// Payload, whose layout depends on the type.
        event_data: 0x20 [u8; 28],
        /// Not checked by drivers.
        signature: 0x3e u8,
        /// Owner bit (bit 0 of the last byte). The device inverts its value on each pass over the queue.
        owner: 0x3c[0],
    }
}

command! {
    CREATE_EQ: CreateEqIn(0x110) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        eq_context_entry: 0x10 Eqc,
        /// Event types 0 to 63 that the device reports to this queue; bit n is type n.
        event_bitmask: 0x58 u64,
        /// Event types 64 to 127.
        event_bitmask_64: 0x60 u64,
        /// Event types 128 to 191.
        event_bitmask_128: 0x68 u64,
        /// Event types 192 to 255.
        event_bitmask_192: 0x70 u64,
    } -> CreateEqOut(0x10) {
        eq_number: 0x08[7:0],
    }

    DESTROY_EQ: DestroyEqIn(0x10) {
        eq_number: 0x08[7:0],
    } -> DestroyEqOut(0x10) {}

    QUERY_EQ: QueryEqIn(0x10) {
        eq_number: 0x08[7:0],
    } -> QueryEqOut(0x110) {
        eq_context_entry: 0x10 Eqc,
        /// Event types 0 to 63 that the device reports to this queue; bit n is type n.
        event_bitmask: 0x58 u64,
    }

    /// Makes the device write the given 64-byte EQE to an event queue.
    GEN_EQE: GenEqeIn(0x50) {
        eq_number: 0x08[7:0],
        eqe: 0x10 [u8; 64],
    } -> GenEqeOut(0x10) {}
}

codes! {
    /// Kind of an event queue entry.
    #[derive(serde::Serialize, serde::Deserialize)]
    pub struct EventType(u8) {
        /// A completion queue has entries.
        COMP = 0x00,
        /// Path migrated.
        PATH_MIG = 0x01,
        /// The first packet reached a queue pair in RTR.
        COMM_EST = 0x02,
        /// A send queue is drained.
        SQ_DRAINED = 0x03,
        /// A completion queue overran or cannot be written.
        CQ_ERROR = 0x04,
        /// A work queue failed.
        WQ_CATAS_ERROR = 0x05,
        /// Path migration failed.
        PATH_MIG_FAILED = 0x07,
        /// Internal error of the device.
        INTERNAL_ERROR = 0x08,
        /// The port went up or down, or changed.
        PORT_CHANGE = 0x09,
        /// Commands completed.
        CMD = 0x0a,
        /// The firmware requests pages, or returns some.
        PAGE_REQUEST = 0x0b,
        /// On-demand paging: page fault.
        PAGE_FAULT = 0x0c,
        /// The NIC vport context changed.
        NIC_VPORT_CHANGE = 0x0d,
        /// The e-switch's functions changed.
        ESW_FUNCTIONS_CHANGED = 0x0e,
        /// A vhca's state changed.
        VHCA_STATE_CHANGE = 0x0f,
        /// A work queue got an invalid request.
        WQ_INVAL_REQ_ERROR = 0x10,
        /// A work queue had an access violation.
        WQ_ACCESS_ERROR = 0x11,
        /// A shared receive queue failed.
        SRQ_CATAS_ERROR = 0x12,
        /// A queue pair in error has completed the last WQE that it took from a shared receive queue.
        SRQ_LAST_WQE = 0x13,
        /// A shared receive queue fell below its limit.
        SRQ_RQ_LIMIT = 0x14,
        /// GPIO.
        GPIO = 0x15,
        /// Port module plugged or failed.
        PORT_MODULE = 0x16,
        /// Temperature warning.
        TEMP_WARN = 0x17,
        /// A tag matching queue failed.
        XRQ_ERROR = 0x18,
        /// Remote configuration protocol.
        REMOTE_CONFIG = 0x19,
        /// Doorbells arrive faster than the device can process them.
        DB_BF_CONGESTION = 0x1a,
        /// A virtual lane is stalled.
        STALL_VL = 0x1b,
        /// DC target drained.
        DCT_DRAINED = 0x1c,
        /// DC target key violated.
        DCT_KEY_VIOLATION = 0x1d,
        /// FPGA error.
        FPGA_ERROR = 0x20,
        /// FPGA queue pair error.
        FPGA_QP_ERROR = 0x21,
        /// General event; the sub-type has the kind.
        GENERAL = 0x22,
        /// A monitored counter changed.
        MONITOR_COUNTER = 0x24,
        /// Pulse per second.
        PPS = 0x25,
        /// Firmware tracer.
        DEVICE_TRACER = 0x26,
        /// An object changed.
        OBJECT_CHANGE = 0x27,
    }

    /// Sub-types of [`EventType::PORT_CHANGE`].
    pub struct PortChange(u8) {
        /// The port went down.
        DOWN = 1,
        /// The port is active.
        ACTIVE = 4,
        /// The port is initialized.
        INITIALIZED = 5,
        /// The port's LID changed.
        LID = 6,
        /// The port's partition keys changed.
        PKEY = 7,
        /// The port's GUID changed.
        GUID = 8,
        /// The subnet manager requests that clients register again.
        CLIENT_REREG = 9,
    }

    /// Cause of a device error (health buffer, `synd`).
    pub struct HealthSyndrome(u8) {
        /// Firmware internal error.
        FW_ERR = 0x01,
        /// An internal processor does not respond.
        IRISC_ERR = 0x07,
        /// Unrecoverable hardware error.
        HW_UNRECOVERABLE_ERR = 0x08,
        /// Firmware CRC error.
        FW_CRC_ERR = 0x09,
        /// The device could not fetch context memory over PCI, for example after an IOMMU fault on a firmware page.
        ICM_FETCH_PCI_ERR = 0x0a,
        /// Fatal hardware error.
        HW_FATAL_ERR = 0x0b,
        /// The async event queue overran.
        ASYNC_EQ_OVERRUN = 0x0c,
        /// Event queue error.
        EQ_ERR = 0x0d,
        /// An event queue that does not exist was referenced.
        EQ_INV = 0x0e,
        /// FFSER error.
        FFSER_ERR = 0x0f,
        /// Temperature too high.
        HIGH_TEMP = 0x10,
    }
}
