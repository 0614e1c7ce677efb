//! A side whose device exceeds the limits that the connection agreed on.

use hw_mlx::qp::context::optional;
use mlx_prm::{
    Command, Init2RtrQpIn, ModifyQp, QpState, Qpc, Qpn, QueryQpIn, Rst2InitQpIn, Rtr2RtsQpIn,
    ServiceType, ToRstQpIn,
};

use super::Pair;

impl Pair {
    /// Returns the side's first connected queue pair, and its context as the device reports it.
    pub fn connected_qp(&mut self, side: usize) -> (Qpn, Qpc) {
        let hca = self.sides[side].ia.provider_mut().hca_mut();
        (1..1_024)
            .find_map(|qpn| {
                let mut query = QueryQpIn::new();
                query.set_qpn(qpn);
                let context = hca.exec(&query).ok()?.qpc().clone();
                let connected = context.state() == QpState::RTS.bits()
                    && context.st() == ServiceType::RC.bits();
                connected.then_some((Qpn::new(qpn), context))
            })
            .expect("a connected queue pair")
    }

    /// Resets the side's connected queue pair and connects it again, with `1 << log_depth` outstanding RDMA Reads
    /// allowed. The side must not have posted anything yet.
    pub fn raise_read_depth(&mut self, side: usize, log_depth: u32) {
        let (qpn, mut context) = self.connected_qp(side);
        let hca = self.sides[side].ia.provider_mut().hca_mut();
        context.set_log_sra_max(log_depth);
        let mut reset = ToRstQpIn::new();
        reset.set_qpn(qpn.get());
        hca.exec(&reset).expect("2RST");
        hca.exec(&transition::<Rst2InitQpIn>(qpn, 0, &context))
            .expect("RST2INIT");
        let rights = optional::RRE | optional::RWE;
        hca.exec(&transition::<Init2RtrQpIn>(qpn, rights, &context))
            .expect("INIT2RTR");
        hca.exec(&transition::<Rtr2RtsQpIn>(qpn, 0, &context))
            .expect("RTR2RTS");
    }
}

fn transition<C: ModifyQp + Command>(qpn: Qpn, mask: u32, context: &Qpc) -> C {
    let mut command = C::for_qp(qpn, mask);
    command.context_mut().clone_from(context);
    command
}
