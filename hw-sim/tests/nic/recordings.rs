//! Forged recordings: a replay bounds the resources they ask for.

use std::io::Cursor;
use std::time::Duration;

use hw_sim::record::{Header, Record, Replay, packed};
use hw_sim::{CardRules, Fault, LinkFaults, Profile};

use crate::bench::modest;

/// Returns the result of replaying these records behind a card of that kind.
fn end_with(profile: Profile, records: impl IntoIterator<Item = Record>) -> Result<(), String> {
    let card = Record::Card {
        physical: Box::new(profile),
        virtual_functions: 0,
        rules: CardRules::default(),
    };
    let header = Header::default();
    let mut file = packed(&header, &[]).unwrap();
    let head = file.len();
    let mut block = Vec::new();
    for record in std::iter::once(card).chain(records) {
        let record = postcard::to_stdvec(&record).unwrap();
        if block.len() + record.len() > 1 << 20 {
            file.extend(&packed(&header, &block).unwrap()[head..]);
            block.clear();
        }
        block.extend(record);
    }
    file.extend(&packed(&header, &block).unwrap()[head..]);
    let replay = Replay::open(Cursor::new(file)).unwrap();
    let ended = replay.without_comparison().run(None);
    ended.map(drop).map_err(|error| error.to_string())
}

fn end(records: impl IntoIterator<Item = Record>) -> Result<(), String> {
    end_with(modest().infiniband(), records)
}

fn frames(bytes: usize, many: usize) -> impl Iterator<Item = Record> {
    let frame = Record::Frame {
        function: 0,
        bytes: vec![0; bytes],
    };
    std::iter::once(Record::Stepped(true)).chain(std::iter::repeat_n(frame, many))
}

#[test]
fn waiting_frames_of_a_world_are_limited() {
    assert_eq!(end(frames(60, 1_000)), Ok(()));
    for (bytes, many) in [((1 << 20) - 64, 600), (1, 70_000)] {
        let ended = end(frames(bytes, many)).unwrap_err();
        assert!(ended.contains("wait"), "{ended}");
    }
}

#[test]
fn waiting_register_writes_of_a_world_are_limited() {
    let write = Record::Register {
        function: 0,
        offset: 0x4800,
        bytes: vec![0; 8],
    };
    let booted = Record::Time { now: 1 << 30 };
    let writes = |many| {
        let before = [booted.clone(), Record::Stepped(true)];
        before
            .into_iter()
            .chain(std::iter::repeat_n(write.clone(), many))
    };
    assert_eq!(end(writes(1_000)), Ok(()));
    let ended = end(writes(70_000)).unwrap_err();
    assert!(ended.contains("that wait"), "{ended}");
}

#[test]
fn links_of_every_kind_are_limited() {
    let faults = LinkFaults::NONE;
    let outside = Record::LinkOutside {
        function: 0,
        faults,
    };
    let itself = Record::Link {
        ends: (0, 0),
        faults,
    };
    for link in [outside, itself] {
        let ended = end(std::iter::repeat_n(link, 513)).unwrap_err();
        assert!(ended.contains("512 links at most"), "{ended}");
    }
}

#[test]
fn a_command_that_takes_for_ever_is_not_done_before_the_end_of_time() {
    let mut bench = crate::bench::Bench::booted(modest());
    let fault = Fault::CommandDelay {
        opcode: None,
        delay: Duration::MAX,
        count: 1,
    };
    bench.sim.inject(&bench.function, &fault);
    let submission = bench.prepare(&[0; 16], 16);
    bench.submit(&submission);
    assert!(bench.entry(submission.slot).ownership());
}

#[test]
fn a_recorded_functions_pages_are_limited() {
    for set in [
        (|profile| profile.pages.boot = u32::MAX) as fn(&mut Profile),
        |profile| profile.pages.init = u32::MAX,
        |profile| profile.pages.regular = u32::MAX,
    ] {
        let mut profile = modest();
        set(&mut profile);
        let ended = end_with(profile, []).unwrap_err();
        assert!(ended.contains("pages"), "{ended}");
    }
}
