//! The Ethernet port: frames that come meanwhile, and frames in flight.

use driver::Iova;
use hw_mlx::ethernet::{BROADCAST, Ethernet, EthernetSnapshot, Object};
use hw_sim::LinkFaults;

use super::*;

/// An ARP frame of another station, with a byte of its own.
fn arp(byte: u8) -> Vec<u8> {
    let mut frame = BROADCAST.to_vec();
    frame.extend([2, 0, 0, 0, 0, 2, 0x08, 0x06]);
    frame.resize(60, byte);
    frame
}

fn with_port() -> (Served, Hca, Ethernet) {
    let served = Served::with(|profile| profile.ethernet());
    served
        .sim
        .connect_outside(&served.function, LinkFaults::NONE);
    let mut hca = served.open();
    let doorbells = Doorbells::new(hca.uar().clone());
    let mut port = Ethernet::create(&mut hca, &doorbells).expect("a port");
    port.hear(&mut hca, &[BROADCAST]).expect("groups");
    (served, hca, port)
}

fn park_port(hca: Hca, port: Ethernet) -> (HcaSnapshot, Vec<NamedFd>, EthernetSnapshot) {
    let parking = hca.begin_parking().expect("quiet");
    let parked = port.park(&parking).expect("it works");
    let (snapshot, descriptors) = parking.finish().expect("parked");
    (snapshot, descriptors, parked)
}

fn receive(hca: &mut Hca, port: &mut Ethernet) -> Vec<u8> {
    let mut frames = Vec::new();
    let deadline = hca.now() + PATIENCE;
    while frames.is_empty() {
        while let Some(cqn) = hca.next_shared_completion() {
            assert_eq!(cqn.get(), port.cqn());
            port.notified();
        }
        port.take_in(|frame| frames.push(frame.to_vec()));
        assert!(hca.now() < deadline, "no frame");
        if frames.is_empty() {
            hca.wait(deadline).expect("alive");
        }
    }
    assert_eq!(frames.len(), 1, "{frames:x?}");
    frames.remove(0)
}

/// Sends a frame once a slot is free.
fn send(hca: &mut Hca, port: &mut Ethernet, frame: &[u8]) {
    let deadline = hca.now() + PATIENCE;
    while port.send(frame).is_err() {
        assert!(hca.now() < deadline, "no slot");
        hca.wait(hca.now() + Duration::from_millis(1))
            .expect("alive");
        port.take_in(|frame| panic!("{frame:x?} from nowhere"));
    }
}

/// Waits until as many frames were sent, and frees their slots.
fn sent(
    served: &Served,
    hca: &mut Hca,
    port: &mut Ethernet,
    frames: &mut Vec<Vec<u8>>,
    count: usize,
) {
    let deadline = hca.now() + PATIENCE;
    while frames.len() < count {
        assert!(hca.now() < deadline, "{} frames", frames.len());
        hca.wait(hca.now() + Duration::from_millis(1))
            .expect("alive");
        frames.extend(served.sim.take_frames(&served.function));
    }
    port.take_in(|frame| panic!("{frame:x?} from nowhere"));
}

/// Frames come while the function is parked, and one that was posted before is sent meanwhile. All slots are used
/// again.
#[test]
fn an_ethernet_port_goes_on_with_the_frames_that_came_meanwhile() {
    let (served, mut hca, mut port) = with_port();
    let before = served.resets();
    for round in 0..100 {
        served.sim.deliver(&served.function, &arp(round));
        assert_eq!(receive(&mut hca, &mut port), arp(round));
        send(&mut hca, &mut port, &arp(round));
    }
    let mut frames = Vec::new();
    sent(&served, &mut hca, &mut port, &mut frames, 100);
    let all_missing = [("mkey", 1), ("CQ", 1), ("SQ", 1), ("RQ", 1)];
    for round in 0..3 {
        served.stop_time();
        port.send(&arp(200)).expect("room");
        let (snapshot, descriptors, parked) = park_port(hca, port);
        served.sim.deliver(&served.function, &arp(100 + round));
        served.go_on();
        hca = resume(&snapshot, descriptors);
        assert_eq!(missing(&mut hca), all_missing);
        port = Ethernet::resume(&mut hca, &parked).expect("resumed");
        hca.finish_resuming().expect("all is there");
        assert_eq!(receive(&mut hca, &mut port), arp(100 + round));
        for byte in 0..80 {
            served.sim.deliver(&served.function, &arp(byte));
            assert_eq!(receive(&mut hca, &mut port), arp(byte));
            send(&mut hca, &mut port, &arp(byte));
        }
        let all = 100 + 81 * (usize::from(round) + 1);
        sent(&served, &mut hca, &mut port, &mut frames, all);
        let waited = frames.iter().filter(|frame| **frame == arp(200)).count();
        assert_eq!((frames.len(), waited), (all, usize::from(round) + 1));
    }
    port.destroy(&mut hca).expect("destroyed");
    let closed = hca.close().expect("closed");
    assert_eq!(closed.objects_left, []);
    assert_eq!(served.finished(before), 1);
}

#[test]
fn numbers_of_an_ethernet_port_that_are_wrong_are_refused() {
    type Change = fn(&mut EthernetSnapshot);
    let changes: [(&str, Change); 10] = [
        ("objects", |it| it.objects.truncate(4)),
        ("objects", |it| it.objects.push(it.objects[4])),
        ("objects", |it| it.objects[4] = Object::Sq(1 << 24)),
        ("QUERY_SQ", |it| it.objects[4] = Object::Sq(0xee)),
        ("doorbell page", |it| it.uar = 4000),
        ("slots of", |it| it.slot_bytes = 64),
        ("slots of", |it| it.slot_bytes = 1 << 31),
        ("a queue", |it| it.send.log_page = 70),
        ("of an Ethernet queue", |it| {
            it.queue.recv.receives.swap(0, 1)
        }),
        ("memory of", |it| it.queue.slots = Iova(4096).0),
    ];
    for (words, change) in changes {
        let (served, hca, port) = with_port();
        let before = served.resets();
        let (snapshot, descriptors, mut parked) = park_port(hca, port);
        let mut hca = resume(&snapshot, descriptors);
        change(&mut parked);
        let error = Ethernet::resume(&mut hca, &parked).expect_err(words);
        let text = error.to_string();
        assert!(text.contains(words), "{words}: {text}");
        drop(hca);
        served.finished(before);
    }
}
