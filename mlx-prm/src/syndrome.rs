//! Published syndromes of commands that the firmware of real cards refused.
//!
//! Beside the status of a command (PRM "Command Status") the firmware returns a 32-bit syndrome, which no manual
//! lists. Each entry here is a published syndrome, with the condition that the publisher found to cause it. The vendor
//! has not confirmed these meanings. The table is sorted by syndrome, then by opcode.
//!
//! The table has no entry for syndrome zero, because zero says nothing about the reason.

use super::{CmdStatus, Opcode};

/// A syndrome, and the card that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownSyndrome {
    /// The syndrome in the command's output.
    pub syndrome: u32,
    /// The command that was refused.
    pub opcode: Opcode,
    /// The status that the firmware returned with the syndrome.
    pub status: CmdStatus,
    /// The condition that caused the refusal, as the publisher found.
    pub means: &'static str,
    /// The card and the function, if published.
    pub card: &'static str,
    /// The publication that reports the syndrome.
    pub source: &'static str,
}

/// Returns the entry for this command and syndrome, if there is one.
#[must_use]
pub fn known_syndrome(opcode: Opcode, syndrome: u32) -> Option<&'static KnownSyndrome> {
    known_syndromes(syndrome).find(|known| known.opcode == opcode)
}

/// Returns the entries for a syndrome, of all commands.
pub fn known_syndromes(syndrome: u32) -> impl Iterator<Item = &'static KnownSyndrome> {
    KNOWN_SYNDROMES
        .iter()
        .filter(move |known| known.syndrome == syndrome)
}

macro_rules! table {
    ($($syndrome:literal $opcode:ident $status:ident $means:literal, $card:literal, $source:literal;)*) => {
        /// The known syndromes, sorted by syndrome, then by opcode.
        pub const KNOWN_SYNDROMES: &[KnownSyndrome] = &[$(KnownSyndrome {
            syndrome: $syndrome,
            opcode: Opcode::$opcode,
            status: CmdStatus::$status,
            means: $means,
            card: $card,
            source: $source,
        },)*];
    };
}

table! {
    0x008fef CREATE_EQ BAD_PARAM
        "fields of the context or of the event mask stand at wrong offsets",
        "not told",
        "linux-rdma and netdev mailing lists, on Linux commit b169e64a2444";
    0x03bf6f CREATE_MKEY BAD_PARAM
        "a key for nothing: its size or its number of entries is 0",
        "not told",
        "Linux commit 023d2a43ed0d; netdev mailing list, a fix of 99be56171fa9";
    0x063c66 SET_ROCE_ADDRESS BAD_PARAM
        "the source MAC is a multicast address; or, on a function whose state was loaded from another, the entry is taken",
        "ConnectX-6 VPI physical function (MT_0000000223)",
        "linux-rdma mailing list, 18 July 2023, \"mlx5: set_roce_address() / GID add failure\"";
    0x0754a4 CREATE_FLOW_TABLE BAD_PARAM
        "other_vport is not set, where the manager of the e-switch is the Arm's function (vport 0xfffe)",
        "BlueField",
        "Linux commit 43a0696f1156";
    0x12822d SET_ROCE_ADDRESS BAD_PARAM
        "an entry is cleared with roce_version 0, which is RoCE v1, and the function has no RoCE v1",
        "a scalable function",
        "netdev and linux-rdma mailing lists, April 2021";
    0x144b7a SET_FLOW_TABLE_ENTRY BAD_PARAM
        "the entry neither forwards nor drops nor allows",
        "physical function, switchdev",
        "netdev mailing list, a fix by Vlad Buslov that checks the actions of parse_tc_fdb_actions";
    0x177405 RST2INIT_QP BAD_PARAM
        "the port number is none of the function's: RoCE is switched off, or the e-switch is in switchdev mode",
        "not told",
        "linux-rdma mailing list, a fix of Linux commit b5ca15ad7e61";
    0x1870ad DESTROY_CQ BAD_RES_STATE
        "there is no such completion queue: the physical function was reset under this virtual one",
        "ConnectX-5 virtual function, firmware 16.27.1016",
        "linux-pci and linux-rdma mailing lists, a reset (FLR) of a physical function in use";
    0x1e5585 ACCESS_REG BAD_PARAM
        "PPCNT of a local_port other than 1, where each port is a function",
        "physical function, switchdev",
        "linux-rdma mailing list, a fix of Linux commit 210b1f78076f";
    0x25b161 DESTROY_QP BAD_RES_STATE
        "there is no such queue pair: the physical function was reset under this virtual one",
        "ConnectX-5 virtual function, firmware 16.27.1016",
        "linux-pci and linux-rdma mailing lists, a reset (FLR) of a physical function in use";
    0x263211 MODIFY_VHCA_STATE BAD_PARAM
        "the bit that names the embedded processor's function is set",
        "BlueField, the Arm's function",
        "Linux commit 7c1ef1959b6f";
    0x305684 ACCESS_REG BAD_OP
        "the card does not have this register, or does not show it to this function",
        "physical function",
        "github.com/leptonai/gpud issue 1164; github.com/prometheus/node_exporter issue 3434";
    0x31b635 DEALLOC_PD BAD_RES_STATE
        "objects of the protection domain are still there",
        "not told",
        "linux-rdma mailing list";
    0x35e6ec CREATE_MKEY BAD_PARAM
        "a key for protection information (signature, T10-DIF), which NVMe over RDMA asks for",
        "not told",
        "github.com/openucx/ucx issue 9488";
    0x389e56 DESTROY_FLOW_TABLE BAD_PARAM
        "the flow table is still referenced, or is not there",
        "virtual function of a cloud's machine (Azure)",
        "kernel mailing lists";
    0x4bb88f RTR2RTS_QP BAD_PARAM
        "not found out: it was met while queue pairs were connected that had failed before",
        "InfiniBand port",
        "github.com/charmplusplus/charm issue 2532";
    0x537801 SET_HCA_CAP BAD_PARAM
        "log_max_current_uc_list is above its maximum, which is 0 on an InfiniBand port",
        "physical function whose port type was changed",
        "netdev mailing list, 11 June 2026, a fix of Linux commit 8680a60fc1fc";
    0x563e2f DESTROY_FLOW_GROUP BAD_RES_STATE
        "entries of the flow group are still there",
        "not told",
        "kernel mailing lists";
    0x595b5d CREATE_TIS BAD_PARAM
        "the port of the send side (lag_tx_port_affinity) is one that the function does not have",
        "ConnectX-6 Dx virtual function (101e), firmware 22.36.1010",
        "netdev mailing list, January 2024, a fix of Linux commit b25bd37c859f";
    0x59c8a4 CREATE_MKEY EXCEED_LIM
        "no more memory keys",
        "physical function",
        "kernel mailing lists";
    0x5add95 QUERY_HCA_CAP BAD_PARAM
        "a page of another function that the firmware does not have (op_mod 0x40, second general page)",
        "physical function that switches SR-IOV on",
        "netdev mailing list, 10 July 2023, \"failed to enable eswitch SRIOV\"; Linux commit 6496357aa5f7";
    0x65b500 CREATE_QP BAD_RESOURCE
        "no more queue pairs",
        "ConnectX-4 physical function, firmware 12.28.2006, InfiniBand",
        "linux-rdma mailing list, 27 June 2022, \"Unable to create max_qp QPs\"";
    0x7d49cb CREATE_LAG BAD_PARAM
        "the ports were bonded before switchdev mode was set, or virtual functions are in use meanwhile",
        "physical function",
        "netdev mailing list";
    0x7ea02d TO_RST_QP BAD_RES_STATE
        "there is no such queue pair: the physical function was reset under this virtual one",
        "ConnectX-5 virtual function, firmware 16.27.1016",
        "linux-pci and linux-rdma mailing lists, a reset (FLR) of a physical function in use";
    0x8708c3 SET_FLOW_TABLE_ENTRY BAD_PARAM
        "the entry drops and changes headers at once",
        "physical function",
        "netdev mailing list, a fix of Linux commit d7e75a325cb2";
    0xa22b82 CREATE_DCT BAD_PARAM
        "no DCT while the ports of the physical functions are joined (VF LAG)",
        "virtual function",
        "linux-rdma mailing list";
    0xa43321 CREATE_FLOW_TABLE BAD_PARAM
        "a table that encapsulates, while IPsec or the e-switch encapsulates already",
        "physical function",
        "netdev mailing list, on IPsec packet offload in tunnel mode";
    0xd61c0b CREATE_SQ BAD_PARAM
        "ts_format does not fit the clock in use: real time is on (REAL_TIME_CLOCK_ENABLE=1) and free running was asked for, or the other way round",
        "ConnectX-6 Dx or later",
        "Linux commit 0f3caaa2c6fb, October 2022";
    0xef0c8a DEALLOC_PD BAD_RES_STATE
        "objects of the protection domain are still there",
        "not told",
        "netdev mailing list, on PSP";
}
