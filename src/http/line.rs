//! Connections: one agent for all routes that share their connection settings.

use std::cell::Cell;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use ureq::Agent;
use ureq::config::Config;
use ureq::http::{Request, Response};
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::transport::{
    ConnectProxyConnector, ConnectionDetails, Connector, RustlsConnector, TcpConnector, Transport,
};

use super::names::Names;
use super::secret;
use super::wire::{self, Wire};

/// Idle connections are closed after this: before most servers and routers forget them.
const IDLE: Duration = Duration::from_secs(45);

/// How long to wait for `100 Continue` before the body is sent anyway.
const CONTINUE: Duration = Duration::from_secs(1);

pub(super) const USER_AGENT: &str = concat!("sqlite-outbox/", env!("CARGO_PKG_VERSION"));

/// What a connection depends on.
#[derive(Clone, PartialEq)]
pub(super) struct Settings {
    /// One exchange, from the lookup to the end of the body.
    pub(super) timeout: Duration,
    pub(super) connect_timeout: Duration,
    /// How long a body may take once the status is known.
    pub(super) body_timeout: Duration,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) client_cert: Option<(PathBuf, PathBuf)>,
    pub(super) proxy: Option<ureq::Proxy>,
    pub(super) pool: usize,
    pub(super) hosts: usize,
}

impl Settings {
    /// Reads the certificate files.
    fn config(&self) -> Result<Config, String> {
        let roots = match &self.ca_file {
            Some(path) => RootCerts::new_with_certs(&certificates(path)?),
            None => RootCerts::PlatformVerifier,
        };
        let client = match &self.client_cert {
            Some((chain, key)) => Some(client_cert(chain, key)?),
            None => None,
        };
        let tls = TlsConfig::builder()
            .root_certs(roots)
            .client_cert(client)
            .unversioned_rustls_crypto_provider(provider())
            .build();
        // The global timeout costs nothing here: it is our own lookup that does without a thread.
        Ok(Agent::config_builder()
            .tls_config(tls)
            .proxy(self.proxy.clone())
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(USER_AGENT)
            .timeout_global(Some(self.timeout))
            .timeout_connect(Some(self.connect_timeout))
            .timeout_recv_body(Some(self.body_timeout))
            .timeout_await_100(Some(CONTINUE))
            .input_buffer_size(wire::READ)
            .output_buffer_size(wire::WRITTEN)
            .max_idle_age(IDLE)
            .max_idle_connections(self.pool.saturating_mul(self.hosts))
            .max_idle_connections_per_host(self.pool)
            .build())
    }
}

/// An agent that can be replaced while it is in use.
#[derive(Debug)]
pub(super) struct Line {
    settings: Settings,
    names: Names,
    agent: RwLock<Agent>,
}

impl Line {
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A proxy's URL may hold a login.
        f.debug_struct("Settings").finish_non_exhaustive()
    }
}

impl Line {
    pub(super) fn new(settings: Settings, names: Names) -> Result<Self, String> {
        let agent = agent(settings.config()?, &names);
        Ok(Self {
            settings,
            names,
            agent: RwLock::new(agent),
        })
    }

    pub(super) fn has(&self, settings: &Settings) -> bool {
        self.settings == *settings
    }

    pub(super) fn forget(&self, place: &str) {
        self.names.forget(place);
    }

    /// Starts anew with certificates read again: those that just failed may have been mended.
    pub(super) fn renew(&self) {
        if let Ok(config) = self.settings.config() {
            self.replace(config);
        }
    }

    /// Makes calls in flight return; later ones take a fresh agent.
    pub(super) fn interrupt(&self) {
        let config = self.agent().config().clone();
        self.replace(config).shutdown();
    }

    fn agent(&self) -> Agent {
        let held = self.agent.read().unwrap_or_else(PoisonError::into_inner);
        held.clone()
    }

    fn replace(&self, config: Config) -> Agent {
        let fresh = agent(config, &self.names);
        let mut held = self.agent.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut held, fresh)
    }

    /// Sends one request. The second part of an error says how far its connection was. `anew` takes no
    /// idle one.
    pub(super) fn run(
        &self,
        request: Request<&[u8]>,
        anew: bool,
    ) -> Result<Response<ureq::Body>, (ureq::Error, Stage)> {
        let agent = self.agent();
        let request = match anew {
            true => agent
                .configure_request(request)
                .max_idle_age(Duration::ZERO)
                .build(),
            false => request,
        };
        STAGE.set(Stage::Idle);
        wire::SENT.set(0);
        agent.run(request).map_err(|error| (error, STAGE.get()))
    }
}

fn agent(config: Config, names: &Names) -> Agent {
    let connector = Begun
        .chain(ConnectProxyConnector::default())
        .chain(TcpConnector::default())
        .chain(Reached)
        .chain(RustlsConnector::default())
        .chain(Whole);
    Agent::with_parts(config, connector, names.clone())
}

/// How far the connection of a request was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// An idle one was taken.
    Idle,
    /// A new one was asked for.
    Begun,
    /// Somebody took it, and TLS was to be agreed on, where the URL wants it.
    Reached,
    /// All of it was there.
    Whole,
}

thread_local! {
    /// Of the present request of this thread: ureq does not tell, and it connects on the calling
    /// thread.
    static STAGE: Cell<Stage> = const { Cell::new(Stage::Idle) };
}

/// Before ureq's connectors, between them and behind them: leave a note of how far it is.
#[derive(Debug)]
struct Begun;

#[derive(Debug)]
struct Reached;

/// What it connects sends together what is small.
#[derive(Debug)]
struct Whole;

impl Connector<()> for Begun {
    type Out = ();

    fn connect(&self, _: &ConnectionDetails<'_>, _: Option<()>) -> Result<Option<()>, ureq::Error> {
        STAGE.set(Stage::Begun);
        Ok(None)
    }
}

impl<In: Transport> Connector<In> for Reached {
    type Out = In;

    fn connect(
        &self,
        _: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<In>, ureq::Error> {
        STAGE.set(Stage::Reached);
        Ok(chained)
    }
}

impl<In: Transport> Connector<In> for Whole {
    type Out = Wire;

    fn connect(
        &self,
        _: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Wire>, ureq::Error> {
        STAGE.set(Stage::Whole);
        Ok(chained.map(|it| Wire::new(it.boxed())))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    secret::open(path)
        .and_then(|mut it| it.read_to_end(&mut bytes))
        .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    Ok(bytes)
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, String> {
    let mut found = Vec::new();
    for item in parse_pem(&read(path)?) {
        match item {
            Ok(PemItem::Certificate(certificate)) => found.push(certificate),
            Ok(_) => {}
            Err(error) => return Err(format!("{} is no valid PEM: {error}", path.display())),
        }
    }
    match found.is_empty() {
        true => Err(format!("{} contains no certificate", path.display())),
        false => Ok(found),
    }
}

/// The program's choice of cryptography, or ring.
fn provider() -> Arc<CryptoProvider> {
    CryptoProvider::get_default()
        .cloned()
        .unwrap_or_else(|| Arc::new(rustls::crypto::ring::default_provider()))
}

/// Reads a client certificate and checks that it belongs to its key, since ureq would panic.
fn client_cert(chain: &Path, key: &Path) -> Result<ClientCert, String> {
    let certificates = certificates(chain)?;
    let pem = read(key)?;
    let (Ok(private), Ok(der)) = (
        PrivateKey::from_pem(&pem),
        PrivateKeyDer::from_pem_slice(&pem),
    ) else {
        return Err(format!("{} contains no usable private key", key.display()));
    };
    let copies = certificates
        .iter()
        .map(|it| CertificateDer::from(it.der().to_vec()))
        .collect();
    rustls::sign::CertifiedKey::from_der(copies, der, &provider()).map_err(|error| {
        format!(
            "{} and {} cannot be used together: {error}",
            chain.display(),
            key.display()
        )
    })?;
    Ok(ClientCert::new_with_certs(&certificates, private))
}
