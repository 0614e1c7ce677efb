//! Opening an adapter and its attributes: `ia_open`, `ia_query`, and tests that the attributes are true.

use udapl::adapter::IaConfig;
use udapl::endpoint::EpAttr;
use udapl::error::{OpenError, ReturnType, Subtype};
use udapl::fabric::Fabric;
use udapl::{
    CloseFlags, CompletionFlags, ConnectFlags, EpEvds, EvdFlags, Event, OpenOptions, PspFlags, Qos,
};

use crate::support::{self, A, B, CONN_QUAL, LONG, Pair, PairConfig, attributes, refused};

/// Event streams, in the index order of `evd_stream_merging_supported`.
const STREAMS: [EvdFlags; 6] = [
    EvdFlags::SOFTWARE,
    EvdFlags::CR,
    EvdFlags::DTO,
    EvdFlags::CONNECTION,
    EvdFlags::RMR_BIND,
    EvdFlags::ASYNC,
];

/// Clauses: IAO-2, IAO-7, IAQ-1.
#[test]
fn an_adapter_opens_with_an_asynchronous_evd_of_the_length_asked_for() {
    let fabric = Fabric::pair(1);
    for async_evd_min_qlen in [1, 7, 300] {
        let options = OpenOptions {
            ia: IaConfig {
                async_evd_min_qlen,
                ..IaConfig::default()
            },
            ..Fabric::options(A)
        };
        let ia = fabric.open_with(A, &options).expect("opens");
        let evd = ia.query().async_evd;
        assert_eq!(evd, ia.async_evd());
        let param = ia.evd_query(evd).expect("exists");
        assert!(param.qlen >= async_evd_min_qlen);
        assert_eq!((param.flags, param.cno), (EvdFlags::ASYNC, None));
        udapl::ia_close(ia, CloseFlags::Graceful).expect("unused");
    }
    let mut options = Fabric::options(A);
    options.ia.async_evd_min_qlen = 0;
    match fabric.open_with(A, &options) {
        Err(OpenError::Dat(error)) => assert_eq!(
            (error.return_type(), error.subtype()),
            (ReturnType::InvalidParameter, Subtype::Arg2)
        ),
        other => panic!("{:?}", other.map(drop)),
    }
    fabric
        .open(A)
        .expect("the refused open left nothing behind");
}

/// A second open of an open adapter is refused until the adapter is closed.
///
/// Clauses: IAO-8.
#[test]
fn an_adapter_that_is_open_is_not_opened_again_until_it_is_closed() {
    let fabric = Fabric::pair(1);
    let ia = fabric.open(A).expect("opens");
    assert!(matches!(fabric.open(A), Err(OpenError::InUse { .. })));
    udapl::ia_close(ia, CloseFlags::Graceful).expect("unused");
    fabric.open(A).expect("opens again");
}

/// The asynchronous EVD that the open made cannot be freed, and exists until the adapter is closed.
///
/// Clauses: IAC-1, IAC-3.
#[test]
fn the_asynchronous_evd_is_the_adapters_and_ends_with_it() {
    let fabric = Fabric::pair(1);
    let mut ia = fabric.open(A).expect("opens");
    let evd = ia.async_evd();
    let error = refused(ia.evd_free(evd), ReturnType::InvalidState);
    assert_eq!(error.subtype(), Subtype::StateEvdInUse);
    udapl::ia_close(ia, CloseFlags::Graceful).expect("it is not the consumer's");
    let mut ia = fabric.open(A).expect("opens again");
    refused(ia.evd_query(evd), ReturnType::InvalidHandle);
    refused(ia.evd_free(evd), ReturnType::InvalidHandle);
}

/// An endpoint can have the maximum attributes that the IA reports. The maximum numbers of objects are not 0.
///
/// Clauses: IAQ-2.
#[test]
fn what_the_adapter_says_it_has_can_be_had() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let side = &mut pair.sides[A];
    let ia = side.ia.query().ia.clone();
    let most = EpAttr {
        max_message_size: ia.max_message_size,
        max_rdma_size: ia.max_rdma_size,
        max_recv_dtos: ia.max_dto_per_ep,
        max_request_dtos: 16,
        max_recv_iov: 1,
        max_request_iov: 1,
        max_rdma_read_in: ia.max_rdma_read_per_ep_in,
        max_rdma_read_out: ia.max_rdma_read_per_ep_out,
        ..EpAttr::defaults(&ia)
    };
    let wide = EpAttr {
        max_recv_iov: ia.max_iov_segments_per_dto,
        max_request_iov: ia.max_iov_segments_per_dto,
        max_rdma_read_iov: ia.max_iov_segments_per_rdma_read,
        max_rdma_write_iov: ia.max_iov_segments_per_rdma_write,
        ..EpAttr::defaults(&ia)
    };
    for attr in [most, wide] {
        let (pz, connect) = (Some(side.pz), Some(side.connect));
        let ep = side.ia.ep_create(
            pz,
            EpEvds {
                recv: None,
                request: None,
                connect,
            },
            Some(&attr),
        );
        let ep = ep.expect("within the limits");
        assert_eq!(side.ia.ep_query(ep).expect("exists").attr, attr);
        side.ia.ep_free(ep).expect("UNCONNECTED");
    }
    assert!(ia.max_rdma_read_per_ep_in_guaranteed && ia.max_rdma_read_per_ep_out_guaranteed);
    assert_eq!(
        ia.ia_address,
        side.ia.ep_query(side.ep).expect("exists").local_ia_address
    );
    for (limit, name) in [
        (ia.max_eps, "max_eps"),
        (ia.max_evds, "max_evds"),
        (ia.max_lmrs, "max_lmrs"),
        (ia.max_rmrs, "max_rmrs"),
        (ia.max_pzs, "max_pzs"),
        (ia.max_srqs, "max_srqs"),
        (ia.max_ep_per_srq, "max_ep_per_srq"),
        (ia.max_rdma_read_in, "max_rdma_read_in"),
        (ia.max_rdma_read_out, "max_rdma_read_out"),
    ] {
        assert_ne!(limit, 0, "{name}");
    }
    // Each LMR of a program's own memory needs a DMA mapping; `dma_entry_limit` of Linux `vfio_iommu_type1` is 65,535.
    assert!(ia.max_lmrs < 65_535, "{}", ia.max_lmrs);
}

/// The provider's attributes agree with the behaviour of its calls.
///
/// Clauses: IAQ-3.
#[test]
fn what_the_provider_says_of_its_calls_is_so() {
    let mut pair = Pair::unconnected(&PairConfig::default());
    let says = pair.sides[B].ia.query().provider.clone();
    assert!(says.max_private_data_size >= 64);
    let (ep, address) = (pair.sides[B].ep, pair.sides[A].ia.query().ia.ia_address);
    let mut connect = |bytes: usize, qos, flags| {
        let data = vec![1; bytes];
        let ia = &mut pair.sides[B].ia;
        ia.ep_connect(ep, address, CONN_QUAL, LONG, &data, qos, flags)
            .expect_err("refused")
            .return_type()
    };
    let none = ConnectFlags::empty();
    let too_long = says.max_private_data_size + 1;
    assert_eq!(
        connect(too_long, Qos::BEST_EFFORT, none),
        ReturnType::InvalidParameter
    );
    assert!(!says.supports_multipath);
    assert_eq!(
        connect(0, Qos::BEST_EFFORT, ConnectFlags::MULTIPATH),
        ReturnType::ModelNotSupported
    );
    // Module `transport` tests the effect of each class of service.
    assert_eq!(says.dat_qos_supported, Qos::all());
    assert_eq!(
        connect(0, Qos::from_bits_retain(0x10), none),
        ReturnType::ModelNotSupported
    );
    // DAT_PSP_CREATES_EP_IFASKED: the provider supports both kinds of PSP.
    assert_eq!(says.ep_creator, 1);
    let side = &mut pair.sides[B];
    for flags in [PspFlags::CONSUMER, PspFlags::PROVIDER] {
        side.ia.psp_create_any(side.cr, flags).expect("either");
    }
    for (row, one) in STREAMS.into_iter().enumerate() {
        for (column, other) in STREAMS.into_iter().enumerate() {
            let evd = side.ia.evd_create(4, one | other);
            let may = says.evd_stream_merging_supported[row][column];
            assert_eq!(evd.is_ok(), may, "{one:?} with {other:?}");
            if let Ok(evd) = evd {
                side.ia.evd_free(evd).expect("nothing feeds it");
            }
        }
    }
    assert!(says.srq_supported && says.srq_ep_pz_difference_supported);
    let attr = attributes(&side.ia);
    let srq = side.ia.srq_create(side.pz, support::shared::SRQ);
    let srq = srq.expect("srq_supported");
    let zone = side.ia.pz_create().expect("a PZ");
    let ep = side
        .ia
        .ep_create_with_srq(Some(zone), EpEvds::NONE, srq, &attr);
    side.ia
        .ep_free(ep.expect("in another PZ than its SRQ"))
        .expect("UNCONNECTED");
    // Supported watermarks: SRQ low, EP soft high, EP hard high. Supported queries: both counts of an SRQ, and both
    // counts of an endpoint.
    assert_eq!(says.srq_watermarks_supported, 0x111);
    side.ia.srq_set_lw(srq, 1).expect("SRQ low");
    side.ia
        .ep_set_watermark(side.ep, Some(1), Some(2))
        .expect("both of an endpoint");
    assert_eq!(
        (says.srq_info_supported, says.ep_recv_info_supported),
        (0x11, 0x11)
    );
    side.ia.srq_query(srq).expect("counts");
    let held = side.ia.ep_recv_query(side.ep).expect("counts");
    assert!(held.nbufs_allocated.is_some() && held.bufs_alloc_span.is_some());
    // DAT_MEM_TYPE_LMR and DAT_MEM_TYPE_SHARED_VIRTUAL; DAT_IOV_CONSUMER; DAT_PZ_UNIQUE.
    assert_eq!(says.lmr_mem_types_supported, 3);
    assert_eq!((says.iov_ownership_on_return, says.pz_support), (0, 0));
    assert!(!says.lmr_sync_req && !says.rdma_write_for_rdma_read_req);
    assert_eq!(256 % says.optimal_buffer_alignment, 0);
    assert_eq!(says.dapl_version, (1, 2));
    for flag in [
        CompletionFlags::SUPPRESS,
        CompletionFlags::SOLICITED_WAIT,
        CompletionFlags::UNSIGNALLED,
        CompletionFlags::BARRIER_FENCE,
    ] {
        assert!(says.completion_flags_supported.contains(flag));
    }
}

/// A wait continues while the adapter of the peer closes, and ends with the DISCONNECTED event of their connection.
///
/// Clauses: IAC-4.
#[test]
fn who_waits_while_another_adapter_closes_is_not_disturbed_and_peers_are_told() {
    let pair = Pair::connected();
    let [a, mut b] = pair.sides;
    let wait =
        b.ia.evd_wait_begin(b.connect, LONG, 1)
            .expect("nobody waits");
    udapl::ia_close(a.ia, CloseFlags::Abrupt).expect("closed");
    let mut wait = Some(wait);
    let event = loop {
        match b.ia.evd_wait_check(wait.take().expect("pending")) {
            Ok(udapl::wait::EvdWaitStatus::Ready(event, _)) => break event,
            Ok(udapl::wait::EvdWaitStatus::Pending(again, _)) => wait = Some(again),
            Err(error) => panic!("{error:?}"),
        }
        b.ia.progress();
    };
    let Event::Connection(event) = event else {
        panic!("a connection event, not {event:?}");
    };
    assert_eq!(event.kind, udapl::ConnectionEventKind::Disconnected);
    assert_eq!(
        b.ia.evd_dequeue(b.ia.async_evd()).ok().flatten(),
        None::<Event>
    );
}
