//! Opcodes of the command interface (PRM "Command Opcodes").

use layout::codes;

codes! {
    /// Opcode of a command.
    pub struct Opcode(u16) {
        /// Capabilities.
        QUERY_HCA_CAP = 0x100,
        /// Vendor id, PSID.
        QUERY_ADAPTER = 0x101,
        /// Start function.
        INIT_HCA = 0x102,
        /// Stop function.
        TEARDOWN_HCA = 0x103,
        /// First command.
        ENABLE_HCA = 0x104,
        /// Last command.
        DISABLE_HCA = 0x105,
        /// Number of firmware pages.
        QUERY_PAGES = 0x107,
        /// Give or take pages, or report that none can be given.
        MANAGE_PAGES = 0x108,
        /// Set capabilities, before INIT_HCA.
        SET_HCA_CAP = 0x109,
        /// Interface step sequence id.
        QUERY_ISSI = 0x10a,
        /// Choose ISSI 1.
        SET_ISSI = 0x10b,
        /// Informational.
        SET_DRIVER_VERSION = 0x10d,
        /// Memory key.
        CREATE_MKEY = 0x200,
        QUERY_MKEY = 0x201,
        DESTROY_MKEY = 0x202,
        /// Reserved lkey, null mkey and others.
        QUERY_SPECIAL_CONTEXTS = 0x203,
        /// ODP only.
        PAGE_FAULT_RESUME = 0x204,
        /// Device memory.
        ALLOC_MEMIC = 0x205,
        DEALLOC_MEMIC = 0x206,
        CREATE_EQ = 0x301,
        DESTROY_EQ = 0x302,
        QUERY_EQ = 0x303,
        /// Software-generated EQE.
        GEN_EQE = 0x304,
        CREATE_CQ = 0x400,
        DESTROY_CQ = 0x401,
        QUERY_CQ = 0x402,
        /// Moderation, EQ remap, resize.
        MODIFY_CQ = 0x403,
        CREATE_QP = 0x500,
        /// Drivers call it in the RST state only.
        DESTROY_QP = 0x501,
        RST2INIT_QP = 0x502,
        INIT2RTR_QP = 0x503,
        RTR2RTS_QP = 0x504,
        RTS2RTS_QP = 0x505,
        SQERR2RTS_QP = 0x506,
        /// From any state.
        TO_ERR_QP = 0x507 "2ERR_QP",
        /// From any state.
        TO_RST_QP = 0x50a "2RST_QP",
        QUERY_QP = 0x50b,
        SQD_RTS_QP = 0x50c,
        /// IB-port SMP/GMP through firmware.
        MAD_IFC = 0x50d,
        INIT2INIT_QP = 0x50e,
        /// Signature only.
        CREATE_PSV = 0x600,
        DESTROY_PSV = 0x601,
        /// ISSI 0 only.
        CREATE_SRQ = 0x700,
        DESTROY_SRQ = 0x701,
        QUERY_SRQ = 0x702,
        /// SRQ limit (ISSI 0), XRQ.
        ARM_RQ = 0x703,
        /// SRQ of type XRC.
        CREATE_XRC_SRQ = 0x705,
        DESTROY_XRC_SRQ = 0x706,
        QUERY_XRC_SRQ = 0x707,
        /// SRQ limit.
        ARM_XRC_SRQ = 0x708,
        /// Dynamically connected target.
        CREATE_DCT = 0x710,
        DESTROY_DCT = 0x711,
        DRAIN_DCT = 0x712,
        QUERY_DCT = 0x713,
        /// Tag matching / generic SRQ.
        CREATE_XRQ = 0x717,
        DESTROY_XRQ = 0x718,
        QUERY_XRQ = 0x719,
        ARM_XRQ = 0x71a,
        /// Functions of the e-switch.
        QUERY_ESW_FUNCTIONS = 0x740,
        QUERY_VPORT_STATE = 0x750,
        MODIFY_VPORT_STATE = 0x751,
        QUERY_ESW_VPORT_CONTEXT = 0x752,
        MODIFY_ESW_VPORT_CONTEXT = 0x753,
        /// MAC, MTU, roce_en.
        QUERY_NIC_VPORT_CONTEXT = 0x754,
        MODIFY_NIC_VPORT_CONTEXT = 0x755,
        /// GID table read.
        QUERY_ROCE_ADDRESS = 0x760,
        /// GID table write.
        SET_ROCE_ADDRESS = 0x761,
        /// IB port: LID, state.
        QUERY_HCA_VPORT_CONTEXT = 0x762,
        MODIFY_HCA_VPORT_CONTEXT = 0x763,
        /// IB port GIDs.
        QUERY_HCA_VPORT_GID = 0x764,
        /// IB port PKEYs.
        QUERY_HCA_VPORT_PKEY = 0x765,
        /// Diagnostic counters.
        QUERY_VNIC_ENV = 0x76f,
        QUERY_VPORT_COUNTER = 0x770,
        /// Counter set for QPs.
        ALLOC_Q_COUNTER = 0x771,
        DEALLOC_Q_COUNTER = 0x772,
        QUERY_Q_COUNTER = 0x773,
        ALLOC_PD = 0x800,
        DEALLOC_PD = 0x801,
        /// Doorbell page.
        ALLOC_UAR = 0x802,
        DEALLOC_UAR = 0x803,
        CONFIG_INT_MODERATION = 0x804,
        /// Port / management registers.
        ACCESS_REG = 0x805,
        /// Multicast.
        ATTACH_TO_MCG = 0x806,
        DETACH_FROM_MCG = 0x807,
        /// IB.
        QUERY_MAD_DEMUX = 0x80b,
        /// IB.
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
        /// MPFS: accept MAC.
        SET_L2_TABLE_ENTRY = 0x829,
        QUERY_L2_TABLE_ENTRY = 0x82a,
        DELETE_L2_TABLE_ENTRY = 0x82b,
        CREATE_LAG = 0x840,
        QUERY_LAG = 0x842,
        DESTROY_LAG = 0x843,
        /// Receive transport object.
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
        /// Basic SRQ under ISSI 1.
        CREATE_RMP = 0x90c,
        /// SRQ limit.
        MODIFY_RMP = 0x90d,
        DESTROY_RMP = 0x90e,
        QUERY_RMP = 0x90f,
        SET_DELAY_DROP_PARAMS = 0x910,
        /// Send transport object.
        CREATE_TIS = 0x912,
        MODIFY_TIS = 0x913,
        DESTROY_TIS = 0x914,
        QUERY_TIS = 0x915,
        /// RSS indirection.
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
        /// DevX user context (uid).
        CREATE_UCTX = 0xa04,
        DESTROY_UCTX = 0xa06,
        /// DevX memory handle, alternative to PAS lists.
        CREATE_UMEM = 0xa08,
        DESTROY_UMEM = 0xa0a,
        QUERY_VHCA_STATE = 0xb0d,
        MODIFY_VHCA_STATE = 0xb0e,
        SYNC_CRYPTO = 0xb12,
    }
}
