//! JSON-RPC 2.0 (jsonrpc.org/specification), as far as it is used: requests with parameters by name, answers,
//! notifications. A batch is an error: each line is one object.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version that each object names.
pub const VERSION: &str = "2.0";

/// A line was no JSON.
pub const PARSE_ERROR: i64 = -32_700;
/// It was no request.
pub const INVALID_REQUEST: i64 = -32_600;
/// There is no such method.
pub const METHOD_NOT_FOUND: i64 = -32_601;
/// Its parameters are not those of the method.
pub const INVALID_PARAMS: i64 = -32_602;
/// What was asked for could not be done.
pub const FAILED: i64 = -32_000;
/// What was asked for changes something, and this socket is for looking.
pub const READ_ONLY: i64 = -32_001;

/// A request.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// [`VERSION`].
    pub jsonrpc: String,
    /// Given back with the answer: a number, a text or null.
    #[serde(default)]
    pub id: Value,
    /// What to do.
    pub method: String,
    /// With what: an object.
    #[serde(default)]
    pub params: Value,
}

/// Why a request was refused.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{message} ({code})")]
pub struct Refusal {
    /// One of the constants of this module.
    pub code: i64,
    /// For a person.
    pub message: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// Of a method that there is not; `known` are there.
    #[must_use]
    pub fn unknown(method: &str, known: &[&str]) -> Self {
        let message = format!("no method {method:?}; there are {}", known.join(", "));
        Self::new(METHOD_NOT_FOUND, message)
    }
}

/// An answer.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Answer {
    /// [`VERSION`].
    pub jsonrpc: String,
    /// The request's.
    #[serde(default)]
    pub id: Value,
    /// What came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Or why nothing did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Refusal>,
}

impl Answer {
    /// An answer to the request with this name.
    #[must_use]
    pub fn new(id: Value, result: Result<Value, Refusal>) -> Self {
        let (result, error) = match result {
            Ok(result) => (Some(result), None),
            Err(refusal) => (None, Some(refusal)),
        };
        Self {
            jsonrpc: VERSION.to_owned(),
            id,
            result,
            error,
        }
    }
}

/// A notification: nobody asked for it at that moment, and nobody answers.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Notification {
    /// [`VERSION`].
    pub jsonrpc: String,
    /// What it is about.
    pub method: String,
    /// What it says.
    pub params: Value,
}

/// Reads a request.
///
/// # Errors
/// What is wrong, and under which name to answer.
pub(crate) fn read(line: &[u8]) -> Result<Request, (Value, Refusal)> {
    let value: Value = serde_json::from_slice(line)
        .map_err(|error| (Value::Null, Refusal::new(PARSE_ERROR, error.to_string())))?;
    let id = value.get("id").cloned().unwrap_or(Value::Null);
    let refuse = |why: String| (id.clone(), Refusal::new(INVALID_REQUEST, why));
    if !value.is_object() {
        return Err(refuse("a line is one request, an object".to_owned()));
    }
    if !matches!(id, Value::Null | Value::Number(_) | Value::String(_)) {
        let why = "id is a number, a text or null".to_owned();
        return Err((Value::Null, Refusal::new(INVALID_REQUEST, why)));
    }
    let request: Request =
        serde_json::from_value(value).map_err(|error| refuse(error.to_string()))?;
    if request.jsonrpc != VERSION {
        return Err(refuse(format!(
            "jsonrpc is {:?}, not \"2.0\"",
            request.jsonrpc
        )));
    }
    if !(request.params.is_null() || request.params.is_object()) {
        let why = "params is an object: parameters have names".to_owned();
        return Err((id, Refusal::new(INVALID_PARAMS, why)));
    }
    Ok(request)
}
