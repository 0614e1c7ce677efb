//! `datctl info`, `ping`, `perf` and `rping`: both ends in one process, and in two.
//!
//! No test here asserts how long anything takes.

use serde_json::{Value, json};
use udapl::{
    ConnQual, ConnectFlags, ConnectionEventKind, EpEvds, EvdFlags, Event, OpenOptions, Qos, Timeout,
};

use crate::served::{Process, Served, datctl, json};

/// Time limit that is far longer than anything takes, and short enough to end a stuck test.
const LONG: Timeout = Timeout::from_micros(300_000_000);

/// Checks that there is one row for each operation and size, in this order, and that all figures are above zero.
fn check_figures(figures: &Value, operations: &[&str], sizes: &[u64]) {
    let rows: Vec<(&str, u64)> = figures["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| {
            for figure in [
                &row["latency"]["min_us"],
                &row["latency"]["median_us"],
                &row["latency"]["p99_us"],
                &row["latency"]["max_us"],
                &row["latency"]["mean_us"],
                &row["bandwidth"]["bytes_per_second"],
                &row["bandwidth"]["operations_per_second"],
            ] {
                assert!(figure.as_f64().is_some_and(|figure| figure > 0.0), "{row}");
            }
            let name = row["operation"].as_str().expect("a name");
            (name, row["bytes"].as_u64().expect("a size"))
        })
        .collect();
    let expected: Vec<(&str, u64)> = operations
        .iter()
        .flat_map(|&operation| sizes.iter().map(move |&size| (operation, size)))
        .collect();
    assert_eq!(rows, expected);
}

/// The self test runs on one function alone, without a peer. `info` also reports whether the network is joined.
#[test]
fn the_self_test_says_what_was_compared_and_info_whether_the_network_is_joined() {
    let (code, info) = json(&["info", "sim:a", "--selftest"]);
    assert_eq!(code, Some(0), "{info}");
    let said = info["selftest"].as_str().expect("what was done");
    assert!(
        said.contains("by forced loopback")
            && said.contains("Send, RDMA Write and RDMA Read of 16384 bytes each"),
        "{said}"
    );
    assert_eq!(
        (&info["network"], &info["without"]),
        (&json!("joined"), &json!([]))
    );
    let (_, info) = json(&["info", "sim:a,network=off"]);
    assert_eq!(
        (&info["network"], info.get("selftest")),
        (&json!("off"), None)
    );
}

/// A function without Ethernet queues works without the network, and `info` reports the missing capability.
#[test]
fn info_of_a_function_without_ethernet_queues_says_why_it_has_no_network() {
    let directory = tempfile::tempdir().expect("a directory");
    let profile = directory.path().join("bare.toml").display().to_string();
    let text = "name = \"bare\"\ntitle = \"Bare\"\nbase = \"connectx-5\"\n\n[general]\neth_net_offloads = { is = 0 }\n";
    std::fs::write(&profile, text).expect("written");
    let function = format!("sim:a,profile={profile}");
    let (code, info) = json(&["info", &function]);
    assert_eq!(code, Some(0), "{info:#}");
    let network = info["network"].as_str().expect("text");
    assert_eq!(network, "without: eth_net_offloads is 0");
    let output = datctl(&["info", &function]);
    let text = String::from_utf8(output.stdout).expect("text");
    let line = text.lines().find(|line| line.starts_with(" network "));
    let line = line.expect("a line for the network");
    assert!(line.ends_with("without: eth_net_offloads is 0"), "{line}");
    let (code, refused) = json(&["info", &format!("{function},network=on")]);
    assert_eq!(code, Some(1), "{refused:#}");
    let error = refused["error"].as_str().expect("text");
    assert!(error.contains("eth_net_offloads"), "{error}");
}

/// `info` lists what a function lacks because its firmware refused an optional command. The profile announces register
/// DTOR, which the simulator refuses.
#[test]
fn info_lists_what_a_refused_command_costs() {
    const WITHOUT_DTOR: &str = "\n000: 00000000 80000000 ";
    const WITH_DTOR: &str = "\n000: 00000000 a0000000 ";
    let directory = tempfile::tempdir().expect("a directory");
    let profile = directory.path().join("dtor.toml").display().to_string();
    let (code, report) = json(&["record", "sim:a,profile=connectx-5", &profile]);
    assert_eq!(code, Some(0), "{report:#}");
    let text = std::fs::read_to_string(&profile).expect("the record");
    assert_eq!(text.matches(WITHOUT_DTOR).count(), 2, "{text}");
    std::fs::write(&profile, text.replace(WITHOUT_DTOR, WITH_DTOR)).expect("written");
    let function = format!("sim:a,profile={profile}");
    let (code, info) = json(&["info", &function]);
    assert_eq!(code, Some(0), "{info:#}");
    let without = info["without"].as_array().expect("a list");
    let [lost] = &without[..] else {
        panic!("{without:?}");
    };
    let lost = lost.as_str().expect("text");
    let begin = "the firmware's own limit for the return of pages: ACCESS_REG ";
    assert!(lost.starts_with(begin), "{lost}");
    assert_eq!(info["network"], "joined");
    let output = datctl(&["info", &function]);
    let text = String::from_utf8(output.stdout).expect("text");
    let lines = text.lines().filter(|line| line.starts_with(" without "));
    let lines: Vec<&str> = lines.collect();
    assert!(
        matches!(lines[..], [line] if line.ends_with(lost)),
        "{text}"
    );
}

#[test]
fn two_functions_of_one_process_ping_each_other() {
    let (code, trips) = json(&["ping", "sim:a", "sim:b", "--count", "7", "--bytes", "5000"]);
    assert_eq!(code, Some(0), "{trips}");
    assert_eq!(
        (&trips["messages"], &trips["bytes"]),
        (&json!(7), &json!(5000))
    );
    let figure = |name: &str| trips[name].as_f64().expect("a figure");
    assert!(figure("shortest_us") <= figure("median_us"));
    assert!(figure("median_us") <= figure("longest_us"));
    // The qualifier may also be an RDMA-CM port.
    let (code, trips) = json(&["ping", "sim:a", "sim:b", "--qualifier", "18515"]);
    assert_eq!((code, &trips["messages"]), (Some(0), &json!(10)), "{trips}");
}

/// Functions of one card reach each other over the card's e-switch. The virtual functions have no MAC of their own;
/// their drivers choose one.
#[test]
fn functions_of_one_card_ping_each_other() {
    for [one, other] in [["sim:c/vf0", "sim:c/vf1"], ["sim:c/pf", "sim:c/vf0"]] {
        let (code, trips) = json(&["ping", one, other, "--count", "5", "--bytes", "5000"]);
        assert_eq!((code, &trips["messages"]), (Some(0), &json!(5)), "{trips}");
    }
}

#[test]
fn functions_of_two_cards_ping_each_other_over_the_cable() {
    let (code, trips) = json(&["ping", "sim:c/vf3", "sim:d/vf0", "--count", "5"]);
    assert_eq!((code, &trips["messages"]), (Some(0), &json!(5)), "{trips}");
}

#[test]
fn a_card_has_eight_virtual_functions_and_is_no_function_itself() {
    for (one, other, words) in [
        ("sim:c/vf0", "sim:c/vf8", "sim:CARD/vf0 to sim:CARD/vf7"),
        // ping opens the passive end first, which is the second name.
        ("sim:c", "sim:c/vf0", "sim:c was opened as a card"),
        (
            "sim:c/pf",
            "sim:c",
            "sim:c was opened as a function by itself",
        ),
    ] {
        let output = datctl(&["ping", one, other]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(words), "{text}");
    }
}

/// Settings of a virtual function may change while it is served, as with `ip link set PF vf 0`.
#[test]
fn what_the_administrator_says_of_a_virtual_function_may_change() {
    let mut served = Served::card(&["--control"]);
    let name = served.name("card.vf0");
    for (said, mac, up) in [
        ("0:mac=02:00:00:00:00:77", "02:00:00:00:00:77", true),
        (
            "0:mac=02:00:00:00:00:78,state=disable",
            "02:00:00:00:00:78",
            false,
        ),
        (
            "0:mac=02:00:00:00:00:78,state=auto",
            "02:00:00:00:00:78",
            true,
        ),
    ] {
        assert_eq!(served.server.ask(said), "ok", "{said}");
        let (_, info) = json(&["info", &name]);
        let port = &info["port"];
        assert_eq!((&port["mac"], &port["link_up"]), (&json!(mac), &json!(up)));
    }
    for (said, part) in [
        ("2:trust", "the card has 2 virtual functions"),
        ("0:trusted", "is no setting of a virtual function"),
        ("", "is no virtual function's number"),
    ] {
        let answer = served.server.ask(said);
        assert!(answer.contains(part), "{said}: {answer}");
    }
}

/// Two virtual functions of one card in another process, each with its own socket, ping each other.
#[test]
fn virtual_functions_that_a_server_has_ping_each_other() {
    let served = Served::card(&["--vf", "0:mac=02:00:00:00:00:77,spoofchk"]);
    let (one, other) = (served.name("card.vf0"), served.name("card.vf1"));
    let (code, trips) = json(&["ping", &one, &other, "--count", "3"]);
    assert_eq!((code, &trips["messages"]), (Some(0), &json!(3)), "{trips}");
}

#[test]
fn every_operation_is_measured_at_every_size_in_one_process() {
    let (code, figures) = json(&[
        "perf",
        "sim:a",
        "sim:b",
        "--count",
        "40",
        "--bytes",
        "1,4K,70000",
    ]);
    assert_eq!(code, Some(0), "{figures}");
    check_figures(&figures, &["send", "write", "read"], &[1, 4096, 70_000]);
    assert_eq!(figures["simulated"], json!(true));
}

#[test]
fn what_was_not_asked_for_is_not_measured() {
    let (code, figures) = json(&[
        "perf",
        "sim:a",
        "sim:b",
        "--operation",
        "read",
        "--measure",
        "latency",
        "--bytes",
        "64",
        "--count",
        "3",
    ]);
    assert_eq!(code, Some(0), "{figures}");
    let rows = figures["rows"].as_array().expect("rows");
    let [row] = &rows[..] else {
        panic!("{rows:?}");
    };
    assert_eq!(row["latency"]["measures"], "post to completion");
    assert_eq!(
        (&row["latency"]["operations"], &row["bandwidth"]),
        (&json!(3), &Value::Null)
    );
}

#[test]
fn a_person_gets_tables() {
    let output = datctl(&["perf", "sim:a", "sim:b", "--count", "3", "--bytes", "64"]);
    let text = String::from_utf8(output.stdout).expect("text");
    let words: Vec<&str> = text
        .lines()
        .next()
        .expect("a header")
        .split_whitespace()
        .collect();
    assert_eq!(
        words.join(" "),
        "operation bytes min us median us p99 us p99.99 us max us MB/s back MB/s k/s"
    );
    assert!(text.contains("nothing of a card"), "{text}");
    let output = datctl(&["info", "sim:a"]);
    let text = String::from_utf8(output.stdout).expect("text");
    for part in [
        "ConnectX-5",
        "16.35.1012",
        "fe80::5eff:fe10:1",
        "alive",
        "more with --all: capabilities, limits, counters",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn an_adapter_says_its_firmware_port_addresses_limits_and_health() {
    let (code, info) = json(&["info", "sim:a", "--address", "192.0.2.1"]);
    assert_eq!(code, Some(0), "{info}");
    for (field, value) in [
        ("/product", json!("ConnectX-5")),
        ("/device_id", json!("0x1017")),
        ("/firmware", json!("16.35.1012")),
        ("/port/mac", json!("02:00:5e:10:00:01")),
        ("/port/link_up", json!(true)),
        ("/port/path_mtu_bytes", json!(4096)),
        ("/port/unicast", json!(["02:00:5e:10:00:01"])),
        // The function joins the multicast groups by which it is found: broadcast, all nodes, and that of its
        // link-local address (RFC 4291, 2.7.1).
        (
            "/port/multicast",
            json!([
                "ff:ff:ff:ff:ff:ff",
                "33:33:00:00:00:01",
                "33:33:ff:10:00:01"
            ]),
        ),
        ("/port/vlans", json!([])),
        ("/gids/0/address", json!("fe80::5eff:fe10:1")),
        ("/gids/1/address", json!("192.0.2.1")),
        ("/capabilities/roce_v2", json!(true)),
        ("/limits/rdma_reads_per_endpoint_in", json!(16)),
        ("/health", json!({"alive": true, "cause": null})),
    ] {
        assert_eq!(info.pointer(field), Some(&value), "{field} of {info:#}");
    }
}

#[test]
fn an_adapter_says_what_it_counts_and_the_network_of_each_address() {
    const NAME: &str = "sim:a,address=192.0.2.1/24,gateway=192.0.2.254,vlan=7,priority=3";
    let (code, info) = json(&["info", NAME]);
    assert_eq!(code, Some(0), "{info}");
    for (field, value) in [
        ("/gids/0/prefix", json!(64)),
        ("/gids/0/gateway", json!(null)),
        ("/gids/1/prefix", json!(24)),
        ("/gids/1/gateway", json!("192.0.2.254")),
        ("/gids/1/vlan", json!(7)),
        ("/gids/1/priority", json!(3)),
        ("/counters/queue/out_of_sequence", json!(0)),
        ("/counters/vport/rx_vport_rdma_unicast_packets", json!(0)),
        ("/counters/port/rx_crc_errors_phy", json!(0)),
        ("/counters/priorities/rx_prio7_bytes", json!(0)),
        ("/counters/connections/established", json!(0)),
        ("/counters/memory/regions", json!(0)),
    ] {
        assert_eq!(info.pointer(field), Some(&value), "{field} of {info:#}");
    }
    let commands = info["counters"]["commands"].as_array().expect("a list");
    let enabled = commands.iter().find(|it| it["name"] == "ENABLE_HCA");
    assert_eq!(enabled.expect("it was sent")["answered"], json!(1));
    let output = datctl(&["info", NAME, "--all"]);
    let text = String::from_utf8(output.stdout).expect("text");
    for part in [
        "192.0.2.1/24",
        "192.0.2.254",
        "firmware_pages",
        "ENABLE_HCA",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn two_processes_ping_and_measure_over_functions_of_a_third() {
    let served = Served::new(&[]);
    let (mut listener, address) = served.listener("ping");
    let (code, trips) = json(&[
        "ping",
        &served.name("b"),
        "--connect",
        &address,
        "--count",
        "5",
    ]);
    assert_eq!((code, &trips["messages"]), (Some(0), &json!(5)), "{trips}");
    assert_eq!(listener.line(), "answered 5 messages");
    assert_eq!(listener.status(), Some(0));

    let (mut listener, address) = served.listener("perf");
    let (code, figures) = json(&[
        "perf",
        &served.name("b"),
        "--connect",
        &address,
        "--count",
        "20",
        "--bytes",
        "64,20000",
    ]);
    assert_eq!(code, Some(0), "{figures}");
    check_figures(&figures, &["send", "write", "read"], &[64, 20_000]);
    // There are six connections. The messages are the echoes of both sizes, with a tenth more for the warm-up.
    assert_eq!(listener.line(), "answered 44 messages");
    assert_eq!(listener.status(), Some(0));
}

#[test]
fn rping_reads_and_writes_the_texts_of_its_peer() {
    let served = Served::new(&[]);
    let (mut listener, address) = served.listener("rping");
    let (code, trips) = json(&[
        "rping",
        &served.name("b"),
        "--connect",
        &address,
        "--count",
        "5",
        "--bytes",
        "65535",
    ]);
    assert_eq!(
        (code, &trips["messages"], &trips["bytes"]),
        (Some(0), &json!(5), &json!(65_535)),
        "{trips}"
    );
    assert_eq!(listener.line(), "answered 5 messages");
    assert_eq!(listener.status(), Some(0));
}

#[test]
fn rping_serves_several_peers_whose_addresses_come_and_go() {
    let served = Served::new(&[]);
    let name = format!("{},address=192.0.2.1/24", served.name("a"));
    let listen = ["rping", &name, "--listen", "--peers", "2", "--control"];
    let mut listener = Process::start(&listen);
    assert!(listener.line().starts_with("listening on fe80::"));
    assert_eq!(
        listener.ask("add 198.51.100.1/24,vlan=100,priority=3"),
        "ok"
    );
    let refused = listener.ask("add 198.51.100.1/24");
    assert!(refused.starts_with("add 198.51.100.1/24: "), "{refused}");
    let peer = format!(
        "{},address=192.0.2.2/24,address=198.51.100.2/24,vlan=100,priority=3",
        served.name("b")
    );
    for (from, to) in [("192.0.2.2", "192.0.2.1"), ("198.51.100.2", "198.51.100.1")] {
        let transport = format!("dscp=26,source_address={from}");
        let connect = ["rping", &peer, "--connect", to, "--transport", &transport];
        let (code, trips) = json(&connect);
        assert_eq!((code, &trips["messages"]), (Some(0), &json!(10)), "{trips}");
        let ended = listener.line();
        assert!(
            ended.starts_with(&format!("{from}: 10 messages; ")),
            "{ended}"
        );
    }
    assert_eq!(listener.line(), "answered 20 messages");
    assert_eq!(listener.status(), Some(0));
}

#[test]
fn ping_asks_a_node_that_need_not_answer_by_rdma() {
    let served = Served::new(&[]);
    let name = |side, address| format!("{},address={address}/24", served.name(side));
    let node = name("a", "192.0.2.1");
    let mut node = Process::start(&["rping", &node, "--listen"]);
    assert!(node.line().starts_with("listening on "));
    let asker = name("b", "192.0.2.2");
    let ping = ["ping", &asker, "--icmp", "--count", "3", "--connect"];
    let (code, trips) = json(&[&ping[..], &["192.0.2.1"]].concat());
    assert_eq!(
        (code, &trips["messages"], &trips["bytes"]),
        (Some(0), &json!(3), &json!(56)),
        "{trips}"
    );
    let (code, error) = json(&[&ping[..], &["192.0.2.9"]].concat());
    assert_eq!(code, Some(1), "{error}");
}

#[test]
fn a_setting_of_the_transport_that_is_none_is_a_usage_error() {
    for wrong in ["dscp", "dscp=64", "speed=1"] {
        let connect = ["rping", "sim:a", "--connect", "fe80::1"];
        let output = datctl(&[&connect[..], &["--transport", wrong]].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong}");
    }
}

#[test]
fn both_ends_of_a_served_link_can_be_one_process() {
    let served = Served::new(&["--profile", "connectx-5,vectors=4,boot=1ms"]);
    let (code, trips) = json(&["ping", &served.name("a"), &served.name("b")]);
    assert_eq!((code, &trips["messages"]), (Some(0), &json!(10)), "{trips}");
}

#[test]
fn a_link_that_loses_and_damages_frames_delivers_all_messages_unchanged() {
    let served = Served::new(&[
        "--faults",
        "loss=2%,corrupt=1%,reorder=2%,delay=2us",
        "--seed",
        "7",
    ]);
    let (code, trips) = json(&[
        "ping",
        &served.name("a"),
        &served.name("b"),
        "--count",
        "50",
        "--bytes",
        "9000",
    ]);
    assert_eq!((code, &trips["messages"]), (Some(0), &json!(50)), "{trips}");
}

#[test]
fn a_listener_turns_strangers_away_and_goes_on() {
    let served = Served::new(&[]);
    let (mut listener, address) = served.listener("ping");
    let mut stranger =
        udapl::ia_open(&served.name("b"), &OpenOptions::default()).expect("it opens");
    let events = stranger
        .evd_create(16, EvdFlags::CONNECTION | EvdFlags::DTO)
        .expect("an EVD");
    let zone = stranger.pz_create().expect("a PZ");
    for greeting in [
        &b""[..],
        b"hello",
        b"datctl 1\x07\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x40",
    ] {
        let ep = stranger
            .ep_create(Some(zone), EpEvds::all(events), None)
            .expect("an endpoint");
        stranger
            .ep_connect(
                ep,
                address.parse().expect("an address"),
                ConnQual(0x1_0000_0001),
                LONG,
                greeting,
                Qos::BEST_EFFORT,
                ConnectFlags::empty(),
            )
            .expect("a connect");
        let (event, _) = stranger
            .evd_wait(events, LONG, 1)
            .expect("an answer in time");
        let Event::Connection(event) = event else {
            panic!("{event:?}");
        };
        assert_eq!(
            event.kind,
            ConnectionEventKind::PeerRejected,
            "{greeting:?}"
        );
        stranger.ep_free(ep).expect("it goes");
    }
    udapl::ia_close(stranger, udapl::CloseFlags::Abrupt).expect("it closes");
    let (code, trips) = json(&["ping", &served.name("b"), "--connect", &address]);
    assert_eq!(code, Some(0), "{trips}");
    assert_eq!(listener.line(), "answered 10 messages");
}

/// Starts a ping that runs until it fails or is killed.
fn endless(served: &Served, address: &str) -> Process {
    let count = u32::MAX.to_string();
    Process::start(&[
        "--json",
        "ping",
        &served.name("b"),
        "--connect",
        address,
        "--count",
        &count,
    ])
}

/// Waits until the process fails by itself, and returns the error that it printed.
fn fails(process: &mut Process) -> String {
    let line: Value = serde_json::from_str(&process.line()).expect("an object");
    assert_eq!(process.status(), Some(1));
    line["error"].as_str().expect("an error").to_owned()
}

#[test]
fn a_peer_that_is_killed_is_noticed_by_either_end() {
    let served = Served::new(&[]);
    let (mut listener, address) = served.listener("ping");
    let mut dialer = endless(&served, &address);
    listener.kill();
    let error = fails(&mut dialer);
    assert!(!error.is_empty());

    let (mut listener, address) = served.listener("ping");
    let mut dialer = endless(&served, &address);
    dialer.kill();
    // If the process was killed before it had connected, the listener continues. A second ping shows which case it is.
    let (code, _) = json(&[
        "ping",
        &served.name("b"),
        "--connect",
        &address,
        "--count",
        "1",
    ]);
    match code {
        Some(0) => assert_eq!(listener.status(), Some(0)),
        other => {
            assert_eq!(other, Some(1));
            assert_eq!(listener.status(), Some(1));
        }
    }
}

#[test]
fn a_function_that_is_pulled_out_ends_a_ping_with_a_reason() {
    // The removal comes late enough to interrupt the ping. An earlier failure passes the test as well.
    let served = Served::new(&["--faults", "1:removal@3s"]);
    let (_listener, address) = served.listener("ping");
    let error = fails(&mut endless(&served, &address));
    assert!(!error.is_empty());
}

/// Number of doorbells of a function that is connected and exchanges messages. Until it is connected it rings fewer.
const MANY_DOORBELLS: u64 = 200;

/// A function that was removed sends nothing. Its peer notices this by keep-alive, and reports it.
#[test]
fn an_end_whose_peer_is_gone_says_so_and_by_what_it_knows() {
    let served = Served::steered();
    let mut listener = Process::start(&["--json", "rping", &served.name("a"), "--listen"]);
    let line: Value = serde_json::from_str(&listener.line()).expect("an object");
    let address = line["listening"].as_str().expect("an address");
    let count = u32::MAX.to_string();
    let (name, count) = (served.name("b"), ["--count", &count]);
    let arguments = [&["rping", &name, "--connect", address][..], &count].concat();
    let _dialer = Process::start(&arguments);
    served.wait_for_doorbells("b", MANY_DOORBELLS);
    let _at = served.steer(&["function", "1:removal"]);
    let error = fails(&mut listener);
    assert!(
        error.contains("the peer is gone: ") || error.contains("does not answer"),
        "{error}"
    );

    for command in ["ping", "perf"] {
        let served = Served::steered();
        let (_listener, address) = served.listener(command);
        let name = served.name("b");
        let ends = ["--json", command, &name, "--connect", &address];
        let long: &[&str] = match command {
            "perf" => &[
                "--operation",
                "write",
                "--bytes",
                "64",
                "--duration",
                "600s",
            ],
            _ => &count,
        };
        let mut dialer = Process::start(&[&ends, long].concat());
        served.wait_for_doorbells("b", MANY_DOORBELLS);
        let _at = served.steer(&["function", "0:removal"]);
        let error = fails(&mut dialer);
        assert!(error.contains("the peer is gone: "), "{command}: {error}");
    }
}

#[test]
fn a_server_that_is_killed_ends_a_ping_with_a_reason() {
    let mut served = Served::new(&[]);
    let (_listener, address) = served.listener("ping");
    let mut dialer = endless(&served, &address);
    served.server.kill();
    let error = fails(&mut dialer);
    assert!(error.contains("vfio-user:"), "{error}");
}

#[test]
fn a_device_we_cannot_drive_says_what_it_lacks() {
    let served = Served::new(&["--profile", "infiniband"]);
    let (code, value) = json(&["info", &served.name("a")]);
    assert_eq!(code, Some(1));
    let error = value["error"].as_str().expect("an error");
    assert!(
        error.contains("port_type: need 1 (Ethernet), the device has 0"),
        "{error}"
    );
}

#[test]
fn an_address_where_nobody_listens_is_an_error_with_the_event() {
    let served = Served::new(&[]);
    let (_listener, address) = served.listener("ping");
    let (code, value) = json(&[
        "ping",
        &served.name("b"),
        "--connect",
        &address,
        "--qualifier",
        "0x100000002",
    ]);
    assert_eq!(code, Some(1));
    let error = value["error"].as_str().expect("an error");
    let said = "DAT_CONNECTION_EVENT_NON_PEER_REJECTED (event 0x04003;";
    assert!(error.contains(said), "{error}");
}
