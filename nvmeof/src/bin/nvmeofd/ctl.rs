//! `nvmeofd ctl`: sends a request to a daemon by its control socket.

use std::error::Error;
use std::io::{Write, stdout};
use std::path::PathBuf;

use control::{Client, Side};
use serde_json::{Map, Value};

/// Arguments of `nvmeofd ctl`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The control socket.
    socket: PathBuf,
    /// The method: status, stat, subsystem.add, and so on; version lists all methods.
    method: String,
    /// The parameters: KEY=VALUE, where a VALUE that is not JSON is a text; or one JSON object.
    arguments: Vec<String>,
}

/// Sends the request, and prints the answer as JSON, or as plain text if it is a text.
pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let params = params(&options.arguments)?;
    let mut client = Client::connect_alike(&options.socket, Side::Target)?;
    let answer: Value = client.call(&options.method, params)?;
    let text = match answer.as_str() {
        Some(text) => text.to_owned(),
        None => serde_json::to_string_pretty(&answer)?,
    };
    writeln!(stdout(), "{}", text.trim_end())?;
    Ok(())
}

fn params(arguments: &[String]) -> Result<Value, String> {
    if let [one] = arguments
        && one.trim_start().starts_with('{')
    {
        return serde_json::from_str(one).map_err(|error| format!("{one}: {error}"));
    }
    let mut params = Map::new();
    for argument in arguments {
        let (key, value) = argument
            .split_once('=')
            .ok_or_else(|| format!("{argument:?} is no KEY=VALUE"))?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        params.insert(key.to_owned(), value);
    }
    Ok(Value::Object(params))
}
