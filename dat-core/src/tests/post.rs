//! The four posts: which posts are refused, and that each accepted post completes exactly once.

use super::*;

const INVALID_HANDLE_EP: DatError = DatError::handle(Subtype::HandleEp);
const PRIVILEGES: DatError = DatError::new(ReturnType::PrivilegesViolation, Subtype::None);
const PROTECTION: DatError = DatError::new(ReturnType::ProtectionViolation, Subtype::None);
const LENGTH: DatError = DatError::new(ReturnType::LengthError, Subtype::None);
const FULL: DatError = DatError::resources(Subtype::ResourceTep);

#[test]
fn a_freed_or_foreign_endpoint_is_an_invalid_handle_to_every_post() {
    let (_net, mut a, b) = connected();
    let remote = b.remote(16);
    let freed = a.ia.ep_create(None, EpEvds::NONE, None).expect("an EP");
    a.ia.ep_free(freed).expect("frees");
    for ep in [freed, b.ep] {
        let iov = [a.triplet(0, 16)];
        assert_eq!(
            a.ia.ep_post_send(ep, &iov, DtoCookie(0), NO_FLAGS),
            Err(INVALID_HANDLE_EP)
        );
        assert_eq!(
            a.ia.ep_post_recv(ep, &iov, DtoCookie(0), NO_FLAGS),
            Err(INVALID_HANDLE_EP)
        );
        assert_eq!(
            a.ia.ep_post_rdma_write(ep, &iov, DtoCookie(0), &remote, NO_FLAGS),
            Err(INVALID_HANDLE_EP)
        );
        assert_eq!(
            a.ia.ep_post_rdma_read(ep, &iov, DtoCookie(0), &remote, NO_FLAGS),
            Err(INVALID_HANDLE_EP)
        );
    }
}

#[test]
fn a_send_completes_on_both_sides_with_its_cookies_and_its_length() {
    let (_net, mut a, mut b) = connected();
    b.post_recv(u64::MAX).expect("posts");
    let iov = [a.triplet(0, 16), a.triplet(100, 0), a.triplet(64, 8)];
    a.ia.ep_post_send(a.ep, &iov, DtoCookie(0), NO_FLAGS)
        .expect("posts");
    let expect = |ep, cookie, request| {
        Event::Dto(DtoCompletion {
            ep,
            cookie,
            transferred_length: 24,
            status: DtoStatus::Success,
            request,
            detail: crate::event::DtoDetail::None,
        })
    };
    assert_eq!(a.events(a.request), [expect(a.ep, DtoCookie(0), true)]);
    assert_eq!(b.events(b.recv), [expect(b.ep, DtoCookie(u64::MAX), false)]);
}

#[test]
fn no_segments_and_empty_segments_are_messages_of_no_bytes() {
    let (_net, mut a, mut b) = connected();
    let none: [LmrTriplet; 0] = [];
    let garbage = LmrTriplet {
        lmr_context: 0xdead_beef,
        virtual_address: u64::MAX,
        segment_length: 0,
    };
    let remote = b.remote(0);
    for iov in [&none[..], &[garbage][..]] {
        b.ia.ep_post_recv(b.ep, iov, DtoCookie(1), NO_FLAGS)
            .expect("posts");
        a.ia.ep_post_send(a.ep, iov, DtoCookie(2), NO_FLAGS)
            .expect("posts");
        a.ia.ep_post_rdma_write(a.ep, iov, DtoCookie(3), &remote, NO_FLAGS)
            .expect("posts");
        a.ia.ep_post_rdma_read(a.ep, iov, DtoCookie(4), &remote, NO_FLAGS)
            .expect("posts");
        assert_eq!(
            a.completions(a.request),
            [2, 3, 4].map(|cookie| (cookie, DtoStatus::Success))
        );
        assert_eq!(b.completions(b.recv), [(1, DtoStatus::Success)]);
    }
}

#[test]
fn more_segments_than_the_endpoint_allows_are_refused_and_as_many_are_not() {
    let (_net, mut a, mut b) = connected_with(|attr| {
        (attr.max_request_iov, attr.max_recv_iov) = (3, 2);
        (attr.max_rdma_write_iov, attr.max_rdma_read_iov) = (4, 1);
    });
    let refused = Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg2));
    let iov = [a.triplet(0, 1); 5];
    let remote = b.remote(4);
    let one = b.remote(1);
    let many = a.ia.ep_post_recv(a.ep, &iov[..3], DtoCookie(0), NO_FLAGS);
    assert_eq!(many, refused);
    assert_eq!(many.expect_err("three").excess(), Some((3, 2)));
    a.ia.ep_post_recv(a.ep, &iov[..2], DtoCookie(0), NO_FLAGS)
        .expect("two");
    b.post_recv(0).expect("posts");
    assert_eq!(
        a.ia.ep_post_send(a.ep, &iov[..4], DtoCookie(0), NO_FLAGS),
        refused
    );
    a.ia.ep_post_send(a.ep, &iov[..3], DtoCookie(0), NO_FLAGS)
        .expect("three");
    let many =
        a.ia.ep_post_rdma_write(a.ep, &iov, DtoCookie(0), &remote, NO_FLAGS);
    assert_eq!(many, refused);
    assert_eq!(many.expect_err("five").excess(), Some((5, 4)));
    a.ia.ep_post_rdma_write(a.ep, &iov[..4], DtoCookie(0), &remote, NO_FLAGS)
        .expect("four");
    assert_eq!(
        a.ia.ep_post_rdma_read(a.ep, &iov[..2], DtoCookie(0), &one, NO_FLAGS),
        refused
    );
    a.ia.ep_post_rdma_read(a.ep, &iov[..1], DtoCookie(0), &one, NO_FLAGS)
        .expect("one");
}

#[test]
fn without_their_own_limit_rdma_segments_are_limited_as_sends_are() {
    let (_net, mut a, b) = connected_with(|attr| attr.max_request_iov = 8);
    let iov = [a.triplet(0, 1); 8];
    let remote = b.remote(8);
    a.ia.ep_post_rdma_write(a.ep, &iov, DtoCookie(0), &remote, NO_FLAGS)
        .expect("eight");
    // An RDMA Read of this device can have at most six segments.
    assert_eq!(
        a.ia.ep_post_rdma_read(a.ep, &iov[..7], DtoCookie(0), &b.remote(1), NO_FLAGS),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg2))
    );
    a.ia.ep_post_rdma_read(a.ep, &iov[..6], DtoCookie(0), &b.remote(1), NO_FLAGS)
        .expect("six");
}

#[test]
fn a_segment_must_lie_in_its_lmr_to_the_last_byte() {
    let (_net, mut a, mut b) = connected();
    let (start, length) = MEMORY;
    let at = |address, bytes| LmrTriplet {
        lmr_context: a.lmr.lmr_context,
        virtual_address: address,
        segment_length: bytes,
    };
    let outside = [
        at(start - 1, 2),
        at(start, length + 1),
        at(start + length, 1),
        at(start + 1, u64::MAX),
        at(u64::MAX, 2),
    ];
    let whole = at(start, length);
    for segment in outside {
        assert_eq!(
            a.ia.ep_post_send(a.ep, &[whole, segment], DtoCookie(0), NO_FLAGS),
            Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg3)),
            "{segment:x?}"
        );
        assert_eq!(
            a.ia.ep_post_recv(a.ep, &[segment], DtoCookie(0), NO_FLAGS),
            Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg3)),
            "{segment:x?}"
        );
    }
    b.ia.ep_post_recv(b.ep, &[b.triplet(0, length)], DtoCookie(0), NO_FLAGS)
        .expect("posts");
    a.ia.ep_post_send(a.ep, &[whole], DtoCookie(0), NO_FLAGS)
        .expect("the whole LMR");
}

#[test]
fn an_unknown_or_freed_lmr_violates_privileges() {
    let (_net, mut a, _b) = connected();
    let second =
        a.ia.lmr_create((0x90_0000, 64), a.pz, MemPrivFlags::all())
            .expect("an LMR");
    let iov = [LmrTriplet {
        lmr_context: second.lmr_context,
        virtual_address: 0x90_0000,
        segment_length: 64,
    }];
    a.ia.ep_post_recv(a.ep, &iov, DtoCookie(0), NO_FLAGS)
        .expect("posts");
    a.ia.lmr_free(second.lmr).expect("frees");
    assert_eq!(
        a.ia.ep_post_recv(a.ep, &iov, DtoCookie(0), NO_FLAGS),
        Err(PRIVILEGES)
    );
    assert_eq!(
        a.ia.ep_post_send(a.ep, &iov, DtoCookie(0), NO_FLAGS),
        Err(PRIVILEGES)
    );
    let never = LmrTriplet {
        lmr_context: 0,
        ..iov[0]
    };
    assert_eq!(
        a.ia.ep_post_send(a.ep, &[never], DtoCookie(0), NO_FLAGS),
        Err(PRIVILEGES)
    );
    // The same index with another variant is another key, which does not exist.
    let variant = LmrTriplet {
        lmr_context: a.lmr.lmr_context ^ 1,
        ..a.triplet(0, 1)
    };
    assert_eq!(
        a.ia.ep_post_send(a.ep, &[variant], DtoCookie(0), NO_FLAGS),
        Err(PRIVILEGES)
    );
}

#[test]
fn an_lmr_of_another_zone_violates_protection() {
    let (_net, mut a, b) = connected();
    let other = a.ia.pz_create().expect("a PZ");
    let lmr =
        a.ia.lmr_create((0x90_0000, 64), other, MemPrivFlags::all())
            .expect("an LMR");
    let iov = [LmrTriplet {
        lmr_context: lmr.lmr_context,
        virtual_address: 0x90_0000,
        segment_length: 64,
    }];
    let remote = b.remote(64);
    assert_eq!(
        a.ia.ep_post_send(a.ep, &iov, DtoCookie(0), NO_FLAGS),
        Err(PROTECTION)
    );
    assert_eq!(
        a.ia.ep_post_recv(a.ep, &iov, DtoCookie(0), NO_FLAGS),
        Err(PROTECTION)
    );
    assert_eq!(
        a.ia.ep_post_rdma_write(a.ep, &iov, DtoCookie(0), &remote, NO_FLAGS),
        Err(PROTECTION)
    );
    assert_eq!(
        a.ia.ep_post_rdma_read(a.ep, &iov, DtoCookie(0), &remote, NO_FLAGS),
        Err(PROTECTION)
    );
    let slice = a.ia.lmr_slice(lmr.lmr, 0, 64).expect("cuts");
    assert_eq!(
        a.ia.ep_post_send(a.ep, &[slice], DtoCookie(0), NO_FLAGS),
        Err(PROTECTION)
    );
}

#[test]
fn sources_need_local_read_and_sinks_local_write() {
    let (_net, mut a, b) = connected();
    let remote = b.remote(64);
    let read = DatError::new(ReturnType::PrivilegesViolation, Subtype::PrivilegesRead);
    let write = DatError::new(ReturnType::PrivilegesViolation, Subtype::PrivilegesWrite);
    let only = |ia: &mut Ia<Mock>, pz, privileges| {
        let lmr = ia
            .lmr_create((0x90_0000, 64), pz, privileges)
            .expect("an LMR");
        let slice = ia.lmr_slice(lmr.lmr, 0, 64).expect("cuts");
        (
            [LmrTriplet {
                lmr_context: lmr.lmr_context,
                virtual_address: 0x90_0000,
                segment_length: 64,
            }],
            [slice],
        )
    };
    let (readable, readable_slice) = only(&mut a.ia, a.pz, MemPrivFlags::LOCAL_READ);
    let (writable, writable_slice) = only(&mut a.ia, a.pz, MemPrivFlags::LOCAL_WRITE);
    assert_eq!(
        a.ia.ep_post_send(a.ep, &writable, DtoCookie(0), NO_FLAGS),
        Err(read)
    );
    assert_eq!(
        a.ia.ep_post_send(a.ep, &writable_slice, DtoCookie(0), NO_FLAGS),
        Err(read)
    );
    assert_eq!(
        a.ia.ep_post_rdma_write(a.ep, &writable, DtoCookie(0), &remote, NO_FLAGS),
        Err(read)
    );
    assert_eq!(
        a.ia.ep_post_rdma_read(a.ep, &readable, DtoCookie(0), &remote, NO_FLAGS),
        Err(write)
    );
    assert_eq!(
        a.ia.ep_post_recv(a.ep, &readable, DtoCookie(0), NO_FLAGS),
        Err(write)
    );
    assert_eq!(
        a.ia.ep_post_recv(a.ep, &readable_slice, DtoCookie(0), NO_FLAGS),
        Err(write)
    );
    a.ia.ep_post_recv(a.ep, &writable, DtoCookie(0), NO_FLAGS)
        .expect("no right of reading is needed");
    a.ia.ep_post_rdma_write(a.ep, &readable, DtoCookie(0), &remote, NO_FLAGS)
        .expect("posts");
    a.ia.ep_post_rdma_read(a.ep, &writable, DtoCookie(0), &remote, NO_FLAGS)
        .expect("posts");
}

#[test]
fn the_relaxed_mode_lets_local_write_imply_read() {
    let net = Net::default();
    let config = IaConfig {
        local_write_implies_read: true,
        ..IaConfig::default()
    };
    let (mut a, mut b) = (Side::with(&net, config, |_| {}), Side::new(&net, |_| {}));
    connect(&mut a, &mut b);
    let lmr =
        a.ia.lmr_create((0x90_0000, 64), a.pz, MemPrivFlags::LOCAL_WRITE)
            .expect("an LMR");
    let iov = [LmrTriplet {
        lmr_context: lmr.lmr_context,
        virtual_address: 0x90_0000,
        segment_length: 64,
    }];
    a.ia.ep_post_rdma_write(a.ep, &iov, DtoCookie(0), &b.remote(64), NO_FLAGS)
        .expect("posts");
    assert_eq!(
        a.ia.lmr_query(lmr.lmr).expect("exists").privileges,
        MemPrivFlags::LOCAL_WRITE,
        "reported as asked"
    );
}

#[test]
fn every_flag_is_allowed_where_the_pages_allow_it_and_nowhere_else() {
    // Columns: whether the endpoint has UNSIGNALLED; the flags; whether requests allow them; whether receives allow
    // them.
    let rows = [
        (false, 0x00, true, true),
        (false, 0x01, true, false),
        (false, 0x02, true, false),
        (false, 0x04, false, false),
        (false, 0x08, true, false),
        (false, 0x0b, true, false),
        (false, 0x10, false, false),
        (false, 0x20, false, false),
        (false, 0x8000_0000, false, false),
        (true, 0x04, true, true),
        (true, 0x0f, true, false),
        (true, 0x14, false, false),
    ];
    for (unsignalled, bits, requests, receives) in rows {
        let (_net, mut a, mut b) = connected_with(|attr| {
            if unsignalled {
                attr.request_completion_flags = CompletionFlags::UNSIGNALLED;
                attr.recv_completion_flags = CompletionFlags::UNSIGNALLED;
            }
        });
        let flags = CompletionFlags::from_bits_retain(bits);
        let answer = |legal, argument| {
            if legal {
                Ok(())
            } else {
                Err(DatError::new(ReturnType::InvalidParameter, argument))
            }
        };
        let iov = [a.triplet(0, 8)];
        let remote = b.remote(8);
        b.post_recv(0).expect("posts");
        assert_eq!(
            a.ia.ep_post_recv(a.ep, &iov, DtoCookie(0), flags),
            answer(receives, Subtype::Arg5),
            "{bits:#x}"
        );
        assert_eq!(
            a.ia.ep_post_send(a.ep, &iov, DtoCookie(0), flags),
            answer(requests, Subtype::Arg5),
            "{bits:#x}"
        );
        assert_eq!(
            a.ia.ep_post_rdma_write(a.ep, &iov, DtoCookie(0), &remote, flags),
            answer(requests, Subtype::Arg6),
            "{bits:#x}"
        );
        assert_eq!(
            a.ia.ep_post_rdma_read(a.ep, &iov, DtoCookie(0), &remote, flags),
            answer(requests, Subtype::Arg6),
            "{bits:#x}"
        );
    }
}

#[test]
fn lengths_are_limited_by_the_endpoint_and_by_the_other_buffer() {
    let (_net, mut a, b) =
        connected_with(|attr| (attr.max_message_size, attr.max_rdma_size) = (100, 200));
    let too_long = Err(DatError::new(ReturnType::InvalidParameter, Subtype::None));
    let iov = |bytes| [a.triplet(0, bytes)];
    let (i100, i101, i200, i201) = (iov(100), iov(101), iov(200), iov(201));
    assert_eq!(
        a.ia.ep_post_send(a.ep, &i101, DtoCookie(0), NO_FLAGS),
        too_long
    );
    assert_eq!(
        a.ia.ep_post_rdma_write(a.ep, &i201, DtoCookie(0), &b.remote(1000), NO_FLAGS),
        too_long
    );
    assert_eq!(
        a.ia.ep_post_rdma_read(a.ep, &i201, DtoCookie(0), &b.remote(201), NO_FLAGS),
        too_long
    );
    assert_eq!(
        a.ia.ep_post_rdma_write(a.ep, &i101, DtoCookie(0), &b.remote(100), NO_FLAGS),
        Err(LENGTH)
    );
    assert_eq!(
        a.ia.ep_post_rdma_read(a.ep, &i100, DtoCookie(0), &b.remote(101), NO_FLAGS),
        Err(LENGTH)
    );
    a.ia.ep_post_rdma_write(a.ep, &i100, DtoCookie(0), &b.remote(150), NO_FLAGS)
        .expect("a larger target");
    a.ia.ep_post_rdma_read(a.ep, &i201, DtoCookie(1), &b.remote(150), NO_FLAGS)
        .expect("a larger sink");
    a.ia.ep_post_rdma_write(a.ep, &i200, DtoCookie(0), &b.remote(200), NO_FLAGS)
        .expect("exactly");
    let done = a.events(a.request);
    assert!(
        matches!(
            done[1],
            Event::Dto(DtoCompletion {
                transferred_length: 150,
                ..
            })
        ),
        "a read moves what the remote buffer holds: {done:?}"
    );
}

#[test]
fn segments_longer_than_31_bits_are_refused() {
    let (_net, mut a, _b) = connected();
    let lmr =
        a.ia.lmr_create((0x1_0000_0000, 1 << 33), a.pz, MemPrivFlags::all())
            .expect("an LMR");
    let long = LmrTriplet {
        lmr_context: lmr.lmr_context,
        virtual_address: 0x1_0000_0000,
        segment_length: 1 << 32,
    };
    assert_eq!(
        a.ia.ep_post_recv(a.ep, &[long], DtoCookie(0), NO_FLAGS),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg3))
    );
    assert_eq!(
        a.ia.lmr_slice(lmr.lmr, 0, 1 << 31),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg3))
    );
    a.ia.lmr_slice(lmr.lmr, 0, (1 << 31) - 1).expect("cuts");
}

#[test]
fn one_post_more_than_asked_for_finds_no_resources() {
    let (net, mut a, mut b) =
        connected_with(|attr| (attr.max_request_dtos, attr.max_recv_dtos) = (3, 2));
    b.post_recv(0).expect("posts");
    b.post_recv(1).expect("posts");
    assert_eq!(b.post_recv(2), Err(FULL));
    net.hold();
    (0..3).for_each(|cookie| a.send(cookie, NO_FLAGS).expect("posts"));
    assert_eq!(a.send(3, NO_FLAGS), Err(FULL));
    assert_eq!(
        a.ia.ep_post_rdma_write(
            a.ep,
            &[a.triplet(0, 1)],
            DtoCookie(0),
            &b.remote(1),
            NO_FLAGS
        ),
        Err(FULL),
        "requests share the room"
    );
}

#[test]
fn rdma_reads_need_a_depth() {
    let (_net, mut a, b) = connected_with(|attr| attr.max_rdma_read_out = 0);
    assert_eq!(
        a.ia.ep_post_rdma_read(
            a.ep,
            &[a.triplet(0, 8)],
            DtoCookie(0),
            &b.remote(8),
            NO_FLAGS
        ),
        Err(FULL)
    );
    a.ia.ep_post_rdma_write(
        a.ep,
        &[a.triplet(0, 8)],
        DtoCookie(0),
        &b.remote(8),
        NO_FLAGS,
    )
    .expect("writes do not");
}

#[test]
fn a_suppressed_request_is_silent_in_success_and_loud_in_failure() {
    let (net, mut a, mut b) = connected();
    (0..3).for_each(|cookie| b.post_recv(cookie).expect("posts"));
    a.send(1, CompletionFlags::SUPPRESS).expect("posts");
    a.send(2, NO_FLAGS).expect("posts");
    assert_eq!(a.completions(a.request), [(2, DtoStatus::Success)]);
    net.fail_next(a.qpn(), DtoStatus::ErrTransport);
    a.send(3, CompletionFlags::SUPPRESS).expect("posts");
    assert_eq!(a.completions(a.request), [(3, DtoStatus::ErrTransport)]);
}

#[test]
fn suppressed_requests_alone_never_fill_the_queue() {
    let (_net, mut a, b) = connected_with(|attr| attr.max_request_dtos = 4);
    let iov = [a.triplet(0, 8)];
    for cookie in 0..100 {
        if a.ia
            .ep_post_rdma_write(
                a.ep,
                &iov,
                DtoCookie(cookie),
                &b.remote(8),
                CompletionFlags::SUPPRESS,
            )
            .is_err()
        {
            assert_eq!(a.ia.evd_dequeue(a.request), Ok(None));
            a.ia.ep_post_rdma_write(
                a.ep,
                &iov,
                DtoCookie(cookie),
                &b.remote(8),
                CompletionFlags::SUPPRESS,
            )
            .expect("room after a look");
        }
    }
}

#[test]
fn a_slice_stays_good_when_another_lmr_is_freed_and_not_when_its_own_is() {
    let (_net, mut a, b) = connected();
    let other =
        a.ia.lmr_create((0x90_0000, 64), a.pz, MemPrivFlags::all())
            .expect("an LMR");
    let slice = a.ia.lmr_slice(a.lmr.lmr, 16, 32).expect("cuts");
    let lost = a.ia.lmr_slice(other.lmr, 0, 64).expect("cuts");
    a.ia.lmr_free(other.lmr).expect("frees");
    a.ia.ep_post_rdma_write(a.ep, &[slice], DtoCookie(0), &b.remote(32), NO_FLAGS)
        .expect("posts");
    assert_eq!(
        a.ia.ep_post_rdma_write(a.ep, &[lost], DtoCookie(0), &b.remote(64), NO_FLAGS),
        Err(PRIVILEGES)
    );
    assert_eq!(
        a.ia.ep_post_rdma_write(
            a.ep,
            &[lost.part(0, 0).expect("cuts")],
            DtoCookie(0),
            &b.remote(64),
            NO_FLAGS
        ),
        Ok(()),
        "nothing is asked of an empty one"
    );
    assert_eq!(slice.part(30, 3), None);
    assert_eq!(
        slice.part(30, 2).map(|part| (part.address(), part.len())),
        Some((MEMORY.0 + 46, 2))
    );
}

#[test]
fn a_slice_that_is_too_long_and_inline_data_that_are_say_both_numbers() {
    let (_net, mut a, _b) = connected();
    let cut = a.ia.lmr_slice(a.lmr.lmr, MEMORY.1 - 8, 16);
    let refused = cut.expect_err("outside");
    assert_eq!(
        refused.excess(),
        Some((MEMORY.1 + 8, MEMORY.1)),
        "{refused}"
    );
    let limit = a.ia.ep_inline_limit(a.ep).expect("a limit");
    let data = vec![0; limit + 1];
    let posted =
        a.ia.ep_post_send_inline(a.ep, &data, DtoCookie(1), NO_FLAGS);
    let refused = posted.expect_err("too long");
    assert_eq!(refused.subtype(), Subtype::Arg2);
    let numbers = (limit as u64 + 1, limit as u64);
    assert_eq!(refused.excess(), Some(numbers), "{refused}");
}

#[test]
fn the_bytes_of_a_remote_triplet_are_its_numbers_big_endian_one_after_the_other() {
    let triplet = RmrTriplet {
        rmr_context: 0x0102_0304,
        target_address: 0x1112_1314_1516_1718,
        segment_length: 0x2122_2324_2526_2728,
    };
    let mut bytes = triplet.to_bytes().to_vec();
    let expected: Vec<u8> = [1..5, 0x11..0x19, 0x21..0x29]
        .into_iter()
        .flatten()
        .collect();
    assert_eq!(bytes, expected);
    assert_eq!(RmrTriplet::from_bytes(&bytes[..19]), None);
    bytes.extend([0xff; 36]);
    assert_eq!(RmrTriplet::from_bytes(&bytes), Some(triplet));
}

#[test]
fn a_refused_post_leaves_nothing_behind() {
    let (_net, mut a, mut b) = connected();
    let good = a.triplet(0, 8);
    let bad = a.triplet(MEMORY.1, 8);
    a.ia.ep_post_send(a.ep, &[good, bad], DtoCookie(1), NO_FLAGS)
        .expect_err("the second segment");
    a.ia.ep_post_recv(a.ep, &[good, bad], DtoCookie(1), NO_FLAGS)
        .expect_err("the second segment");
    progress_both(&mut a, &mut b);
    assert_eq!(
        a.ia.ep_get_status(a.ep),
        Ok(EpStatus {
            state: EpState::Connected,
            recv_idle: true,
            request_idle: true
        })
    );
    assert_eq!(a.events(a.request), []);
}

#[test]
fn an_endpoint_without_a_zone_cannot_take_receives() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let ep =
        a.ia.ep_create(None, EpEvds::NONE.recv(a.recv).request(a.request), None)
            .expect("an EP");
    assert_eq!(
        a.ia.ep_post_recv(ep, &[a.triplet(0, 8)], DtoCookie(0), NO_FLAGS),
        Err(DatError::state(Subtype::StateEpNotReady))
    );
}

#[test]
fn completions_of_null_evds_are_dropped_and_their_room_returns() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let attr = EpAttr {
        max_request_dtos: 2,
        ..EpAttr::defaults(a.ia.query().ia)
    };
    a.ep =
        a.ia.ep_create(Some(a.pz), EpEvds::NONE.connect(a.connect), Some(&attr))
            .expect("an EP");
    connect(&mut a, &mut b);
    for cookie in 0..20 {
        a.ia.ep_post_rdma_write(
            a.ep,
            &[a.triplet(0, 8)],
            DtoCookie(cookie),
            &b.remote(8),
            NO_FLAGS,
        )
        .expect("reclaims by itself");
    }
    net.fail_next(a.qpn(), DtoStatus::ErrRemoteAccess);
    a.ia.ep_post_rdma_write(
        a.ep,
        &[a.triplet(0, 8)],
        DtoCookie(0),
        &b.remote(8),
        NO_FLAGS,
    )
    .expect("posts");
    assert_eq!(
        a.connection_events(),
        [ConnectionEventKind::Broken],
        "an error nobody looks for is seen"
    );
}
