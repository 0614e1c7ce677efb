//! A program with two threads. Each thread opens its own adapter by name; both adapters are on the fabric of the
//! process. A thread blocks in waits and does not run the peer, like a program that was not written for a simulator.

use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use udapl::error::ReturnType;
use udapl::memory::LmrHandle;
use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind, DmaMemory, DtoCookie,
    DtoStatus, EpEvds, EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags, OpenOptions,
    PspFlags, Qos, ia_close, ia_open,
};

const SERVICE: ConnQual = ConnQual::service_id(0x1_0000_0001);
const PATIENCE: Duration = Duration::from_secs(300);
const FLAGS: CompletionFlags = CompletionFlags::empty();
const MESSAGES: u8 = 20;
const BYTES: u64 = 5000;

struct End {
    ia: Ia,
    events: EvdHandle,
    ep: EpHandle,
    memory: DmaMemory,
    lmr: LmrHandle,
}

impl End {
    fn open(name: &str) -> Self {
        let mut ia = ia_open(name, &OpenOptions::default()).expect("an adapter");
        let zone = ia.pz_create().expect("a PZ");
        let flags = EvdFlags::DEFAULT - EvdFlags::ASYNC;
        let events = ia.evd_create(64, flags).expect("an EVD");
        let ep = ia.ep_create(Some(zone), EpEvds::all(events), None);
        let memory = udapl::alloc(&ia, 1 << 14).expect("memory");
        let region = ia.lmr_create(memory.clone(), zone, MemPrivFlags::all());
        Self {
            ep: ep.expect("an endpoint"),
            lmr: region.expect("a region").lmr,
            ia,
            events,
            memory,
        }
    }

    fn receive(&mut self) {
        let inbox = self.ia.lmr_slice(self.lmr, 0, BYTES).expect("a slice");
        self.ia
            .ep_post_recv(self.ep, &[inbox], DtoCookie(1), FLAGS)
            .expect("a receive");
    }

    fn send(&mut self, value: u8) {
        let message = vec![value; usize::try_from(BYTES).expect("few")];
        self.memory.write_from(8192, &message).expect("written");
        let outbox = self.ia.lmr_slice(self.lmr, 8192, BYTES).expect("a slice");
        self.ia
            .ep_post_send(self.ep, &[outbox], DtoCookie(2), FLAGS)
            .expect("a Send");
    }

    fn event(&mut self) -> Event {
        let (event, _) = self
            .ia
            .evd_wait(self.events, PATIENCE, 1)
            .expect("an event");
        event
    }

    fn established(&mut self) {
        let event = self.event();
        let is_it = matches!(&event, Event::Connection(event) if event.kind == ConnectionEventKind::Established);
        assert!(is_it, "{event:?}");
    }

    /// Waits until a message has arrived and the own Send has completed. Returns the first byte of the message.
    fn exchanged(&mut self) -> u8 {
        let mut seen = 0;
        while seen != 3 {
            let Event::Dto(done) = self.event() else {
                panic!("something else than a completion");
            };
            assert_eq!(done.status, DtoStatus::Success);
            seen |= done.cookie.0;
        }
        self.memory.read(0, 1).expect("read")[0]
    }
}

fn server(name: &str, address: &Sender<IpAddr>) {
    let mut end = End::open(name);
    end.receive();
    end.ia
        .psp_create(SERVICE, end.events, PspFlags::CONSUMER)
        .expect("listens");
    address
        .send(end.ia.query().ia.ia_address)
        .expect("the client waits");
    let Event::ConnectionRequest(request) = end.event() else {
        panic!("no request to connect");
    };
    end.ia
        .cr_accept(request.cr, Some(end.ep), b"")
        .expect("accepts");
    end.established();
    for message in 0..MESSAGES {
        // A round waits for the next message and for the completion of the previous answer. The first round has no
        // previous answer.
        if message == 0 {
            let event = end.event();
            assert!(matches!(event, Event::Dto(_)), "{event:?}");
        } else {
            assert_eq!(end.exchanged(), message);
        }
        end.receive();
        end.send(message + 1);
    }
    let event = end.event();
    assert!(matches!(event, Event::Dto(_)), "{event:?}");
    ia_close(end.ia, CloseFlags::Abrupt).expect("closes");
}

fn client(name: &str, address: &Receiver<IpAddr>) {
    let mut end = End::open(name);
    let address = address.recv().expect("the server listens");
    let (best, none) = (Qos::BEST_EFFORT, ConnectFlags::empty());
    end.ia
        .ep_connect(end.ep, address, SERVICE, PATIENCE, b"", best, none)
        .expect("calls");
    end.established();
    for message in 0..MESSAGES {
        end.receive();
        end.send(message);
        assert_eq!(end.exchanged(), message + 1);
    }
    ia_close(end.ia, CloseFlags::Abrupt).expect("closes");
}

/// Two threads of a process connect and exchange messages by blocking waits. The test runs in a child process, which
/// has no other function on its fabric.
#[test]
fn two_threads_connect_and_exchange_messages_by_blocking_waits() {
    if !super::descriptors::in_a_child(
        "in_threads::two_threads_connect_and_exchange_messages_by_blocking_waits",
    ) {
        return;
    }
    let (tells, told) = channel();
    thread::scope(|scope| {
        let ends = [
            scope.spawn(move || server("sim:threads-server", &tells)),
            scope.spawn(move || client("sim:threads-client", &told)),
        ];
        for end in ends {
            end.join().expect("no panic");
        }
    });
}

fn times_out(name: &str, patience: Duration) -> Duration {
    let mut ia = ia_open(name, &OpenOptions::default()).expect("an adapter");
    let events = ia.evd_create(8, EvdFlags::SOFTWARE).expect("an EVD");
    let began = std::time::Instant::now();
    let refused = ia.evd_wait(events, patience, 1).expect_err("nothing comes");
    let passed = began.elapsed();
    assert_eq!(refused.error.return_type(), ReturnType::TimeoutExpired);
    ia_close(ia, CloseFlags::Abrupt).expect("closes");
    passed
}

#[test]
fn a_wait_lasts_as_long_as_it_says() {
    let patience = Duration::from_millis(50);
    assert!(times_out("sim:in-real-time", patience) >= patience);
}

/// A wait of an hour in virtual time takes almost no real time, if the adapter's name has `time=virtual`.
#[test]
fn a_wait_in_virtual_time_takes_none_where_a_name_asks_for_that() {
    let hour = Duration::from_secs(3600);
    assert!(times_out("sim:in-no-time,time=virtual", hour) < hour);
}
