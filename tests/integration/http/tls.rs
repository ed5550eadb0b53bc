use super::*;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Certificates of a made-up authority, good for 127.0.0.1 from 2020 to 2120.
fn path(name: &str) -> String {
    format!(
        "{}/tests/integration/tls/{name}",
        env!("CARGO_MANIFEST_DIR")
    )
}

fn certificate(name: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path(name)).unwrap()
}

fn server(wants_client: bool) -> Server {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = if wants_client {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate("ca.pem")).unwrap();
        let verifier =
            rustls::server::WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
        builder.with_client_cert_verifier(verifier.build().unwrap())
    } else {
        builder.with_no_client_auth()
    };
    let key = PrivateKeyDer::from_pem_file(path("server.key")).unwrap();
    Server::tls(
        builder
            .with_single_cert(vec![certificate("server.pem")], key)
            .unwrap(),
    )
}

#[test]
fn a_private_authority_is_trusted_when_the_route_names_it() {
    let server = server(false);
    let dispatcher = over(Route::post(server.url("/")).ca_file(path("ca.pem")));
    for _ in 0..3 {
        delivered(send(&dispatcher, &sale()));
    }
    assert_eq!(server.accepted(), 1);
}

#[test]
fn an_unknown_authority_is_the_routes_fault_and_is_named() {
    let server = server(false);
    // The client's certificate is no authority of the server's.
    let dispatcher = over(Route::post(server.url("/")).ca_file(path("client.pem")));
    let failure = unreachable(send(&dispatcher, &sale()));
    assert_eq!(failure.code, "tls");
    assert!(failure.text.contains("certificate"), "{}", failure.text);
}

#[test]
fn an_authority_that_is_mended_is_seen_without_a_restart() {
    let server = server(false);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::copy(path("client.pem"), file.path()).unwrap();
    let dispatcher = over(Route::post(server.url("/")).ca_file(file.path()));
    std::fs::copy(path("ca.pem"), file.path()).unwrap();
    assert_eq!(unreachable(send(&dispatcher, &sale())).code, "tls");
    delivered(send(&dispatcher, &sale()));
}

#[test]
fn a_client_certificate_is_shown() {
    let server = server(true);
    let route = || Route::post(server.url("/")).ca_file(path("ca.pem"));
    let with = route().client_cert(path("client.pem"), path("client.key"));
    delivered(send(&over(with), &sale()));
    // The refusal may be overtaken by the end of the connection.
    let failure = unreachable(send(&over(route()), &sale()));
    assert!(
        matches!(failure.code.as_ref(), "tls" | "reset"),
        "{failure:?}"
    );
}

#[test]
fn certificate_files_are_checked_when_the_dispatcher_is_built() {
    let route = || Route::post("https://erp.example/");
    let cases = [
        (route().ca_file(path("none.pem")), "cannot be read"),
        (route().ca_file(path("ca.key.none")), "cannot be read"),
        (route().ca_file(path("server.key")), "no certificate"),
        (
            route().client_cert(path("client.pem"), path("server.key")),
            "cannot be used together",
        ),
        (
            route().client_cert(path("client.pem"), path("client.pem")),
            "no usable private key",
        ),
    ];
    for (route, reason) in cases {
        let error = refused(route);
        assert!(error.contains(reason), "{error}");
    }
}
