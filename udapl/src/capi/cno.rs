//! The calls of a CNO.

// UNSAFETY: reads and writes through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ptr::null_mut;
use std::sync::Arc;

use dat_core::{Agent, CnoHandle, CnoWait, CnoWaitStatus, DatResult, Subtype, Timeout};

use super::adapter::{Adapter, Open};
use super::answer::call;
use super::argument::{given, mask, put};
use super::call::{look_up, on, owned};
use super::foreign::foreign;
use super::records::GivenAgent;
use super::sleep::Taken;
use super::table::{IaName, Reserved, handle_of};
use super::types::{CAgent, CCnoParam, DatHandle, DatReturn};

/// `DAT_CNO_FIELD_ALL`.
const ALL: u64 = 0x3;

/// Function that converts an EVD's handle to that of the agent's DAT version.
pub(super) type HandleMap = fn(DatHandle) -> DatHandle;

/// Returns the agent that C gave; `None` if its function is null.
fn given_agent(agent: CAgent, map_handle: HandleMap) -> Option<GivenAgent> {
    Some(GivenAgent {
        instance_data: agent.instance_data.addr(),
        function: agent.proxy_agent_func?,
        map_handle,
    })
}

/// Returns an agent for the IA. The IA calls the agent inside other calls, so the agent only queues the upcall for the
/// thread that calls C.
fn agent_for(adapter: &'static Adapter, open: &mut Open, agent: GivenAgent) -> DatResult<Agent> {
    let watch = open.watch(adapter)?;
    Ok(Agent::new(move |evd| watch.push((agent, evd))))
}

/// `dat_cno_create`.
///
/// # Safety
/// `cno_handle` is null or points to a handle. The agent's function may be called, once, from another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_cno_create(
    ia_handle: DatHandle,
    agent: CAgent,
    cno_handle: *mut DatHandle,
) -> DatReturn {
    foreign!(cno_create_func(ia_handle, agent, cno_handle));
    // SAFETY: contract AGENT.
    unsafe { create(ia_handle, agent, core::convert::identity, cno_handle) }
}

/// # Safety
/// That of [`dat_cno_create`].
pub(super) unsafe fn create(
    ia_handle: DatHandle,
    agent: CAgent,
    map_handle: HandleMap,
    cno_handle: *mut DatHandle,
) -> DatReturn {
    call(|| {
        let (adapter, ia) = look_up::<IaName>(ia_handle)?;
        given(cno_handle, Subtype::Arg3)?;
        let reserved = Reserved::new()?;
        let cno = adapter.with_instance(ia, |open| {
            let given = given_agent(agent, map_handle);
            let agent = given
                .map(|agent| agent_for(adapter, open, agent))
                .transpose()?;
            let cno = open.ia.cno_create(agent)?;
            if let Some(given) = given {
                open.records.agents.insert(reserved.handle(), given);
            }
            Ok(open.enter(adapter, reserved, cno))
        })?;
        // SAFETY: contract ROOM.
        unsafe { put(cno_handle, cno) };
        Ok(())
    })
}

/// `dat_cno_modify_agent`.
///
/// # Safety
/// The agent's function may be called, once, from another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_cno_modify_agent(cno_handle: DatHandle, agent: CAgent) -> DatReturn {
    foreign!(cno_modify_agent_func(cno_handle, agent));
    // SAFETY: contract AGENT.
    unsafe { modify_agent(cno_handle, agent, core::convert::identity) }
}

/// # Safety
/// That of [`dat_cno_modify_agent`].
pub(super) unsafe fn modify_agent(
    cno_handle: DatHandle,
    agent: CAgent,
    map_handle: HandleMap,
) -> DatReturn {
    call(|| {
        let (adapter, ia, cno) = owned::<CnoHandle>(cno_handle)?;
        adapter.with_instance(ia, |open| {
            let given = given_agent(agent, map_handle);
            let agent = given
                .map(|agent| agent_for(adapter, open, agent))
                .transpose()?;
            open.ia.cno_modify_agent(cno, agent)?;
            let at = super::table::number(cno_handle);
            match given {
                Some(given) => open.records.agents.insert(at, given),
                None => open.records.agents.remove(&at),
            };
            Ok(())
        })
    })
}

/// `dat_cno_query`.
///
/// # Safety
/// `cno_param` is null or points to a `DAT_CNO_PARAM`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_cno_query(
    cno_handle: DatHandle,
    cno_param_mask: u32,
    cno_param: *mut CCnoParam,
) -> DatReturn {
    foreign!(cno_query_func(cno_handle, cno_param_mask, cno_param));
    call(|| {
        let (adapter, cno) = look_up::<CnoHandle>(cno_handle)?;
        mask(cno_param_mask.into(), ALL, Subtype::Arg2)?;
        given(cno_param, Subtype::Arg3)?;
        let param = adapter.with(|open| {
            let has_agent = open.ia.cno_query(cno)?.has_agent;
            let agent = open.records.agents.get(&super::table::number(cno_handle));
            Ok(CCnoParam {
                ia_handle: open.ia_handle(),
                agent: agent.filter(|_| has_agent).map_or(
                    CAgent {
                        instance_data: null_mut(),
                        proxy_agent_func: None,
                    },
                    |agent| CAgent {
                        instance_data: handle_of(agent.instance_data as u64),
                        proxy_agent_func: Some(agent.function),
                    },
                ),
            })
        })?;
        // SAFETY: contract ROOM.
        unsafe { put(cno_param, param) };
        Ok(())
    })
}

/// `dat_cno_free`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_cno_free(cno_handle: DatHandle) -> DatReturn {
    foreign!(cno_free_func(cno_handle));
    on(cno_handle, |open, cno: CnoHandle| {
        open.ia.cno_free(cno)?;
        open.forget(cno);
        open.records
            .agents
            .remove(&super::table::number(cno_handle));
        Ok(())
    })
}

/// `dat_cno_wait`.
///
/// # Safety
/// `evd_handle` is null or points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_cno_wait(
    cno_handle: DatHandle,
    timeout: u32,
    evd_handle: *mut DatHandle,
) -> DatReturn {
    foreign!(cno_wait_func(cno_handle, timeout, evd_handle));
    call(|| {
        let (adapter, ia, cno) = owned::<CnoHandle>(cno_handle)?;
        given(evd_handle, Subtype::Arg3)?;
        // SAFETY: contract ROOM.
        unsafe { put(evd_handle, null_mut()) };
        let evd = wait(adapter, ia, cno, Timeout::from_micros(timeout))?;
        // SAFETY: contract ROOM.
        unsafe { put(evd_handle, evd) };
        Ok(())
    })
}

/// Waits for a CNO. The thread sleeps without access to the adapter.
fn wait(
    adapter: &'static Adapter,
    ia: IaName,
    cno: CnoHandle,
    timeout: Timeout,
) -> DatResult<DatHandle> {
    let (mut wait, sleep, siblings) = adapter.with(|open| {
        let wait = open.ia.cno_wait_begin(cno, timeout)?;
        Ok((
            wait,
            Arc::clone(&open.sleep),
            Arc::clone(&open.instance.siblings),
        ))
    })?;
    let sleeper = sleep.enlist();
    let mut taken = Taken::NOTHING;
    loop {
        let checked = adapter.with_no_wake_if_open(ia, |open| {
            taken.share(&open.ia);
            let status = open.ia.cno_wait_check(wait);
            status.map(|status| match status {
                CnoWaitStatus::Woken(evd) => {
                    Ok(evd.map_or(null_mut(), |evd| open.name(adapter, evd)))
                }
                CnoWaitStatus::Pending(again, until) => Err((again, until)),
            })
        });
        let checked = match checked {
            Ok(Some(checked)) => checked?,
            // The IA was closed during the sleep: the wait ends without an EVD.
            Ok(None) => {
                siblings.take_over(taken);
                return Ok(null_mut());
            }
            Err(broken) => {
                siblings.take_over(taken);
                return Err(broken);
            }
        };
        match checked {
            Ok(evd) => return Ok(evd),
            Err((again, until)) => {
                if siblings.poll_notified(ia) {
                    (wait, taken) = (again, Taken::NOTHING);
                    continue;
                }
                let Ok(by_now) = sleeper.until(until) else {
                    return interrupted(adapter, ia, again);
                };
                (wait, taken) = (again, by_now);
            }
        }
    }
}

/// Cancels a wait because of a signal.
fn interrupted(adapter: &'static Adapter, ia: IaName, wait: CnoWait) -> DatResult<DatHandle> {
    let ended = adapter.with_no_wake_if_open(ia, |open| open.ia.cno_wait_cancel(wait))?;
    // If the IA was closed meanwhile, the result is the same as in `wait`.
    ended.map_or(Ok(null_mut()), Err)
}
