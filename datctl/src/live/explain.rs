//! `datctl explain`: the meanings of a number or a name from a log.
//!
//! Numbers and names come from the tables of the crates that use them. A number is accepted in each form in which
//! programs print it: `0x80120060`, `80120060`, `2148663392`, or `-2146303904`, which is the same number with `%d`.

use std::error::Error;

use dat_mlx::status::dto_status;
use hw_mlx::completion::{self, Status, syndrome};
use hw_mlx::error::{command_status, delivery_status, health_syndrome, known_syndromes};
use nvmeof::nvme::rdma::Reject;
use serde::Serialize;
use udapl::connection::RejectReason;
use udapl::error::{ReturnType, Subtype, strerror};
use udapl::event::EVENT_NUMBERS;
use udapl::{DatError, DtoStatus};

use crate::report::{Report, table};

/// `explain`
#[derive(clap::Args)]
pub(crate) struct Options {
    /// A number, such as 0x15, 11, 0x80060026 or -2147090394, or a name, such as DAT_DTO_ERR_TRANSPORT or TIMED_OUT.
    #[arg(allow_negative_numbers = true)]
    code: String,
    /// The vendor syndrome that was reported together with the syndrome.
    #[arg(long, value_name = "N", value_parser = byte)]
    vendor: Option<u8>,
}

/// The possible meanings.
#[derive(Serialize)]
pub(crate) struct Meanings {
    code: String,
    meanings: Vec<Meaning>,
}

#[derive(Serialize)]
struct Meaning {
    /// Kind of the number, and the type or document that defines it.
    of: &'static str,
    name: String,
    means: String,
}

/// Parses a decimal number, or a hexadecimal number after `0x`. A negative number is a signed number of 32 bits.
fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => crate::value::hex(digits),
        None => text
            .parse()
            .or_else(|_| text.parse::<i32>().map(i32::cast_unsigned))
            .ok(),
    }
}

fn byte(text: &str) -> Result<u8, String> {
    let byte = number(text).and_then(|number| u8::try_from(number).ok());
    byte.ok_or_else(|| format!("{text:?} is no number from 0 to 255"))
}

/// Returns true if the text is this name, in full or without the prefix that all names of its kind have.
fn is_meant(name: &str, text: &str) -> bool {
    let (name, text) = (name.to_ascii_uppercase(), text.to_ascii_uppercase());
    name == text
        || name
            .strip_suffix(&text)
            .is_some_and(|rest| rest.ends_with('_'))
}

/// Returns a `DAT_RETURN` with this type as programs print it, in hex and with `%d`.
fn printed(kind: ReturnType) -> String {
    let code = DatError::new(kind, Subtype::None).code();
    format!("{code:#010x}, with %d {}", code.cast_signed())
}

/// Syndromes that the PRM names.
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

/// Returns the DAT statuses of a completion, each with a device syndrome that maps to it.
fn statuses() -> impl Iterator<Item = (DtoStatus, u8)> {
    SYNDROMES
        .into_iter()
        .map(|syndrome| (dto_status(Status::of_syndrome(syndrome)), syndrome))
}

fn of_status((status, syndrome): (DtoStatus, u8)) -> Meaning {
    Meaning {
        of: "completion status (DAT_DTO_COMPLETION_STATUS)",
        // CAST: the discriminant is the number.
        name: format!("{} ({})", status.name(), status as u32),
        means: completion::explain(syndrome, 0).to_string(),
    }
}

fn of_reason(reason: RejectReason) -> Meaning {
    Meaning {
        of: "reason of a REJ (IBTA volume 1, \"Rejection Reason\")",
        name: format!("{reason:?} ({})", reason.code()),
        means: reason.to_string(),
    }
}

/// Returns the meaning of a command's status. `told` describes the status as `NAME: meaning`, or by its name alone.
fn of_command(code: u8, told: &str) -> Meaning {
    let (name, means) = told.split_once(": ").unwrap_or((told, "its name says all"));
    Meaning {
        of: "status of a command (PRM, \"Command Status\")",
        name: format!("{name} ({code:#04x})"),
        means: means.to_owned(),
    }
}

/// Returns the meanings of a number. Zero, success, has a meaning as a `DAT_RETURN` only.
fn of_number(number: u32, vendor: Option<u8>) -> Vec<Meaning> {
    let mut meanings = Vec::new();
    if let Some((kind, subtype)) = strerror(number).filter(|_| number == 0 || number > 0xffff) {
        let is = |one: &&ReturnType| one.name() == kind;
        let means = ReturnType::ALL.iter().find(is);
        let detail = Subtype::ALL.iter().find(|one| one.name() == subtype);
        let name = match detail {
            Some(_) => format!("{kind}|{subtype}"),
            None => kind.to_owned(),
        };
        let mut means = means
            .map_or("It went well.", |&kind| kind.meaning())
            .to_owned();
        if let Some(&detail) = detail {
            means = format!("{means} {subtype}: {}.", detail.meaning());
        }
        meanings.push(Meaning {
            of: "answer of a DAT call (DAT_RETURN)",
            name,
            means,
        });
    }
    let event = EVENT_NUMBERS.iter().find(|event| event.number == number);
    meanings.extend(event.map(|event| Meaning {
        of: "event (DAT_EVENT_NUMBER)",
        name: format!("{} ({:#07x})", event.name, event.number),
        means: event.means.to_owned(),
    }));
    // CAST: the discriminant is the number.
    let status = statuses().find(|(status, _)| *status as u32 == number);
    meanings.extend(status.map(of_status));
    meanings.extend(known_syndromes(number).map(|known| Meaning {
        of: "syndrome of a refused command, as met on a card",
        name: format!("{:#010x} beside {}", known.syndrome, known.opcode),
        means: format!(
            "{} (met on: {}; told in: {})",
            known.means, known.card, known.source
        ),
    }));
    let Ok(short @ 1..) = u16::try_from(number) else {
        return meanings;
    };
    if let Ok(code) = u8::try_from(number) {
        if SYNDROMES.contains(&code) {
            meanings.push(Meaning {
                of: "syndrome of an error CQE (PRM, \"Completion with Error Syndromes\")",
                name: format!(
                    "{code:#04x}, {}",
                    dto_status(Status::of_syndrome(code)).name()
                ),
                means: completion::explain(code, vendor.unwrap_or(0)).to_string(),
            });
        }
        meanings.extend(command_status(code).map(|told| of_command(code, told)));
        meanings.extend(delivery_status(code).map(|name| Meaning {
            of: "delivery status of a command, which the firmware has not read (PRM)",
            name: format!("{name} ({code:#04x})"),
            means:
                "the driver wrote a command queue entry that the device does not take".to_owned(),
        }));
        meanings.extend(health_syndrome(code).map(|told| Meaning {
            of: "health syndrome of the firmware",
            name: format!("{code:#04x}"),
            means: told.to_owned(),
        }));
    }
    let reason = RejectReason::from_code(short);
    if !matches!(reason, RejectReason::Other(_)) {
        meanings.push(of_reason(reason));
    }
    let reject = Reject::ALL
        .into_iter()
        .find(|&reject| reject as u16 == short);
    meanings.extend(reject.map(|reject| Meaning {
        of: "status of an NVMe over RDMA target that rejects a connection (RDMA transport, figure 11)",
        name: format!("{reject:?} ({short})"),
        means: reject.text().to_owned(),
    }));
    if let Some(subtype) = Subtype::from_value(short) {
        meanings.push(Meaning {
            of: "subtype of a DAT_RETURN (DAT_GET_SUBTYPE)",
            name: format!("{} ({short})", subtype.name()),
            means: subtype.meaning().to_owned(),
        });
    }
    meanings
}

/// Returns all names, each with its meaning.
fn named() -> Vec<(&'static str, Meaning)> {
    let types = ReturnType::ALL.iter().map(|&kind| {
        let of = "answer of a DAT call (DAT_RETURN)";
        let name = format!("{} ({})", kind.name(), printed(kind));
        (
            kind.name(),
            Meaning {
                of,
                name,
                means: kind.meaning().to_owned(),
            },
        )
    });
    let subtypes = Subtype::ALL.iter().map(|&subtype| {
        let of = "subtype of a DAT_RETURN (DAT_GET_SUBTYPE)";
        let name = format!("{} ({})", subtype.name(), subtype.value());
        (
            subtype.name(),
            Meaning {
                of,
                name,
                means: subtype.meaning().to_owned(),
            },
        )
    });
    let events = EVENT_NUMBERS.iter().map(|event| {
        let of = "event (DAT_EVENT_NUMBER)";
        let name = format!("{} ({:#07x})", event.name, event.number);
        (
            event.name,
            Meaning {
                of,
                name,
                means: event.means.to_owned(),
            },
        )
    });
    let mut seen = Vec::new();
    let statuses = statuses().filter(move |(status, _)| {
        let is_new = !seen.contains(status);
        seen.push(*status);
        is_new
    });
    let statuses = statuses.map(|one| (one.0.name(), of_status(one)));
    let commands = (1..=u8::MAX).filter_map(|code| {
        let told = command_status(code)?;
        let name = told.split_once(':').map_or(told, |(name, _)| name);
        Some((name, of_command(code, told)))
    });
    types
        .chain(subtypes)
        .chain(events)
        .chain(statuses)
        .chain(commands)
        .collect()
}

fn of_name(text: &str) -> Vec<Meaning> {
    // This library prints errors as names that are separated by `|`.
    text.split('|')
        .flat_map(|part| {
            named()
                .into_iter()
                .filter(move |(name, _)| is_meant(name, part.trim()))
                .map(|(_, meaning)| meaning)
        })
        .collect()
}

/// Returns the error for a number or name without a meaning.
fn unknown(code: &str) -> String {
    if number(code).is_some() {
        return format!(
            "{code}: no answer of a DAT call, event, status, syndrome or reason has this number. The 32 bits of a syndrome beside a refused command are the firmware's own: the firmware defines the syndrome of a refused command, and this one is not in the table of published ones. Ask NVIDIA, with opcode and status"
        );
    }
    let part = code.to_ascii_uppercase();
    let alike: Vec<&str> = named()
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| !part.is_empty() && name.contains(&part))
        .collect();
    if alike.is_empty() {
        format!(
            "{code:?} is neither a number nor a name of dat.h or of a command's status (decimal, hex after 0x, a name such as DAT_TIMEOUT_EXPIRED)"
        )
    } else {
        format!("{code:?} is no name; there are {}", alike.join(", "))
    }
}

pub(crate) fn run(options: &Options) -> Result<Meanings, Box<dyn Error>> {
    let code = options.code.trim();
    let mut meanings = of_name(code);
    if let Some(number) = number(code) {
        meanings.extend(of_number(number, options.vendor));
    }
    if meanings.is_empty() {
        // Some programs print hex without 0x.
        let hex = crate::value::hex(code);
        meanings.extend(
            hex.into_iter()
                .flat_map(|hex| of_number(hex, options.vendor)),
        );
    }
    if meanings.is_empty() {
        return Err(unknown(code).into());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn names(code: &str) -> Vec<String> {
        let options = Options {
            code: code.to_owned(),
            vendor: None,
        };
        let told = run(&options).expect("a meaning");
        told.meanings.into_iter().map(|one| one.name).collect()
    }

    #[test]
    fn a_return_value_is_known_however_a_program_prints_it() {
        let name = "DAT_INVALID_ADDRESS|DAT_INVALID_ADDRESS_UNREACHABLE";
        for code in [
            "0x80120060",
            "0X80120060",
            "80120060",
            "2148663392",
            "-2146303904",
            "0x120060",
        ] {
            assert_eq!(names(code), [name], "{code}");
        }
        assert_eq!(names("0"), ["DAT_SUCCESS"]);
        assert_eq!(names("0x000f0000"), ["DAT_TIMEOUT_EXPIRED"]);
    }

    #[test]
    fn a_name_is_known_in_full_and_without_its_beginning_and_as_errors_print_it() {
        let timeout = "DAT_TIMEOUT_EXPIRED (0x800f0000, with %d -2146500608)";
        assert_eq!(names("dat_timeout_expired"), [timeout]);
        assert_eq!(names("TIMEOUT_EXPIRED"), [timeout]);
        assert_eq!(names("BROKEN")[0], "DAT_CONNECTION_EVENT_BROKEN (0x04006)");
        assert_eq!(names("DAT_INVALID_PARAMETER|DAT_INVALID_ARG3").len(), 2);
        assert_eq!(names("BAD_PARAM"), ["BAD_PARAM (0x03)"]);
    }

    #[test]
    fn a_small_number_is_all_that_it_can_be() {
        let six = names("6");
        for name in [
            "DAT_DTO_ERR_REMOTE_ACCESS (6)",
            "0x06, DAT_RMR_OPERATION_FAILED",
            "RESOURCE_BUSY (0x06)",
            "InvalidCommId (6)",
            "Resources (6)",
        ] {
            assert!(six.iter().any(|one| one == name), "{name}: {six:?}");
        }
        assert_eq!(
            names("0x04008"),
            ["DAT_CONNECTION_EVENT_UNREACHABLE (0x04008)"]
        );
    }

    #[test]
    fn a_syndrome_that_was_met_on_a_card_is_told_with_its_command_and_its_place() {
        for code in ["0x00d61c0b", "0xd61c0b", "14031883"] {
            assert_eq!(names(code), ["0x00d61c0b beside CREATE_SQ"], "{code}");
        }
        let options = Options {
            code: "0x7ea02d".to_owned(),
            vendor: None,
        };
        let told = run(&options).expect("a meaning").human();
        for part in [
            "2RST_QP",
            "physical function was reset",
            "16.27.1016",
            "linux-pci",
        ] {
            assert!(told.contains(part), "{part:?} in {told}");
        }
    }

    #[test]
    fn what_is_unknown_is_said_to_be_with_names_that_are_alike() {
        assert!(unknown("0xffffffff").contains("no answer of a DAT call"));
        assert!(unknown("gremlin").contains("neither a number nor a name"));
        let alike = unknown("TIMEOUT");
        assert!(alike.contains("DAT_TIMEOUT_EXPIRED"), "{alike}");
    }

    #[test]
    fn the_types_mean_what_the_page_of_troubles_says() {
        let page = include_str!("../../../docs/troubleshooting.md");
        let (_, table) = page.split_once("| Type | Means |").expect("the table");
        let (table, _) = table.split_once("\n\n").expect("its end");
        let mut rows = 0;
        for row in table.lines().filter_map(|row| row.strip_prefix("| DAT_")) {
            let (kinds, means) = row.trim_end_matches(" |").split_once(" | ").expect("two");
            for kind in kinds.split(", ") {
                let kind = kind.trim_start_matches("DAT_");
                let is = |one: &&ReturnType| one.name() == format!("DAT_{kind}");
                let one = ReturnType::ALL.iter().find(is).expect("a type");
                assert_eq!(one.meaning(), means, "{kind}");
                rows += 1;
            }
        }
        assert!(rows > 10, "{rows}");
    }
}
