//! `datctl explain`: what a number or a name from a log means, wherever it may come from.

use std::error::Error;

use hw_mlx::completion::{self, syndrome};
use serde::Serialize;
use udapl::{DtoStatus, RejectReason, strerror};

use crate::report::{Report, table};

/// `explain`
#[derive(clap::Args)]
pub(crate) struct Options {
    /// A number, such as 0x15, 11 or 0x80060026, or a name, such as DAT_DTO_ERR_TRANSPORT.
    code: String,
    /// The vendor syndrome beside a device's syndrome.
    #[arg(long, value_parser = byte)]
    vendor: Option<u8>,
}

/// What it may be.
#[derive(Serialize)]
pub(crate) struct Meanings {
    code: String,
    meanings: Vec<Meaning>,
}

#[derive(Serialize)]
struct Meaning {
    /// Where such a number stands.
    of: &'static str,
    name: String,
    means: String,
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn byte(text: &str) -> Result<u8, String> {
    let byte = number(text).and_then(|number| u8::try_from(number).ok());
    byte.ok_or_else(|| format!("{text:?} is no number from 0 to 255"))
}

/// Syndromes that the PRM has a name for.
const SYNDROMES: [u8; 13] = [
    syndrome::LOCAL_LENGTH,
    syndrome::LOCAL_QP_OPERATION,
    syndrome::LOCAL_PROTECTION,
    syndrome::FLUSHED,
    syndrome::WINDOW_BIND,
    syndrome::BAD_RESPONSE,
    syndrome::LOCAL_ACCESS,
    syndrome::REMOTE_INVALID_REQUEST,
    syndrome::REMOTE_ACCESS,
    syndrome::REMOTE_OPERATION,
    syndrome::TRANSPORT_RETRY_EXCEEDED,
    syndrome::RNR_RETRY_EXCEEDED,
    syndrome::REMOTE_ABORTED,
];

/// Statuses of a completion, and a syndrome of the device that becomes each.
fn statuses() -> impl Iterator<Item = (DtoStatus, u8)> {
    SYNDROMES
        .into_iter()
        .map(|syndrome| (completion::dto_status(syndrome), syndrome))
}

fn of_status((status, syndrome): (DtoStatus, u8)) -> Meaning {
    Meaning {
        of: "completion status (DAT_DTO_COMPLETION_STATUS)",
        // CAST: the discriminant is the number.
        name: format!("{} ({})", status.name(), status as u32),
        means: completion::explain(syndrome, 0).to_string(),
    }
}

pub(crate) fn run(options: &Options) -> Result<Meanings, Box<dyn Error>> {
    let code = options.code.trim();
    let mut meanings = Vec::new();
    let named = |(status, _): &(DtoStatus, u8)| status.name().eq_ignore_ascii_case(code);
    meanings.extend(statuses().find(named).map(of_status));
    if let Some(number) = number(code) {
        if let Some((kind, detail)) = strerror(number).filter(|_| number == 0 || number > 0xffff) {
            meanings.push(Meaning {
                of: "answer of a DAT call (DAT_RETURN)",
                name: kind.to_owned(),
                means: if detail.is_empty() {
                    "no detail".to_owned()
                } else {
                    detail.to_owned()
                },
            });
        }
        // CAST: the discriminant is the number.
        let status = statuses().find(|(status, _)| *status as u32 == number);
        meanings.extend(status.map(of_status));
        if let Ok(syndrome @ 1..) = u8::try_from(number) {
            meanings.push(Meaning {
                of: "syndrome of an error CQE (PRM, \"Completion with Error Syndromes\")",
                name: format!(
                    "{syndrome:#04x}, {}",
                    completion::dto_status(syndrome).name()
                ),
                means: completion::explain(syndrome, options.vendor.unwrap_or(0)).to_string(),
            });
        }
        if let Ok(reason) = u16::try_from(number)
            && reason != 0
        {
            meanings.push(Meaning {
                of: "reason of a REJ (IBTA volume 1, \"Rejection Reason\")",
                name: format!("{:?}", RejectReason::from_code(reason)),
                means: RejectReason::from_code(reason).to_string(),
            });
        }
    }
    if meanings.is_empty() {
        return Err(format!(
            "{code:?} is no number, and no status of a completion; those are {}",
            statuses()
                .map(|(status, _)| status.name())
                .collect::<Vec<_>>()
                .join(", ")
        )
        .into());
    }
    Ok(Meanings {
        code: code.to_owned(),
        meanings,
    })
}

impl Report for Meanings {
    fn human(&self) -> String {
        let rows = self.meanings.iter();
        let rows = rows.map(|one| [one.of.to_owned(), one.name.clone(), one.means.clone()]);
        table(["as", "is", "means"], rows)
    }
}
