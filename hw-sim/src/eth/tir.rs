//! TIR: the destination of steering, which selects a receive queue.

use super::rss::{Hash, hash};
use crate::env::Origin;
use crate::eth::EthObjects;
use crate::wire::frame::Headers;
use mlx_prm::Tirc;

pub(crate) const DIRECT: u32 = 0;
pub(crate) const INDIRECT: u32 = 1;
/// Bits of `self_lb_block`, whose name is misleading: software sets them to receive the unicast (0) and multicast (1)
/// frames that the function sent itself (Linux `MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_UC`, `mlx5e_refresh_tirs`).
const LOOPS_UNICAST: u32 = 1;
const LOOPS_MULTICAST: u32 = 2;

/// A transport interface for receiving.
#[derive(Clone, Debug)]
pub struct Tir {
    /// The context as created and modified.
    pub context: Tirc,
}

impl Tir {
    /// Returns the receive queue for a frame, and the hash that selected it.
    pub fn queue(&self, objects: &EthObjects, headers: &Headers) -> Option<(u32, Hash)> {
        if self.context.disp_type() == DIRECT {
            return Some((self.context.inline_rqn(), Hash::default()));
        }
        let hash = hash(&self.context, headers);
        let table = objects.rqts.get(self.context.indirect_table())?;
        Some((table.queue(hash.value)?, hash))
    }

    /// Returns whether the TIR accepts frames of an origin. Frames of another transport domain come from another
    /// program, and Linux enables loopback as soon as two programs have a domain each (`mlx5_ib_enable_lb`).
    pub fn takes(&self, origin: Origin, multicast: bool) -> bool {
        match origin {
            Origin::Another => return true,
            Origin::Domain(domain) if domain != self.context.transport_domain() => return true,
            Origin::Domain(_) | Origin::Itself => {}
        }
        let bit = if multicast {
            LOOPS_MULTICAST
        } else {
            LOOPS_UNICAST
        };
        self.context.self_lb_block() & bit != 0
    }
}
