//! Local memory regions: `dat_lmr_create`, `_query`, `_free`, `_sync_rdma_read`, `_sync_rdma_write`,
//! and cutting slices.
//!
//! `dat_lmr_create` supports three kinds of memory, with one method each here. The first is a plain range of
//! addresses. The second is the memory of another region, registered again under a PZ and rights of its own; the two
//! regions are freed independently. The third is shared memory, named by an identifier that all processes know:
//! processes that register under the same identifier mean the same bytes. Each process has a device function of its
//! own, whose IOMMU maps the bytes for that process only. So the processes have nothing in common but the identifier.
//! The library checks that the memory can be shared, and that one identifier always has the same size.

use crate::error::{DatError, DatResult, Subtype, lasting};
use crate::handle::{LmrHandle, LmrKey, PzHandle, PzKey};
use crate::ia::instance::Ia;
use crate::object::lmr::segment::LmrTriplet;
use crate::object::lmr::slice::LmrSlice;
use crate::object::lmr::{Lmr, MemType, Registered, SharedMemoryId, allowed_in};
use crate::provider::{MAX_SEGMENT_BYTES, Provider, ProviderError};
use crate::refusal::Refusal;
use crate::types::{MemPrivFlags, OF_REGIONS};

/// Error text for memory of another adapter, used if the provider gives none.
const FOREIGN: &str = "the memory is another adapter's: open both with `,memory=NAME`";

/// Result of `lmr_create`: the region and its contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LmrCreated {
    /// Handle of the region.
    pub lmr: LmrHandle,
    /// LMR context, for use in local triplets.
    pub lmr_context: u32,
    /// RMR context, for use by peers; 0 if no remote right was requested.
    pub rmr_context: u32,
    /// Address of the first byte registered.
    pub registered_address: u64,
    /// Number of bytes registered.
    pub registered_size: u64,
}

/// Result of `lmr_query` (`DAT_LMR_PARAM`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LmrParam {
    /// Kind of memory that the region was created from.
    pub mem_type: MemType,
    /// Protection zone of the region.
    pub pz: PzHandle,
    /// Access rights of the region.
    pub privileges: MemPrivFlags,
    /// LMR context, for use in local triplets.
    pub lmr_context: u32,
    /// RMR context, for use by peers; 0 if no remote right was requested.
    pub rmr_context: u32,
    /// Address of the first byte registered.
    pub registered_address: u64,
    /// Number of bytes registered.
    pub registered_size: u64,
}

impl<P: Provider> Ia<P> {
    /// Registers a range of memory.
    ///
    /// Page: dat_lmr_create.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|PZ. DAT_INVALID_PARAMETER|ARG6: unknown privileges, or [`MemPrivFlags::REMOTE_ATOMIC`]
    /// without LOCAL_WRITE. DAT_MODEL_NOT_SUPPORTED: [`MemPrivFlags::REMOTE_ATOMIC`] on a device without atomic
    /// operations. DAT_INSUFFICIENT_RESOURCES|MEMORY_REGION. DAT_INVALID_PARAMETER|ARG4: a length that the device
    /// cannot register, or memory of another adapter, which the error names.
    pub fn lmr_create(
        &mut self,
        memory: P::Memory,
        pz: PzHandle,
        privileges: MemPrivFlags,
    ) -> DatResult<LmrCreated> {
        self.register(memory, MemType::Virtual, pz, privileges)
    }

    /// Registers the memory of an existing region a second time. The new region has its own PZ and its own rights.
    ///
    /// Page: dat_lmr_create.
    ///
    /// # Errors
    /// The errors of [`Ia::lmr_create`]; DAT_INVALID_HANDLE|LMR: the existing region.
    pub fn lmr_create_from_lmr(
        &mut self,
        source: LmrHandle,
        pz: PzHandle,
        privileges: MemPrivFlags,
    ) -> DatResult<LmrCreated> {
        let memory = self.lmr(source)?.memory.clone();
        self.register(memory, MemType::Lmr(source), pz, privileges)
    }

    /// Registers memory that other processes also map and register under the same name.
    ///
    /// Page: dat_lmr_create.
    ///
    /// # Errors
    /// As [`Ia::lmr_create`]. DAT_INVALID_STATE: the memory was not created shared.
    /// DAT_INVALID_PARAMETER|ARG4: this IA has a region of another length under the name.
    pub fn lmr_create_shared(
        &mut self,
        memory: P::Memory,
        id: SharedMemoryId,
        pz: PzHandle,
        privileges: MemPrivFlags,
    ) -> DatResult<LmrCreated> {
        self.alive()?;
        self.pz_key(pz)?;
        if !self.provider.is_shared(&memory) {
            return Err(DatError::state(Subtype::None)
                .because("the memory is private to this process: it was not created shared"));
        }
        let kind = MemType::SharedVirtual(id);
        let known = self.regions.of_kind(kind);
        let bytes = known.map(|lmr| lmr.created.bytes);
        let created = self.register(memory, kind, pz, privileges)?;
        if bytes.is_some_and(|bytes| bytes != created.registered_size) {
            // The caller never receives the handle of this new region, so the region is freed here.
            self.end_or_stop_device("deregistering memory", |ia| ia.remove_lmr(created.lmr.key));
            return Err(DatError::parameter(Subtype::Arg4, "id")
                .because("the same shared_memory_id stands for memory of another length"));
        }
        Ok(created)
    }

    fn register(
        &mut self,
        memory: P::Memory,
        kind: MemType,
        pz: PzHandle,
        privileges: MemPrivFlags,
    ) -> DatResult<LmrCreated> {
        self.alive()?;
        let pz = self.pz_key(pz)?;
        if !OF_REGIONS.contains(privileges) {
            return Err(DatError::parameter(Subtype::Arg6, "privileges")
                .because("mem_privileges: unknown ones"));
        }
        if privileges.contains(MemPrivFlags::REMOTE_ATOMIC) {
            if !self.provider.limits().atomics {
                return Err(Refusal::NoAtomics.error());
            }
            // As in Linux (`ib_check_mr_access`): memory that peers may change must also be writable by the region's
            // owner.
            if !privileges.contains(MemPrivFlags::LOCAL_WRITE) {
                return Err(DatError::parameter(Subtype::Arg6, "privileges")
                    .because("REMOTE_ATOMIC needs LOCAL_WRITE"));
            }
        }
        let registration = match self.provider.register(self.pzs[pz].pd, &memory, privileges) {
            Ok(registration) => registration,
            Err(
                error @ (ProviderError::Foreign(_)
                | ProviderError::Unsupported(_)
                | ProviderError::Limit { .. }),
            ) => {
                self.note_device_error("lmr_create", &error);
                let refused = DatError::parameter(Subtype::Arg4, "memory");
                return Err(match error {
                    ProviderError::Foreign(whose) => {
                        refused.because(lasting::text(&whose, FOREIGN))
                    }
                    ProviderError::Limit { asked, limit, .. } => refused
                        .because("the device cannot register so much")
                        .over(asked, limit),
                    ProviderError::Unsupported(_)
                    | ProviderError::Resources(_)
                    | ProviderError::Unreachable { .. }
                    | ProviderError::Device(_)
                    | ProviderError::Dead(_) => {
                        refused.because("the device cannot register this memory")
                    }
                });
            }
            Err(error) => {
                return Err(self.device_refused(
                    "lmr_create",
                    error,
                    Subtype::ResourceMemoryRegion,
                ));
            }
        };
        let created = Registered::new(&registration, privileges);
        self.pzs[pz].users += 1;
        let effective = self.effective(privileges);
        let key = self.regions.insert(Lmr::new(
            (registration.region, memory, created),
            pz,
            (privileges, effective),
            kind,
        ));
        Ok(LmrCreated {
            lmr: LmrHandle { key, ia: self.id },
            lmr_context: created.lmr_context,
            rmr_context: created.rmr_context,
            registered_address: created.address,
            registered_size: created.bytes,
        })
    }

    /// Returns the privileges that the checks of posts apply to a region with the privileges `asked`.
    pub(in crate::ia) fn effective(&self, asked: MemPrivFlags) -> MemPrivFlags {
        let implies =
            self.config.local_write_implies_read && asked.contains(MemPrivFlags::LOCAL_WRITE);
        if implies {
            asked | MemPrivFlags::LOCAL_READ
        } else {
            asked
        }
    }

    /// Returns the parameters of a region.
    ///
    /// Page: dat_lmr_query.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|LMR.
    pub fn lmr_query(&self, lmr: LmrHandle) -> DatResult<LmrParam> {
        let lmr = self.lmr(lmr)?;
        Ok(LmrParam {
            mem_type: lmr.kind,
            pz: PzHandle {
                key: lmr.pz,
                ia: self.id,
            },
            privileges: lmr.privileges,
            lmr_context: lmr.created.lmr_context,
            rmr_context: lmr.created.rmr_context,
            registered_address: lmr.created.address,
            registered_size: lmr.created.bytes,
        })
    }

    /// Returns the memory of a region, as it was given to [`Ia::lmr_create`] or has been resumed
    /// ([`Ia::resume`]).
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|LMR.
    pub fn lmr_memory(&self, lmr: LmrHandle) -> DatResult<P::Memory> {
        self.lmr(lmr).map(|lmr| lmr.memory.clone())
    }

    /// Frees a region. After success no peer can reach the memory. DTOs in flight that name the region may fail.
    ///
    /// Page: dat_lmr_free.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|LMR. DAT_INVALID_STATE|LMR_IN_USE: an RMR is bound to the region; or a bind that names the
    /// region, or that moves an RMR away from it, has not completed, even if that RMR has been freed since.
    /// DAT_INTERNAL_ERROR: the device refused; nothing has changed, and peers that could reach the memory still can.
    pub fn lmr_free(&mut self, lmr: LmrHandle) -> DatResult<()> {
        if self.lmr(lmr)?.is_bound() {
            return Err(DatError::state(Subtype::StateLmrInUse).because("an RMR is bound to it"));
        }
        if self.lmr(lmr)?.is_held() {
            // Until those binds complete, the key is valid, and peers can use it to reach the memory.
            self.poll_binds();
            if self.lmr(lmr)?.is_held() {
                return Err(DatError::state(Subtype::StateLmrInUse)
                    .because("a bind that names it, or moves an RMR away from it, is not done"));
            }
        }
        self.remove_lmr(lmr.key)
    }

    /// Removes an LMR. If the device refuses to deregister it, the LMR is unchanged. An LMR that a device window or an
    /// outstanding bind still uses is retired: the consumer no longer sees it, and it is deregistered after the last
    /// use.
    pub(in crate::ia) fn remove_lmr(&mut self, key: LmrKey) -> DatResult<()> {
        let Some(lmr) = self.regions.get_mut(key) else {
            return Ok(());
        };
        if !lmr.is_held()
            && let Err(error) = self.provider.deregister(&mut lmr.region)
        {
            return Err(self.not_ended("deregistering memory", &error));
        }
        let Some(lmr) = self.regions.remove(key) else {
            return Ok(());
        };
        self.forget_context(LmrHandle { key, ia: self.id });
        if !lmr.is_held() {
            self.pzs[lmr.pz].users -= 1;
        } else {
            self.provider.withdraw(&lmr.memory);
            self.regions.retire(key, lmr);
        }
        Ok(())
    }

    /// Deregisters a retired LMR, which is no longer visible to the consumer.
    fn end_retired(&mut self, key: LmrKey) -> DatResult<()> {
        if let Some(lmr) = self.regions.retired_mut(key)
            && let Err(error) = self.provider.deregister(&mut lmr.region)
        {
            return Err(self.not_ended("deregistering memory", &error));
        }
        if let Some(lmr) = self.regions.end_retired(key) {
            self.pzs[lmr.pz].users -= 1;
        }
        Ok(())
    }

    /// Counts a posted bind to an LMR.
    pub(in crate::ia) fn bound_to(&mut self, key: LmrKey) {
        if let Some(lmr) = self.regions.get_mut(key) {
            lmr.bind_posted();
        }
    }

    /// Subtracts an RMR that the last posted bind no longer binds to this LMR.
    pub(in crate::ia) fn unbound_from(&mut self, key: LmrKey) {
        if let Some(lmr) = self.regions.get_mut(key) {
            lmr.unbound();
        }
    }

    /// Subtracts one use of an LMR: a device window no longer uses it, or a bind to it failed. If the LMR is retired
    /// and this was the last use, deregisters the LMR.
    pub(in crate::ia) fn let_go_of_lmr(&mut self, key: LmrKey) {
        if let Some(lmr) = self.regions.get_mut(key) {
            lmr.let_go();
        } else if let Some(lmr) = self.regions.retired_mut(key) {
            lmr.let_go();
            if !lmr.is_held() {
                self.end_or_stop_device("deregistering memory", |ia| ia.end_retired(key));
            }
        }
    }

    /// Returns the LMR with this context.
    pub(in crate::ia) fn lmr_with_context(&self, lmr_context: u32) -> Option<LmrKey> {
        self.regions.with_context(lmr_context)
    }

    pub(in crate::ia) fn lmr_pz(&self, key: LmrKey) -> Option<PzKey> {
        self.regions.get(key).map(|lmr| lmr.pz)
    }

    /// Returns a slice of `bytes` bytes at `offset` in a region. The range is checked once here, not at each post.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|LMR. DAT_INVALID_PARAMETER: outside of the region, or longer than 2^31 - 1 bytes.
    pub fn lmr_slice(&self, lmr: LmrHandle, offset: u64, bytes: u64) -> DatResult<LmrSlice> {
        let lmr = self.lmr(lmr)?;
        if offset > lmr.created.bytes || bytes > lmr.created.bytes - offset {
            return Err(DatError::parameter(Subtype::Arg3, "bytes")
                .because("the slice ends outside its LMR")
                .over(offset.saturating_add(bytes), lmr.created.bytes));
        }
        let too_long = DatError::parameter(Subtype::Arg3, "bytes")
            .because("a slice holds at most 2^31 - 1 bytes")
            .over(bytes, MAX_SEGMENT_BYTES);
        Ok(LmrSlice {
            // An empty slice at the end of a region that ends at 2^64 wraps to 0.
            address: lmr.created.address.wrapping_add(offset),
            stamp: self.regions.table().stamp,
            lmr_context: lmr.created.lmr_context,
            bytes: u32::try_from(bytes)
                .ok()
                .filter(|&bytes| u64::from(bytes) <= MAX_SEGMENT_BYTES)
                .ok_or(too_long)?,
            readable_in: allowed_in(lmr, MemPrivFlags::LOCAL_READ),
            writable_in: allowed_in(lmr, MemPrivFlags::LOCAL_WRITE),
        })
    }

    /// Makes this CPU's earlier stores visible to RDMA Reads that start later. On coherent platforms, which are the
    /// only ones supported, a memory barrier is sufficient.
    ///
    /// Page: dat_lmr_sync_rdma_read.
    ///
    /// # Errors
    /// DAT_INVALID_PARAMETER|ARG2: a segment names no LMR or reaches outside of its LMR. Then nothing was synchronised.
    pub fn lmr_sync_rdma_read(&self, segments: &[LmrTriplet]) -> DatResult<()> {
        self.check_sync(segments)?;
        self.provider.sync_for_device();
        Ok(())
    }

    /// Makes data placed by RDMA Writes visible to this CPU.
    ///
    /// Page: dat_lmr_sync_rdma_write.
    ///
    /// # Errors
    /// As [`Ia::lmr_sync_rdma_read`].
    pub fn lmr_sync_rdma_write(&self, segments: &[LmrTriplet]) -> DatResult<()> {
        self.check_sync(segments)?;
        self.provider.sync_for_cpu();
        Ok(())
    }

    /// Checks that each segment lies in an LMR. PZ and rights are not checked: the segments of one call may belong to
    /// several PZs.
    fn check_sync(&self, segments: &[LmrTriplet]) -> DatResult<()> {
        for segment in segments
            .iter()
            .filter(|segment| segment.segment_length != 0)
        {
            let entry = self.regions.table().entry(segment.lmr_context).ok_or(
                DatError::parameter(Subtype::Arg2, "segments")
                    .because("no LMR has this lmr_context"),
            )?;
            if !entry.contains(segment.virtual_address, segment.segment_length) {
                return Err(DatError::parameter(Subtype::Arg2, "segments")
                    .because("a segment reaches outside its LMR"));
            }
        }
        Ok(())
    }
}
