//! Agents of CNOs: C functions that the library calls.

// UNSAFETY: calls of the C ABI; `main.rs` expects the lint `unsafe_code`.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use udapl::capi::types::{CAgent, CCnoParam, CEvent, DatHandle};
use udapl::capi::{
    dat_cno_create, dat_cno_modify_agent, dat_cno_query, dat_evd_dequeue, dat_evd_modify_cno,
    dat_evd_post_se, dat_ia_close,
};

use crate::support::{ABRUPT, World, c, done, fresh_name, ok, software};

/// Report of an upcall: the handle of the EVD as a number, and the code that `dat_evd_dequeue` of this EVD returned.
type UpcallReport = (usize, u32);

/// Agent of the CNOs: dequeues an event, which shows that an agent may call DAT, and reports the return code.
///
/// # Safety
/// `instance_data` points to a sender.
unsafe extern "C" fn agent(instance_data: *mut c_void, evd: DatHandle) {
    // SAFETY: the tests pass a sender that outlives the agent.
    let told = unsafe { &*instance_data.cast::<Sender<UpcallReport>>() };
    let mut event = std::mem::MaybeUninit::<CEvent>::uninit();
    let answer = c!(dat_evd_dequeue(evd, event.as_mut_ptr()));
    told.send((evd.addr(), answer)).expect("the test listens");
}

fn agent_for(told: &Sender<UpcallReport>) -> CAgent {
    CAgent {
        instance_data: std::ptr::from_ref(told).cast_mut().cast(),
        proxy_agent_func: Some(agent),
    }
}

fn post(world: &World) {
    let event = software(0);
    ok!(dat_evd_post_se(world.evd, &raw const event));
}

const PATIENCE: Duration = Duration::from_secs(300);

#[test]
fn an_agent_is_called_once_for_a_trigger_and_may_call_dat() {
    let (tell, told) = channel();
    let world = World::new(false);
    let mut cno = null_mut();
    ok!(dat_cno_create(world.ia, agent_for(&tell), &raw mut cno));
    done!(dat_evd_modify_cno(world.evd, cno));
    post(&world);
    assert_eq!(told.recv_timeout(PATIENCE), Ok((world.evd.addr(), 0)));
    // The upcall has removed the agent: another event triggers no upcall until an agent is set again.
    let mut param = std::mem::MaybeUninit::<CCnoParam>::uninit();
    ok!(dat_cno_query(cno, 0x3, param.as_mut_ptr()));
    // SAFETY: the query succeeded and has written it.
    let param = unsafe { param.assume_init() };
    assert!(param.agent.proxy_agent_func.is_none());
    assert_eq!(param.ia_handle, world.ia);
    post(&world);
    assert!(told.try_recv().is_err());
    done!(dat_ia_close(world.ia, ABRUPT));
    assert!(told.try_recv().is_err());
}

#[test]
fn an_agent_that_was_not_called_is_told_of_the_end_with_no_evd() {
    // The test runs 20 times, because the thread that calls agents may or may not have started.
    for _ in 0..20 {
        let (tell, told) = channel();
        let world = World::new(false);
        ok!(dat_cno_modify_agent(world.cno, agent_for(&tell)));
        done!(dat_evd_modify_cno(world.evd, world.cno));
        done!(dat_ia_close(world.ia, ABRUPT));
        // DAT_INVALID_HANDLE: there is no EVD to dequeue from.
        assert_eq!(told.try_recv(), Ok((0, 0x8005_001a)));
    }
}

/// Clauses: IAC-2, IAC-6.
#[test]
fn an_agent_is_told_of_the_end_of_its_own_instance() {
    let name = fresh_name();
    let (tell, told) = channel();
    let stays = World::of(&name, false, 1);
    ok!(dat_cno_modify_agent(stays.cno, agent_for(&tell)));
    done!(dat_evd_modify_cno(stays.evd, stays.cno));
    for _ in 0..20 {
        let (tell, told) = channel();
        let goes = World::of(&name, false, 17);
        ok!(dat_cno_modify_agent(goes.cno, agent_for(&tell)));
        done!(dat_evd_modify_cno(goes.evd, goes.cno));
        done!(dat_ia_close(goes.ia, ABRUPT));
        assert_eq!(told.try_recv(), Ok((0, 0x8005_001a)));
    }
    assert!(told.try_recv().is_err(), "an instance is left");
    post(&stays);
    assert_eq!(told.recv_timeout(PATIENCE), Ok((stays.evd.addr(), 0)));
}

#[test]
fn an_agent_that_was_taken_away_is_not_called() {
    let (tell, told) = channel();
    let world = World::new(false);
    ok!(dat_cno_modify_agent(world.cno, agent_for(&tell)));
    ok!(dat_cno_modify_agent(world.cno, crate::support::NO_AGENT));
    done!(dat_evd_modify_cno(world.evd, world.cno));
    post(&world);
    done!(dat_ia_close(world.ia, ABRUPT));
    assert!(told.try_recv().is_err());
}
