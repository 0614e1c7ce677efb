//! The current capabilities of a function. The commands that read and set them are in `cmd::caps`.

use crate::profile::Profile;
use mlx_prm::{
    AtomicCaps, CmdHcaCap, CmdHcaCap2, EthOffloadCaps, FlowTableNicCap, OdpCaps, RoceCap,
};

/// Current capability pages, by the capability type of QUERY_HCA_CAP.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// Type 0.
    pub general: CmdHcaCap,
    /// Type 0x20.
    pub general_2: CmdHcaCap2,
    /// Type 2.
    pub odp: OdpCaps,
    /// Type 3.
    pub atomic: AtomicCaps,
    /// Type 4.
    pub roce: RoceCap,
    /// Type 1.
    pub eth_offloads: EthOffloadCaps,
    /// Type 7.
    pub flow_table: FlowTableNicCap,
}

impl Capabilities {
    /// Returns the capabilities after a reset.
    pub fn new(profile: &Profile) -> Self {
        Self {
            general: profile.general.current.clone(),
            general_2: profile.general_2.current.clone(),
            odp: profile.odp.current.clone(),
            atomic: profile.atomic.current.clone(),
            roce: profile.roce.current.clone(),
            eth_offloads: profile.eth_offloads.current.clone(),
            flow_table: profile.flow_table.current.clone(),
        }
    }
}
