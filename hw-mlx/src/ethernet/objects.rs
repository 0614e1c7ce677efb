//! The device's objects of an Ethernet port, in order of creation.

use mlx_prm::{
    DeallocPdIn, DeallocTransportDomainIn, DeleteFlowTableEntryIn, DestroyFlowGroupIn,
    DestroyFlowTableIn, DestroyRqIn, DestroySqIn, DestroyTirIn, DestroyTisIn,
};

use crate::device::Hca;
use crate::error::{CmdError, MlxError};

/// An object of the device for an Ethernet port, with the device's number for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Object {
    /// A protection domain.
    Pd(u32),
    /// A memory key, by its index.
    Mkey(u32),
    /// A transport domain.
    TransportDomain(u32),
    /// The start of the send queue's path.
    Tis(u32),
    /// The send queue.
    Sq(u32),
    /// The receive queue.
    Rq(u32),
    /// The end of the receive queue's path.
    Tir(u32),
    /// The flow table.
    FlowTable(u32),
    /// A group of entries of the flow table.
    FlowGroup {
        /// Number of the table.
        table: u32,
        /// Number of the group.
        group: u32,
    },
    /// An entry of the flow table.
    FlowEntry {
        /// Number of the table.
        table: u32,
        /// Index of the entry.
        index: u32,
    },
}

/// Objects of a port in order of creation. An object may depend on earlier ones.
#[derive(Debug, Default)]
pub(super) struct Objects(Vec<Object>);

impl Objects {
    /// Makes the list of a port of another process.
    pub(super) fn of(objects: &[Object]) -> Self {
        Self(objects.to_vec())
    }

    pub(super) fn all(&self) -> &[Object] {
        &self.0
    }

    pub(super) fn add(&mut self, object: Object) {
        self.0.push(object);
    }

    /// Destroys the objects, the last one first, and stops at the first object that the device refuses to destroy.
    ///
    /// # Errors
    /// Device refusal; the objects not destroyed are still in the list.
    pub(super) fn destroy(&mut self, hca: &mut Hca) -> Result<(), MlxError> {
        while let Some(object) = self.0.last() {
            object.destroy(hca)?;
            self.0.pop();
        }
        Ok(())
    }
}

impl Object {
    fn destroy(self, hca: &mut Hca) -> Result<(), CmdError> {
        match self {
            Self::Pd(pd) => hca.exec(DeallocPdIn::new().set_pd(pd)).map(|_| ()),
            Self::Mkey(index) => crate::mkey::destroy(hca, index),
            Self::TransportDomain(domain) => hca
                .exec(DeallocTransportDomainIn::new().set_transport_domain(domain))
                .map(|_| ()),
            Self::Tis(tis) => hca.exec(DestroyTisIn::new().set_tisn(tis)).map(|_| ()),
            Self::Sq(sqn) => hca.exec(DestroySqIn::new().set_sqn(sqn)).map(|_| ()),
            Self::Rq(rqn) => hca.exec(DestroyRqIn::new().set_rqn(rqn)).map(|_| ()),
            Self::Tir(tir) => hca.exec(DestroyTirIn::new().set_tirn(tir)).map(|_| ()),
            Self::FlowTable(table) => hca
                .exec(DestroyFlowTableIn::new().set_table_id(table))
                .map(|_| ()),
            Self::FlowGroup { table, group } => hca
                .exec(
                    DestroyFlowGroupIn::new()
                        .set_table_id(table)
                        .set_group_id(group),
                )
                .map(|_| ()),
            Self::FlowEntry { table, index } => hca
                .exec(
                    DeleteFlowTableEntryIn::new()
                        .set_table_id(table)
                        .set_flow_index(index),
                )
                .map(|_| ()),
        }
    }
}
