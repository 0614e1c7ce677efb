//! A function under acceptance, and its levers.
//!
//! A line of the run opens the function by itself and closes it again, so that a failed line does not affect the next.
//! A lever is an act that no program does to its own function: taking a link down, a reset, an unbind of its driver. A
//! function of the machine has the levers that this process may use. For a missing lever the reason is recorded.

use std::error::Error;

use driver::{Function, PciAddress};
use udapl::Ia;
use udapl::error::OpenError;

/// An action on a function from outside the driver. Fails with the reason if the action is not possible.
pub(super) type Lever<'a, T> = Box<dyn Fn(T) -> Result<(), String> + Sync + 'a>;

/// A function under acceptance.
pub(super) struct Subject<'a> {
    /// Name by which the function is opened.
    pub(super) name: String,
    open: Box<dyn Fn() -> Result<Ia, OpenError> + 'a>,
    /// Way to open the function without a network; `None` if there is none.
    alone: Option<Box<dyn Fn() -> Result<Ia, OpenError> + 'a>>,
    function: Box<dyn Fn() -> Result<Function, OpenError> + 'a>,
    /// True if the function is simulated, so that measured figures say nothing about a card.
    pub(super) simulated: bool,
    /// PCI address; `None` if the function is not on this machine.
    pub(super) address: Option<PciAddress>,
    pub(super) levers: Levers<'a>,
}

/// The levers on a function. A missing lever is an error that says why.
pub(super) struct Levers<'a> {
    /// Lever that sets the function's link up (true) or down (false).
    pub(super) link: Result<Lever<'a, bool>, String>,
    /// Lever that resets the function while it is open.
    pub(super) reset: Result<Lever<'a, ()>, String>,
    /// Lever that unbinds the function from its driver (false), or binds the function to the driver again (true). An
    /// unbind may wait until the program that has the function open releases it.
    pub(super) binding: Result<Lever<'a, bool>, String>,
    /// `Ok` if the function outlives the process that drives it, so that another process can open the function by the
    /// same name.
    pub(super) outlives: Result<(), String>,
}

impl Levers<'_> {
    /// Returns levers that are all missing, for the same reason.
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

    /// Opens the function without a network; returns `None` if that is not possible.
    pub(super) fn open_alone(&self) -> Option<Result<Ia, OpenError>> {
        self.alone.as_ref().map(|open| open())
    }

    pub(super) fn open(&self) -> Result<Ia, Box<dyn Error>> {
        Ok((self.open)()?)
    }

    /// Opens the function only, without an adapter.
    pub(super) fn function(&self) -> Result<Function, OpenError> {
        (self.function)()
    }
}
