//! A function that was resumed and is not claimed: the first of the two steps of a resumption.
//!
//! Until the claim, the device belongs to the process that has parked it, or to no process. So the function can be
//! read: configuration space, registers, memory. Every request that would change the device, its interrupts, its
//! mappings or its connection is refused, and dropping the function has no effect on them. The state is in the I/O
//! address space, whose lock also orders mappings and the claim.

use std::ops::Deref;

use super::{Function, Inner};
use crate::error::FunctionError;
use crate::handover::Claimed;
use crate::snapshot::NamedFd;

/// A function that was resumed, and that this process may only read. [`go_on`](Self::go_on) takes it over. Dropping it
/// has no effect on the device: it stays parked.
///
/// It dereferences to [`Function`], for reading configuration space, registers and memory
/// ([`DmaArena::resume`](crate::DmaArena::resume)), and for clones. Every other request returns
/// [`FunctionError::Unclaimed`], or has no effect. There are two exceptions, which the caller leaves alone: a write to
/// a register of a [`Bar`](crate::Bar) reaches the device, and a count of an interrupt can be taken only once.
#[derive(Debug)]
#[must_use]
pub struct UnclaimedFunction {
    function: Function,
    /// The descriptors that the caller has given. The function has duplicates.
    descriptors: Vec<NamedFd>,
}

impl UnclaimedFunction {
    pub(super) const fn new(function: Function, descriptors: Vec<NamedFd>) -> Self {
        Self {
            function,
            descriptors,
        }
    }

    /// Takes the function over, which the claim allows, and closes the descriptors that [`Function::resume`] was given.
    /// From now on, dropping the function closes it.
    #[must_use]
    pub fn go_on(self, _claimed: &Claimed) -> Function {
        let Inner { backend, space, .. } = &*self.function.inner;
        backend.adopt();
        space.end_unclaimed();
        self.function
    }

    /// Gives the descriptors back. The device is as before. The driving lock ends with the last clone of the function
    /// and the last reference to its BARs. Requests of such a clone are refused for ever.
    #[must_use]
    pub fn park(self) -> Vec<NamedFd> {
        self.descriptors
    }
}

impl Deref for UnclaimedFunction {
    type Target = Function;

    fn deref(&self) -> &Function {
        &self.function
    }
}

impl Function {
    /// Refuses a request that would change the device, if the function is not claimed.
    pub(super) fn check_claimed(&self, request: &'static str) -> Result<(), FunctionError> {
        self.inner.space.check_claimed(self.name(), request)
    }
}
