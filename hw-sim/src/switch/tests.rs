use std::time::Duration;

use super::*;

/// Length of each frame in bytes. A frame occupies 1,000 bytes on the wire and takes 8 us at 1 Gb/s.
const BYTES: usize = 976;
const FRAME_NS: u64 = 8_000;

fn config() -> SwitchConfig {
    SwitchConfig {
        ports: 3,
        rate_bps: 1_000_000_000,
        ..SwitchConfig::default()
    }
}

fn switch(config: SwitchConfig) -> Switch {
    Switch::new(config, [2, 0, 0, 0, 0, 0xff], 1).expect("such a switch can be")
}

fn mac(station: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, station]
}

/// Returns a frame from station `src` with an IPv4 header that has this DSCP and ECT(0).
fn frame(src: u8, dst: [u8; 6], dscp: u8) -> Vec<u8> {
    let mut frame = vec![0; BYTES];
    frame[..6].copy_from_slice(&dst);
    frame[6..12].copy_from_slice(&mac(src));
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..16].copy_from_slice(&[0x45, dscp << 2 | 2]);
    frame
}

/// Runs all events up to a time. Returns port and time of each departure.
fn left(switch: &mut Switch, until: u64) -> Vec<(usize, u64)> {
    let mut left = Vec::new();
    loop {
        while let Some(departure) = switch.take_departure() {
            left.push((departure.port, departure.out));
        }
        match switch.next_due() {
            Some(due) if due <= until => switch.run(due),
            _ => return left,
        }
    }
}

#[test]
fn a_frame_is_flooded_until_its_destination_is_learned() {
    let mut switch = switch(config());
    switch.receive(0, 0, frame(1, mac(2), 0));
    assert_eq!(left(&mut switch, 0), [(1, FRAME_NS), (2, FRAME_NS)]);
    switch.receive(FRAME_NS, 2, frame(2, mac(1), 0));
    assert_eq!(left(&mut switch, FRAME_NS), [(0, 2 * FRAME_NS)]);
    switch.receive(3 * FRAME_NS, 0, frame(1, mac(2), 0));
    assert_eq!(left(&mut switch, 3 * FRAME_NS), [(2, 4 * FRAME_NS)]);
    let groups = [[0xff; 6], [0x33, 0x33, 0, 0, 0, 1]];
    for (turn, group) in (5..).step_by(2).zip(groups) {
        switch.receive(turn * FRAME_NS, 0, frame(1, group, 0));
        assert_eq!(
            left(&mut switch, turn * FRAME_NS).len(),
            2,
            "every other port"
        );
    }
    assert_eq!(switch.counters(0).expect("there").flooded, 3);
    switch.receive(20 * FRAME_NS, 0, frame(1, [1, 0x80, 0xc2, 0, 0, 0x0e], 0));
    switch.receive(20 * FRAME_NS, 0, frame(3, mac(1), 0));
    switch.receive(20 * FRAME_NS, 0, vec![0; 3]);
    let mut long = frame(1, groups[0], 0);
    long.resize(LONGEST_FRAME + 1, 0);
    switch.receive(20 * FRAME_NS, 0, long);
    assert_eq!(
        left(&mut switch, 21 * FRAME_NS),
        [],
        "a bridge's own, its own port, no frame, longer than any"
    );
    assert_eq!(switch.counters(0).expect("there").dropped_long, 1);
}

#[test]
fn fixed_addresses_stay_and_unknown_ones_may_be_dropped() {
    let mut switch = switch(SwitchConfig {
        unknown: Unknown::Drop,
        ..config()
    });
    assert!(switch.fix(mac(2), 2) && !switch.fix(mac(2), 3));
    switch.receive(0, 1, frame(2, mac(9), 0));
    switch.receive(0, 0, frame(1, mac(2), 0));
    assert_eq!(left(&mut switch, 0), [(2, FRAME_NS)]);
    assert_eq!(switch.counters(1).expect("there").dropped_unknown, 1);
}

#[test]
fn a_frame_without_room_is_dropped_at_its_port_of_departure() {
    for (buffer, kept) in [
        (Buffer::Shared(3 * BYTES), 4),
        (Buffer::PerPort(2 * BYTES), 3),
    ] {
        let mut switch = switch(SwitchConfig { buffer, ..config() });
        assert!(switch.fix(mac(2), 2));
        for _ in 0..10 {
            switch.receive(0, 0, frame(1, mac(2), 0));
        }
        // A shared buffer counts a frame that is on the wire until the frame has left.
        let kept = kept - u64::from(buffer == Buffer::Shared(3 * BYTES));
        assert_eq!(switch.counters(2).expect("there").dropped_full, 10 - kept);
        assert_eq!(left(&mut switch, 20 * FRAME_NS).len() as u64, kept);
        assert_eq!(switch.lossy_bytes, 0, "everything was given back");
    }
}

#[test]
fn marks_follow_the_depth_of_the_queue_and_skip_senders_that_do_not_react() {
    let red = Red {
        kmin_bytes: 2 * BYTES,
        kmax_bytes: 6 * BYTES,
        pmax: 0.0,
    };
    assert_eq!(red.probability(6 * BYTES), 1.0);
    let half = Red { pmax: 0.5, ..red };
    assert_eq!(half.probability(4 * BYTES), 0.25);
    let mut switch = switch(SwitchConfig {
        ecn: Some(red),
        ..config()
    });
    assert!(switch.fix(mac(2), 2));
    for turn in 0..10 {
        let mut frame = frame(1, mac(2), 0);
        if turn == 9 {
            frame[15] = 0;
        }
        switch.receive(0, 0, frame);
    }
    // The first frame is on the wire, so the eighth is the first to find six frames in the queue.
    assert_eq!(switch.counters(2).expect("there").marked, 2);
}

/// Returns a configuration with XOFF at four frames and XON at two.
fn pausing(watchdog: Option<Duration>) -> SwitchConfig {
    SwitchConfig {
        pfc: Some(Pfc {
            priorities: 1 << 3,
            xoff_bytes: 4 * BYTES,
            xon_bytes: 2 * BYTES,
            headroom_bytes: 2 * BYTES,
            watchdog,
        }),
        ..config()
    }
}

#[test]
fn a_sender_is_paused_above_xoff_and_goes_on_at_xon_and_headroom_holds_what_was_under_way() {
    let mut switch = switch(pausing(None));
    assert!(switch.fix(mac(2), 2));
    for _ in 0..7 {
        switch.receive(0, 0, frame(1, mac(2), 26));
    }
    let counters = switch.counters(0).expect("there");
    assert_eq!((counters.pauses_sent, counters.dropped_headroom), (1, 1));
    let mut frames = Vec::new();
    while frames.len() < 8 {
        while let Some(departure) = switch.take_departure() {
            frames.push((
                departure.port,
                pfc::parse(&departure.frame).and_then(|all| all[3]),
            ));
        }
        let due = switch.next_due().expect("frames wait");
        switch.run(due);
    }
    let out = (2, None);
    // Six frames were admitted. The pause ends when four of them have left; the fifth is on the wire by then.
    let expected = [
        out,
        (0, Some(u16::MAX)),
        out,
        out,
        out,
        out,
        (0, Some(0)),
        out,
    ];
    assert_eq!(frames, expected);
}

#[test]
fn a_pause_is_repeated_while_it_holds() {
    let mut switch = switch(pausing(None));
    assert!(switch.fix(mac(2), 2));
    switch.receive(0, 2, pfc::emit(mac(2), 3, u16::MAX));
    for _ in 0..5 {
        switch.receive(0, 0, frame(1, mac(2), 26));
    }
    assert_eq!(switch.silenced(0, 2), Some(1 << 3));
    // A pause lasts 65,535 quanta of 512 ns, which is 33.55 ms.
    left(&mut switch, 33_000_000);
    assert_eq!(
        switch.counters(0).expect("there").pauses_sent,
        2,
        "after half of the time again"
    );
    assert_eq!(switch.depth(2), Some(5 * BYTES));
    left(&mut switch, 34_000_000);
    assert_eq!(switch.depth(2), Some(0), "a pause that nobody repeats ends");
}

#[test]
fn a_watchdog_drops_frames_that_have_waited_too_long() {
    let mut switch = switch(pausing(Some(Duration::from_millis(1))));
    assert!(switch.fix(mac(2), 2));
    switch.receive(0, 2, pfc::emit(mac(2), 3, u16::MAX));
    for _ in 0..5 {
        switch.receive(0, 0, frame(1, mac(2), 26));
    }
    let left_early = left(&mut switch, 1_500_000);
    assert!(
        left_early.iter().all(|&(port, _)| port == 0),
        "pauses, and their end: {left_early:?}"
    );
    switch.receive(1_500_000, 0, frame(1, mac(2), 26));
    let counters = switch.counters(2).expect("there");
    assert_eq!((counters.watchdog, counters.dropped_watchdog), (1, 6));
    switch.receive(2_000_000, 0, frame(1, mac(2), 26));
    assert_eq!(left(&mut switch, 3_000_000), [(2, 2_000_000 + FRAME_NS)]);
}

#[test]
fn a_switch_that_cannot_be_is_refused_with_what_is_wrong() {
    let refused = |change: &dyn Fn(&mut SwitchConfig)| {
        let mut config = config();
        change(&mut config);
        config.check().expect_err("it cannot be").to_string()
    };
    assert!(refused(&|config| config.ports = 65).contains("2 to 64 ports, not 65"));
    assert!(refused(&|config| config.rate_bps = 0).contains("0 bit/s"));
    let red = Red {
        kmin_bytes: 9,
        kmax_bytes: 9,
        pmax: 0.1,
    };
    assert!(refused(&|config| config.ecn = Some(red)).contains("Kmin 9"));
    let pfc = Pfc {
        xon_bytes: 1 << 20,
        ..Pfc::of(1)
    };
    assert!(refused(&|config| config.pfc = Some(pfc)).contains("XON 1048576"));
    let pfc = Pfc {
        watchdog: Some(Duration::ZERO),
        ..Pfc::of(1)
    };
    assert!(refused(&|config| config.pfc = Some(pfc)).contains("a watchdog of no time"));
    let pfc = Pfc {
        headroom_bytes: usize::MAX,
        ..Pfc::of(1)
    };
    assert!(refused(&|config| config.pfc = Some(pfc)).contains("at most 1073741824 bytes"));
    assert!(refused(&|config| config.classes.of_dscp[46] = 8).contains("code point 46"));
}
