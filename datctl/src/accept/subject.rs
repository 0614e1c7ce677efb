//! A function under acceptance, and the acts on it from outside.
//!
//! A line of the run opens the function by itself and closes it again, so that a failed line does not spoil the next.
//! An act that no program does to its own function (a link that goes down, a reset, an unbind of its driver) is a
//! lever. A function of the machine has the levers that this process may use; where one is missing, the reason is
//! recorded.

use std::error::Error;

use driver::{Function, PciAddress};
use udapl::Ia;
use udapl::error::OpenError;

/// An act on a function from outside. The error says why it could not be done.
pub(super) type Lever<'a, T> = Box<dyn Fn(T) -> Result<(), String> + Sync + 'a>;

/// A function under acceptance.
pub(super) struct Subject<'a> {
    /// Name to open it by.
    pub(super) name: String,
    open: Box<dyn Fn() -> Result<Ia, OpenError> + 'a>,
    /// Opens the function without a network, where that is possible.
    alone: Option<Box<dyn Fn() -> Result<Ia, OpenError> + 'a>>,
    function: Box<dyn Fn() -> Result<Function, OpenError> + 'a>,
    /// True if the function is simulated: no figure says anything of a card.
    pub(super) simulated: bool,
    /// PCI address, if it is a function of this machine.
    pub(super) address: Option<PciAddress>,
    pub(super) levers: Levers<'a>,
}

/// The acts on a function, or why they are not possible.
pub(super) struct Levers<'a> {
    /// Sets its link up (true) or down (false).
    pub(super) link: Result<Lever<'a, bool>, String>,
    /// Resets it while it is open.
    pub(super) reset: Result<Lever<'a, ()>, String>,
    /// Asks its driver to release it (false), and may wait until it has; or gives it back to the driver (true).
    pub(super) binding: Result<Lever<'a, bool>, String>,
    /// `Ok` if the function outlives the process that drives it, so that another one can open it by the same name.
    pub(super) outlives: Result<(), String>,
}

impl Levers<'_> {
    /// Returns no levers, all for one reason.
    pub(super) fn none(why: &str) -> Self {
        Self {
            link: Err(why.to_owned()),
            reset: Err(why.to_owned()),
            binding: Err(why.to_owned()),
            outlives: Err(why.to_owned()),
        }
    }
}

impl<'a> Subject<'a> {
    pub(super) fn new(
        name: impl Into<String>,
        open: impl Fn() -> Result<Ia, OpenError> + 'a,
        function: impl Fn() -> Result<Function, OpenError> + 'a,
        simulated: bool,
        address: Option<PciAddress>,
        levers: Levers<'a>,
    ) -> Self {
        Self {
            name: name.into(),
            open: Box::new(open),
            alone: None,
            function: Box::new(function),
            simulated,
            address,
            levers,
        }
    }

    /// Adds a way to open the function without a network.
    pub(super) fn opened_alone(self, open: impl Fn() -> Result<Ia, OpenError> + 'a) -> Self {
        Self {
            alone: Some(Box::new(open)),
            ..self
        }
    }

    /// Opens the function without a network; `None` where that is not possible.
    pub(super) fn open_alone(&self) -> Option<Result<Ia, OpenError>> {
        self.alone.as_ref().map(|open| open())
    }

    pub(super) fn open(&self) -> Result<Ia, Box<dyn Error>> {
        Ok((self.open)()?)
    }

    /// Opens the function, without an adapter.
    pub(super) fn function(&self) -> Result<Function, OpenError> {
        (self.function)()
    }
}
