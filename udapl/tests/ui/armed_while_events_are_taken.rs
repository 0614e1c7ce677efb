//! Dequeuing events between arming and sleeping could lead to an endless sleep.

//~ error[E0499]: cannot borrow `*ia` as mutable more than once at a time

use udapl::wait::Arm;
use udapl::{EvdHandle, Ia};

fn sleeps(ia: &mut Ia, events: EvdHandle) {
    if let Ok(Arm::Armed(armed)) = ia.arm(&[events]) {
        let _missed = ia.evd_dequeue(events);
        armed.sleep();
    }
}

fn main() {}
