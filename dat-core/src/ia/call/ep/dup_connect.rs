//! `dat_ep_dup_connect`: connects to the same service of the same peer as another endpoint.
//!
//! An endpoint that connected actively knows the address and qualifier of its peer. An endpoint that was connected
//! passively knows its peer's address, but usually no service point listens at the qualifier the peer came from. The
//! attempt is still made, and ends with NON_PEER_REJECTED. (The page requires "connected" and no more.)

use super::connect::check_private_data;
use crate::attributes::gid_of;
use crate::error::{DatError, DatResult, Subtype};
use crate::handle::EpHandle;
use crate::ia::instance::Ia;
use crate::object::ep::state::{EpEvent, EpState};
use crate::object::ep::untimely::EpCall;
use crate::provider::{Provider, ProviderError};
use crate::types::{ConnQual, Qos, Timeout};

impl<P: Provider> Ia<P> {
    /// Starts a connection to the service that `dup_ep` is connected to. One event on the connect EVD reports the
    /// outcome, as for [`Ia::ep_connect`].
    ///
    /// Page: dat_ep_dup_connect.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EP: either. DAT_INVALID_STATE: `ep` is not UNCONNECTED, `dup_ep` not CONNECTED (the
    /// subtype names the state at fault); |EP_NOTREADY `ep` has no PZ. DAT_INVALID_PARAMETER: |ARG3 timeout 0, |ARG4
    /// private data too long. DAT_MODEL_NOT_SUPPORTED: quality of service. DAT_INSUFFICIENT_RESOURCES.
    pub fn ep_dup_connect(
        &mut self,
        ep: EpHandle,
        dup_ep: EpHandle,
        timeout: impl Into<Timeout>,
        private_data: &[u8],
        qos: Qos,
    ) -> DatResult<()> {
        let timeout = timeout.into();
        let state = self.ep(ep)?.hot.state;
        let dup = self.ep(dup_ep)?;
        state
            .next(EpEvent::Connect)
            .ok_or(state.refuse(EpCall::Connect))?;
        if dup.hot.state != EpState::Connected {
            return Err(dup.hot.state.refuse(EpCall::Duplicate));
        }
        // This does not fail: a connected endpoint has a remote address.
        let ends = dup
            .ends
            .ok_or(EpState::Connected.refuse(EpCall::Duplicate))?;
        self.alive()?;
        if timeout == Timeout::ZERO {
            return Err(DatError::parameter(Subtype::Arg3, "timeout").because("a timeout of 0"));
        }
        check_private_data(
            ConnQual(ends.remote_port),
            private_data.len(),
            Subtype::Arg4,
        )?;
        qos.check()?;
        // Only the source address is taken from the other connection, not its transport settings.
        let own = self.eps[ep.key].transport.source_address;
        let source = own.or(Some(ends.local));
        let path = match self.provider.route(gid_of(ends.remote), source) {
            Ok(path) => path,
            // The page lists no error for addresses, because a path existed when the other connection was made.
            Err(ProviderError::Unreachable { why, what }) => {
                self.health.note(what);
                return Err(DatError::resources(Subtype::ResourceTep).because(why));
            }
            Err(error) => {
                return Err(self.device_refused("ep_dup_connect", error, Subtype::ResourceTep));
            }
        };
        let at = (ends.remote, ConnQual(ends.remote_port));
        self.connect_to(ep, at, path, (timeout, qos), private_data)
    }
}
