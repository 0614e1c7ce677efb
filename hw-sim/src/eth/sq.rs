//! Send queues. [`super::transmit`] executes their WQEs.

use super::State;
use crate::host::{Host, KeyScope};
use crate::qp::ring::Rings;
use crate::qp::send_queue::SendQueue;
use crate::umem::Places;
use mlx_prm::Sqc;

/// User index that means that the CQE has the format of CQE version 0.
const NO_USER_INDEX: u32 = 0xff_ffff;

/// Entry of the send queue table.
pub struct SqSlot {
    /// The queue; `None` while one of its methods runs.
    pub sq: Option<Box<Sq>>,
    /// Number of the queue's completion queue.
    pub cqn: u32,
    /// UAR page of the queue's doorbells.
    pub uar: u32,
    /// True if the queue is in the simulator's run queue.
    pub queued: bool,
    pub(crate) pd: u32,
    pub(crate) tis: Option<u32>,
    pub(crate) places: Places,
}

/// A send queue.
#[derive(Debug)]
pub struct Sq {
    pub(crate) number: u32,
    pub(crate) state: State,
    pub(crate) context: Sqc,
    pub(crate) rings: Rings,
    pub(crate) queue: SendQueue,
}

impl Sq {
    pub(super) fn scope(&self) -> KeyScope {
        KeyScope {
            pd: self.context.wq().pd(),
            qpn: self.number,
            remote: false,
            atomic: false,
            rlky: self.context.rlky(),
        }
    }

    pub(super) fn user_index(&self, host: &dyn Host) -> u32 {
        let index = self.context.user_index();
        if host.cqe_version() == 1 && index != NO_USER_INDEX {
            index
        } else {
            0
        }
    }

    /// Moves the queue to ERR, because its completion queue failed.
    pub fn fail(&mut self) {
        self.state = State::Error;
    }

    pub(crate) fn query(&self) -> Sqc {
        let (fetched, posted) = self.queue.counters();
        let mut context = self.context.clone();
        context.set_state(self.state.code());
        context
            .wq_mut()
            .set_hw_counter(u32::from(fetched))
            .set_sw_counter(u32::from(posted));
        context
    }
}
