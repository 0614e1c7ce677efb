//! Numbers of objects that were written out. They must be those that the device has: an object that is not in a
//! snapshot would be found missing only in the next process.

use dat_core::provider::ProviderError;
use hw_mlx::{HcaTables, ObjectCount};
use mlx_prm::Opcode;

use super::snapshot::ProviderTables;

/// Numbers of objects of the data path that were written out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    /// Protection domains.
    pub(super) pds: i64,
    /// Completion queues.
    pub(super) cqs: i64,
    /// Shared receive queues.
    pub(super) srqs: i64,
    /// Queue pairs.
    pub(super) qps: i64,
    /// Regions and windows.
    pub(super) keys: i64,
}

impl Written {
    /// Compares the numbers with those of the device.
    ///
    /// # Errors
    /// Objects were not written out. The text has their kinds and numbers.
    pub(super) fn check(
        self,
        hca: &HcaTables,
        provider: &ProviderTables,
    ) -> Result<(), ProviderError> {
        let own = own(provider);
        let Self {
            pds,
            cqs,
            srqs,
            qps,
            keys,
        } = self;
        let kinds = [
            ("protection domains", Opcode::ALLOC_PD, pds + own),
            ("completion queues", Opcode::CREATE_CQ, cqs + own),
            ("shared receive queues", Opcode::CREATE_RMP, srqs),
            // The Ethernet port has none.
            ("queue pairs", Opcode::CREATE_QP, qps + 1),
            ("keys", Opcode::CREATE_MKEY, keys + own),
        ];
        let missing: Vec<String> = kinds
            .into_iter()
            .map(|(kind, creates, written)| (kind, count(hca, creates) - written))
            .filter(|(_, missing)| *missing != 0)
            .map(|(kind, missing)| format!("{missing} {kind}"))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(ProviderError::Device(format!(
            "objects that were not written out: {}",
            missing.join(", ")
        )))
    }
}

/// Returns the number of protection domains that the provider has for itself. There are as many completion queues and
/// keys: QP1 and the Ethernet port have one each.
pub(super) fn own(provider: &ProviderTables) -> i64 {
    1 + i64::from(provider.network.is_some())
}

/// Returns the number of objects that a command creates.
pub(super) fn count(hca: &HcaTables, creates: Opcode) -> i64 {
    let is_kind = |kind: &&ObjectCount| kind.creates == creates.0;
    hca.objects
        .iter()
        .find(is_kind)
        .map_or(0, |kind| kind.count)
}
