//! A batch borrows the IA exclusively, because another post would ring the doorbell for an unfinished batch.

//~ error[E0501]: cannot borrow `*ia` as mutable because previous closure requires unique access
//~ error[E0500]: closure requires unique access to `*ia` but it is already borrowed

use udapl::memory::LmrSlice;
use udapl::{CompletionFlags, DtoCookie, EpHandle, Ia};

fn posts(ia: &mut Ia, ep: EpHandle, message: LmrSlice) {
    let flags = CompletionFlags::empty();
    let _posted = ia.batch(ep, |batch| {
        batch.send(&[message], DtoCookie(1), flags)?;
        ia.ep_post_send(ep, &[message], DtoCookie(2), flags)
    });
}

fn main() {}
