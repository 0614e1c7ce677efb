//! Only one thread at a time can use an IA.

//~ error[E0499]: cannot borrow `*ia` as mutable more than once at a time

use udapl::{EvdHandle, Ia};

fn both_poll(ia: &mut Ia, one: EvdHandle, other: EvdHandle) {
    std::thread::scope(|scope| {
        scope.spawn(|| ia.evd_dequeue(one).is_ok());
        scope.spawn(|| ia.evd_dequeue(other).is_ok());
    });
}

fn main() {}
