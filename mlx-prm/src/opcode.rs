//! Opcodes of the command interface (PRM "Command Opcodes").

use layout::codes;

codes! {
    /// Opcode of a command.
    #[derive(serde::Serialize, serde::Deserialize)]
    pub struct Opcode(u16) {
        /// Queries capabilities.
        QUERY_HCA_CAP = 0x100,
        /// Queries vendor ID and PSID.
        QUERY_ADAPTER = 0x101,
        /// Starts the function.
        INIT_HCA = 0x102,
        /// Stops the function.
        TEARDOWN_HCA = 0x103,
        /// Enables the function; a driver's first command.
        ENABLE_HCA = 0x104,
        /// Disables the function; a driver's last command.
        DISABLE_HCA = 0x105,
        /// Queries the number of pages that the firmware needs.
        QUERY_PAGES = 0x107,
        /// Gives pages to the firmware, takes pages back, or reports that the driver has no pages.
        MANAGE_PAGES = 0x108,
        /// Sets capabilities; allowed only before INIT_HCA.
        SET_HCA_CAP = 0x109,
        /// Queries the interface step sequence ID (ISSI).
        QUERY_ISSI = 0x10a,
        /// Sets the interface step; drivers choose ISSI 1.
        SET_ISSI = 0x10b,
        /// Reports the driver's version to the firmware, for information only.
        SET_DRIVER_VERSION = 0x10d,
        /// Creates a memory key.
        CREATE_MKEY = 0x200,
        QUERY_MKEY = 0x201,
        DESTROY_MKEY = 0x202,
        /// Queries the reserved lkey, the null mkey and others.
        QUERY_SPECIAL_CONTEXTS = 0x203,
        /// Resumes a queue after a page fault (on-demand paging only).
        PAGE_FAULT_RESUME = 0x204,
        /// Allocates device memory.
        ALLOC_MEMIC = 0x205,
        DEALLOC_MEMIC = 0x206,
        CREATE_EQ = 0x301,
        DESTROY_EQ = 0x302,
        QUERY_EQ = 0x303,
        /// Makes the device write an EQE that software supplies.
        GEN_EQE = 0x304,
        CREATE_CQ = 0x400,
        DESTROY_CQ = 0x401,
        QUERY_CQ = 0x402,
        /// Changes moderation or the event queue, or resizes the queue.
        MODIFY_CQ = 0x403,
        CREATE_QP = 0x500,
        /// Destroys a queue pair; drivers call it only in the reset state.
        DESTROY_QP = 0x501,
        RST2INIT_QP = 0x502,
        INIT2RTR_QP = 0x503,
        RTR2RTS_QP = 0x504,
        RTS2RTS_QP = 0x505,
        SQERR2RTS_QP = 0x506,
        /// Moves a queue pair from any state to error.
        TO_ERR_QP = 0x507 "2ERR_QP",
        /// Moves a queue pair from any state to reset.
        TO_RST_QP = 0x50a "2RST_QP",
        QUERY_QP = 0x50b,
        SQD_RTS_QP = 0x50c,
        /// Passes an InfiniBand SMP or GMP to the firmware.
        MAD_IFC = 0x50d,
        INIT2INIT_QP = 0x50e,
        /// Creates a signature object (PSV); used for signatures only.
        CREATE_PSV = 0x600,
        DESTROY_PSV = 0x601,
        /// Creates a shared receive queue; interface step (ISSI) 0 only.
        CREATE_SRQ = 0x700,
        DESTROY_SRQ = 0x701,
        QUERY_SRQ = 0x702,
        /// Arms the limit event of an SRQ (ISSI 0) or XRQ.
        ARM_RQ = 0x703,
        /// Creates an SRQ of type XRC.
        CREATE_XRC_SRQ = 0x705,
        DESTROY_XRC_SRQ = 0x706,
        QUERY_XRC_SRQ = 0x707,
        /// Arms the limit event of an XRC SRQ.
        ARM_XRC_SRQ = 0x708,
        /// Creates a dynamically connected target.
        CREATE_DCT = 0x710,
        DESTROY_DCT = 0x711,
        DRAIN_DCT = 0x712,
        QUERY_DCT = 0x713,
        /// Creates an XRQ: an SRQ with tag matching, or a generic SRQ.
        CREATE_XRQ = 0x717,
        DESTROY_XRQ = 0x718,
        QUERY_XRQ = 0x719,
        ARM_XRQ = 0x71a,
        /// Queries the functions of the e-switch.
        QUERY_ESW_FUNCTIONS = 0x740,
        QUERY_VPORT_STATE = 0x750,
        MODIFY_VPORT_STATE = 0x751,
        QUERY_ESW_VPORT_CONTEXT = 0x752,
        MODIFY_ESW_VPORT_CONTEXT = 0x753,
        /// Queries the MAC address, the MTU and `roce_en`.
        QUERY_NIC_VPORT_CONTEXT = 0x754,
        MODIFY_NIC_VPORT_CONTEXT = 0x755,
        /// Reads an entry of the GID table.
        QUERY_ROCE_ADDRESS = 0x760,
        /// Writes an entry of the GID table.
        SET_ROCE_ADDRESS = 0x761,
        /// Queries LID and state of an InfiniBand port.
        QUERY_HCA_VPORT_CONTEXT = 0x762,
        MODIFY_HCA_VPORT_CONTEXT = 0x763,
        /// Queries the GIDs of an InfiniBand port.
        QUERY_HCA_VPORT_GID = 0x764,
        /// Queries the P_Keys of an InfiniBand port.
        QUERY_HCA_VPORT_PKEY = 0x765,
        /// Queries a vport's diagnostic counters.
        QUERY_VNIC_ENV = 0x76f,
        QUERY_VPORT_COUNTER = 0x770,
        /// Allocates a counter set for QPs.
        ALLOC_Q_COUNTER = 0x771,
        DEALLOC_Q_COUNTER = 0x772,
        QUERY_Q_COUNTER = 0x773,
        ALLOC_PD = 0x800,
        DEALLOC_PD = 0x801,
        /// Allocates a doorbell page.
        ALLOC_UAR = 0x802,
        DEALLOC_UAR = 0x803,
        CONFIG_INT_MODERATION = 0x804,
        /// Reads or writes a port or management register.
        ACCESS_REG = 0x805,
        /// Attaches a QP to a multicast group.
        ATTACH_TO_MCG = 0x806,
        DETACH_FROM_MCG = 0x807,
        /// InfiniBand only.
        QUERY_MAD_DEMUX = 0x80b,
        /// InfiniBand only.
        SET_MAD_DEMUX = 0x80c,
        NOP = 0x80d,
        ALLOC_XRCD = 0x80e,
        DEALLOC_XRCD = 0x80f,
        ALLOC_TRANSPORT_DOMAIN = 0x816,
        DEALLOC_TRANSPORT_DOMAIN = 0x817,
        QUERY_CONG_STATUS = 0x822,
        MODIFY_CONG_STATUS = 0x823,
        QUERY_CONG_PARAMS = 0x824,
        MODIFY_CONG_PARAMS = 0x825,
        QUERY_CONG_STATISTICS = 0x826,
        /// Enters a MAC address in the L2 table (MPFS), so that the function receives its frames.
        SET_L2_TABLE_ENTRY = 0x829,
        QUERY_L2_TABLE_ENTRY = 0x82a,
        DELETE_L2_TABLE_ENTRY = 0x82b,
        CREATE_LAG = 0x840,
        QUERY_LAG = 0x842,
        DESTROY_LAG = 0x843,
        /// Creates a transport interface receive object.
        CREATE_TIR = 0x900,
        MODIFY_TIR = 0x901,
        DESTROY_TIR = 0x902,
        QUERY_TIR = 0x903,
        CREATE_SQ = 0x904,
        MODIFY_SQ = 0x905,
        DESTROY_SQ = 0x906,
        QUERY_SQ = 0x907,
        CREATE_RQ = 0x908,
        MODIFY_RQ = 0x909,
        DESTROY_RQ = 0x90a,
        QUERY_RQ = 0x90b,
        /// Creates a receive memory pool, which is a basic SRQ under ISSI 1.
        CREATE_RMP = 0x90c,
        /// Sets the SRQ limit of a receive memory pool.
        MODIFY_RMP = 0x90d,
        DESTROY_RMP = 0x90e,
        QUERY_RMP = 0x90f,
        SET_DELAY_DROP_PARAMS = 0x910,
        /// Creates a transport interface send object.
        CREATE_TIS = 0x912,
        MODIFY_TIS = 0x913,
        DESTROY_TIS = 0x914,
        QUERY_TIS = 0x915,
        /// Creates an RQ table (RSS indirection).
        CREATE_RQT = 0x916,
        MODIFY_RQT = 0x917,
        DESTROY_RQT = 0x918,
        QUERY_RQT = 0x919,
        SET_FLOW_TABLE_ROOT = 0x92f,
        CREATE_FLOW_TABLE = 0x930,
        DESTROY_FLOW_TABLE = 0x931,
        QUERY_FLOW_TABLE = 0x932,
        CREATE_FLOW_GROUP = 0x933,
        DESTROY_FLOW_GROUP = 0x934,
        QUERY_FLOW_GROUP = 0x935,
        SET_FLOW_TABLE_ENTRY = 0x936,
        QUERY_FLOW_TABLE_ENTRY = 0x937,
        DELETE_FLOW_TABLE_ENTRY = 0x938,
        ALLOC_FLOW_COUNTER = 0x939,
        DEALLOC_FLOW_COUNTER = 0x93a,
        QUERY_FLOW_COUNTER = 0x93b,
        MODIFY_FLOW_TABLE = 0x93c,
        ALLOC_PACKET_REFORMAT_CONTEXT = 0x93d,
        DEALLOC_PACKET_REFORMAT_CONTEXT = 0x93e,
        ALLOC_MODIFY_HEADER_CONTEXT = 0x940,
        DEALLOC_MODIFY_HEADER_CONTEXT = 0x941,
        CREATE_GENERAL_OBJECT = 0xa00,
        MODIFY_GENERAL_OBJECT = 0xa01,
        QUERY_GENERAL_OBJECT = 0xa02,
        DESTROY_GENERAL_OBJECT = 0xa03,
        /// Creates a DevX user context (uid).
        CREATE_UCTX = 0xa04,
        DESTROY_UCTX = 0xa06,
        /// Creates a DevX user memory (umem), the alternative to PAS lists.
        CREATE_UMEM = 0xa08,
        DESTROY_UMEM = 0xa0a,
        QUERY_VHCA_STATE = 0xb0d,
        MODIFY_VHCA_STATE = 0xb0e,
        SYNC_CRYPTO = 0xb12,
    }
}
