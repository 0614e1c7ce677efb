//! Tests of invalid and old recordings: a replay limits the resources that a recording can request, and checks the
//! version.

use std::io::Cursor;
use std::time::Duration;

use hw_sim::record::{Header, Record, Replay, packed};
use hw_sim::{CardRules, Fault, LinkFaults, PortQos, Profile, Reaction};

use crate::bench::modest;

/// Returns the result of a replay of these records, after a record that creates a card with `profile`.
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

/// Returns the result of a replay of a file with this version, a card and one record.
fn end_of_version(version: u16, record: &[u8]) -> Result<(), String> {
    let card = Record::Card {
        physical: Box::new(modest()),
        virtual_functions: 0,
        rules: CardRules::default(),
    };
    let block = [&postcard::to_stdvec(&card).unwrap(), record].concat();
    let mut file = packed(&Header::default(), &block).unwrap();
    file[8..10].copy_from_slice(&version.to_be_bytes());
    let replay = Replay::open(Cursor::new(file)).map_err(|error| error.to_string())?;
    let ended = replay.without_comparison().run(None);
    ended.map(drop).map_err(|error| error.to_string())
}

/// A recording of version 1 can be replayed, except for its records of port settings. In version 1 these have no
/// traffic classes. All other records are the same in version 2.
#[test]
fn a_recording_of_version_1_is_read_but_for_the_settings_of_a_port() {
    let other = postcard::to_stdvec(&Record::Posted(true)).unwrap();
    for version in [1, 2] {
        assert_eq!(end_of_version(version, &other), Ok(()), "version {version}");
    }
    for version in [0, 3] {
        let ended = end_of_version(version, &other).unwrap_err();
        assert!(ended.contains(&format!("version {version}")), "{ended}");
    }
    let qos = PortQos::default();
    // The old record has variant 30, the function and then the fields in order. The trust state is PCP, and the
    // priority of each of the 64 DSCPs is 0.
    let halves = [[0_u8; 32]; 2];
    let old = postcard::to_stdvec(&(
        (30_u8, 0_u8),
        (qos.pause, qos.paused_priorities, 1_u8, halves),
        (qos.congestion, qos.cnp, qos.cnp_interval),
        Reaction::default(),
    ));
    let ended = end_of_version(1, &old.unwrap()).unwrap_err();
    assert!(
        ended.contains("version 1 has settings of a port"),
        "{ended}"
    );
    let new = Record::Qos {
        function: 0,
        qos: Box::new(qos),
    };
    let new = postcard::to_stdvec(&new).unwrap();
    assert_eq!(new[0], 30, "the variant's number");
    assert_eq!(end_of_version(2, &new), Ok(()));
}
