//! Objects that were written out. There must be as many as the device has: an object that is not in a snapshot would be
//! found missing only in the next process.
//!
//! A protection domain is a number, so a caller may write it out twice, or that of QP1. The other objects are consumed.

use std::collections::BTreeSet;

use dat_core::provider::ProviderError;
use hw_mlx::ethernet::Object;
use hw_mlx::{HcaTables, ObjectCount};
use mlx_prm::Opcode;

use super::limits;
use super::snapshot::ProviderTables;

/// Objects of the data path that were written out.
#[derive(Clone, Debug, Default)]
pub(super) struct Written {
    /// Protection domains.
    pds: BTreeSet<u32>,
    /// Protection domains that were written out more than once.
    repeated_pds: BTreeSet<u32>,
    /// Number of completion queues.
    pub(super) cqs: i64,
    /// Number of shared receive queues.
    pub(super) srqs: i64,
    /// Number of queue pairs.
    pub(super) qps: i64,
    /// Number of regions and windows.
    pub(super) keys: i64,
}

impl Written {
    /// Adds a protection domain.
    pub(super) fn add_pd(&mut self, pd: u32) {
        if !self.pds.insert(pd) {
            self.repeated_pds.insert(pd);
        }
    }

    /// Compares the objects with those that the device has.
    ///
    /// # Errors
    /// Objects were not written out: the text has their kinds and numbers. Or a protection domain was written out
    /// twice, or is one of the provider's own.
    pub(super) fn check(
        &self,
        hca: &HcaTables,
        provider: &ProviderTables,
    ) -> Result<(), ProviderError> {
        let Self {
            pds,
            repeated_pds,
            cqs,
            srqs,
            qps,
            keys,
        } = self;
        let own_pds = own_domains(provider);
        if let Some(pd) = own_pds.iter().find(|pd| pds.contains(pd)) {
            let why = format!("protection domain {pd:#x} is the provider's own");
            return Err(ProviderError::Device(why));
        }
        if let Some(pd) = repeated_pds.first() {
            let why = format!("protection domain {pd:#x} was written out twice");
            return Err(ProviderError::Device(why));
        }
        let own = own(provider);
        // Numbers of objects have 24 bits.
        let pds = i64::try_from(pds.len()).unwrap_or(i64::MAX - own);
        let kinds = [
            ("protection domains", Opcode::ALLOC_PD, pds + own),
            ("completion queues", Opcode::CREATE_CQ, cqs + own),
            ("shared receive queues", Opcode::CREATE_RMP, *srqs),
            // QP1 is one. The Ethernet port has none.
            ("queue pairs", Opcode::CREATE_QP, qps + 1),
            ("keys", Opcode::CREATE_MKEY, keys + own),
        ];
        let count_of = |(kind, creates, written)| (kind, count(hca, creates), written);
        let different: Vec<String> = kinds
            .into_iter()
            .map(count_of)
            .filter(|(_, has, written)| has != written)
            .map(|(kind, has, written)| format!("{written} of {has} {kind}"))
            .collect();
        if different.is_empty() {
            return Ok(());
        }
        Err(ProviderError::Device(format!(
            "not all objects were written out (the counts include those of QP1 and of the network): {}",
            different.join(", ")
        )))
    }
}

/// Returns the protection domains of QP1 and of the Ethernet port.
pub(super) fn own_domains(provider: &ProviderTables) -> Vec<u32> {
    let port = provider.network.iter().flat_map(|network| {
        let objects = network.ethernet.objects.iter();
        objects.filter_map(|object| {
            if let Object::Pd(pd) = object {
                Some(*pd)
            } else {
                None
            }
        })
    });
    core::iter::once(provider.gsi.pd).chain(port).collect()
}

/// Returns the number of protection domains that the provider has for itself, and of completion queues and of keys.
pub(super) fn own(provider: &ProviderTables) -> i64 {
    limits::own(provider.network.is_some()).into()
}

/// Returns the number of objects that a command creates.
pub(super) fn count(hca: &HcaTables, creates: Opcode) -> i64 {
    let is_kind = |kind: &&ObjectCount| kind.creates == creates.0;
    hca.objects
        .iter()
        .find(is_kind)
        .map_or(0, |kind| kind.count)
}
