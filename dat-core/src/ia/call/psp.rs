//! Public service points: `dat_psp_create`, `_create_any`, `_query`, `_free`.
//!
//! A PSP is a listener of the connection manager. Its backlog is the length of its EVD's queue, less the slots that are
//! kept for connection events of endpoints.

use crate::error::{DatError, DatResult, ReturnType, Subtype};
use crate::handle::{EvdHandle, EvdKey, PspHandle, PspKey};
use crate::ia::instance::Ia;
use crate::object::evd::streams::Stream;
use crate::object::psp::Psp;
use crate::object::service_point::{ServicePoint, service_id};
use crate::provider::Provider;
use crate::types::{ConnQual, EvdFlags, PspFlags};

/// First qualifier that `psp_create_any` tries. Its first byte, 02h, marks service IDs that the local operating system
/// assigns (IBTA volume 1, "Service ID"). A request to such a qualifier carries at most 64 bytes of private data.
const FIRST_ANY: u64 = 0x0200_0000_0000_0001;
/// Number of qualifiers that `psp_create_any` tries.
const ANY_TRIES: u64 = 65_536;

/// Returns the error for a qualifier at which the adapter already listens.
#[cold]
pub(in crate::ia) const fn qualifier_in_use() -> DatError {
    DatError::new(ReturnType::ConnQualInUse, Subtype::None).because(
        "this adapter listens at this conn_qual already, in this or another instance: free that service point, take another qualifier or psp_create_any, or share it with psp_create_shared",
    )
}

/// Result of `psp_query` (`DAT_PSP_PARAM`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PspParam {
    /// Connection qualifier at which the service point listens.
    pub conn_qual: ConnQual,
    /// EVD that receives the connection requests.
    pub evd: EvdHandle,
    /// Flag that selects who creates the endpoint of a request: the consumer or the provider.
    pub flags: PspFlags,
}

impl<P: Provider> Ia<P> {
    /// Listens at a connection qualifier. Requests arrive as events on `evd`.
    ///
    /// Page: dat_psp_create.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EVD_CR. DAT_INVALID_PARAMETER: |ARG2 qualifier 0, |ARG3 the EVD has UNSIGNALLED or
    /// SOLICITED_WAIT streams and takes no other events, |ARG4 unknown flags. DAT_CONN_QUAL_IN_USE.
    pub fn psp_create(
        &mut self,
        conn_qual: ConnQual,
        evd: EvdHandle,
        flags: PspFlags,
    ) -> DatResult<PspHandle> {
        self.psp_at(conn_qual, evd, flags, false)
    }

    /// Listens at a connection qualifier jointly with other instances of the adapter that use this call. Each request
    /// goes to the instance with the fewest connections. If that instance cannot take it (its EVD is full, its service
    /// point was freed meanwhile, or no endpoint could be made for it), it goes to one other instance. DAT 1.2 has no
    /// such call.
    ///
    /// # Errors
    /// The errors of [`Ia::psp_create`]; DAT_CONN_QUAL_IN_USE: a service point of this instance, or one that was not
    /// created by this call, listens at the qualifier.
    pub fn psp_create_shared(
        &mut self,
        conn_qual: ConnQual,
        evd: EvdHandle,
        flags: PspFlags,
    ) -> DatResult<PspHandle> {
        self.psp_at(conn_qual, evd, flags, true)
    }

    /// Listens at a free qualifier, and returns it.
    ///
    /// Page: dat_psp_create_any.
    ///
    /// # Errors
    /// As [`Ia::psp_create`]; DAT_CONN_QUAL_UNAVAILABLE instead of DAT_CONN_QUAL_IN_USE.
    pub fn psp_create_any(
        &mut self,
        evd: EvdHandle,
        flags: PspFlags,
    ) -> DatResult<(ConnQual, PspHandle)> {
        let evd = self.check_psp(evd, flags)?;
        for conn_qual in (FIRST_ANY..FIRST_ANY + ANY_TRIES).map(ConnQual) {
            if let Ok(psp) = self.listen(conn_qual, evd, flags, false) {
                return Ok((conn_qual, psp));
            }
        }
        Err(DatError::new(
            ReturnType::ConnQualUnavailable,
            Subtype::None,
        ))
    }

    fn psp_at(
        &mut self,
        conn_qual: ConnQual,
        evd: EvdHandle,
        flags: PspFlags,
        shared: bool,
    ) -> DatResult<PspHandle> {
        let evd = self.check_psp(evd, flags)?;
        if conn_qual.0 == 0 {
            return Err(
                DatError::parameter(Subtype::Arg2, "conn_qual").because("connection qualifier 0")
            );
        }
        self.listen(conn_qual, evd, flags, shared)
    }

    fn check_psp(&self, evd: EvdHandle, flags: PspFlags) -> DatResult<EvdKey> {
        let evd = self.check_request_evd(evd, Subtype::Arg3)?;
        if !PspFlags::all().contains(flags) {
            return Err(
                DatError::parameter(Subtype::Arg4, "flags").because("psp_flags: unknown ones")
            );
        }
        Ok(evd)
    }

    /// Checks the EVD that will receive the requests of a service point; `argument` is its position in the call.
    pub(in crate::ia) fn check_request_evd(
        &self,
        evd: EvdHandle,
        argument: Subtype,
    ) -> DatResult<EvdKey> {
        self.alive()?;
        let missing = DatError::handle(Subtype::HandleEvdCr);
        let evd = self
            .evd_for(Some(evd), EvdFlags::CR, Subtype::HandleEvdCr)?
            .ok_or(missing)?;
        let mut streams = self.evds[evd].streams;
        streams.attach(Stream::Other);
        if self.config.strict_evd_sharing && !streams.may_share() {
            return Err(DatError::parameter(argument, "evd").because(
                "an EVD with UNSIGNALLED or SOLICITED_WAIT streams takes no other events",
            ));
        }
        Ok(evd)
    }

    fn listen(
        &mut self,
        conn_qual: ConnQual,
        evd: EvdKey,
        flags: PspFlags,
        shared: bool,
    ) -> DatResult<PspHandle> {
        let listen = self
            .adapter
            .lock()
            .listen(self.instance_index, service_id(conn_qual), shared)
            .map_err(|_in_use| qualifier_in_use())?;
        let key = self.psps.insert(Psp {
            listen,
            conn_qual,
            evd,
            flags,
        });
        self.listeners.insert(listen, ServicePoint::Psp(key));
        self.evds[evd].streams.attach(Stream::Other);
        Ok(self.psp_handle(key))
    }

    /// Returns the parameters of a service point.
    ///
    /// Page: dat_psp_query.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|PSP.
    pub fn psp_query(&self, psp: PspHandle) -> DatResult<PspParam> {
        let psp = self.psp(psp)?;
        Ok(PspParam {
            conn_qual: psp.conn_qual,
            evd: self.evd_handle(psp.evd),
            flags: psp.flags,
        })
    }

    /// Stops listening. Requests that have already arrived are kept, and can be accepted or rejected.
    ///
    /// Page: dat_psp_free.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|PSP.
    pub fn psp_free(&mut self, psp: PspHandle) -> DatResult<()> {
        self.psp(psp)?;
        self.remove_psp(psp.key);
        Ok(())
    }

    pub(in crate::ia) fn remove_psp(&mut self, key: PspKey) {
        let Some(psp) = self.psps.remove(key) else {
            return;
        };
        self.adapter
            .lock()
            .unlisten(self.instance_index, psp.listen);
        self.listeners.remove(&psp.listen);
        self.evds[psp.evd].streams.detach(Stream::Other);
        self.forget_context(self.psp_handle(key));
    }
}
