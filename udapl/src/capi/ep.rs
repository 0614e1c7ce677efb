//! The calls of an endpoint, except the posts (in [`hot`](super::hot)) and connecting (in
//! [`connect`](super::connect)).

// UNSAFETY: reads and writes through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ptr::null_mut;

use dat_core::{
    CompletionFlags, DatResult, EpAttr, EpChange, EpEvds, EpHandle, EpParam, EvdHandle, PzHandle,
    Qos, SrqHandle, Subtype,
};

use super::adapter::{Adapter, Open};
use super::answer::call;
use super::argument::{as_count, count, given, mask, put};
use super::call::{look_up, on, optional, other, owned};
use super::error::parameter;
use super::foreign::foreign;
use super::named;
use super::records::{Address, Attributes};
use super::table::{IaName, Reserved, number};
use super::types::{CEpAttr, CEpParam, DatBoolean, DatCount, DatHandle, DatReturn};

/// `DAT_HW_DEFAULT` and `DAT_WATERMARK_INFINITE`: no watermark.
const NONE: DatCount = -1;
/// `DAT_VALUE_UNKNOWN`.
const UNKNOWN: DatCount = -2;
/// `DAT_SERVICE_TYPE_RC`.
const RC: u32 = 0;

/// Bits of `DAT_EP_PARAM_MASK`.
mod field {
    pub(super) const PZ: u64 = 0x40;
    pub(super) const RECV_EVD: u64 = 0x80;
    pub(super) const REQUEST_EVD: u64 = 0x100;
    pub(super) const CONNECT_EVD: u64 = 0x200;
    /// Fields that cannot be changed: the IA, the state, addresses, qualifiers and the SRQ.
    pub(super) const FIXED: u64 = 0x3f | 0x400;
    pub(super) const SERVICE_TYPE: u64 = 0x1000;
    pub(super) const MAX_MESSAGE_SIZE: u64 = 0x2000;
    pub(super) const MAX_RDMA_SIZE: u64 = 0x4000;
    pub(super) const QOS: u64 = 0x8000;
    pub(super) const RECV_COMPLETION_FLAGS: u64 = 0x1_0000;
    pub(super) const REQUEST_COMPLETION_FLAGS: u64 = 0x2_0000;
    pub(super) const MAX_RECV_DTOS: u64 = 0x4_0000;
    pub(super) const MAX_REQUEST_DTOS: u64 = 0x8_0000;
    pub(super) const MAX_RECV_IOV: u64 = 0x10_0000;
    pub(super) const MAX_REQUEST_IOV: u64 = 0x20_0000;
    pub(super) const MAX_RDMA_READ_IN: u64 = 0x40_0000;
    pub(super) const MAX_RDMA_READ_OUT: u64 = 0x80_0000;
    pub(super) const SRQ_SOFT_HW: u64 = 0x100_0000;
    pub(super) const MAX_RDMA_READ_IOV: u64 = 0x200_0000;
    pub(super) const MAX_RDMA_WRITE_IOV: u64 = 0x400_0000;
    /// Fields for the number and the array of the transport-specific attributes.
    pub(super) const TRANSPORT: u64 = 0x800_0000 | 0x1000_0000;
    /// Field for the number of provider-specific attributes, which must be 0.
    pub(super) const PROVIDER_COUNT: u64 = 0x2000_0000;
    pub(super) const ATTRIBUTES: u64 = 0x7fff_f000;
    pub(super) const ALL: u64 = 0x7fff_f7ff;
}

/// Returns `base` with those attributes replaced by `given` whose bits are set in `fields`.
fn merged(
    base: EpAttr,
    given: &CEpAttr,
    fields: u64,
    uses_srq: bool,
    argument: Subtype,
) -> DatResult<EpAttr> {
    let mut attr = base;
    let has = |field: u64| fields & field != 0;
    let number = |value: DatCount| count(value, argument);
    if has(field::SERVICE_TYPE) && given.service_type != RC {
        return Err(parameter(argument));
    }
    if has(field::PROVIDER_COUNT) && given.ep_provider_specific_count != 0 {
        return Err(parameter(argument).because("there are no provider-specific attributes"));
    }
    if has(field::MAX_MESSAGE_SIZE) {
        attr.max_message_size = given.max_message_size;
    }
    if has(field::MAX_RDMA_SIZE) {
        attr.max_rdma_size = given.max_rdma_size;
    }
    if has(field::QOS) {
        attr.qos = Qos::from_bits_retain(given.qos);
    }
    if has(field::RECV_COMPLETION_FLAGS) {
        attr.recv_completion_flags = CompletionFlags::from_bits_retain(given.recv_completion_flags);
    }
    if has(field::REQUEST_COMPLETION_FLAGS) {
        attr.request_completion_flags =
            CompletionFlags::from_bits_retain(given.request_completion_flags);
    }
    // An endpoint with an SRQ has no receive queue of its own, so it has no limits for receives.
    if has(field::MAX_RECV_DTOS) && !uses_srq {
        attr.max_recv_dtos = number(given.max_recv_dtos)?;
    }
    if has(field::MAX_RECV_IOV) && !uses_srq {
        attr.max_recv_iov = number(given.max_recv_iov)?;
    }
    if has(field::SRQ_SOFT_HW) && uses_srq {
        attr.srq_soft_hw = watermark(given.srq_soft_hw, argument)?;
    }
    for (bit, value, place) in [
        (
            field::MAX_REQUEST_DTOS,
            given.max_request_dtos,
            &mut attr.max_request_dtos,
        ),
        (
            field::MAX_REQUEST_IOV,
            given.max_request_iov,
            &mut attr.max_request_iov,
        ),
        (
            field::MAX_RDMA_READ_IN,
            given.max_rdma_read_in,
            &mut attr.max_rdma_read_in,
        ),
        (
            field::MAX_RDMA_READ_OUT,
            given.max_rdma_read_out,
            &mut attr.max_rdma_read_out,
        ),
        (
            field::MAX_RDMA_READ_IOV,
            given.max_rdma_read_iov,
            &mut attr.max_rdma_read_iov,
        ),
        (
            field::MAX_RDMA_WRITE_IOV,
            given.max_rdma_write_iov,
            &mut attr.max_rdma_write_iov,
        ),
    ] {
        if has(bit) {
            *place = number(value)?;
        }
    }
    Ok(attr)
}

/// Converts a watermark of C. The value -1 means no watermark.
fn watermark(value: DatCount, argument: Subtype) -> DatResult<Option<u32>> {
    if value == NONE {
        return Ok(None);
    }
    count(value, argument).map(Some)
}

pub(super) fn c_attr(attr: &EpAttr) -> CEpAttr {
    CEpAttr {
        service_type: RC,
        max_message_size: attr.max_message_size,
        max_rdma_size: attr.max_rdma_size,
        qos: attr.qos.bits(),
        recv_completion_flags: attr.recv_completion_flags.bits(),
        request_completion_flags: attr.request_completion_flags.bits(),
        max_recv_dtos: as_count(attr.max_recv_dtos),
        max_request_dtos: as_count(attr.max_request_dtos),
        max_recv_iov: as_count(attr.max_recv_iov),
        max_request_iov: as_count(attr.max_request_iov),
        max_rdma_read_in: as_count(attr.max_rdma_read_in),
        max_rdma_read_out: as_count(attr.max_rdma_read_out),
        srq_soft_hw: attr.srq_soft_hw.map_or(NONE, as_count),
        max_rdma_read_iov: as_count(attr.max_rdma_read_iov),
        max_rdma_write_iov: as_count(attr.max_rdma_write_iov),
        ep_transport_specific_count: 0,
        ep_transport_specific: null_mut(),
        ep_provider_specific_count: 0,
        ep_provider_specific: null_mut(),
    }
}

/// The three EVDs of an endpoint, in the order of the arguments: receives, requests, connection.
type Evds = [DatHandle; 3];

/// `dat_ep_create`.
///
/// # Safety
/// `ep_attributes` and `ep_handle` are null or point to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_create(
    ia_handle: DatHandle,
    pz_handle: DatHandle,
    recv_evd_handle: DatHandle,
    request_evd_handle: DatHandle,
    connect_evd_handle: DatHandle,
    ep_attributes: *const CEpAttr,
    ep_handle: *mut DatHandle,
) -> DatReturn {
    foreign!(ep_create_func(
        ia_handle,
        pz_handle: HandlePz,
        recv_evd_handle: HandleEvdRecv,
        request_evd_handle: HandleEvdRequest,
        connect_evd_handle: HandleEvdConn,
        ep_attributes,
        ep_handle,
    ));
    call(|| {
        let (adapter, ia) = look_up::<IaName>(ia_handle)?;
        given(ep_handle, Subtype::Arg7)?;
        // SAFETY: contract GIVEN.
        let attr = unsafe { ep_attributes.as_ref() };
        let evds = [recv_evd_handle, request_evd_handle, connect_evd_handle];
        let ep = create((adapter, ia), pz_handle, evds, None, attr)?;
        // SAFETY: contract ROOM.
        unsafe { put(ep_handle, ep) };
        Ok(())
    })
}

/// `dat_ep_create_with_srq`.
///
/// # Safety
/// That of [`dat_ep_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_create_with_srq(
    ia_handle: DatHandle,
    pz_handle: DatHandle,
    recv_evd_handle: DatHandle,
    request_evd_handle: DatHandle,
    connect_evd_handle: DatHandle,
    srq_handle: DatHandle,
    ep_attributes: *const CEpAttr,
    ep_handle: *mut DatHandle,
) -> DatReturn {
    foreign!(ep_create_with_srq_func(
        ia_handle,
        pz_handle: HandlePz,
        recv_evd_handle: HandleEvdRecv,
        request_evd_handle: HandleEvdRequest,
        connect_evd_handle: HandleEvdConn,
        srq_handle: HandleSrq,
        ep_attributes,
        ep_handle,
    ));
    call(|| {
        let (adapter, ia) = look_up::<IaName>(ia_handle)?;
        given(ep_attributes, Subtype::Arg7)?;
        given(ep_handle, Subtype::Arg8)?;
        // SAFETY: the pointer is not null, so by contract GIVEN it leads to a value.
        let attr = unsafe { &*ep_attributes };
        let evds = [recv_evd_handle, request_evd_handle, connect_evd_handle];
        let ep = create(
            (adapter, ia),
            pz_handle,
            evds,
            Some(other(ia, srq_handle)),
            Some(attr),
        )?;
        // SAFETY: contract ROOM.
        unsafe { put(ep_handle, ep) };
        Ok(())
    })
}

fn create(
    (adapter, ia): (&'static Adapter, IaName),
    pz: DatHandle,
    evds: Evds,
    srq: Option<SrqHandle>,
    attr: Option<&CEpAttr>,
) -> DatResult<DatHandle> {
    let reserved = Reserved::new()?;
    let pz = optional::<PzHandle>(ia, pz);
    let [recv, request, connect] = evds.map(|evd| optional::<EvdHandle>(ia, evd));
    adapter.with_instance(ia, |open| {
        let base = EpAttr::defaults(open.ia.query().ia);
        let argument = match srq {
            Some(_) => Subtype::Arg7,
            None => Subtype::Arg6,
        };
        let all = field::ATTRIBUTES;
        let transport = attr
            .map(|attr| named::settings(attr, argument))
            .transpose()?
            .unwrap_or_default();
        let attr = attr
            .map(|attr| merged(base, attr, all, srq.is_some(), argument))
            .transpose()?;
        let ep = match srq {
            Some(srq) => {
                let attr = attr.unwrap_or(base);
                open.ia.ep_create_with_srq(
                    pz,
                    EpEvds {
                        recv,
                        request,
                        connect,
                    },
                    srq,
                    &attr,
                )?
            }
            None => open.ia.ep_create(
                pz,
                EpEvds {
                    recv,
                    request,
                    connect,
                },
                attr.as_ref(),
            )?,
        };
        let change = EpChange {
            transport: Some(transport),
            ..EpChange::default()
        };
        if let Err(error) = open.ia.ep_modify(ep, &change) {
            open.ia.ep_free(ep)?;
            return Err(error);
        }
        Ok(open.enter(adapter, reserved, ep))
    })
}

/// `dat_ep_query`.
///
/// # Safety
/// `ep_param` is null or points to a `DAT_EP_PARAM`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_query(
    ep_handle: DatHandle,
    ep_param_mask: u64,
    ep_param: *mut CEpParam,
) -> DatReturn {
    foreign!(ep_query_func(ep_handle, ep_param_mask, ep_param));
    call(|| {
        let (adapter, ep) = look_up::<EpHandle>(ep_handle)?;
        mask(ep_param_mask, field::ALL, Subtype::Arg2)?;
        given(ep_param, Subtype::Arg3)?;
        let param = adapter.with(|open| {
            open.ia.progress();
            let param = open.ia.ep_query(ep)?;
            c_param(adapter, open, number(ep_handle), &param)
        })?;
        // SAFETY: contract ROOM.
        unsafe { put(ep_param, param) };
        Ok(())
    })
}

fn c_param(
    adapter: &'static Adapter,
    open: &mut Open,
    ep: u64,
    param: &EpParam,
) -> DatResult<CEpParam> {
    let [local, remote] = match param.remote_ia_address {
        Some(address) => {
            let record = open.records.remotes.entry(ep);
            let remote = record.or_insert_with(|| Address::new(address));
            remote.set(address);
            let remote = remote.pointer();
            [open.records.local(param.local_ia_address), remote]
        }
        None => [open.instance.local.pointer(), null_mut()],
    };
    let settings = Attributes::new(&param.transport.named());
    let mut attr = c_attr(&param.attr);
    attr.ep_transport_specific_count = DatCount::try_from(settings.list().len()).unwrap_or(0);
    if !settings.list().is_empty() {
        attr.ep_transport_specific = settings.list().as_ptr().cast_mut();
        // This frees the attributes of the endpoint's previous query, so pointers to them become invalid.
        open.records.settings.insert(ep, settings);
    }
    let mut evd = |evd: Option<EvdHandle>| evd.map_or(null_mut(), |evd| open.name(adapter, evd));
    let [recv, request, connect] =
        [param.recv_evd, param.request_evd, param.connect_evd].map(&mut evd);
    Ok(CEpParam {
        ia_handle: open.ia_handle(),
        // CAST: the discriminant is DAT's number.
        ep_state: param.state as u32,
        local_ia_address_ptr: local,
        local_port_qual: param.local_port_qual,
        remote_ia_address_ptr: remote,
        remote_port_qual: param.remote_port_qual,
        pz_handle: param.pz.map_or(null_mut(), |pz| open.name(adapter, pz)),
        recv_evd_handle: recv,
        request_evd_handle: request,
        connect_evd_handle: connect,
        srq_handle: param.srq.map_or(null_mut(), |srq| open.name(adapter, srq)),
        ep_attr: attr,
    })
}

/// `dat_ep_modify`.
///
/// # Safety
/// `ep_param` is null or points to a `DAT_EP_PARAM`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_modify(
    ep_handle: DatHandle,
    ep_param_mask: u64,
    ep_param: *const CEpParam,
) -> DatReturn {
    foreign!(ep_modify_func(ep_handle, ep_param_mask, ep_param));
    call(|| {
        let (adapter, ia, ep) = owned::<EpHandle>(ep_handle)?;
        mask(ep_param_mask, field::ALL & !field::FIXED, Subtype::Arg2)?;
        given(ep_param, Subtype::Arg3)?;
        // SAFETY: the pointer is not null, so by contract GIVEN it leads to a value.
        let param = unsafe { &*ep_param };
        let has = |field: u64| ep_param_mask & field != 0;
        let evd = |field, handle| has(field).then(|| optional::<EvdHandle>(ia, handle));
        adapter.with(|open| {
            let now = open.ia.ep_query(ep)?;
            let change = EpChange {
                pz: has(field::PZ).then(|| optional::<PzHandle>(ia, param.pz_handle)),
                recv_evd: evd(field::RECV_EVD, param.recv_evd_handle),
                request_evd: evd(field::REQUEST_EVD, param.request_evd_handle),
                connect_evd: evd(field::CONNECT_EVD, param.connect_evd_handle),
                attr: has(field::ATTRIBUTES)
                    .then(|| {
                        let uses_srq = now.srq.is_some();
                        merged(
                            now.attr,
                            &param.ep_attr,
                            ep_param_mask,
                            uses_srq,
                            Subtype::Arg3,
                        )
                    })
                    .transpose()?,
                transport: has(field::TRANSPORT)
                    .then(|| named::settings(&param.ep_attr, Subtype::Arg3))
                    .transpose()?,
            };
            open.ia.ep_modify(ep, &change)
        })
    })
}

/// `dat_ep_get_status`.
///
/// # Safety
/// The pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_get_status(
    ep_handle: DatHandle,
    ep_state: *mut u32,
    recv_idle: *mut DatBoolean,
    request_idle: *mut DatBoolean,
) -> DatReturn {
    foreign!(ep_get_status_func(
        ep_handle,
        ep_state,
        recv_idle,
        request_idle
    ));
    call(|| {
        let (adapter, ep) = look_up::<EpHandle>(ep_handle)?;
        let status = adapter.with(|open| {
            // A consumer that polls only the state makes no other call in which events are processed.
            open.ia.progress();
            open.ia.ep_get_status(ep)
        })?;
        // SAFETY: contract ROOM. CAST: the discriminant is DAT's number.
        unsafe { put(ep_state, status.state as u32) };
        // SAFETY: contract ROOM.
        unsafe { put(recv_idle, status.recv_idle.into()) };
        // SAFETY: contract ROOM.
        unsafe { put(request_idle, status.request_idle.into()) };
        Ok(())
    })
}

/// `dat_ep_recv_query`.
///
/// # Safety
/// The pointers are null or point to counts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_recv_query(
    ep_handle: DatHandle,
    nbufs_allocated: *mut DatCount,
    bufs_alloc_span: *mut DatCount,
) -> DatReturn {
    foreign!(ep_recv_query_func(
        ep_handle,
        nbufs_allocated,
        bufs_alloc_span
    ));
    call(|| {
        let (adapter, ep) = look_up::<EpHandle>(ep_handle)?;
        let held = adapter.with(|open| open.ia.ep_recv_query(ep))?;
        let known = |value: Option<u32>| value.map_or(UNKNOWN, as_count);
        // SAFETY: contract ROOM.
        unsafe { put(nbufs_allocated, known(held.nbufs_allocated)) };
        // SAFETY: contract ROOM.
        unsafe { put(bufs_alloc_span, known(held.bufs_alloc_span)) };
        Ok(())
    })
}

/// `dat_ep_set_watermark`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_ep_set_watermark(
    ep_handle: DatHandle,
    soft_high_watermark: DatCount,
    hard_high_watermark: DatCount,
) -> DatReturn {
    foreign!(ep_set_watermark_func(
        ep_handle,
        soft_high_watermark,
        hard_high_watermark
    ));
    on(ep_handle, |open, ep: EpHandle| {
        let soft = watermark(soft_high_watermark, Subtype::Arg2)?;
        let hard = watermark(hard_high_watermark, Subtype::Arg3)?;
        open.ia.ep_set_watermark(ep, soft, hard)
    })
}

/// `dat_ep_reset`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_ep_reset(ep_handle: DatHandle) -> DatReturn {
    foreign!(ep_reset_func(ep_handle));
    on(ep_handle, |open, ep: EpHandle| open.ia.ep_reset(ep))
}

/// `dat_ep_free`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_ep_free(ep_handle: DatHandle) -> DatReturn {
    foreign!(ep_free_func(ep_handle));
    on(ep_handle, |open, ep: EpHandle| {
        open.ia.ep_free(ep)?;
        open.forget(ep);
        open.records.remotes.remove(&number(ep_handle));
        open.records.settings.remove(&number(ep_handle));
        open.records.operations.remove(&number(ep_handle));
        Ok(())
    })
}
