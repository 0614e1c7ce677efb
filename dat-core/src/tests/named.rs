//! Posts by place and name: made when nothing stands against the call they are for, and else nothing has happened.

use super::*;

/// Names never used twice, as a facade has them.
const NAME: u64 = 1 << 63 | 77;

fn named(side: &mut Side) -> (u32, u64) {
    side.ia.ep_set_name(side.ep, NAME).expect("an endpoint");
    (side.ep.place(), NAME)
}

#[test]
fn named_posts_complete_as_the_calls_they_are_for() {
    let (_net, mut a, mut b) = connected();
    let (at, to) = (named(&mut a), b.remote(16));
    b.post_recv(9).expect("posts");
    let one = a.triplet(0, 16);
    assert!(a.ia.named_post_send(at, &one, 1));
    assert!(a.ia.named_post_rdma_write(at, &one, 2, &to));
    // The sink of a read may be longer than the source.
    assert!(a.ia.named_post_rdma_read(at, &a.triplet(0, 20), 3, &to));
    let lengths: Vec<_> = a
        .events(a.request)
        .iter()
        .filter_map(cookie_and_length)
        .collect();
    assert_eq!(lengths, [(1, 16), (2, 16), (3, 16)]);
    assert_eq!(b.completions(b.recv), [(9, DtoStatus::Success)]);

    assert!(a.ia.named_post_recv(at, &a.triplet(0, 64), 4));
    b.send(5, NO_FLAGS).expect("posts");
    assert_eq!(a.completions(a.recv), [(4, DtoStatus::Success)]);
}

fn cookie_and_length(event: &Event) -> Option<(u64, u64)> {
    if let Event::Dto(dto) = event {
        Some((dto.cookie, dto.transferred_length))
    } else {
        None
    }
}

/// How many of the four posts of `one` were made.
fn made(a: &mut Side, at: (u32, u64), one: &LmrTriplet, to: &RmrTriplet) -> usize {
    [
        a.ia.named_post_send(at, one, 0),
        a.ia.named_post_rdma_write(at, one, 0, to),
        a.ia.named_post_rdma_read(at, one, 0, to),
        a.ia.named_post_recv(at, one, 0),
    ]
    .iter()
    .filter(|&&made| made)
    .count()
}

#[test]
fn no_post_goes_to_an_endpoint_of_another_name_or_place_or_to_one_that_is_gone() {
    let (_net, mut a, b) = connected();
    let (to, one) = (b.remote(16), a.triplet(0, 16));
    let (place, name) = named(&mut a);
    for at in [
        (place, name + 1),
        (place, 0),
        (place + 1, name),
        (place + 1, 0),
        (u32::MAX, name),
    ] {
        assert_eq!(made(&mut a, at, &one, &to), 0, "{at:?}");
    }
    assert_eq!(a.events(a.request), []);
    let freed = a.ia.ep_create(None, None, None, None, None).expect("an EP");
    a.ia.ep_set_name(freed, NAME + 1).expect("an endpoint");
    a.ia.ep_free(freed).expect("frees");
    assert!(a.ia.ep_set_name(freed, NAME + 2).is_err());
    for name in [0, NAME + 1, NAME + 2] {
        assert_eq!(made(&mut a, (freed.place(), name), &one, &to), 0);
    }
}

#[test]
fn what_the_calls_refuse_no_named_post_does() {
    let (_net, mut a, b) = connected();
    let at = named(&mut a);
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
        assert_eq!(made(&mut a, at, &one, &to), 0, "{what}");
    }
    assert!(
        !a.ia.named_post_rdma_write(at, &a.triplet(0, 17), 0, &to),
        "longer than the target"
    );
    assert!(
        !a.ia.named_post_rdma_read(at, &a.triplet(0, 15), 0, &to),
        "shorter than the source"
    );
    assert!(
        !a.ia.named_post_rdma_read(at, &good, 0, &b.remote(0)),
        "nothing to read"
    );
    assert_eq!((a.events(a.request), a.events(a.recv)), (vec![], vec![]));
}

#[test]
fn a_named_request_takes_a_connection_and_a_named_receive_does_not() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let (at, one) = (named(&mut a), a.triplet(0, 16));
    let to = a.remote(16);
    assert_eq!(made(&mut a, at, &one, &to), 1);
    assert_eq!(
        a.ia.ep_get_status(a.ep).map(|status| status.recv_idle),
        Ok(false)
    );
}

#[test]
fn a_queue_that_is_full_takes_no_named_post() {
    let (_net, mut a, _b) = connected_with(|attr| attr.max_recv_dtos = 2);
    let at = named(&mut a);
    let one = a.triplet(0, 16);
    let posted = [1, 2, 3].map(|cookie| a.ia.named_post_recv(at, &one, cookie));
    assert_eq!(posted, [true, true, false]);
}
