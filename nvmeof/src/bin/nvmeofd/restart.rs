//! Restart without reconnect: the descriptors and the state of the daemon go to its next process by systemd's store.

use std::error::Error;
use std::time::{Duration, Instant};

use nvmeof::daemon::{
    AdoptError, Daemon, DaemonError, HandOverError, PortError, Settings, check_manager,
};
use udapl::error::OpenError;
use udapl::handover::{NotAdopted, ServiceManager, StoredDescriptors, check_store, store};
use udapl::reactor::{Clock, RealClock};

/// Exit status of a process that is to be started again: EX_TEMPFAIL of sysexits.h(3head).
pub(crate) const AGAIN: u8 = 75;
/// Time that the workers have to pause. A slower disk costs the hosts their connections.
const PAUSE_LIMIT: Duration = Duration::from_secs(3);
/// Time that systemd has for its part.
const STORE_LIMIT: Duration = Duration::from_secs(3);
/// Time in which the kernel lets go of a function whose last descriptor was closed.
const FREE_LIMIT: Duration = Duration::from_secs(5);
/// Interval of attempts to open it.
const FREE_INTERVAL: Duration = Duration::from_millis(50);

fn deadline(limit: Duration) -> udapl::reactor::Instant {
    RealClock::new().now() + limit
}

/// Hands the daemon over to the next process of this service. After it has succeeded, this process ends.
pub(crate) fn hand_over(
    daemon: &mut Daemon,
    manager: Option<&ServiceManager>,
) -> Result<(), HandOverError> {
    let manager = check_manager(manager)?;
    let manager = check_store(manager, deadline(STORE_LIMIT)).map_err(HandOverError::Given)?;
    let began = Instant::now();
    let sent = daemon.hand_over(PAUSE_LIMIT, |snapshot, descriptors| {
        let (bytes, count) = (snapshot.len(), descriptors.len());
        tracing::info!(
            bytes,
            descriptors = count,
            "the state goes to the next process"
        );
        store(&manager, snapshot, descriptors, deadline(STORE_LIMIT))
    })?;
    if let Some(error) = sent.unacknowledged {
        tracing::error!(%error, "it is not known whether the next process gets the hosts");
        return Ok(());
    }
    tracing::info!(ms = began.elapsed().as_millis(), "handed over");
    Ok(())
}

/// Goes on with the daemon that an earlier process has stored. Returns `None` if its state cannot be used. Its function
/// is free then, or will be shortly.
pub(crate) fn adopt(
    stored: StoredDescriptors,
    manager: Option<&ServiceManager>,
) -> Result<Option<Daemon>, Box<dyn Error>> {
    let manager =
        manager.ok_or("descriptors of a handover were handed in without NOTIFY_SOCKET")?;
    let began = Instant::now();
    let offer = match stored.open(manager) {
        Ok(offer) => offer,
        Err(refused) => {
            log_fresh(&refused.error);
            refused.stored.forget(manager, deadline(STORE_LIMIT))?;
            return Ok(None);
        }
    };
    match Daemon::adopt(offer) {
        Ok(daemon) => {
            tracing::info!(
                ms = began.elapsed().as_millis(),
                "the hosts of the earlier process are connected to this one"
            );
            Ok(Some(daemon))
        }
        Err(AdoptError::Adapter(NotAdopted::Refused { offer, error })) => {
            log_fresh(&error);
            // A claim removes the descriptors from the store. When this process closes its own, the function is reset.
            offer.claim.take()?.end(Err("it is not used"));
            Ok(None)
        }
        // Another process may have the function.
        Err(AdoptError::Adapter(NotAdopted::Claim { error, .. })) => Err(error.into()),
        Err(error) => {
            log_fresh(&error);
            Ok(None)
        }
    }
}

fn log_fresh(error: &dyn Error) {
    tracing::error!(%error, "the state of the earlier process is not used: its function is reset, and hosts connect anew");
}

/// Starts a daemon whose function another process has just let go.
pub(crate) fn start(settings: &Settings) -> Result<Daemon, Box<dyn Error>> {
    let until = Instant::now() + FREE_LIMIT;
    loop {
        match Daemon::start(settings) {
            // A descriptor that was not handed in does not come later.
            Err(DaemonError::Port {
                port,
                error: PortError::Open(error),
            }) if !matches!(error, OpenError::HandedIn { .. }) && Instant::now() < until => {
                tracing::debug!(port, %error, "the function is not free yet");
                let clock = RealClock::new();
                clock.wait(&[], clock.now() + FREE_INTERVAL);
            }
            started => return Ok(started?),
        }
    }
}
