//! Unfinished authentications that outlive their process ([`crate::model::parking`]).
//!
//! An exchange goes on with its challenge. A failure instead would be final for its host, which does not repeat an
//! attempt that the target has refused.

use super::{Exchanges, LAST_ANSWER_TIME, PATIENCE, Pending};
use crate::auth::{Exchange, Parties};
use crate::lines::nanos;
use crate::model::refusal::ModelResumeError as Error;
use crate::model::snapshot::AuthenticationSnapshot;
use crate::model::{Controller, Model, ModelParkError, Moment};

impl Model {
    /// Checks that no step of an authentication is computed.
    pub(in crate::model) fn check_exchanges(&self) -> Result<(), ModelParkError> {
        let mut all = self.exchanges.iter();
        match all.find(|(_, one)| one.is_computed) {
            None => Ok(()),
            Some((&(controller, queue), _)) => {
                Err(ModelParkError::Authentication { controller, queue })
            }
        }
    }

    /// Writes the unfinished authentications out at the time `now`.
    pub(in crate::model) fn park_exchanges(&self, now: Moment) -> Vec<AuthenticationSnapshot> {
        let all = self.exchanges.iter();
        all.map(|(&(controller, queue), one)| AuthenticationSnapshot {
            controller,
            queue,
            source: one.source,
            left_ns: nanos(one.until.saturating_sub(now).min(PATIENCE)),
            is_over: one.is_over,
            exchange: one.exchange.as_ref().map(Exchange::park),
        })
        .collect()
    }

    /// Goes on with an authentication of a resumed controller, and adds it to those that are resumed.
    pub(in crate::model) fn resume_exchange(
        &self,
        to: &mut Exchanges,
        controller: Option<&Controller>,
        one: &AuthenticationSnapshot,
        now: Moment,
    ) -> Result<(), Error> {
        let key = (one.controller, one.queue);
        let of = format!("authentication of queue {} of controller {}", key.1, key.0);
        let queue = controller.and_then(|of| Some((of, of.connection_of(one.queue)?)));
        let Some((controller, connection)) = queue else {
            return Err(Error::snapshot(of, "there is no such queue"));
        };
        let limit = nanos(PATIENCE);
        Error::check_range(&of, [("left_ns", one.left_ns, limit)])?;
        let is_possible = one.queue != 0 || !(one.is_over || controller.is_ready());
        let what = "its controller is ready, or it is over and has a controller";
        Error::check(is_possible, &of, what)?;
        let parties = Parties {
            host: controller.host().to_string(),
            subsystem: controller.subsystem().to_string(),
        };
        let keys = self.keys(controller.host());
        let exchange = one.exchange.as_ref().zip(keys);
        let exchange = exchange.map(|(one, keys)| Exchange::resume(one, keys.clone(), parties));
        let exchange = exchange.transpose();
        let exchange = exchange.map_err(|what| Error::snapshot(&of, what))?;
        let failure = exchange.as_ref().map(Exchange::failure);
        let left = Moment::from_nanos(one.left_ns);
        let pending = Pending {
            has_failed: failure.is_none_or(|reason| reason.is_some()),
            until: now.saturating_add(match exchange {
                Some(_) => left,
                // Also if the host has no key any more. It may connect again without one.
                None => left.min(LAST_ANSWER_TIME),
            }),
            exchange,
            is_computed: false,
            connection,
            source: one.source,
            is_over: one.is_over,
        };
        let is_new = to.insert(key, pending).is_none();
        Error::check(is_new, of, "it is there twice")
    }
}
