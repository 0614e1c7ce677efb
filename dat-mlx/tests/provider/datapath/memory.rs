//! Registered memory.

use dat_core::provider::{DataSegment, Provider, ProviderError, QueuePair, RequestOp};
use dat_core::types::{DtoStatus, MemPrivFlags};
use driver::DmaMemory;
use hw_sim::Fault;

use super::pair::{REPORTED, pair, pattern};

/// Bytes written through the key of a region arrive in the memory, for many sizes and odd offsets.
#[test]
fn a_region_of_any_size_and_alignment_is_reached_to_its_last_byte() {
    let mut p = pair();
    let (mut qa, qb) = p.connected();
    let buffer = p.b.provider.arena().alloc(80 << 20, 4096).unwrap();
    for (offset, bytes) in [
        (0, 1),
        (1, 4095),
        (4095, 2),
        (12345, 70_000),
        ((2 << 20) - 1, 2),
        (7, (80 << 20) - 7),
    ] {
        let memory = DmaMemory::Arena {
            buffer: buffer.clone(),
            offset,
            bytes,
        };
        let mut region =
            p.b.provider
                .register(p.b.pd, &memory, MemPrivFlags::all())
                .unwrap();
        assert_eq!(
            (region.address, region.bytes),
            (buffer.address() + offset as u64, bytes as u64)
        );
        let chunk = bytes.min(64 << 10);
        let data = pattern(u8::try_from(offset % 200).unwrap(), chunk);
        p.a.buffer.write_bytes(0, &data);
        // The first bytes and the last bytes of the region.
        for at in [0, bytes - chunk] {
            let op = RequestOp::RdmaWrite {
                address: region.address + at as u64,
                rmr_context: region.rmr_context,
            };
            let segment = p.a.segment(0, u32::try_from(chunk).unwrap());
            qa.post_request(op, std::iter::once(segment), 1, REPORTED)
                .unwrap();
            assert_eq!(
                p.a.completions(&mut qa, 1)[0].status,
                DtoStatus::Success,
                "{bytes:#x} bytes at {offset:#x}"
            );
            let mut stored = vec![0; chunk];
            buffer.read_bytes(offset + at, &mut stored);
            assert_eq!(stored, data, "{bytes:#x} bytes at {offset:#x}");
        }
        p.b.provider.deregister(&mut region.region).unwrap();
    }
    p.finish(qa, qb);
}

#[test]
fn the_byte_behind_a_region_is_out_of_reach() {
    let mut p = pair();
    let (mut qa, qb) = p.connected();
    let memory = DmaMemory::Arena {
        buffer: p.b.buffer.clone(),
        offset: 100,
        bytes: 1000,
    };
    let mut region =
        p.b.provider
            .register(p.b.pd, &memory, MemPrivFlags::all())
            .unwrap();
    let op = RequestOp::RdmaWrite {
        address: region.address + 1,
        rmr_context: region.rmr_context,
    };
    qa.post_request(op, std::iter::once(p.a.segment(0, 1000)), 1, REPORTED)
        .unwrap();
    assert_eq!(
        p.a.completions(&mut qa, 1)[0].status,
        DtoStatus::ErrRemoteAccess
    );
    p.b.provider.deregister(&mut region.region).unwrap();
    p.finish(qa, qb);
}

#[test]
fn a_key_of_a_region_that_is_gone_is_refused() {
    let mut p = pair();
    let (mut qa, qb) = p.connected();
    let memory = DmaMemory::Arena {
        buffer: p.a.buffer.clone(),
        offset: 0,
        bytes: 4096,
    };
    let mut gone =
        p.a.provider
            .register(p.a.pd, &memory, MemPrivFlags::all())
            .unwrap();
    p.a.provider.deregister(&mut gone.region).unwrap();
    let segment = DataSegment {
        lmr_context: gone.lmr_context,
        address: gone.address,
        bytes: 64,
    };
    let op = super::pair::write(&p.b, 0);
    qa.post_request(op, std::iter::once(segment), 1, REPORTED)
        .unwrap();
    assert_eq!(
        p.a.completions(&mut qa, 1)[0].status,
        DtoStatus::ErrLocalProtection
    );
    p.finish(qa, qb);
}

#[test]
fn a_region_without_remote_rights_has_no_remote_key() {
    let mut p = pair();
    let memory = DmaMemory::Arena {
        buffer: p.a.buffer.clone(),
        offset: 0,
        bytes: 64,
    };
    let mut keys = std::collections::BTreeSet::new();
    for access in [
        MemPrivFlags::LOCAL_READ,
        MemPrivFlags::LOCAL_READ | MemPrivFlags::LOCAL_WRITE,
    ] {
        let mut region = p.a.provider.register(p.a.pd, &memory, access).unwrap();
        assert_eq!(region.rmr_context, 0);
        assert!(
            keys.insert(region.lmr_context & 0xff),
            "the variant changes from key to key"
        );
        p.a.provider.deregister(&mut region.region).unwrap();
    }
    p.finish_bare();
}

#[test]
fn memory_that_is_none_is_refused() {
    let mut p = pair();
    for (offset, bytes) in [(0, 0), (p.a.buffer.len(), 1), (1, p.a.buffer.len())] {
        let memory = DmaMemory::Arena {
            buffer: p.a.buffer.clone(),
            offset,
            bytes,
        };
        let outcome = p.a.provider.register(p.a.pd, &memory, MemPrivFlags::all());
        assert!(
            matches!(outcome, Err(ProviderError::Unsupported(_))),
            "{outcome:?}"
        );
    }
    p.finish_bare();
}

#[test]
fn a_refused_registration_is_an_error_with_the_devices_numbers() {
    let mut p = pair();
    p.sim.inject(
        &p.a.function,
        &Fault::CommandFailure {
            opcode: Some(0x200),
            status: 0x08,
            syndrome: 0x18af6,
            count: 1,
        },
    );
    let memory = DmaMemory::Arena {
        buffer: p.a.buffer.clone(),
        offset: 0,
        bytes: 64,
    };
    let outcome = p.a.provider.register(p.a.pd, &memory, MemPrivFlags::all());
    let Err(ProviderError::Resources(text)) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(text.contains("0x00018af6"), "{text}");
    p.finish_bare();
}
