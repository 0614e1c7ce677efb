//! Commands for the function as a whole: enabling it, setting the interface step (ISSI), supplying the firmware's
//! pages, capabilities, starting and stopping (PRM "Initialization and General Commands").

use layout::layout;

use super::command::command;
use super::{CmdStatus, Opcode};

command! {
    /// Enables a function. function_id 0 is this function; a physical function may enable its virtual functions (1…).
    ENABLE_HCA: EnableHcaIn(0x10) {
        embedded_cpu_function: 0x08[31],
        function_id: 0x08[15:0],
    } -> EnableHcaOut(0xc) {}

    DISABLE_HCA: DisableHcaIn(0x10) {
        embedded_cpu_function: 0x08[31],
        function_id: 0x08[15:0],
    } -> DisableHcaOut(0xc) {}

    /// Queries the interface steps (ISSI). Bit n of supported_issi_dw0, the last dword of a bit array, is set if the
    /// firmware supports step n.
    QUERY_ISSI: QueryIssiIn(0x10) {} -> QueryIssiOut(0x70) {
        current_issi: 0x08[15:0],
        supported_issi_dw0: 0x6c u32,
    }

    /// Sets the interface step (ISSI). Drivers set step 1 right after ENABLE_HCA.
    SET_ISSI: SetIssiIn(0x10) {
        current_issi: 0x08[15:0],
    } -> SetIssiOut(0x10) {}

    /// Queries the bonding of the ports (LAG). State 0 means that the ports are not bonded.
    QUERY_LAG: QueryLagIn(0x10) {} -> QueryLagOut(0x10) {
        lag_state: 0x08[2:0],
    }

    /// Queries the number of pages that the firmware needs: op_mod 1 boot, 2 init, 3 regular. num_pages is signed.
    QUERY_PAGES: QueryPagesIn(0x10) {
        embedded_cpu_function: 0x08[31],
        function_id: 0x08[15:0],
    } -> QueryPagesOut(0x10) {
        embedded_cpu_function: 0x08[31],
        function_id: 0x08[15:0],
        num_pages: 0x0c u32,
    }

    /// Gives pages to the firmware (op_mod 1), takes pages back (2), or reports that the allocation failed (0). When
    /// the driver takes pages, the output has their addresses; its length is 16 + 8·(maximum number of pages). The
    /// driver may split a give into several commands.
    MANAGE_PAGES: ManagePagesIn(0x10) {
        /// Value of bit 15 of the page request event's ec_function.
        embedded_cpu_function: 0x08[31],
        function_id: 0x08[15:0],
        /// Give: number of addresses in the input. Take: largest number of pages to take.
        input_num_entries: 0x0c u32,
    } -> ManagePagesOut(0x10) {
        /// Take: number of addresses that follow the output.
        output_num_entries: 0x08 u32,
    }

    /// op_mod selects the page, see [`CapType`](super::CapType).
    QUERY_HCA_CAP: QueryHcaCapIn(0x10) {
        other_function: 0x08[31],
        ec_vf_function: 0x08[30],
        function_id: 0x08[15:0],
    } -> QueryHcaCapOut(0x1010) {
        capability: 0x10 [u8; 0x1000],
    }

    /// Sets the capabilities in force. op_mod selects the page, see [`CapType`](super::CapType). Allowed only before
    /// INIT_HCA.
    SET_HCA_CAP: SetHcaCapIn(0x1010) {
        other_function: 0x08[31],
        ec_vf_function: 0x08[30],
        function_id: 0x08[15:0],
        capability: 0x10 [u8; 0x1000],
    } -> SetHcaCapOut(0x10) {}

    /// Starts the function. sw_owner_id requires the capability `sw_owner_id`; sw_vhca_id requires `sw_vhca_id_valid`
    /// of the second general page.
    INIT_HCA: InitHcaIn(0x20) {
        sw_vhca_id: 0x0c[29:16],
        sw_owner_id: 0x10 [u8; 16],
    } -> InitHcaOut(0x10) {}

    /// Stops the function. Profile: 0 graceful, 1 force, 2 prepare fast. State (force, fast): 0 success, 1 failed.
    TEARDOWN_HCA: TeardownHcaIn(0x10) {
        profile: 0x08[15:0],
    } -> TeardownHcaOut(0x10) {
        state: 0x0c[0],
    }

    /// Reports the driver's version to the firmware. Requires capability `driver_version`.
    SET_DRIVER_VERSION: SetDriverVersionIn(0x50) {
        driver_version: 0x10 [u8; 64],
    } -> SetDriverVersionOut(0x10) {}

    /// Vendor and board identification.
    QUERY_ADAPTER: QueryAdapterIn(0x10) {} -> QueryAdapterOut(0x110) {
        query_adapter_struct: 0x10 AdapterParamBlock,
    }

    NOP: NopIn(0x10) {} -> NopOut(0x10) {}
}

layout! {
    /// Adapter description (PRM "query_adapter_param_block").
    pub struct AdapterParamBlock(0x100) {
        /// Vendor ID of the IEEE.
        ieee_vendor_id: 0x18[23:0],
        /// PCI vendor ID of the vendor that defines `vsd`.
        vsd_vendor_id: 0x1c[15:0],
        /// Vendor specific data.
        vsd: 0x20 [u8; 208],
        /// Parameter set identification (PSID), which identifies the firmware image for this board.
        vsd_contd_psid: 0xf0 [u8; 16],
    }
}
