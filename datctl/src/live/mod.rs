//! Commands that inspect a live process through the control socket of an adapter that the process has open
//! (docs/control.md).

mod columns;
pub(crate) mod explain;
pub(crate) mod metrics;
pub(crate) mod monitor;
pub(crate) mod recorder;
pub(crate) mod resource;
pub(crate) mod stat;
mod terminal;
pub(crate) mod top;

use std::path::PathBuf;

use control::rpc::METHOD_NOT_FOUND;
use control::{Client, ClientError, Side};
use serde_json::Value;

/// The process that is inspected.
#[derive(clap::Args)]
pub(crate) struct Target {
    /// The control socket of the adapter, which was opened as NAME,control=SOCKET, or with DAT_CONTROL=SOCKET in the
    /// environment.
    socket: PathBuf,
}

impl Target {
    /// Connects, and checks that the socket belongs to an adapter and that both ends use the same schema.
    pub(crate) fn connect(&self) -> Result<Client, ClientError> {
        Client::connect_alike(&self.socket, Side::Adapter)
    }
}

/// Makes the process measure the time of some requests and of wakeups, as long as this client is connected. A process
/// that does not support this is inspected without such times.
pub(crate) fn measure(client: &mut Client) -> Result<(), ClientError> {
    match client.call::<bool>("measure", Value::Null) {
        Err(ClientError::Refused(refusal)) if refusal.code == METHOD_NOT_FOUND => Ok(()),
        answered => answered.map(drop),
    }
}

/// Calls a method without parameters and returns the answer.
pub(crate) fn ask<T: serde::de::DeserializeOwned>(
    client: &mut Client,
    method: &str,
) -> Result<T, ClientError> {
    client.call(method, Value::Null)
}
