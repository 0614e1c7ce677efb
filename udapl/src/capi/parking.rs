//! Instances of a C program that outlive their process.
//!
//! ```text
//!   park                                              resume, adopt
//!     the instance leaves its slot; its handles         read the words; reserve the handles' places
//!     are invalid, and their places stay reserved       the facade: checks, claim, commands
//!     the words are written                             a slot; the handles are valid again
//!     the facade parks the IA
//! ```
//!
//! C's handles are numbers of the process ([`table`](super::table)), and they stay: the next process puts each object
//! at the place that its handle names. So a snapshot is refused while the process has another object at one of these
//! places. A program that resumes before it opens an adapter has none.
//!
//! While an instance is parked, no thread can make a call on it. If the parking is refused, the instance returns to its
//! slot with the same handles.

use std::collections::BTreeMap;
use std::sync::Arc;

use dat_core::{CnoHandle, CrHandle, DatError, DatResult, EpHandle, HandleType};
use driver::Interrupt;

use super::adapter::{Adapter, AsyncEvd, Instance, Names, Open, Siblings, find, guard};
use super::call::look_up;
use super::error::state;
use super::last_error::because_of;
use super::openings::{self, Closing};
use super::records::{Address, Records, Region, Request};
use super::siblings::interrupt;
use super::sleep::Sleep;
use super::table::{
    IaName, KINDS, Named, Withdrawn, handle_of, is_valid, next_serial, pass_serials,
};
use super::types::DatHandle;
use super::words::{Name, RegionWords, Words};
use crate::Ia;
use crate::handover::{self, Parked};

/// Parks an instance. `own` are the program's own bytes.
///
/// # Errors
/// DAT_INVALID_HANDLE|IA. DAT_INVALID_STATE: the instance cannot be parked, and goes on.
/// DAT_INSUFFICIENT_RESOURCES: no eventfd is left.
pub(super) fn park(ia_handle: DatHandle, own: &[u8]) -> DatResult<Parked> {
    let (adapter, name) = look_up::<IaName>(ia_handle)?;
    // What the instance needs to go on comes first.
    let notify = interrupt()?;
    let (open, handles) = adapter.take_whole(name, may_park)?;
    let words = words(&open, &handles).write(own);
    let Open {
        ia,
        names,
        mut instance,
        records,
        sleep,
    } = open;
    let closing = Closing::new(&instance);
    // Ends the thread that calls agents. The instance has none any more.
    drop(instance.watch.take());
    drop(sleep);
    match handover::park(ia, &words) {
        Ok(parked) => {
            adapter.give_back();
            drop(handles);
            drop(closing);
            Ok(parked)
        }
        Err(refused) => {
            let sentence = refused.error.to_string();
            let Some(ia) = refused.into_ia() else {
                adapter.give_back();
                drop(handles);
                drop(closing);
                return Err(because_of(
                    state("the IA is not parked, and its device is stopped"),
                    &sentence,
                ));
            };
            closing.go_on(&ia);
            let open = Open {
                sleep: Arc::new(Sleep::new(&ia)),
                ia,
                names,
                instance,
                records,
            };
            seat(adapter, open, handles, notify)?;
            Err(because_of(state("the IA is not parked"), &sentence))
        }
    }
}

/// Checks what the facade cannot see.
///
/// # Errors
/// DAT_INVALID_STATE: there are other instances, agents, or threads that wait.
fn may_park(open: &Open) -> DatResult<()> {
    let Instance { name, siblings, .. } = &open.instance;
    if !siblings.others(*name).is_empty() {
        return Err(state(
            "the program has other instances of the adapter open: close them before the parking",
        ));
    }
    let mut given = open.records.agents.keys();
    let has_agent = |cno: &u64| {
        let cno = find::<CnoHandle>(handle_of(*cno));
        cno.is_some_and(|(_, cno)| open.ia.cno_query(cno).is_ok_and(|it| it.has_agent))
    };
    if given.any(has_agent) {
        return Err(state(
            "a CNO has an agent: remove it before the parking (dat_cno_modify_agent)",
        ));
    }
    if open.instance.is_about_to_call() {
        return Err(state("an agent is about to be called"));
    }
    // A waiting thread has a clone from the call in which its wait begins.
    if Arc::strong_count(&open.sleep) != 1 {
        return Err(state("a thread waits in the instance"));
    }
    Ok(())
}

/// Describes what C knows of an instance. `handles` are those that are valid.
fn words(open: &Open, handles: &Withdrawn) -> Words {
    let Instance {
        handle,
        async_evd,
        thread_safe,
        local,
        ..
    } = &open.instance;
    let regions = open
        .records
        .regions
        .iter()
        .map(|(&lmr, region)| RegionWords {
            lmr,
            address: region.address as u64,
            length: region.length,
            source: region.source as u64,
            cookie: region.cookie.as_deref().map(|cookie| cookie.to_vec()),
        });
    let mut names: [Vec<Name>; KINDS] = Default::default();
    for (list, known) in names.iter_mut().zip(&open.names.0) {
        let known = known.iter().filter(|(_, handle)| *handle != 0);
        *list = known
            .map(|&(key, handle)| Name {
                key,
                handle,
                is_valid: handles.contains(handle),
            })
            .collect();
    }
    Words {
        ia: *handle,
        next_serial: next_serial(),
        thread_safe: *thread_safe,
        has_async_evd: *async_evd == AsyncEvd::Own,
        local: local.ip(),
        names,
        regions: regions.collect(),
    }
}

/// What an instance needs that is going to be resumed: its words, the places of its handles, and its interrupt.
pub(super) struct Prepared {
    words: Words,
    names: Names,
    state: Box<[u8]>,
    handles: Withdrawn,
    notify: Interrupt,
    siblings: Arc<Siblings>,
}

impl Prepared {
    /// Reads the words of a snapshot, and reserves the places of the handles. Comes before the device is used.
    ///
    /// # Errors
    /// The reason: these are no words, or the process has another object with one of the handles, or no eventfd.
    pub(super) fn new(words: &[u8]) -> Result<Self, String> {
        let (words, own) = Words::read(words)?;
        let handles = Withdrawn::reserve(words.handles()).map_err(|handle| {
            format!(
                "the process has another object at the place of handle {handle:#x}: resume before anything is opened"
            )
        })?;
        let prepared = || {
            guard()?;
            Ok((interrupt()?, Siblings::new()?))
        };
        let (notify, siblings) = prepared().map_err(|error: DatError| error.to_string())?;
        Ok(Self {
            names: words.names(is_valid::<Adapter>),
            state: own.into(),
            words,
            handles,
            notify,
            siblings,
        })
    }

    /// Makes an instance of a resumed IA. Its handles are valid from now on. Returns the IA's handle, and that of the
    /// asynchronous EVD, if it has one.
    ///
    /// # Errors
    /// DAT_INTERNAL_ERROR: the adapter is broken.
    pub(super) fn seat(self, ia: Ia) -> DatResult<(DatHandle, Option<DatHandle>)> {
        let Self {
            words,
            mut names,
            state,
            handles,
            notify,
            siblings,
        } = self;
        let name = IaName::fresh();
        pass_serials(words.next_serial);
        // Another instance may have got the handle of a freed object since.
        for (_, handle) in names.0.iter_mut().flatten() {
            if !handles.contains(*handle) && is_valid::<Adapter>(*handle) {
                *handle = 0;
            }
        }
        let mut records = Records::new(&ia);
        records.regions = words.regions.into_iter().map(region).collect();
        records.requests = requests(&ia, &names);
        let open = Open {
            sleep: Arc::new(Sleep::new(&ia)),
            names,
            records,
            instance: Instance {
                name,
                handle: words.ia,
                async_evd: if words.has_async_evd {
                    AsyncEvd::Own
                } else {
                    AsyncEvd::OutOfScope
                },
                thread_safe: words.thread_safe,
                local: Address::new(words.local),
                siblings,
                watch: None,
                state,
                _entry: None,
            },
            ia,
        };
        let adapter = Adapter::free(words.thread_safe);
        seat(adapter, open, handles, notify)?;
        adapter.with_instance(name, |open| {
            let evd = open.async_evd(adapter);
            Ok((open.ia_handle(), evd))
        })
    }
}

/// Puts an instance into an empty slot, and makes its handles valid.
///
/// # Errors
/// DAT_INTERNAL_ERROR: the adapter is broken.
fn seat(
    adapter: &'static Adapter,
    mut open: Open,
    mut handles: Withdrawn,
    notify: Interrupt,
) -> DatResult<()> {
    let (name, siblings) = (open.instance.name, Arc::clone(&open.instance.siblings));
    let (_, ia) = open.ia.async_evd().raw();
    let of_ia = (open.instance.handle, name.raw());
    let mut objects = vec![of_ia];
    for (kind, list) in open.names.0.iter().enumerate() {
        for &(key, handle) in list.iter().filter(|(_, handle)| handles.contains(*handle)) {
            objects.push((handle, (key, ia)));
            if kind == HandleType::Ep as usize {
                // The call fails for an endpoint that has been freed.
                let _gone = open.ia.ep_set_name(EpHandle::from_parts(key, ia), handle);
            }
        }
    }
    adapter.put(open);
    for (handle, object) in objects {
        handles.fill(handle, adapter, name, object);
    }
    openings::join(adapter, name, &siblings, notify)
}

/// Makes the record of a region.
fn region(words: RegionWords) -> (u64, Region) {
    let RegionWords {
        lmr,
        address,
        length,
        source,
        cookie,
    } = words;
    // The numbers are only shown. One that is no address of this process is shown as 0.
    let [address, source] = [address, source].map(|it| usize::try_from(it).unwrap_or_default());
    let cookie = cookie.and_then(|cookie| cookie.try_into().ok());
    let region = Region {
        address,
        length,
        source,
        cookie: cookie.map(Box::new),
    };
    (lmr, region)
}

/// Makes the records of connection requests that have handles.
fn requests(ia: &Ia, names: &Names) -> BTreeMap<u64, Request> {
    let (_, number_of_ia) = ia.async_evd().raw();
    let known = names.0[HandleType::Cr as usize].iter();
    let record = |&(key, handle): &(u64, u64)| {
        let cr = ia.cr_query(CrHandle::from_parts(key, number_of_ia)).ok()?;
        let request = Request {
            remote: Address::new(cr.remote_ia_address),
            private_data: cr.private_data.into(),
        };
        Some((handle, request))
    };
    known.filter_map(record).collect()
}

/// Returns the program's own bytes of a resumed instance. They are valid until it is closed or parked.
///
/// # Errors
/// DAT_INVALID_HANDLE|IA.
pub(super) fn own_bytes(ia_handle: DatHandle) -> DatResult<(usize, *const u8)> {
    let (adapter, name) = look_up::<IaName>(ia_handle)?;
    adapter.with_instance(name, |open| {
        let own = &open.instance.state;
        Ok((own.len(), own.as_ptr()))
    })
}

#[cfg(test)]
mod tests {
    use dat_core::{CloseFlags, ReturnType};

    use super::super::dat_ia_close;
    use super::super::instance::{Wanted, WantedEvd};
    use super::*;
    use crate::OpenOptions;

    /// Another thread is about to register its instance of the adapter when the parking is refused.
    #[test]
    fn an_instance_that_is_not_parked_stays_in_the_list_of_the_others() {
        let wanted = || Wanted {
            async_evd: WantedEvd::New(8),
            thread_safe: false,
            entry: None,
        };
        let opened = openings::open("sim:not-parked-beside-an-opening", wanted());
        let (adapter, first) = opened.expect("an adapter");
        let looked = adapter.with_instance(first, |open| {
            let siblings = Arc::clone(&open.instance.siblings);
            let another = crate::Adapter::of(&open.ia).instance(OpenOptions::default().ia);
            Ok((open.ia_handle(), siblings, another))
        });
        let (handle, siblings, another) = looked.expect("it is open");
        let another = another.expect("another instance");
        let refused = park(handle, b"").expect_err("there are two instances");
        assert_eq!(refused.return_type(), ReturnType::InvalidState);
        let adopted = openings::adopt(another, &wanted(), Arc::clone(&siblings));
        let (adapter, second) = adopted.expect("an instance");
        let names = |but| siblings.others(but).into_iter().map(|one| one.ia);
        assert_eq!(names(second).collect::<Vec<_>>(), [first]);
        assert_eq!(names(first).collect::<Vec<_>>(), [second]);
        let other = adapter.with_instance(second, |open| Ok(open.ia_handle()));
        let abrupt = CloseFlags::Abrupt as u32;
        assert_eq!(dat_ia_close(other.expect("it is open"), abrupt), 0);
        assert_eq!(dat_ia_close(handle, abrupt), 0);
    }
}
