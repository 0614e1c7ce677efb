//! The roles of the two ends: the options that `ping`, `perf` and `cmtime` share.
//!
//! With two adapters both ends are in this process. With one, this process is the passive end (`--listen`) or the
//! active end (`--connect ADDRESS`). A passive end that any of the three commands started serves all three.

use std::error::Error;
use std::net::IpAddr;

use serde::Serialize;

use crate::adapter::AdapterOptions;
use crate::dialer::Dialer;
use crate::listener::Listener;
use crate::report::{Output, Report, Usage, counted};
use crate::value::{address, hex};

/// Default qualifier of a passive end: an IB service ID that no other service uses.
const QUALIFIER: u64 = 0x1_0000_0001;

/// Options for the two ends.
#[derive(clap::Args)]
#[group(skip)]
#[command(group(clap::ArgGroup::new("other_end").required(true).args(["peer", "listen", "connect"])))]
pub(crate) struct Ends {
    /// The adapter: a PCI address, vfio-user:SOCKET or sim:NAME.
    pub(crate) name: String,
    /// A second adapter, which is then the other end, in this process.
    #[arg(conflicts_with_all = ["address", "neighbour"])]
    peer: Option<String>,
    /// Be the passive end for one peer, then end.
    #[arg(long)]
    listen: bool,
    /// Connect to the adapter with this address.
    #[arg(long, value_name = "IP", value_parser = address)]
    pub(crate) connect: Option<IpAddr>,
    /// The connection qualifier: an RDMA-CM port up to 0xffff, else an IB service ID.
    /// [default: 0x100000001]
    #[arg(long, value_name = "N", value_parser = number)]
    qualifier: Option<u64>,
    #[command(flatten)]
    pub(crate) options: AdapterOptions,
}

impl Ends {
    /// Returns true if this process has the active end.
    pub(crate) const fn is_active(&self) -> bool {
        !self.listen
    }

    /// Returns the qualifier of the passive end, if the command line specifies one.
    pub(crate) const fn qualifier(&self) -> Option<u64> {
        self.qualifier
    }
}

/// Address of the passive end to connect to.
pub(crate) struct Target {
    pub(crate) address: IpAddr,
    pub(crate) qualifier: u64,
}

/// Parses a decimal number, or a hexadecimal number after `0x`. Refuses 0.
fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => hex(digits),
        None => text.parse().ok(),
    };
    parsed
        .filter(|number| *number > 0)
        .ok_or_else(|| format!("{text:?} is no number from 1 to 2^64 - 1"))
}

#[derive(Serialize)]
pub(crate) struct Listening {
    pub(crate) listening: String,
}

impl Report for Listening {
    fn human(&self) -> String {
        format!("listening on {}", self.listening)
    }
}

#[derive(Serialize)]
pub(crate) struct Answered {
    pub(crate) answered: u64,
}

impl Report for Answered {
    fn human(&self) -> String {
        let answered = usize::try_from(self.answered).unwrap_or(usize::MAX);
        format!("answered {}", counted(answered, "message"))
    }
}

/// Returns the active end and its target. If this process is the passive end, serves until the peer has ended, and
/// returns `None`.
pub(crate) fn connect_by(
    ends: &Ends,
    output: Output,
) -> Result<Option<(Dialer, Target)>, Box<dyn Error>> {
    let options = ends.options.open_options();
    let qualifier = ends.qualifier.unwrap_or(QUALIFIER);
    if let Some(peer) = &ends.peer {
        if *peer == ends.name {
            let what = format!("both ends are {peer}: name two adapters");
            return Err(Usage(what).into());
        }
        let listener = Listener::open(peer, &options, qualifier)?;
        let address = listener.address();
        let dialer = Dialer::open(&ends.name, &options)?.beside(listener);
        return Ok(Some((dialer, Target { address, qualifier })));
    }
    if let Some(address) = ends.connect {
        let dialer = Dialer::open(&ends.name, &options)?;
        return Ok(Some((dialer, Target { address, qualifier })));
    }
    let mut listener = Listener::open(&ends.name, &options, qualifier)?;
    output.show(&Listening {
        listening: listener.address().to_string(),
    })?;
    listener.run()?;
    let answered = listener.answered();
    listener.close()?;
    output.show(&Answered { answered })?;
    Ok(None)
}
