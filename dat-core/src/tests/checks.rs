//! The order of a post's checks: if a post has two faults, the fault that is checked first is reported.

use super::*;

#[test]
fn of_several_faults_the_first_in_order_is_answered() {
    let (net, mut a, b) = connected_with(|attr| {
        (attr.max_request_dtos, attr.max_recv_dtos) = (1, 1);
        (attr.max_message_size, attr.max_rdma_size) = (64, 64);
    });
    let other = a.ia.pz_create().expect("a PZ");
    let foreign =
        a.ia.lmr_create((0x90_0000, 64), other, MemPrivFlags::empty())
            .expect("an LMR");
    let without_rights =
        a.ia.lmr_create((0xa0_0000, 64), a.pz, MemPrivFlags::empty())
            .expect("an LMR");
    let at = |context, address, bytes| LmrTriplet {
        lmr_context: context,
        virtual_address: address,
        segment_length: bytes,
    };

    // Each of these segments also has the faults of all segments after it, as far as the faults can be combined.
    let unknown = at(1, 0, u64::MAX);
    let outside = at(foreign.lmr_context, 0, 65);
    let elsewhere = at(foreign.lmr_context, 0x90_0000, 64);
    let unreadable = at(without_rights.lmr_context, 0xa0_0000, 64);
    let long = a.triplet(0, 65);
    let fine = a.triplet(0, 8);
    let bad_flags = CompletionFlags::from_bits_retain(0x40);

    net.hold();
    a.send(0, NO_FLAGS).expect("fills the queue");

    let many = [unknown; 9];
    let freed = a.ia.ep_create(None, EpEvds::NONE, None).expect("an EP");
    let idle =
        a.ia.ep_create(Some(a.pz), EpEvds::NONE, None)
            .expect("an EP");
    a.ia.ep_free(freed).expect("frees");
    let remote = b.remote(4);
    let order: [(EpHandle, &[LmrTriplet], CompletionFlags, DatError); 9] = [
        (freed, &many, bad_flags, DatError::handle(Subtype::HandleEp)),
        (
            idle,
            &many,
            bad_flags,
            DatError::state(Subtype::StateEpUnconnected),
        ),
        (
            a.ep,
            &many,
            bad_flags,
            DatError::new(ReturnType::InvalidParameter, Subtype::Arg2),
        ),
        (
            a.ep,
            &[unknown],
            bad_flags,
            DatError::new(ReturnType::InvalidParameter, Subtype::Arg6),
        ),
        (
            a.ep,
            &[unknown, outside],
            NO_FLAGS,
            DatError::new(ReturnType::PrivilegesViolation, Subtype::None),
        ),
        (
            a.ep,
            &[outside, unknown],
            NO_FLAGS,
            DatError::new(ReturnType::InvalidParameter, Subtype::Arg3),
        ),
        (
            a.ep,
            &[elsewhere, unknown],
            NO_FLAGS,
            DatError::new(ReturnType::ProtectionViolation, Subtype::None),
        ),
        (
            a.ep,
            &[unreadable, unknown],
            NO_FLAGS,
            DatError::new(ReturnType::PrivilegesViolation, Subtype::PrivilegesRead),
        ),
        (
            a.ep,
            &[long],
            NO_FLAGS,
            DatError::new(ReturnType::InvalidParameter, Subtype::None),
        ),
    ];
    for (ep, iov, flags, expected) in order {
        assert_eq!(
            a.ia.ep_post_rdma_write(ep, iov, DtoCookie(0), &remote, flags),
            Err(expected),
            "{iov:x?}"
        );
    }
    let too_short =
        a.ia.ep_post_rdma_write(a.ep, &[fine], DtoCookie(0), &remote, NO_FLAGS);
    assert_eq!(
        too_short,
        Err(DatError::new(ReturnType::LengthError, Subtype::None)),
        "length before room"
    );
    let full =
        a.ia.ep_post_rdma_write(a.ep, &[fine], DtoCookie(0), &b.remote(8), NO_FLAGS);
    assert_eq!(
        full,
        Err(DatError::resources(Subtype::ResourceTep)),
        "room last"
    );
}

#[test]
fn the_first_faulty_segment_is_the_answer_whatever_follows() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let unknown = LmrTriplet {
        lmr_context: 1,
        virtual_address: 0,
        segment_length: 1,
    };
    let outside = a.triplet(MEMORY.1, 1);
    let unknown_first =
        a.ia.ep_post_recv(a.ep, &[unknown, outside], DtoCookie(0), NO_FLAGS);
    let outside_first = a.ia.ep_post_recv(
        a.ep,
        &[a.triplet(0, 8), outside, unknown],
        DtoCookie(0),
        NO_FLAGS,
    );
    assert_eq!(
        unknown_first,
        Err(DatError::new(
            ReturnType::PrivilegesViolation,
            Subtype::None
        ))
    );
    assert_eq!(
        outside_first,
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg3))
    );
}
