//! Placeholder.
/// A
#[derive(clap::Args)]
pub struct Arguments {}
/// A
pub fn run(_: &Arguments) -> anyhow::Result<()> { Ok(()) }
