//! The subset of JSON-RPC 2.0 (jsonrpc.org/specification) that is in use: requests with parameters by name, answers,
//! and notifications. Batches are refused, because each line is one object.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Protocol version, which each object carries.
pub const VERSION: &str = "2.0";

/// Error code: a line is not JSON.
pub const PARSE_ERROR: i64 = -32_700;
/// Error code: a line is not a request.
pub const INVALID_REQUEST: i64 = -32_600;
/// Error code: the method does not exist.
pub const METHOD_NOT_FOUND: i64 = -32_601;
/// Error code: the parameters do not match the method.
pub const INVALID_PARAMS: i64 = -32_602;
/// Error code: the request failed.
pub const FAILED: i64 = -32_000;
/// Error code: the request would change something, but this socket is read-only.
pub const READ_ONLY: i64 = -32_001;

/// A request.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Protocol version, which is [`VERSION`].
    pub jsonrpc: String,
    /// Identifier chosen by the client and returned in the answer: a number or a string. A request with null, or
    /// without an identifier, is a notification: the server does not answer it.
    #[serde(default)]
    pub id: Value,
    /// Name of the method.
    pub method: String,
    /// Parameters of the method: an object, or null.
    #[serde(default)]
    pub params: Value,
}

/// Reason why a request was refused.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{message} ({code})")]
pub struct Refusal {
    /// Error code, which is one of the constants of this module.
    pub code: i64,
    /// Explanation for people.
    pub message: String,
}

impl Refusal {
    /// Makes a refusal.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// Makes the refusal of an unknown method. The message names the existing methods, `known`.
    #[must_use]
    pub fn unknown(method: &str, known: &[&str]) -> Self {
        let message = format!("no method {method:?}; there are {}", known.join(", "));
        Self::new(METHOD_NOT_FOUND, message)
    }
}

/// An answer to a request.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Answer {
    /// Protocol version, which is [`VERSION`].
    pub jsonrpc: String,
    /// Identifier of the request.
    #[serde(default)]
    pub id: Value,
    /// Result of the method, if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Reason of the refusal, if the request was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Refusal>,
}

impl Answer {
    /// Makes the answer to the request with this id.
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

/// A notification, which the server sends without a request and the client does not answer.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Notification {
    /// Protocol version, which is [`VERSION`].
    pub jsonrpc: String,
    /// Kind of the notification.
    pub method: String,
    /// Contents of the notification.
    pub params: Value,
}

/// Parses a request.
///
/// # Errors
/// The identifier for the answer, and the refusal.
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
