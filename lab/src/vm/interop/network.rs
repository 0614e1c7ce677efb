//! Judges the steps of `guest/network`: discovery of addresses on a link, and the link's effects on connections.

use anyhow::{Context, Result, ensure};

use super::super::capture::KINDS;
use super::super::report::Step;

/// Largest number of entries in our neighbour table after a flood: the peer's addresses, of both families and in the
/// VLAN.
const MAX_NEIGHBOURS: u64 = 8;
/// Returns whether this module judges a step.
pub fn has(step: &Step) -> bool {
    lines(&step.name).is_some()
}

/// Checks that a step printed all expected lines, and that the stock side has no neighbour configured by hand. Returns
/// the lines, or the figures of the step.
pub fn judge(step: &Step) -> Result<String> {
    let lines = lines(&step.name).context("no such step")?;
    let mut said = Vec::new();
    for line in lines {
        said.push(step.line_with(line)?.trim());
    }
    by_hand(step)?;
    match step.name.as_str() {
        "forged" => {
            let moved = rise(step, "moved")?;
            ensure!(
                moved == 0,
                "a forged MAC was taken for the peer's, {moved} times"
            );
            forged(step)
        }
        "flooded" => forged(step),
        "gateway" => {
            let ours = step.lines_with("client 0 server 0").len();
            let theirs = step.lines_with("rping to ").len();
            Ok(format!(
                "{}; rping: {ours} of ours, {theirs} of theirs",
                said.join("; ")
            ))
        }
        "dissected" => dissected(step),
        "network" | "unbridge" | "unroute" => Ok(String::new()),
        name if name.starts_with("we-reach") => super::both(step),
        _ => Ok(said.join("; ")),
    }
}

/// Returns the expected lines of a step.
fn lines(step: &str) -> Option<&'static [&'static str]> {
    Some(match step {
        "network" | "unbridge" | "unroute" => &[],
        "they-reach-v4" | "they-reach-v6" | "they-reach-link-local" | "they-reach-vlan" => {
            &["5 packets received", "20 messages", "neighbour: "]
        }
        "we-reach-v4" | "we-reach-v6" | "we-reach-link-local" | "we-reach-vlan" => {
            &["5 answers", "client 0 server 0", "neighbour: "]
        }
        "addresses" => &[
            "add 10.0.0.7/24: ok",
            "rping to 10.0.0.7: 0",
            "remove 10.0.0.7: ok",
            "the first connection goes on",
            "10.0.0.7 is no address of ours any more",
            "the adapter no longer has the address that it left from",
        ],
        "blink" => &[
            "the connection goes on",
            "the port is down",
            "the port is up",
        ],
        "cut" => &[
            "ours ended after",
            "away for",
            "rping to 10.0.0.2: 0",
            "Broken",
        ],
        "forged" | "flooded" => &[
            "the connection goes on",
            "is used by",
            "before: ",
            "after: ",
            "rping to 10.0.0.2: 0",
        ],
        "bridge" => &[
            "our ping of 10.0.0.1: 5 answers",
            "our ping of fd00::1: 5 answers",
            "client 0 server 0",
            "ping 10.0.0.2: 5",
            "ping fd00::2: 5",
            "rping to 10.0.0.2: 0",
            "rping to fd00::2: 0",
            "ping fe80::",
            "rping to fe80::",
            "state forwarding",
        ],
        "gateway" => &[
            "our ping of 10.9.0.2: 5 answers",
            "our ping of fd09::2: 5 answers",
            "our ping of 10.8.0.1: 5 answers",
            "our ping of fd08::1: 5 answers",
            "client 0 server 0",
            "ping 10.0.0.2: 5",
            "ping fd00::2: 5",
            "ttl=63",
        ],
        "moved" => &["has moved to 02:00:5e:77:00:01", "rping to 10.0.0.2: 0"],
        "dissected" => &[],
        _ => return None,
    })
}

/// Checks that the stock side has no neighbour entry that was configured by hand.
fn by_hand(step: &Step) -> Result<()> {
    let permanent = step.lines_with("PERMANENT");
    ensure!(permanent.is_empty(), "static neighbours: {permanent:?}");
    Ok(())
}

/// Returns the counter with this name from a line such as `before: name:1,other:2`.
fn counter(step: &Step, when: &str, name: &str) -> Result<u64> {
    let line = step.line_with(when)?;
    let of_name = |word: &str| word.strip_prefix(name)?.strip_prefix(':')?.parse().ok();
    line.split([' ', ',', '"'])
        .find_map(of_name)
        .with_context(|| format!("no counter {name}: {line}"))
}

/// Returns the increase of a counter from the `before` line to the `after` line.
fn rise(step: &Step, name: &str) -> Result<u64> {
    let [before, after] = ["before: ", "after: "].map(|when| counter(step, when, name));
    Ok(after?.saturating_sub(before?))
}

/// Checks that forged claims to our addresses and to the peer's addresses were counted, and that the neighbour table is
/// bounded.
fn forged(step: &Step) -> Result<String> {
    let rise = |name| rise(step, name);
    let (conflicts, contradicted) = (rise("conflicts")?, rise("contradicted")?);
    ensure!(
        conflicts > 0 && contradicted > 0,
        "{conflicts} claims to our addresses, {contradicted} to the peer's were heard"
    );
    let neighbours = counter(step, "after: ", "neighbours")?;
    ensure!(neighbours <= MAX_NEIGHBOURS, "{neighbours} neighbours");
    Ok(format!(
        "{}; {} heard, {conflicts} claims to our addresses, {contradicted} to the peer's; {} answered, {} not; \
         {neighbours} neighbours, moved {} times",
        step.line_with("frames in")?,
        rise("received")?,
        rise("answered")?,
        rise("unanswered")?,
        rise("moved")?
    ))
}

/// Checks that the capture has frames of each kind, and that Wireshark finds no error in any frame.
fn dissected(step: &Step) -> Result<String> {
    if step.said.is_empty() {
        return Ok("left out: tshark is not installed (cargo xtask setup)".to_owned());
    }
    for what in KINDS {
        let line = step.line_with(what)?;
        ensure!(!line.ends_with(": 0"), "{line}");
    }
    let complaints = step.lines_with("complains");
    ensure!(complaints.is_empty(), "{complaints:?}");
    Ok(step.said.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_to_say_all_it_should_and_no_neighbour_is_by_hand() {
        let all = [
            "ping 10.0.0.2: 5 packets transmitted, 5 packets received, 0% packet loss, ttl=64",
            "10.0.0.1: 20 messages; the peer has disconnected",
            "neighbour: 10.0.0.2 dev eth0 lladdr 02:00:5e:10:00:01 REACHABLE",
        ];
        let judged = |said: &[&str]| judge(&Step::succeeded("they-reach-v4", said));
        assert!(judged(&all).is_ok());
        for missing in 0..all.len() {
            let mut said = all.to_vec();
            said.remove(missing);
            assert!(judged(&said).is_err(), "{said:?}");
        }
        let by_hand = "neighbour: 10.0.0.9 dev eth0 lladdr 02:00:5e:10:00:09 PERMANENT";
        assert!(judged(&[&all[..], &[by_hand]].concat()).is_err());
    }

    #[test]
    fn forged_frames_arrive_and_move_no_neighbour_and_a_flood_leaves_the_table_small() {
        let judged = |name, after: &str| {
            let said = [
                "before: conflicts:1,contradicted:0,moved:0,neighbours:1,received:10,answered:2,unanswered:0",
                "100000 frames in 30000 ms",
                after,
                "the connection goes on",
                "rping to 10.0.0.2: 0",
                "10.0.0.2 is used by somebody else, too: 02:66:00:00:00:01",
            ];
            judge(&Step::succeeded(name, &said))
        };
        let after = |conflicts: u32, moved: u32, neighbours: u32| {
            format!(
                "after: conflicts:{conflicts},contradicted:7,moved:{moved},neighbours:{neighbours},received:90,answered:3,unanswered:4"
            )
        };
        let figures = judged("forged", &after(9, 0, 2)).expect("good");
        assert!(
            figures.ends_with("2 neighbours, moved 0 times"),
            "{figures}"
        );
        assert!(judged("forged", &after(9, 1, 2)).is_err());
        assert!(judged("flooded", &after(9, 1, 2)).is_ok());
        for (conflicts, neighbours) in [(1, 2), (9, 60)] {
            let after = after(conflicts, 0, neighbours);
            assert!(judged("flooded", &after).is_err(), "{after}");
        }
    }

    #[test]
    fn a_capture_has_some_of_each_kind_and_no_complaint() {
        let all: Vec<String> = KINDS.iter().map(|kind| format!("{kind}: 3")).collect();
        let judged = |said: &[String]| judge(&Step::shown("dissected", "a.pcapng", said.to_vec()));
        assert!(judged(&all).is_ok());
        for which in 0..all.len() {
            let mut said = all.clone();
            said[which] = format!("{}: 0", KINDS[which]);
            assert!(judged(&said).is_err(), "{said:?}");
        }
        let complaint = "tshark complains of frame 7: 7|ARP".to_owned();
        assert!(judged(&[&all[..], &[complaint]].concat()).is_err());
        assert!(judged(&[]).expect("left out").contains("not installed"));
    }
}
