//! The request of a message, to be shown instead of sent.

use std::path::{Path, PathBuf};

use crate::dispatch::Delivery;
use crate::error::{Error, Result};

use super::line::USER_AGENT;
use super::{HttpDispatcher, request};

/// What would be sent for a message, with stand-ins for what is secret or made at sending.
///
/// A stand-in is a shell expression: `$ERP_TOKEN` for an environment variable, `$(tr … <'…')` for a
/// file, without the white space around its content and empty where it has several lines, `$SECRET`,
/// `$SECRET_X_KEY` of a header `X-Key` and `$CREDENTIAL` for what has no name, `$TIMESTAMP` and `$SIGNATURE`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preview {
    /// The HTTP method.
    pub method: String,
    /// The URL with every placeholder filled in.
    pub url: String,
    /// The headers; names in lower case.
    pub headers: Vec<(String, String)>,
    /// The names of those headers whose value is a shell expression.
    pub stand_ins: Vec<String>,
    /// The variables among them that stand for secrets without a name, which a person has to fill in.
    pub to_fill_in: Vec<String>,
    /// `host:port` of the proxy, from the route or the environment.
    pub proxy: Option<String>,
    /// Whether the proxy is given a login, which is not shown.
    pub proxy_login: bool,
    /// The CA file of the route.
    pub ca_file: Option<PathBuf>,
    /// The client certificate of the route: its chain and its key.
    pub client_cert: Option<(PathBuf, PathBuf)>,
}

/// A path that means the same wherever the command is run.
fn whole(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
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
        let plan = self.plan(channel).ok_or_else(|| {
            Error::InvalidSetting(format!(
                "no route for channel {channel}: it needs one, or a default (in a settings file \
                 [channel.{channel}] or [channel.default])"
            ))
        })?;
        let head = request::head(plan, delivery).map_err(|reason| Error::InvalidMessage {
            field: "request",
            reason: format!("cannot be built: {reason}"),
        })?;
        let mut headers = head.shown();
        if headers.iter().all(|(name, _)| name != "user-agent") {
            headers.push(("user-agent".into(), USER_AGENT.into()));
        }
        let to_fill_in = plan.purses.iter().filter_map(|it| it.scheme.to_fill_in());
        let to_fill_in = to_fill_in.collect();
        let credentials = plan.purses.iter().map(|it| it.scheme.stand_in());
        let mut stand_ins = Vec::new();
        let mut add = |name: &str, value: String| {
            let name = name.to_ascii_lowercase();
            headers.retain(|(known, _)| *known != name);
            stand_ins.push(name.clone());
            headers.push((name, value));
        };
        for (name, value) in credentials {
            add(name, value);
        }
        if let Some(sign) = &plan.sign {
            let (name, value) = sign.scheme.stand_in();
            add("webhook-timestamp", "$TIMESTAMP".into());
            add(name, value);
            headers.push(("webhook-id".into(), head.webhook_id().into()));
        }
        let settings = plan.line.settings();
        Ok(Preview {
            method: plan.method.to_string(),
            url: head.url(),
            headers,
            stand_ins,
            to_fill_in,
            ca_file: settings.ca_file.as_deref().map(whole),
            client_cert: (settings.client_cert.as_ref())
                .map(|(chain, key)| (whole(chain), whole(key))),
            proxy_login: settings
                .proxy
                .as_ref()
                .is_some_and(|it| it.username().is_some() || it.password().is_some()),
            proxy: plan.proxy.clone(),
        })
    }
}
