//! Calls for connections, service points and connection requests.

// UNSAFETY: reads and writes through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ffi::c_void;
use core::ptr::{null, null_mut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dat_core::{
    CloseFlags, ConnQual, ConnectFlags, CrHandle, DatError, DatResult, EpHandle, PspFlags,
    PspHandle, Qos, ReturnType, RspHandle, Subtype, Timeout,
};

use super::answer::call;
use super::argument::{as_count, bytes, given, mask, put};
use super::call::{look_up, on, optional, other, owned};
use super::foreign::foreign;
use super::table::{IaName, Reserved, number};
use super::types::{CCrParam, CPspParam, CRspParam, DatCount, DatHandle, DatReturn};

/// `DAT_PSP_FIELD_ALL`, `DAT_RSP_FIELD_ALL`.
const SERVICE_POINT_ALL: u64 = 0xf;
/// `DAT_CR_FIELD_ALL`.
const REQUEST_ALL: u64 = 0x1f;

/// Reads the IP address of a socket address.
///
/// # Safety
/// `address` points to a socket address of the size of its family.
unsafe fn ip(address: *const libc::sockaddr) -> DatResult<IpAddr> {
    // SAFETY: the family is the first field of every socket address.
    let family = unsafe { (*address).sa_family };
    match libc::c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: the family determines the type; the read may be unaligned.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Ok(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Ok(Ipv6Addr::from(v6.sin6_addr.s6_addr).to_canonical())
        }
        _ => Err(
            DatError::new(ReturnType::InvalidAddress, Subtype::AddressUnsupported)
                .because("an address of neither AF_INET nor AF_INET6"),
        ),
    }
}

/// `dat_ep_connect`.
///
/// # Safety
/// `remote_ia_address` is null or a socket address; `private_data` is null or has `private_data_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_connect(
    ep_handle: DatHandle,
    remote_ia_address: *const libc::sockaddr,
    remote_conn_qual: u64,
    timeout: u32,
    private_data_size: DatCount,
    private_data: *const c_void,
    qos: u32,
    connect_flags: u32,
) -> DatReturn {
    foreign!(ep_connect_func(
        ep_handle,
        remote_ia_address,
        remote_conn_qual,
        timeout,
        private_data_size,
        private_data,
        qos,
        connect_flags,
    ));
    call(|| {
        let (adapter, ep) = look_up::<EpHandle>(ep_handle)?;
        given(remote_ia_address, Subtype::Arg2)?;
        // SAFETY: not null, and contract GIVEN.
        let remote = unsafe { ip(remote_ia_address) }?;
        // SAFETY: contract GIVEN.
        let data = unsafe {
            bytes(
                private_data_size,
                private_data,
                Subtype::Arg5,
                Subtype::Arg6,
            )
        }?;
        adapter.with(|open| {
            open.ia.ep_connect(
                ep,
                remote,
                ConnQual(remote_conn_qual),
                Timeout::from_micros(timeout),
                data,
                Qos::from_bits_retain(qos),
                ConnectFlags::from_bits_retain(connect_flags),
            )
        })
    })
}

/// `dat_ep_dup_connect`.
///
/// # Safety
/// `private_data` is null or has `private_data_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_dup_connect(
    ep_handle: DatHandle,
    dup_ep_handle: DatHandle,
    timeout: u32,
    private_data_size: DatCount,
    private_data: *const c_void,
    qos: u32,
) -> DatReturn {
    foreign!(ep_dup_connect_func(
        ep_handle,
        dup_ep_handle: HandleEp,
        timeout,
        private_data_size,
        private_data,
        qos,
    ));
    call(|| {
        let (adapter, ia, ep) = owned::<EpHandle>(ep_handle)?;
        // SAFETY: contract GIVEN.
        let data = unsafe {
            bytes(
                private_data_size,
                private_data,
                Subtype::Arg4,
                Subtype::Arg5,
            )
        }?;
        let dup = other::<EpHandle>(ia, dup_ep_handle);
        let timeout = Timeout::from_micros(timeout);
        let qos = Qos::from_bits_retain(qos);
        adapter.with(|open| open.ia.ep_dup_connect(ep, dup, timeout, data, qos))
    })
}

/// `dat_ep_disconnect`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_ep_disconnect(ep_handle: DatHandle, disconnect_flags: u32) -> DatReturn {
    foreign!(ep_disconnect_func(ep_handle, disconnect_flags));
    on(ep_handle, |open, ep: EpHandle| {
        let flags = CloseFlags::from_value(disconnect_flags)?;
        open.ia.ep_disconnect(ep, flags)
    })
}

/// `dat_psp_create`.
///
/// # Safety
/// `psp_handle` is null or points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_psp_create(
    ia_handle: DatHandle,
    conn_qual: u64,
    evd_handle: DatHandle,
    psp_flags: u32,
    psp_handle: *mut DatHandle,
) -> DatReturn {
    foreign!(psp_create_func(ia_handle, conn_qual, evd_handle: HandleEvdCr, psp_flags, psp_handle));
    call(|| {
        let (adapter, ia) = look_up::<IaName>(ia_handle)?;
        given(psp_handle, Subtype::Arg5)?;
        let reserved = Reserved::new()?;
        let (evd, flags) = (other(ia, evd_handle), PspFlags::from_bits_retain(psp_flags));
        let psp = adapter.with_instance(ia, |open| {
            let psp = open.ia.psp_create(ConnQual(conn_qual), evd, flags)?;
            Ok(open.enter(adapter, reserved, psp))
        })?;
        // SAFETY: contract ROOM.
        unsafe { put(psp_handle, psp) };
        Ok(())
    })
}

/// `dat_psp_create_any`.
///
/// # Safety
/// The pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_psp_create_any(
    ia_handle: DatHandle,
    conn_qual: *mut u64,
    evd_handle: DatHandle,
    psp_flags: u32,
    psp_handle: *mut DatHandle,
) -> DatReturn {
    foreign!(psp_create_any_func(
        ia_handle,
        conn_qual,
        evd_handle: HandleEvdCr,
        psp_flags,
        psp_handle,
    ));
    call(|| {
        let (adapter, ia) = look_up::<IaName>(ia_handle)?;
        given(conn_qual, Subtype::Arg2)?;
        given(psp_handle, Subtype::Arg5)?;
        let reserved = Reserved::new()?;
        let (evd, flags) = (other(ia, evd_handle), PspFlags::from_bits_retain(psp_flags));
        let (qualifier, psp) = adapter.with_instance(ia, |open| {
            let (qualifier, psp) = open.ia.psp_create_any(evd, flags)?;
            Ok((qualifier, open.enter(adapter, reserved, psp)))
        })?;
        // SAFETY: contract ROOM.
        unsafe { put(conn_qual, qualifier.0) };
        // SAFETY: contract ROOM.
        unsafe { put(psp_handle, psp) };
        Ok(())
    })
}

/// `dat_psp_query`.
///
/// # Safety
/// `psp_param` is null or points to a `DAT_PSP_PARAM`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_psp_query(
    psp_handle: DatHandle,
    psp_param_mask: u32,
    psp_param: *mut CPspParam,
) -> DatReturn {
    foreign!(psp_query_func(psp_handle, psp_param_mask, psp_param));
    call(|| {
        let (adapter, psp) = look_up::<PspHandle>(psp_handle)?;
        mask(psp_param_mask.into(), SERVICE_POINT_ALL, Subtype::Arg2)?;
        given(psp_param, Subtype::Arg3)?;
        let param = adapter.with(|open| {
            let param = open.ia.psp_query(psp)?;
            Ok(CPspParam {
                ia_handle: open.ia_handle(),
                conn_qual: param.conn_qual.0,
                evd_handle: open.name(adapter, param.evd),
                psp_flags: param.flags.bits(),
            })
        })?;
        // SAFETY: contract ROOM.
        unsafe { put(psp_param, param) };
        Ok(())
    })
}

/// `dat_psp_free`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_psp_free(psp_handle: DatHandle) -> DatReturn {
    foreign!(psp_free_func(psp_handle));
    on(psp_handle, |open, psp: PspHandle| {
        open.ia.psp_free(psp)?;
        open.forget(psp);
        Ok(())
    })
}

/// `dat_rsp_create`.
///
/// # Safety
/// `rsp_handle` is null or points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_rsp_create(
    ia_handle: DatHandle,
    conn_qual: u64,
    ep_handle: DatHandle,
    evd_handle: DatHandle,
    rsp_handle: *mut DatHandle,
) -> DatReturn {
    foreign!(rsp_create_func(
        ia_handle,
        conn_qual,
        ep_handle: HandleEp,
        evd_handle: HandleEvdCr,
        rsp_handle,
    ));
    call(|| {
        let (adapter, ia) = look_up::<IaName>(ia_handle)?;
        given(rsp_handle, Subtype::Arg5)?;
        let reserved = Reserved::new()?;
        let (ep, evd) = (optional::<EpHandle>(ia, ep_handle), other(ia, evd_handle));
        let rsp = adapter.with_instance(ia, |open| {
            let rsp = open.ia.rsp_create(ConnQual(conn_qual), ep, evd)?;
            Ok(open.enter(adapter, reserved, rsp))
        })?;
        // SAFETY: contract ROOM.
        unsafe { put(rsp_handle, rsp) };
        Ok(())
    })
}

/// `dat_rsp_query`.
///
/// # Safety
/// `rsp_param` is null or points to a `DAT_RSP_PARAM`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_rsp_query(
    rsp_handle: DatHandle,
    rsp_param_mask: u32,
    rsp_param: *mut CRspParam,
) -> DatReturn {
    foreign!(rsp_query_func(rsp_handle, rsp_param_mask, rsp_param));
    call(|| {
        let (adapter, rsp) = look_up::<RspHandle>(rsp_handle)?;
        mask(rsp_param_mask.into(), SERVICE_POINT_ALL, Subtype::Arg2)?;
        given(rsp_param, Subtype::Arg3)?;
        let param = adapter.with(|open| {
            let param = open.ia.rsp_query(rsp)?;
            Ok(CRspParam {
                ia_handle: open.ia_handle(),
                conn_qual: param.conn_qual.0,
                evd_handle: open.name(adapter, param.evd),
                ep_handle: param.ep.and_then(|ep| open.known(ep)).unwrap_or(null_mut()),
            })
        })?;
        // SAFETY: contract ROOM.
        unsafe { put(rsp_param, param) };
        Ok(())
    })
}

/// `dat_rsp_free`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_rsp_free(rsp_handle: DatHandle) -> DatReturn {
    foreign!(rsp_free_func(rsp_handle));
    on(rsp_handle, |open, rsp: RspHandle| {
        open.ia.rsp_free(rsp)?;
        open.forget(rsp);
        let freed = number(rsp_handle);
        open.records.reserved.retain(|point| point.handle != freed);
        Ok(())
    })
}

/// `dat_cr_query`.
///
/// # Safety
/// `cr_param` is null or points to a `DAT_CR_PARAM`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_cr_query(
    cr_handle: DatHandle,
    cr_param_mask: u32,
    cr_param: *mut CCrParam,
) -> DatReturn {
    foreign!(cr_query_func(cr_handle, cr_param_mask, cr_param));
    call(|| {
        let (adapter, cr) = look_up::<CrHandle>(cr_handle)?;
        mask(cr_param_mask.into(), REQUEST_ALL, Subtype::Arg2)?;
        given(cr_param, Subtype::Arg3)?;
        let param = adapter.with(|open| {
            let param = open.ia.cr_query(cr)?;
            let (local_ep, remote_port_qual) = (param.local_ep, param.remote_port_qual);
            let local_ep_handle = local_ep.map_or(null_mut(), |ep| open.name(adapter, ep));
            let record = open.records.requests.get(&number(cr_handle));
            Ok(CCrParam {
                remote_ia_address_ptr: record.map_or(null_mut(), |record| record.remote.pointer()),
                remote_port_qual,
                private_data_size: as_count(record.map_or(0, |record| record.private_data.len())),
                private_data: record.map_or(null(), |record| record.private_data.as_ptr().cast()),
                local_ep_handle,
            })
        })?;
        // SAFETY: contract ROOM.
        unsafe { put(cr_param, param) };
        Ok(())
    })
}

/// `dat_cr_accept`.
///
/// # Safety
/// `private_data` is null or has `private_data_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_cr_accept(
    cr_handle: DatHandle,
    ep_handle: DatHandle,
    private_data_size: DatCount,
    private_data: *const c_void,
) -> DatReturn {
    foreign!(cr_accept_func(cr_handle, ep_handle: HandleEp, private_data_size, private_data));
    call(|| {
        let (adapter, ia, cr) = owned::<CrHandle>(cr_handle)?;
        // SAFETY: contract GIVEN.
        let data = unsafe {
            bytes(
                private_data_size,
                private_data,
                Subtype::Arg3,
                Subtype::Arg4,
            )
        }?;
        let ep = optional::<EpHandle>(ia, ep_handle);
        adapter.with(|open| {
            open.ia.cr_accept(cr, ep, data)?;
            open.forget_request(cr, cr_handle);
            Ok(())
        })
    })
}

/// `dat_cr_reject`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_cr_reject(cr_handle: DatHandle) -> DatReturn {
    foreign!(cr_reject_func(cr_handle));
    on(cr_handle, |open, cr: CrHandle| {
        open.ia.cr_reject(cr)?;
        open.forget_request(cr, cr_handle);
        Ok(())
    })
}

/// Rejects a request with private data. DAT 1.2 has no such call; it is DAT 2.0's `dat_cr_reject`.
///
/// # Safety
/// `private_data` is null or has `private_data_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_cr_reject_with(
    cr_handle: DatHandle,
    private_data_size: DatCount,
    private_data: *const c_void,
) -> DatReturn {
    call(|| {
        let (adapter, cr) = look_up::<CrHandle>(cr_handle)?;
        // SAFETY: contract GIVEN.
        let data = unsafe {
            bytes(
                private_data_size,
                private_data,
                Subtype::Arg2,
                Subtype::Arg3,
            )
        }?;
        adapter.with(|open| {
            open.ia.cr_reject_with(cr, data)?;
            open.forget_request(cr, cr_handle);
            Ok(())
        })
    })
}

/// `dat_cr_handoff`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_cr_handoff(cr_handle: DatHandle, handoff: u64) -> DatReturn {
    foreign!(cr_handoff_func(cr_handle, handoff));
    call(|| {
        let (adapter, cr) = look_up::<CrHandle>(cr_handle)?;
        adapter.with(|open| {
            open.ia.cr_handoff(cr, ConnQual(handoff))?;
            open.forget_request(cr, cr_handle);
            Ok(())
        })
    })
}
