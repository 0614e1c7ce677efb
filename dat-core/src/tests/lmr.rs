//! PZs and LMRs, and the sync calls.

use super::*;

#[test]
fn a_zone_is_freed_when_nothing_is_in_it() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let busy = Err(DatError::state(Subtype::StatePzInUse));
    assert_eq!(a.ia.pz_free(a.pz), busy);
    a.ia.ep_free(a.ep).expect("frees");
    assert_eq!(a.ia.pz_free(a.pz), busy, "the LMR");
    a.ia.lmr_free(a.lmr.lmr).expect("frees");
    let srq =
        a.ia.srq_create(
            a.pz,
            SrqAttr {
                max_recv_dtos: 4,
                max_recv_iov: 1,
                low_watermark: 0,
            },
        )
        .expect("an SRQ");
    assert_eq!(a.ia.pz_free(a.pz), busy, "the SRQ");
    a.ia.srq_free(srq).expect("frees");
    a.ia.pz_query(a.pz).expect("exists");
    a.ia.pz_free(a.pz).expect("frees");
    let gone = Err(DatError::handle(Subtype::HandlePz));
    assert_eq!((a.ia.pz_free(a.pz), a.ia.pz_query(a.pz)), (gone, gone));
}

#[test]
fn an_empty_slice_may_lie_at_the_end_of_a_region_that_ends_at_2_to_the_64() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let last = (u64::MAX - 63, 64);
    let region = a.ia.lmr_create(last, a.pz, MemPrivFlags::LOCAL_READ);
    let region = region.expect("an LMR").lmr;
    let end = a.ia.lmr_slice(region, 64, 0).expect("inside");
    assert!(end.is_empty());
    let whole = a.ia.lmr_slice(region, 0, 64).expect("inside");
    assert_eq!(whole.part(64, 0), Some(end));
    assert_eq!(whole.part(64, 1), None);
}

#[test]
fn a_region_tells_its_names_and_has_a_remote_one_only_when_asked() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let local =
        a.ia.lmr_create(
            (0x4000, 100),
            a.pz,
            MemPrivFlags::LOCAL_READ | MemPrivFlags::LOCAL_WRITE,
        )
        .expect("an LMR");
    assert_eq!(
        (
            local.rmr_context,
            local.registered_address,
            local.registered_size
        ),
        (0, 0x4000, 100)
    );
    let remote =
        a.ia.lmr_create((0x4000, 100), a.pz, MemPrivFlags::REMOTE_READ)
            .expect("an LMR");
    assert_ne!(remote.rmr_context, 0);
    let param = a.ia.lmr_query(remote.lmr).expect("exists");
    assert_eq!(
        (param.lmr_context, param.rmr_context, param.pz),
        (remote.lmr_context, remote.rmr_context, a.pz)
    );
    assert_eq!(param.privileges, MemPrivFlags::REMOTE_READ);
}

#[test]
fn registering_checks_zone_rights_and_memory() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let other = Side::new(&net, |_| {});
    assert_eq!(
        a.ia.lmr_create((0, 1), other.pz, MemPrivFlags::empty()),
        Err(DatError::handle(Subtype::HandlePz))
    );
    assert_eq!(
        a.ia.lmr_create((0, 1), a.pz, MemPrivFlags::from_bits_retain(0x100)),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg6))
    );
    assert_eq!(
        a.ia.lmr_create((0, 0), a.pz, MemPrivFlags::empty()),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg4))
    );
    assert!(
        a.ia.last_device_error()
            .is_some_and(|text| text.contains("no bytes"))
    );
    a.ia.lmr_free(a.lmr.lmr).expect("frees");
    let gone = DatError::handle(Subtype::HandleLmr);
    assert_eq!(a.ia.lmr_free(a.lmr.lmr), Err(gone));
    assert_eq!(a.ia.lmr_query(a.lmr.lmr), Err(gone));
    assert_eq!(a.ia.lmr_slice(a.lmr.lmr, 0, 1), Err(gone));
}

#[test]
fn slices_keep_inside_their_region() {
    let net = Net::default();
    let a = Side::new(&net, |_| {});
    let outside = Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg3));
    assert_eq!(a.ia.lmr_slice(a.lmr.lmr, MEMORY.1, 1), outside);
    assert_eq!(a.ia.lmr_slice(a.lmr.lmr, MEMORY.1 + 1, 0), outside);
    assert_eq!(a.ia.lmr_slice(a.lmr.lmr, 1, u64::MAX), outside);
    assert!(
        a.ia.lmr_slice(a.lmr.lmr, MEMORY.1, 0)
            .expect("nothing at the end")
            .is_empty()
    );
}

#[test]
fn the_sync_calls_check_segments_but_neither_zone_nor_rights() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let other = a.ia.pz_create().expect("a PZ");
    let without_rights =
        a.ia.lmr_create((0x90_0000, 64), other, MemPrivFlags::empty())
            .expect("an LMR");
    let elsewhere = LmrTriplet {
        lmr_context: without_rights.lmr_context,
        virtual_address: 0x90_0000,
        segment_length: 64,
    };
    let here = a.triplet(0, MEMORY.1);
    let empty = LmrTriplet {
        lmr_context: 1,
        virtual_address: 2,
        segment_length: 0,
    };
    for sync in [
        Ia::<Mock>::lmr_sync_rdma_read,
        Ia::<Mock>::lmr_sync_rdma_write,
    ] {
        let bad = Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg2));
        assert_eq!(sync(&a.ia, &[]), Ok(()));
        assert_eq!(sync(&a.ia, &[here, elsewhere, empty]), Ok(()));
        assert_eq!(sync(&a.ia, &[here, a.triplet(1, MEMORY.1)]), bad);
        assert_eq!(
            sync(
                &a.ia,
                &[LmrTriplet {
                    lmr_context: 1,
                    ..here
                }]
            ),
            bad
        );
    }
    a.ia.lmr_free(without_rights.lmr).expect("frees");
    assert_eq!(
        a.ia.lmr_sync_rdma_read(&[elsewhere]),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg2))
    );
}
