//! Judges the steps `connect-CASE` and `listen-CASE` of `udapl/examples/peer`: the output of both ends and, if the
//! stock stack counts RNR NAKs, their number.

use anyhow::{Context, Result, ensure};

use super::super::report::Step;

/// Prefix of the line with the stock stack's counters.
const COUNTED: &str = "RNR NAKs received and sent by the stock side: ";
/// Number of times that a message is sent to a peer that never posts a receive: the first attempt, and the few retries
/// that `peer` configures.
const ATTEMPTS: u32 = 4;

/// Returns whether this module judges a step.
pub fn has(step: &Step) -> bool {
    lines(&step.name).is_some()
}

/// Checks that both ends succeeded and printed the expected lines. Returns the last of these lines.
pub fn judge(step: &Step) -> Result<String> {
    step.both_succeeded()?;
    let lines = lines(&step.name).context("no such step")?;
    for line in lines {
        ensure!(
            step.said.iter().any(|said| said == line),
            "neither end prints {line:?}"
        );
    }
    Ok(lines.last().copied().unwrap_or_default().to_owned())
}

/// Judges the step as [`judge`] does, and checks the RNR NAKs that the stock stack counted.
pub fn judge_counted(step: &Step) -> Result<String> {
    let said = judge(step)?;
    let (received, sent) = counted(step)?;
    let agree = match step.name.as_str() {
        "connect-late" => received == 0 && sent > 0,
        "listen-late" => received > 0 && sent == 0,
        "connect-never" => (received, sent) == (0, ATTEMPTS),
        "listen-never" => (received, sent) == (ATTEMPTS, 0),
        _ => (received, sent) == (0, 0),
    };
    ensure!(agree, "RNR NAKs: {received} received, {sent} sent");
    Ok(if (received, sent) == (0, 0) {
        said
    } else {
        format!("{said}; RNR NAKs: {received} received by it, {sent} sent")
    })
}

/// Returns the numbers of RNR NAKs that the stock stack received and sent during the step.
fn counted(step: &Step) -> Result<(u32, u32)> {
    let line = step.line_with(COUNTED)?;
    let counts: Vec<u32> = line
        .split_whitespace()
        .filter_map(|word| word.trim_end_matches(',').parse().ok())
        .collect();
    let [received, sent, received_then, sent_then] = counts[..] else {
        anyhow::bail!("counters {line:?}");
    };
    Ok((
        received_then.saturating_sub(received),
        sent_then.saturating_sub(sent),
    ))
}

/// Returns the expected lines of both ends in a step. In the `connect` steps our end is the active one.
fn lines(step: &str) -> Option<&'static [&'static str]> {
    Some(match step {
        "connect-prompt" | "connect-late" => &[
            "stock: REQ: 56 bytes of private data as they were given",
            "ours: REP: 196 bytes of private data as they were given",
            "ours: 4 messages sent, 1 received",
            "stock: 4 messages received, 1 sent",
            "stock: disconnected by us",
            "ours: disconnected by the peer",
        ],
        "listen-prompt" | "listen-late" => &[
            "ours: REQ: 56 bytes of private data as they were given",
            "stock: REP: 64 bytes of private data as they were given",
            "stock: 4 messages sent, 1 received",
            "ours: 4 messages received, 1 sent",
            "ours: disconnected by us",
            "stock: disconnected by the peer",
        ],
        "connect-never" => &[
            "ours: broken",
            "stock: disconnected by the peer",
            "ours: the first send: DAT_DTO_ERR_RECEIVER_NOT_READY",
        ],
        "listen-never" => &[
            "stock: disconnected by us",
            "ours: disconnected by the peer",
            "stock: the first send: RNR retry counter exceeded",
        ],
        "connect-reject" => &[
            "stock: rejected with 148 bytes of private data",
            "ours: REJ: DAT_CONNECTION_EVENT_PEER_REJECTED",
        ],
        "listen-reject" => &["ours: rejected", "stock: REJ: reason 28"],
        "listen-decline" => &[
            "stock: REP: 64 bytes of private data as they were given",
            "stock: rejected with 148 bytes of private data",
            "ours: REJ: DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR",
        ],
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, said: &[&str]) -> Step {
        let said = said.iter().map(|&line| line.to_owned()).collect();
        Step::shown(name, "peers", said)
    }

    #[test]
    fn an_end_that_failed_or_lacks_a_line_fails_the_step() {
        let all = [
            "ours: rejected",
            "stock: REJ: reason 28",
            "client 0 server 0",
        ];
        let judged = judge(&step("listen-reject", &all)).expect("good");
        assert_eq!(judged, "stock: REJ: reason 28");
        for missing in 0..all.len() {
            let mut said = all.to_vec();
            said.remove(missing);
            assert!(judge(&step("listen-reject", &said)).is_err(), "{said:?}");
        }
        assert!(!has(&step("client-killed", &all)) && has(&step("listen-reject", &all)));
    }

    #[test]
    fn who_never_posts_a_receive_refuses_each_attempt_and_no_more() {
        let judged = |counted: &str| {
            let counted = format!("{COUNTED}{counted}");
            let said = [lines("listen-never").expect("a step"), &[&counted]].concat();
            let said = [&said[..], &["client 0 server 0"]].concat();
            judge_counted(&step("listen-never", &said))
        };
        assert!(judged("100 2, then 104 2").is_ok());
        for wrong in [
            "100 2, then 103 2",
            "100 2, then 105 2",
            "100 2, then 104 3",
            "none counted, then none counted",
        ] {
            assert!(judged(wrong).is_err(), "{wrong}");
        }
    }
}
