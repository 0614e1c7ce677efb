//! Correct versions of the other programs.

use udapl::future::{Buffer, Endpoint};
use udapl::memory::LmrSlice;
use udapl::wait::Arm;
use udapl::{CompletionFlags, DtoCookie, EpHandle, EvdHandle, Ia};

fn sleeps(ia: &mut Ia, events: EvdHandle) {
    if let Ok(Arm::Armed(armed)) = ia.arm(&[events]) {
        armed.sleep();
    }
    let _event = ia.evd_dequeue(events);
}

fn posts(ia: &mut Ia, ep: EpHandle, message: LmrSlice) {
    let flags = CompletionFlags::empty();
    let _posted = ia.batch(ep, |batch| batch.send(&[message], DtoCookie(1), flags));
    let _posted = ia.ep_post_send(ep, &[message], DtoCookie(2), flags);
}

async fn sends(endpoint: &Endpoint, buffer: Buffer) {
    let (_sent, mut buffer) = endpoint.send(buffer).await;
    let _filled = buffer.fill(b"in time");
}

fn in_another_thread(ia: Ia) {
    std::thread::spawn(move || drop(ia));
}

fn main() {}
