//! A driver as a task of tokio; needs the feature `tokio`.

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

use super::driver::Driver;
use super::error::Error;

/// Drives an adapter in a tokio runtime that has I/O and time enabled, beside the tasks that use the adapter. Returns
/// the error that ends the driving. Dropping the future stops it, and the driver can be driven again.
///
/// ```no_run
/// # async fn program(mut driver: udapl::future::Driver) {
/// let handle = driver.handle();
/// tokio::select! {
///     error = udapl::future::drive(&mut driver) => eprintln!("{error}"),
///     () = async { /* tasks with `handle` */ drop(handle) } => {}
/// }
/// # }
/// ```
pub async fn drive(driver: &mut Driver) -> Error {
    let descriptor = match driver.descriptor() {
        Ok(descriptor) => descriptor,
        Err(error) => return error,
    };
    #[expect(
        deprecated,
        reason = "its successor is unsafe, for what may name a descriptor that it does not own; this one owns it"
    )]
    let descriptor = match AsyncFd::with_interest(descriptor, Interest::READABLE) {
        Ok(descriptor) => descriptor,
        Err(error) => return Error::Runtime(error),
    };
    let descriptor = &descriptor;
    driver
        .run(|longest| async move {
            // A timeout is no error: `run` processes events after it, too.
            if let Ok(Ok(mut readable)) = timeout(longest, descriptor.readable()).await {
                readable.clear_ready();
            }
        })
        .await
}
