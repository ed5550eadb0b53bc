//! The request of a message, to be shown instead of sent.

use crate::dispatch::Delivery;
use crate::error::{Error, Result};

use super::{HttpDispatcher, request};

/// What would be sent for a message, with stand-ins for what is secret or made at sending.
///
/// A stand-in is a shell expression: `$ERP_TOKEN` for an environment variable, `$(cat '…')` for a
/// file, `$SECRET` and `$CREDENTIAL` for what has no name, `$TIMESTAMP` and `$SIGNATURE`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preview {
    /// The HTTP method.
    pub method: String,
    /// The URL with every placeholder filled in.
    pub url: String,
    /// The headers; names in lower case.
    pub headers: Vec<(String, String)>,
    /// `host:port` of the proxy, from the route or the environment.
    pub proxy: Option<String>,
}

impl HttpDispatcher {
    /// Shows the request of a message. Reads no secret and sends nothing.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidSetting`] when the channel has no route, [`Error::InvalidMessage`] when the
    /// message cannot be sent over it.
    pub fn preview(&self, delivery: &Delivery) -> Result<Preview> {
        let channel = &delivery.channel;
        let plan = self
            .plan(channel)
            .ok_or_else(|| Error::InvalidSetting(format!("no route for channel {channel}")))?;
        let head = request::head(plan, delivery).map_err(|reason| Error::InvalidMessage {
            field: "request",
            reason: format!("cannot be built: {reason}"),
        })?;
        let mut headers = head.shown();
        let credentials = plan.purses.iter().map(|it| it.scheme.stand_in());
        let mut add = |name: &str, value: String| {
            headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
            headers.push((name.to_ascii_lowercase(), value));
        };
        for (name, value) in credentials {
            add(name, value);
        }
        if plan.sign.is_some() {
            add("webhook-id", head.webhook_id().into());
            add("webhook-timestamp", "$TIMESTAMP".into());
            add("webhook-signature", "$SIGNATURE".into());
        }
        Ok(Preview {
            method: plan.method.to_string(),
            url: head.url(),
            headers,
            proxy: plan.proxy.clone(),
        })
    }
}
