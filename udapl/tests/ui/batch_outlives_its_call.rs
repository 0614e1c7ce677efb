//! The call `batch` rings the doorbell at its end, so nothing can be posted to the batch later.

//~ error[E0521]: borrowed data escapes outside of closure
//~ error[E0521]: borrowed data escapes outside of closure

use udapl::memory::LmrSlice;
use udapl::{CompletionFlags, DtoCookie, EpHandle, Ia};

fn posts(ia: &mut Ia, ep: EpHandle, message: LmrSlice) {
    let mut kept = None;
    let _posted = ia.batch(ep, |batch| {
        kept = Some(batch);
        Ok(())
    });
    if let Some(batch) = kept {
        let _late = batch.send(&[message], DtoCookie(1), CompletionFlags::empty());
    }
}

fn main() {}
