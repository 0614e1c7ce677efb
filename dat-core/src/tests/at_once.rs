//! The fast path posts only if all checks pass; otherwise it has no effect.

use super::*;
use crate::post::{Post, RdmaRead, RdmaWrite, Recv, Send};

fn send(a: &mut Side, one: LmrTriplet, cookie: u64) -> bool {
    Send.at_once(&mut a.ia, a.ep, &[one], DtoCookie(cookie), NO_FLAGS)
}

fn write(a: &mut Side, one: LmrTriplet, cookie: u64, to: &RmrTriplet) -> bool {
    RdmaWrite(to).at_once(&mut a.ia, a.ep, &[one], DtoCookie(cookie), NO_FLAGS)
}

fn read(a: &mut Side, one: LmrTriplet, cookie: u64, from: &RmrTriplet) -> bool {
    RdmaRead(from).at_once(&mut a.ia, a.ep, &[one], DtoCookie(cookie), NO_FLAGS)
}

fn recv(a: &mut Side, one: LmrTriplet, cookie: u64) -> bool {
    Recv.at_once(&mut a.ia, a.ep, &[one], DtoCookie(cookie), NO_FLAGS)
}

#[test]
fn posts_made_at_once_complete_as_any_other() {
    let (_net, mut a, mut b) = connected();
    let to = b.remote(16);
    b.post_recv(9).expect("posts");
    let one = a.triplet(0, 16);
    assert!(send(&mut a, one, 1));
    assert!(write(&mut a, one, 2, &to));
    // The sink of an RDMA Read may be longer than the source.
    assert!({
        let longer = a.triplet(0, 20);
        read(&mut a, longer, 3, &to)
    });
    let lengths: Vec<_> = a
        .events(a.request)
        .iter()
        .filter_map(cookie_and_length)
        .collect();
    assert_eq!(lengths, [(1, 16), (2, 16), (3, 16)]);
    assert_eq!(b.completions(b.recv), [(9, DtoStatus::Success)]);

    assert!({
        let buffer = a.triplet(0, 64);
        recv(&mut a, buffer, 4)
    });
    b.send(5, NO_FLAGS).expect("posts");
    assert_eq!(a.completions(a.recv), [(4, DtoStatus::Success)]);
}

fn cookie_and_length(event: &Event) -> Option<(u64, u64)> {
    if let Event::Dto(dto) = event {
        Some((dto.cookie.0, dto.transferred_length))
    } else {
        None
    }
}

/// Tries all four posts with the segment `one` on the fast path. Returns the number of posts that were made.
fn made(a: &mut Side, one: LmrTriplet, to: &RmrTriplet) -> usize {
    [
        send(a, one, 0),
        write(a, one, 0, to),
        read(a, one, 0, to),
        recv(a, one, 0),
    ]
    .iter()
    .filter(|&&made| made)
    .count()
}

#[test]
fn no_post_goes_to_an_endpoint_that_is_gone_or_of_another_adapter() {
    let (_net, mut a, b) = connected();
    let (to, one) = (b.remote(16), a.triplet(0, 16));
    let freed = a.ia.ep_create(None, EpEvds::NONE, None).expect("an EP");
    a.ia.ep_free(freed).expect("frees");
    for ep in [freed, b.ep] {
        let own = std::mem::replace(&mut a.ep, ep);
        assert_eq!(made(&mut a, one, &to), 0);
        a.ep = own;
    }
    assert_eq!(a.events(a.request), []);
}

#[test]
fn posts_that_the_calls_refuse_are_not_made_at_once() {
    let (_net, mut a, b) = connected();
    let (good, to) = (a.triplet(0, 16), b.remote(16));
    let other_pz = a.ia.pz_create().expect("a PZ");
    let elsewhere = a.ia.lmr_create(MEMORY, other_pz, MemPrivFlags::all());
    let nothing_allowed = a.ia.lmr_create(MEMORY, a.pz, MemPrivFlags::REMOTE_READ);
    let of = |lmr: DatResult<LmrCreated>| LmrTriplet {
        lmr_context: lmr.expect("an LMR").lmr_context,
        ..good
    };
    let bad = [
        (
            "no such LMR",
            LmrTriplet {
                lmr_context: !good.lmr_context,
                ..good
            },
        ),
        ("another PZ", of(elsewhere)),
        ("no rights", of(nothing_allowed)),
        (
            "before the LMR",
            LmrTriplet {
                virtual_address: MEMORY.0 - 1,
                ..good
            },
        ),
        ("behind the LMR", a.triplet(MEMORY.1 - 15, 16)),
        (
            "wraps",
            LmrTriplet {
                segment_length: u64::MAX,
                ..good
            },
        ),
        ("no bytes", a.triplet(0, 0)),
    ];
    for (what, one) in bad {
        assert_eq!(made(&mut a, one, &to), 0, "{what}");
    }
    let (longer, shorter) = (a.triplet(0, 17), a.triplet(0, 15));
    assert!(!write(&mut a, longer, 0, &to), "longer than the target");
    assert!(!read(&mut a, shorter, 0, &to), "shorter than the source");
    assert!(!read(&mut a, good, 0, &b.remote(0)), "nothing to read");
    for iov in [&[good, good][..], &[]] {
        assert!(
            !RdmaWrite(&to).at_once(&mut a.ia, a.ep, iov, DtoCookie(0), NO_FLAGS),
            "lists take the longer way"
        );
    }
    for flags in [
        CompletionFlags::UNSIGNALLED,
        CompletionFlags::from_bits_retain(0x80),
    ] {
        assert!(
            !RdmaWrite(&to).at_once(&mut a.ia, a.ep, &[good], DtoCookie(0), flags),
            "{flags:?}: the endpoint was not created for it, or there is no such flag"
        );
        assert!(
            !Recv.at_once(&mut a.ia, a.ep, &[good], DtoCookie(0), flags),
            "{flags:?}"
        );
    }
    assert_eq!((a.events(a.request), a.events(a.recv)), (vec![], vec![]));
}

#[test]
fn a_request_takes_a_connection_and_a_receive_does_not() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let one = a.triplet(0, 16);
    let to = a.remote(16);
    assert_eq!(made(&mut a, one, &to), 1);
    assert_eq!(
        a.ia.ep_get_status(a.ep).map(|status| status.recv_idle),
        Ok(false)
    );
}

#[test]
fn flags_mean_the_same_at_once() {
    let (_net, mut a, b) = connected();
    let (to, one) = (b.remote(16), a.triplet(0, 16));
    for (cookie, flags) in [
        (1, CompletionFlags::SUPPRESS),
        (2, CompletionFlags::BARRIER_FENCE),
        (
            3,
            CompletionFlags::SUPPRESS | CompletionFlags::BARRIER_FENCE,
        ),
        (4, NO_FLAGS),
    ] {
        assert!(RdmaWrite(&to).at_once(&mut a.ia, a.ep, &[one], DtoCookie(cookie), flags));
    }
    let done = DtoStatus::Success;
    assert_eq!(a.completions(a.request), [(2, done), (4, done)]);
}

#[test]
fn a_queue_that_is_full_takes_no_post() {
    let (_net, mut a, _b) = connected_with(|attr| attr.max_recv_dtos = 2);
    let one = a.triplet(0, 16);
    let posted = [1, 2, 3].map(|cookie| recv(&mut a, one, cookie));
    assert_eq!(posted, [true, true, false]);
}
