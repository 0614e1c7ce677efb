//! The flight recorder records every post, completion and state on every path, and changes no result.

use super::*;
use crate::post::{Post, Send};
use crate::recorder::{Posted, Recorded};

fn recorded(side: &Side) -> Vec<Recorded> {
    let dump = side.ia.recorder_dump().expect("it records");
    dump.records.iter().map(|record| record.what).collect()
}

#[test]
fn a_recorder_has_every_post_completion_and_state_in_order() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    a.ia.recorder_start();
    b.ia.recorder_start();
    connect(&mut a, &mut b);
    b.post_recv(5).expect("posts");
    a.send(6, NO_FLAGS).expect("posts");
    a.ia.ep_post_rdma_write(
        a.ep,
        &[a.triplet(0, 32)],
        DtoCookie(7),
        &b.remote(32),
        NO_FLAGS,
    )
    .expect("posts");
    let good = DtoStatus::Success;
    assert_eq!(a.completions(a.request), [(6, good), (7, good)]);
    assert_eq!(b.completions(b.recv), [(5, good)]);
    a.ia.ep_disconnect(a.ep, CloseFlags::Abrupt)
        .expect("disconnects");
    use {EpState as S, Recorded as R};
    assert_eq!(
        recorded(&a),
        [
            R::State(S::Unconnected, S::ActiveConnectionPending),
            R::State(S::ActiveConnectionPending, S::Connected),
            R::Posted(Posted::Send),
            R::Posted(Posted::RdmaWrite),
            R::RequestDone(good),
            R::RequestDone(good),
            R::State(S::Connected, S::Disconnected),
            R::Ended(EndCause::Disconnected),
        ]
    );
    let receives = [R::Posted(Posted::Recv), R::RecvDone(good)];
    assert!(recorded(&b).ends_with(&receives), "{:?}", recorded(&b));
    let text = a.ia.recorder_dump().expect("it records").to_string();
    let write = format!(
        "RDMA Write posted, 32 bytes, rmr_context {:#x}, cookie 0x7",
        b.remote(32).rmr_context
    );
    assert!(text.contains(&write), "{text}");
    assert!(text.contains("CONNECTED -> DISCONNECTED"), "{text}");
    assert!(
        text.contains("request done, DAT_DTO_SUCCESS, 32 bytes, cookie 0x7"),
        "{text}"
    );
}

#[test]
fn an_endpoint_that_is_recorded_posts_nothing_at_once_and_does_again_afterwards() {
    let (_net, mut a, mut b) = connected();
    for cookie in [1, 2] {
        b.post_recv(cookie).expect("posts");
    }
    let one = a.triplet(0, 8);
    a.ia.recorder_start();
    assert!(!Send.at_once(&mut a.ia, a.ep, &[one], DtoCookie(1), NO_FLAGS));
    a.ia.recorder_stop();
    assert!(a.ia.recorder_dump().is_none());
    assert!(Send.at_once(&mut a.ia, a.ep, &[one], DtoCookie(2), NO_FLAGS));
    assert_eq!(a.completions(a.request), [(2, DtoStatus::Success)]);
}

#[test]
fn a_send_of_its_own_data_is_recorded_and_refused_as_without() {
    let (_net, mut a, mut b) = connected();
    b.post_recv(1).expect("posts");
    a.ia.recorder_start();
    a.ia.ep_post_send_inline(a.ep, b"four", DtoCookie(9), NO_FLAGS)
        .expect("posts");
    let fresh = a.ia.ep_create(None, EpEvds::NONE, None).expect("an EP");
    let refused = a.ia.ep_post_send_inline(fresh, b"", DtoCookie(0), NO_FLAGS);
    assert_eq!(refused, Err(DatError::state(Subtype::StateEpUnconnected)));
    let dump = a.ia.recorder_dump().expect("it records");
    let [record] = dump.records[..] else {
        panic!("{dump}")
    };
    assert_eq!(record.what, Recorded::Posted(Posted::Send));
    assert_eq!((record.bytes, record.cookie), (4, 9));
    assert_eq!(a.completions(a.request), [(9, DtoStatus::Success)]);
}

#[test]
fn an_instance_that_is_opened_with_a_recorder_records_objects_that_come_later() {
    let net = Net::default();
    let config = IaConfig {
        recorder: true,
        ..IaConfig::default()
    };
    let mut a = Side::with(&net, config, |_| {});
    let mut b = Side::new(&net, |_| {});
    connect(&mut a, &mut b);
    let up = Recorded::State(EpState::ActiveConnectionPending, EpState::Connected);
    assert!(recorded(&a).contains(&up));
}
