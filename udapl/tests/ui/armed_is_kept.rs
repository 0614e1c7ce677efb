//! The state that `arm` returns is valid for one sleep, and must not outlive the borrow of the IA.

//~ error[E0515]: cannot return value referencing function parameter `ia`

use udapl::wait::Arm;
use udapl::{EvdHandle, Ia};

fn kept(mut ia: Ia, events: EvdHandle) -> Option<impl Sized + 'static> {
    match ia.arm(&[events]) {
        Ok(Arm::Armed(armed)) => Some(armed),
        Ok(Arm::Ready) | Err(_) => None,
    }
}

fn main() {}
