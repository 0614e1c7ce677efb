//! Tests of commands on a namespace that their host does not see, or not any more.

use super::*;

const NONE: Status = Status::INVALID_NAMESPACE.dnr();

impl Loop {
    /// Shows the namespace to this host alone, or hides it from it.
    fn show(&mut self, is_visible: bool) {
        let host = Some(self.connected.host.clone());
        let hosts = host.into_iter().filter(|_| is_visible).collect();
        let set = self.model.set_hosts(&self.subsystem, 1, Some(hosts));
        set.expect("a namespace");
    }
}

#[test]
fn every_command_on_a_hidden_namespace_is_refused_as_if_it_were_not_there() {
    let mut host = Loop::new(Source::Memory(BYTES));
    host.show(false);
    for opcode in [
        opcode::READ,
        opcode::WRITE,
        opcode::COMPARE,
        opcode::WRITE_ZEROES,
        opcode::VERIFY,
        opcode::DATASET_MANAGEMENT,
        opcode::COPY,
        opcode::FLUSH,
        opcode::RESERVATION_REGISTER,
        opcode::RESERVATION_REPORT,
    ] {
        let data = memory(0, BLOCK);
        assert_eq!(host.command(transfer(opcode, 0, 1), data), NONE, "{opcode}");
    }
    host.show(true);
    assert_eq!(
        host.command(transfer(opcode::READ, 0, 1), memory(0, BLOCK)),
        DONE
    );
    host.assert_free();
}

/// NSID FFFFFFFFh is for the namespaces that the host sees, and there may be none.
#[test]
fn a_flush_of_all_namespaces_leaves_the_hidden_ones_out() {
    let mut host = Loop::new(Source::Faulty(BYTES));
    let mut flush = command(opcode::FLUSH);
    flush.nsid = u32::MAX.into();
    let namespace = host.namespace();
    let faults = namespace.disk().faults().expect("a faulty disk");
    faults.order(Some(Orders {
        of: Of::Flushes,
        error: Some(nix::errno::Errno::EIO),
        ..Orders::default()
    }));
    assert_eq!(host.command(flush, no_data()), Status::WRITE_FAULT.dnr());
    host.show(false);
    assert_eq!(host.command(flush, no_data()), DONE);
    assert_eq!(faults.struck(), 1);
    host.assert_free();
}

/// The checks are repeated when the data has arrived.
#[test]
fn a_write_whose_namespace_is_hidden_while_its_data_comes_is_not_carried_out() {
    let mut host = Loop::new(Source::Memory(BYTES));
    host.holds_fetches = true;
    let (cid, _) = host.send(transfer(opcode::WRITE, 0, 1), memory(0, BLOCK));
    host.show(false);
    host.fetch();
    assert_eq!(host.answer(cid), NONE);
    host.assert_free();
}
