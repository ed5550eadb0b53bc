//! Which proxy a route goes through: its own setting, else the environment, never for loopback.

use std::net::IpAddr;

use super::url::{Url, split_port};

/// The variables of one scheme, the most specific first.
const HTTPS: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
const HTTP: [&str; 4] = ["http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"];
const EXCEPT: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// The proxy of a route that names one.
pub(super) fn named(proxy: &str) -> Result<ureq::Proxy, String> {
    checked(proxy).map_err(|reason| format!("the proxy {reason}"))
}

/// The proxy the environment asks for, if any. `read` looks a variable up.
pub(super) fn from_environment(
    url: &Url,
    read: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<ureq::Proxy>, String> {
    let first = |names: &[&'static str]| {
        names.iter().find_map(|name| {
            let value = read(name)?.trim().to_string();
            (!value.is_empty()).then_some((*name, value))
        })
    };
    let Some((name, proxy)) = first(if url.https { &HTTPS } else { &HTTP }) else {
        return Ok(None);
    };
    let excepted = first(&EXCEPT).is_some_and(|(_, list)| is_excepted(url, &list));
    if url.is_loopback() || excepted {
        return Ok(None);
    }
    checked(&proxy)
        .map(Some)
        .map_err(|reason| format!("the proxy of the environment variable {name} {reason}"))
}

/// ureq would go around a SOCKS proxy it was not built for without a word.
fn checked(proxy: &str) -> Result<ureq::Proxy, String> {
    let (scheme, rest) = proxy.split_once("://").unwrap_or(("http", proxy));
    if !matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https") {
        return Err(format!(
            "is of the kind {scheme}; http and https can be used"
        ));
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let place = authority.rsplit('@').next().unwrap_or_default();
    split_port(place, 80).map_err(|_| "has no valid host and port".to_string())?;
    ureq::Proxy::new(proxy).map_err(|_| "is no valid URL".to_string())
}

/// `*`, hosts (their subdomains included), `.suffix`, `*.suffix`, addresses and CIDR blocks,
/// each with an optional port, separated by commas or spaces.
fn is_excepted(url: &Url, list: &str) -> bool {
    list.split([',', ' ', '\t'])
        .map(|it| it.trim().to_ascii_lowercase())
        .filter(|it| !it.is_empty())
        .any(|entry| matches(url, &entry))
}

fn matches(url: &Url, entry: &str) -> bool {
    let address = url.host.parse::<IpAddr>().ok();
    if let (Some(address), Some((net, bits))) = (address, entry.split_once('/')) {
        return in_block(address, net, bits);
    }
    if let (Some(address), Ok(other)) = (address, entry.trim_matches(['[', ']']).parse::<IpAddr>())
    {
        return address == other;
    }
    let (name, port) = match entry.rsplit_once(':') {
        Some((name, port)) => (name, port.parse::<u16>().ok()),
        None => (entry, None),
    };
    if port.is_some_and(|it| it != url.port) {
        return false;
    }
    let name = name.trim_matches(['[', ']']);
    let suffix = name.trim_start_matches('*').trim_start_matches('.');
    match suffix {
        "" => name == "*",
        _ => {
            url.host == suffix
                || url
                    .host
                    .strip_suffix(suffix)
                    .is_some_and(|it| it.ends_with('.'))
        }
    }
}

fn in_block(address: IpAddr, net: &str, bits: &str) -> bool {
    let (Ok(net), Ok(bits)) = (net.parse::<IpAddr>(), bits.parse::<u32>()) else {
        return false;
    };
    let (left, right, width) = match (address, net) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits()), u128::from(b.to_bits()), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits(), 128),
        _ => return false,
    };
    let low = width - bits.min(width);
    left.checked_shr(low).unwrap_or(0) == right.checked_shr(low).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], Option<&'a str>);

    fn route(url: &str, environment: &[(&str, &str)]) -> Result<Option<String>, String> {
        let url = Url::parse(url).unwrap();
        let read = |name: &str| {
            let found = environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.to_string())
        };
        from_environment(&url, &read).map(|it| it.map(|it| it.host().to_string()))
    }

    #[test]
    fn the_environment_decides_and_loopback_goes_direct() {
        const P: (&str, &str) = ("HTTPS_PROXY", "http://px.example:3128");
        const ERP: &str = "https://erp.corp.example/api";
        let cases: &[Case<'_>] = &[
            (ERP, &[], None),
            (ERP, &[("HTTPS_PROXY", " ")], None),
            (ERP, &[P], Some("px.example")),
            (
                ERP,
                &[("https_proxy", "px.example:3128")],
                Some("px.example"),
            ),
            (
                ERP,
                &[("ALL_PROXY", "http://all.example"), P],
                Some("px.example"),
            ),
            (
                ERP,
                &[("ALL_PROXY", "http://all.example")],
                Some("all.example"),
            ),
            (ERP, &[("HTTP_PROXY", "http://plain.example")], None),
            ("http://erp.example", &[P], None),
            (
                "http://erp.example",
                &[("http_proxy", "http://px.example")],
                Some("px.example"),
            ),
            ("https://127.0.0.1:8443", &[P], None),
            ("https://localhost/", &[P], None),
            ("https://[::1]/", &[P], None),
            (ERP, &[P, ("NO_PROXY", "*")], None),
            (ERP, &[P, ("NO_PROXY", "a.example, erp.corp.example")], None),
            (ERP, &[P, ("no_proxy", "corp.example")], None),
            (ERP, &[P, ("NO_PROXY", ".corp.example")], None),
            (ERP, &[P, ("NO_PROXY", "*.corp.example")], None),
            (ERP, &[P, ("NO_PROXY", "erp.corp.example:443")], None),
            (
                ERP,
                &[P, ("NO_PROXY", "erp.corp.example:8443")],
                Some("px.example"),
            ),
            (
                ERP,
                &[P, ("NO_PROXY", "rp.corp.example")],
                Some("px.example"),
            ),
            (ERP, &[P, ("NO_PROXY", ", ,")], Some("px.example")),
            ("https://10.1.2.3/", &[P, ("NO_PROXY", "10.0.0.0/8")], None),
            (
                "https://11.1.2.3/",
                &[P, ("NO_PROXY", "10.0.0.0/8")],
                Some("px.example"),
            ),
            ("https://10.1.2.3/", &[P, ("NO_PROXY", "10.1.2.3")], None),
            ("https://[fd00::1]/", &[P, ("NO_PROXY", "fd00::/8")], None),
        ];
        for (url, environment, wanted) in cases {
            let found = route(url, environment).unwrap();
            assert_eq!(found.as_deref(), *wanted, "{url} {environment:?}");
        }
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_refused_aloud() {
        let error = route("https://erp.example", &[("ALL_PROXY", "socks5://px")]).unwrap_err();
        assert!(
            error.contains("ALL_PROXY") && error.contains("socks5"),
            "{error}"
        );
        for proxy in ["socks4://px", "http://px:99999", "http://", "http://u:p@"] {
            let error = named(proxy).unwrap_err();
            assert!(!error.contains("u:p"), "{error}");
        }
        assert!(named("http://user:secret@px.example:3128").is_ok());
    }
}
