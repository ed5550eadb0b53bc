#!/usr/bin/env bash
# mitmproxy as the intercepting proxy of a company: its own certificate authority, trusted or not.

source "$(dirname "$0")/common.sh"
if ! command -v mitmdump >/dev/null; then
  python3 -m venv "${OUTBOX_VENV:=$work/venv}" 2>/dev/null ||
    { debian python3-venv && python3 -m venv "$OUTBOX_VENV"; }
  "$OUTBOX_VENV/bin/pip" install -q --disable-pip-version-check mitmproxy
  PATH="$OUTBOX_VENV/bin:$PATH"
fi
mitmdump --version | head -n 1

proxy="$(port)"
back="$(port)"
tls="$root/tests/integration/tls"
: >ledger
start python3 "$here/backend.py" "$back" 0 "$tls/server.pem" "$tls/server.key"
listening "$back"

# The backend's own certificate is from the authority of the tests.
intercept() {
  start mitmdump --listen-host 127.0.0.1 --listen-port "$proxy" --set confdir=authority \
    --set ssl_verify_upstream_trusted_ca="$tls/ca.pem" "$@"
  mitm=$pid
  listening "$proxy"
}

settings() {
  cat >outbox.toml <<CONF
[channel.sales]
url = "https://localhost:$back/sales"
proxy = "http://${2:-}127.0.0.1:$proxy"
${1:-}
CONF
}

step "the proxy is down"
till 10
settings
drain 3
harmless
expect proxy "SELECT reason_code FROM outbox_channel"

step "its authority is not trusted"
intercept
drain 3
harmless
expect tls "SELECT reason_code FROM outbox_channel"

step "the route trusts the backend's own authority only"
settings "ca_file = \"$tls/ca.pem\""
drain 3
harmless | sed "s#$root#.#g"
expect tls "SELECT reason_code FROM outbox_channel"
[ ! -s ledger ] || die "something arrived"

step "the route names the proxy's authority"
settings 'ca_file = "authority/mitmproxy-ca-cert.pem"'
drain 0 --now
ledger 10
grep -c "POST https://.*/sales" log.mitmdump | sed 's/$/ requests were read by the proxy/'

step "the machine trusts the proxy's authority"
till 10
settings
SSL_CERT_FILE=authority/mitmproxy-ca-cert.pem drain 0
ledger 20

step "the proxy wants a login"
stop "$mitm"
intercept --proxyauth till:s3cret-pr0xy
till 10
settings 'ca_file = "authority/mitmproxy-ca-cert.pem"'
drain 3
harmless
expect unauthorised "SELECT reason_code FROM outbox_channel"

step "it gets one that is wrong, then the right one"
settings 'ca_file = "authority/mitmproxy-ca-cert.pem"' "till:wr0ng-pr0xy@"
drain 3 --now
harmless
settings 'ca_file = "authority/mitmproxy-ca-cert.pem"' "till:s3cret-pr0xy@"
drain 0 --now
ledger 30
if grep -l -e s3cret-pr0xy -e wr0ng-pr0xy till.db*; then die "the login is in the file"; fi
echo "no login is in the file"
