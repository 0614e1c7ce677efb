//! `nvmeofd import`: makes a configuration file of that of another target.

use std::error::Error;
use std::fs::File;
use std::io::{Read as _, Write as _, stderr, stdout};
use std::net::IpAddr;
use std::path::PathBuf;

use nvmeof::daemon::import::{Cards, LONGEST, import};

/// Arguments of `nvmeofd import`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The file of nvmetcli (/etc/nvmet/config.json), or that of SPDK (rpc.py save_config).
    file: PathBuf,
    /// The card that has an address, such as 192.0.2.1=3b:00.2; repeat the option for each address.
    #[arg(long, value_name = "ADDRESS=CARD", value_parser = card)]
    card: Vec<(IpAddr, String)>,
}

fn card(text: &str) -> Result<(IpAddr, String), String> {
    let (address, card) = text.split_once('=').ok_or("this is no ADDRESS=CARD")?;
    let address = address
        .parse()
        .map_err(|error| format!("{address}: {error}"))?;
    Ok((address, card.to_owned()))
}

/// Prints the configuration file, and the notes on the error stream.
pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", options.file.display());
    let file = File::open(&options.file).map_err(|error| failed(&error))?;
    let mut text = String::new();
    let read = file.take(LONGEST).read_to_string(&mut text);
    read.map_err(|error| failed(&error))?;
    let cards: Cards = options.card.iter().cloned().collect();
    let imported = import(&text, &cards).map_err(|error| failed(&error))?;
    stdout().write_all(imported.text.as_bytes())?;
    for note in &imported.notes {
        writeln!(stderr(), "nvmeofd: {note}")?;
    }
    Ok(())
}
