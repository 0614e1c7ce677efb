//! A function that is accepted, and what can be done to it from outside.
//!
//! A line of the run opens the function by itself and closes it again, so that one that went wrong does not spoil the
//! next. What nobody does to a function from inside its program (the link taken away, a reset, the driver's release
//! asked for) is a lever: a function of the machine has those that this process may use, and where there is none the
//! reason is known.

use std::error::Error;

use driver::{Function, PciAddress};
use udapl::{Ia, OpenError};

/// Something done to a function from outside. The error says why it could not be done.
pub(super) type Lever<'a, T> = Box<dyn Fn(T) -> Result<(), String> + Sync + 'a>;

/// A function.
pub(super) struct Subject<'a> {
    /// What it is opened by.
    pub(super) name: String,
    open: Box<dyn Fn() -> Result<Ia, OpenError> + 'a>,
    /// The same without a network, where that can be had.
    alone: Option<Box<dyn Fn() -> Result<Ia, OpenError> + 'a>>,
    function: Box<dyn Fn() -> Result<Function, OpenError> + 'a>,
    /// A program plays it: no figure says anything of a card.
    pub(super) simulated: bool,
    /// Where it is, if it is a function of this machine.
    pub(super) address: Option<PciAddress>,
    pub(super) levers: Levers<'a>,
}

/// What can be done to it; or why not.
pub(super) struct Levers<'a> {
    /// Its link, up or down.
    pub(super) link: Result<Lever<'a, bool>, String>,
    /// A reset while it is open.
    pub(super) reset: Result<Lever<'a, ()>, String>,
    /// Its driver is asked to let go of it (false), which may last until that has happened; and given it back (true).
    pub(super) binding: Result<Lever<'a, bool>, String>,
    /// It outlives the process that drives it, and another one can open it by the same name.
    pub(super) outlives: Result<(), String>,
}

impl Levers<'_> {
    /// None, all for one reason.
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

    /// It can also be opened so that it has no part in the network.
    pub(super) fn opened_alone(self, open: impl Fn() -> Result<Ia, OpenError> + 'a) -> Self {
        Self {
            alone: Some(Box::new(open)),
            ..self
        }
    }

    /// Without a network; `None` where that cannot be had.
    pub(super) fn open_alone(&self) -> Option<Result<Ia, OpenError>> {
        self.alone.as_ref().map(|open| open())
    }

    pub(super) fn open(&self) -> Result<Ia, Box<dyn Error>> {
        Ok((self.open)()?)
    }

    /// The function, and no adapter yet.
    pub(super) fn function(&self) -> Result<Function, OpenError> {
        (self.function)()
    }
}
