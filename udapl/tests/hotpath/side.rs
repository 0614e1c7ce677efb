//! One side of a measured connection: a simulated function that can ignore register writes, an instance, an endpoint
//! and registered memory. The hot-path test and the hot-path benchmark use this file.

use std::sync::Arc;

use dat_mlx::MlxProvider;
use driver::{Device, Function};
use hw_mlx::HcaConfig;
use hw_sim::{Profile, Sim};
use udapl::adapter::IaConfig;
use udapl::endpoint::EpAttr;
use udapl::memory::{LmrSlice, LmrTriplet, PzHandle, RmrTriplet};
use udapl::{
    ConnQual, ConnectFlags, EpEvds, EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags,
    PspFlags, Qos, Timeout,
};

use super::deaf::{Deaf, FilteredFunction};

/// Maximum number of outstanding receives of an endpoint.
const RECEIVES: u32 = 2 * 1024;
/// Time limit of each wait.
const PATIENCE: Timeout = Timeout::from_micros(300_000_000);

/// Sizes of an endpoint and its EVD.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub requests: u32,
    /// Maximum number of segments of a receive.
    pub recv_iov: u32,
    /// Number of events that the EVD holds.
    pub events: u32,
}

/// One side. The segments are 64 bytes of its memory.
pub struct Side {
    pub ia: Ia,
    pub device: Arc<FilteredFunction>,
    /// EVD of the DTOs, the connection and the connection requests.
    pub events: EvdHandle,
    pub ep: EpHandle,
    pub pz: PzHandle,
    pub slice: LmrSlice,
    pub triplet: LmrTriplet,
    /// The same 64 bytes, as the peer names them.
    pub remote: RmrTriplet,
}

/// Creates an endpoint, which also holds as many receives as requests, but at most [`RECEIVES`].
pub fn endpoint(ia: &mut Ia, pz: PzHandle, events: EvdHandle, sizes: Sizes) -> EpHandle {
    let attr = EpAttr {
        max_recv_dtos: sizes.requests.min(RECEIVES),
        max_request_dtos: sizes.requests,
        max_recv_iov: sizes.recv_iov,
        // With four segments, a WQE has two WQEBBs, which hold 64 bytes inline.
        max_request_iov: 4,
        max_rdma_read_in: 8,
        max_rdma_read_out: 8,
        ..EpAttr::defaults(ia.query().ia)
    };
    ia.ep_create(Some(pz), EpEvds::all(events), Some(&attr))
        .expect("an endpoint")
}

impl Side {
    /// Adds a function to the simulator and opens it.
    pub fn open(sim: &Sim, name: &str, number: u8, sizes: Sizes) -> Self {
        let function = sim.add_function(Profile::named(name, [2, 0, 0, 0, 0, number]));
        let device = Deaf::wrap_function(function);
        let handle = Function::in_process(Arc::clone(&device) as Arc<dyn Device>)
            .expect("the function opens");
        let provider = MlxProvider::open(handle, HcaConfig::new()).expect("bring-up");
        let ia = Ia::open(provider, IaConfig::default()).expect("the adapter opens");
        Self::new(ia, device, sizes)
    }

    /// Creates a side on an open instance of the function.
    pub fn new(mut ia: Ia, device: Arc<FilteredFunction>, sizes: Sizes) -> Self {
        let pz = ia.pz_create().expect("a PZ");
        let flags = EvdFlags::DTO | EvdFlags::CONNECTION | EvdFlags::CR;
        let events = ia.evd_create(sizes.events, flags).expect("an EVD");
        let ep = endpoint(&mut ia, pz, events, sizes);
        let memory = udapl::alloc(&ia, 4096).expect("memory");
        let lmr = ia
            .lmr_create(memory, pz, MemPrivFlags::all())
            .expect("an LMR");
        let slice = ia.lmr_slice(lmr.lmr, 0, 64).expect("a slice");
        let triplet = LmrTriplet {
            lmr_context: lmr.lmr_context,
            virtual_address: lmr.registered_address,
            segment_length: 64,
        };
        let remote = RmrTriplet {
            rmr_context: lmr.rmr_context,
            target_address: lmr.registered_address,
            segment_length: 64,
        };
        Self {
            ia,
            device,
            events,
            ep,
            pz,
            slice,
            triplet,
            remote,
        }
    }

    /// Connects this side's endpoint to the endpoint of `other`.
    pub fn connect(&mut self, other: &mut Self, service: ConnQual) {
        let (ia, peer) = (&mut self.ia, &mut other.ia);
        peer.psp_create(service, other.events, PspFlags::CONSUMER)
            .expect("a PSP");
        let (address, flags) = (peer.query().ia.ia_address, ConnectFlags::empty());
        ia.ep_connect(
            self.ep,
            address,
            service,
            PATIENCE,
            &[],
            Qos::BEST_EFFORT,
            flags,
        )
        .expect("connect");
        let Ok((Event::ConnectionRequest(request), _)) = peer.evd_wait(other.events, PATIENCE, 1)
        else {
            panic!("a connection request");
        };
        peer.cr_accept(request.cr, Some(other.ep), &[])
            .expect("accept");
        ia.evd_wait(self.events, PATIENCE, 1).expect("established");
        peer.evd_wait(other.events, PATIENCE, 1)
            .expect("established");
    }
}
