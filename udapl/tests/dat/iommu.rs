//! Protection by the IOMMU.
//!
//! The device checks keys, and the IOMMU checks mappings. If a key outlives its mapping, by a driver's bug or a broken
//! device, the key gives no access: the IOMMU refuses the access, the connection ends with an error, and the memory is
//! unchanged.

use driver::{Iova, SharedMemory};
use hw_mlx::mkey::{self, KeyRequest};
use udapl::endpoint::EpState;
use udapl::memory::RmrTriplet;
use udapl::{ConnectionEventKind, DtoCookie, DtoStatus, MemPrivFlags};

use crate::support::{A, B, NONE, Pair, pattern};

const BYTES: usize = 4096;
/// An I/O address far from the arena.
const IOVA: u64 = 0x70_0000_0000;
const KEY: KeyRequest = KeyRequest {
    pd: 0,
    address: IOVA,
    bytes: BYTES as u64,
    access: MemPrivFlags::all(),
    variant: 0x5a,
    may_have_windows: false,
};

#[test]
fn memory_that_is_no_longer_mapped_is_out_of_the_devices_reach_whatever_its_keys_say() {
    let mut pair = Pair::connected();
    let page = SharedMemory::anonymous(BYTES).expect("memory");
    let (_, context) = pair.connected_qp(B);
    let hca = pair.sides[B].ia.provider_mut().hca_mut();
    hca.function()
        .dma_map(Iova(IOVA), &page, 0, BYTES)
        .expect("a mapping");
    let request = KeyRequest {
        pd: context.pd(),
        ..KEY
    };
    let (index, key) = mkey::create(hca, &request, Iova(IOVA)).expect("a key");
    let target = RmrTriplet {
        rmr_context: key,
        target_address: IOVA,
        segment_length: BYTES as u64,
    };
    let source = pair.buffer(A, BYTES);
    let (first, second) = (pattern(1, BYTES), pattern(2, BYTES));
    let mut content = vec![0; BYTES];

    let ep = pair.sides[A].ep;
    source.write(0, &first);
    pair.sides[A]
        .ia
        .ep_post_rdma_write(ep, &[source.all()], DtoCookie(1), &target, NONE)
        .expect("a write");
    assert_eq!(pair.wait_request(A).status, DtoStatus::Success);
    page.read_bytes(0, &mut content);
    assert_eq!(content, first, "while it is mapped the key reaches it");

    let function = pair.sides[B].ia.provider_mut().hca_mut().function().clone();
    function
        .dma_unmap(Iova(IOVA), BYTES)
        .expect("it was mapped");
    source.write(0, &second);
    pair.sides[A]
        .ia
        .ep_post_rdma_write(ep, &[source.all()], DtoCookie(2), &target, NONE)
        .expect("a write");
    let refused = pair.wait_request(A);
    // The peer does not learn whether the key or the mapping was missing.
    assert!(
        matches!(
            refused.status,
            DtoStatus::ErrRemoteAccess | DtoStatus::ErrRemoteResponder
        ),
        "{refused:?}"
    );
    println!("figure: {}", udapl::explain(&refused));
    for side in [A, B] {
        pair.expect_connection(side, ConnectionEventKind::Broken);
        assert_eq!(pair.state(side), EpState::Disconnected, "side {side}");
    }
    page.read_bytes(0, &mut content);
    assert_eq!(content, first, "nothing of the second write is there");
    if let Some(fabric) = pair.fabric.simulated() {
        let faults = fabric.report(B).dma_faults;
        assert!(!faults.is_empty(), "the IOMMU has nothing to report");
        let outside = |at: u64| !(IOVA..IOVA + BYTES as u64).contains(&at);
        assert!(
            faults.iter().all(|fault| !outside(fault.fault.iova)),
            "{faults:?}"
        );
    }
    let hca = pair.sides[B].ia.provider_mut().hca_mut();
    mkey::destroy(hca, index).expect("the key goes");
}
