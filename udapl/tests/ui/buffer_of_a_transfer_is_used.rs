//! A buffer that was moved into a transfer belongs to the device until the transfer returns it.

//~ error[E0382]: borrow of moved value: `buffer`

use udapl::future::{Buffer, Endpoint};

async fn sends(endpoint: &Endpoint, mut buffer: Buffer) {
    let sending = endpoint.send(buffer);
    let _changed = buffer.fill(b"too late");
    let _back = sending.await;
}

fn main() {}
