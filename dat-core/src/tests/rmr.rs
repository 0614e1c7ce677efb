//! Binds at the limits of the device.

use super::*;

/// Clauses: BIND-R3.
#[test]
fn a_window_is_as_long_as_the_device_can_have_it_and_no_longer() {
    const LONGEST: u64 = 1 << 32;
    const AT: u64 = 0x1_0000_0000;
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let evd =
        a.ia.evd_create(8, EvdFlags::DTO | EvdFlags::RMR_BIND)
            .expect("an EVD");
    let change = EpChange {
        request_evd: Some(Some(evd)),
        ..EpChange::default()
    };
    a.ia.ep_modify(a.ep, &change).expect("takes binds");
    connect(&mut a, &mut b);
    let region =
        a.ia.lmr_create((AT, LONGEST + 1), a.pz, MemPrivFlags::all())
            .expect("an LMR");
    let rmr = a.ia.rmr_create(a.pz).expect("an RMR");
    let mut bind = |segment_length| {
        let triplet = LmrTriplet {
            lmr_context: region.lmr_context,
            virtual_address: AT,
            segment_length,
        };
        let rights = MemPrivFlags::REMOTE_READ;
        a.ia.rmr_bind(rmr, &triplet, rights, a.ep, RmrCookie(0), NO_FLAGS)
    };
    assert!(bind(LONGEST).is_ok());
    assert_eq!(
        bind(LONGEST + 1),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg2))
    );
    let bound = a.ia.rmr_query(rmr).expect("exists").binding;
    let bytes = bound.map(|bound| bound.lmr_triplet.segment_length);
    assert_eq!(bytes, Some(LONGEST), "a refused bind changes nothing");
}
