//! What every object has: a kind, and a word of the consumer's (`dat_get_handle_type`,
//! `dat_set_consumer_context`, `dat_get_consumer_context`).
//!
//! The words are kept beside the objects, not in them: most objects never get one, and what a post looks at stays
//! small. A word goes with its object.

use crate::error::{DatError, DatResult, Subtype};
use crate::handle::{
    CnoHandle, CrHandle, EpHandle, EvdHandle, LmrHandle, PspHandle, PzHandle, RmrHandle, RspHandle,
    SrqHandle,
};
use crate::ia::Ia;
use crate::provider::Provider;

/// What kind of object a handle names (`DAT_HANDLE_TYPE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum HandleType {
    /// A connection request.
    Cr = 0,
    /// An endpoint.
    Ep = 1,
    /// An event dispatcher.
    Evd = 2,
    /// An interface adapter.
    Ia = 3,
    /// A local memory region.
    Lmr = 4,
    /// A public service point.
    Psp = 5,
    /// A protection zone.
    Pz = 6,
    /// A remote memory region.
    Rmr = 7,
    /// A reserved service point.
    Rsp = 8,
    /// A consumer notification object.
    Cno = 9,
    /// A shared receive queue.
    Srq = 10,
}

macro_rules! any_handle {
    ($($(#[$meta:meta])* $variant:ident($handle:ident),)*) => {
        /// A handle of any kind (`DAT_HANDLE`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum AnyHandle {
            /// The IA the call is made on.
            Ia,
            $($(#[$meta])* $variant($handle),)*
        }

        $(impl From<$handle> for AnyHandle {
            fn from(handle: $handle) -> Self {
                Self::$variant(handle)
            }
        })*

        impl AnyHandle {
            /// The kind.
            #[must_use]
            pub const fn handle_type(self) -> HandleType {
                match self {
                    Self::Ia => HandleType::Ia,
                    $(Self::$variant(_) => HandleType::$variant,)*
                }
            }
        }
    };
}

any_handle! {
    /// A connection request.
    Cr(CrHandle),
    /// An endpoint.
    Ep(EpHandle),
    /// An event dispatcher.
    Evd(EvdHandle),
    /// A local memory region.
    Lmr(LmrHandle),
    /// A public service point.
    Psp(PspHandle),
    /// A protection zone.
    Pz(PzHandle),
    /// A remote memory region.
    Rmr(RmrHandle),
    /// A reserved service point.
    Rsp(RspHandle),
    /// A consumer notification object.
    Cno(CnoHandle),
    /// A shared receive queue.
    Srq(SrqHandle),
}

impl<P: Provider> Ia<P> {
    /// Gives an object a word of the consumer's, in place of the one it had; 0 is none. It means nothing here.
    ///
    /// Page: dat_set_consumer_context.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE with the subtype of the kind.
    pub fn set_consumer_context(
        &mut self,
        handle: impl Into<AnyHandle>,
        context: u64,
    ) -> DatResult<()> {
        let handle = handle.into();
        self.check_any(handle)?;
        if context == 0 {
            self.contexts.remove(&handle);
        } else {
            self.contexts.insert(handle, context);
        }
        Ok(())
    }

    /// The word an object was given, 0 if none.
    ///
    /// Page: dat_get_consumer_context.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE with the subtype of the kind.
    pub fn get_consumer_context(&self, handle: impl Into<AnyHandle>) -> DatResult<u64> {
        let handle = handle.into();
        self.check_any(handle)?;
        Ok(self.contexts.get(&handle).copied().unwrap_or(0))
    }

    /// The kind of an object.
    ///
    /// Page: dat_get_handle_type.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE with the subtype of the kind the handle says it is: there is no such object.
    pub fn get_handle_type(&self, handle: impl Into<AnyHandle>) -> DatResult<HandleType> {
        let handle = handle.into();
        self.check_any(handle)?;
        Ok(handle.handle_type())
    }

    /// An object has gone, and the word that was kept beside it.
    pub(crate) fn forget_context(&mut self, handle: impl Into<AnyHandle>) {
        self.contexts.remove(&handle.into());
    }

    pub(crate) fn check_any(&self, handle: AnyHandle) -> DatResult<()> {
        let (ia, exists, subtype) = match handle {
            AnyHandle::Ia => return Ok(()),
            AnyHandle::Cr(h) => (h.ia, self.crs.contains_key(h.key), Subtype::HandleCr),
            AnyHandle::Ep(h) => (h.ia, self.eps.somebody(h.key).is_some(), Subtype::HandleEp),
            AnyHandle::Evd(h) => (h.ia, self.evds.somebody(h.key).is_some(), Subtype::Handle1),
            AnyHandle::Lmr(h) => (
                h.ia,
                self.lmr_objects.contains_key(h.key),
                Subtype::HandleLmr,
            ),
            AnyHandle::Psp(h) => (h.ia, self.psps.contains_key(h.key), Subtype::HandlePsp),
            AnyHandle::Pz(h) => (h.ia, self.pzs.contains_key(h.key), Subtype::HandlePz),
            AnyHandle::Rmr(h) => (h.ia, self.rmrs.contains_key(h.key), Subtype::HandleRmr),
            AnyHandle::Rsp(h) => (h.ia, self.rsps.contains_key(h.key), Subtype::HandleRsp),
            AnyHandle::Cno(h) => (h.ia, self.cnos.contains_key(h.key), Subtype::HandleCno),
            AnyHandle::Srq(h) => (h.ia, self.srqs.contains_key(h.key), Subtype::HandleSrq),
        };
        if ia != self.id || !exists {
            return Err(DatError::handle(subtype).because("no such object in this IA"));
        }
        Ok(())
    }
}
