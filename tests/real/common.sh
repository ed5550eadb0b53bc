# What the scripts beside this file share. Each of them runs the tool `outbox` against a real
# program on this machine's loopback, installs what it needs, ends what it started, and leaves what
# it printed in a file of its own name, `NAME.out`.

set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
name="$(basename "$0" .sh)"

if [ -z "${OUTBOX_REAL:-}" ]; then
  OUTBOX_REAL=1 timeout 300 bash "$0" 2>&1 | tee "$here/$name.out"
  exit "${PIPESTATUS[0]}"
fi

root="$(cd "$here/../.." && pwd)"
# rustc's own folder may be anywhere; programs of the system are here.
PATH="$PATH:/usr/sbin:/sbin"
(cd "$root" && cargo build -q --locked --all-features --bin outbox 2>/dev/null)
outbox="$(cd "$root" && cd "${CARGO_TARGET_DIR:-target}" && pwd)/debug/outbox"
work="$(mktemp -d)"
started=()
cd "$work"
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY SSL_CERT_FILE SSL_CERT_DIR

stop() {
  kill "$1" 2>/dev/null || true
  wait "$1" 2>/dev/null || true
}

finish() {
  local code=$?
  for pid in ${started[@]+"${started[@]}"}; do
    stop "$pid"
  done
  if type at_end >/dev/null 2>&1; then at_end; fi
  cd / && rm -rf "$work"
  [ "$code" != 0 ] || echo "$name: all as it should be ($SECONDS s)"
  exit "$code"
}
trap finish EXIT

step() { printf '\n== %s\n' "$*"; }
die() { echo "FAILED: $*"; exit 1; }

# Installs Debian packages that are missing, as root or by sudo, without starting their services.
debian() {
  local as=()
  [ "$(id -u)" = 0 ] || as=(sudo -n)
  "${as[@]}" apt-get update -qq </dev/null >/dev/null
  "${as[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
    apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null 2>&1
}

# A port that nobody uses now.
port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Runs a program in the background, to be ended with the script; its number is in $pid.
start() {
  "$@" >>"log.$(basename "$1")" 2>&1 &
  pid=$!
  started+=("$pid")
}

# Waits until something listens on the port.
listening() {
  for _ in $(seq 300); do
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return
    sleep 0.1
  done
  die "nobody listens on the port"
}

# A new till.db with this many messages of one channel.
till() {
  local count=$1 channel=${2:-sales} payload=${3:-'{"sale": N}'}
  rm -f till.db till.db-wal till.db-shm
  "$outbox" init till.db >/dev/null
  python3 - "$count" "$channel" "$payload" <<'PY'
import sqlite3, sys
count, channel, payload = int(sys.argv[1]), sys.argv[2], sys.argv[3]
db = sqlite3.connect("till.db")
with db:
    for i in range(count):
        db.execute("INSERT INTO outbox (channel, dedupe_key, payload) VALUES (?, ?, ?)",
                   (channel, f"S-{i}", payload.replace("N", str(i))))
PY
}

# Drains and wants this exit code: 0 all sent, 3 something is left.
drain() {
  local wanted=$1 code=0
  shift
  "$outbox" drain till.db --config outbox.toml --deadline 30s "$@" 2>&1 || code=$?
  [ "$code" = "$wanted" ] || die "outbox drain ended with $code, not $wanted"
}

sql() {
  python3 -c 'import sqlite3, sys
for row in sqlite3.connect("till.db").execute(sys.argv[1]):
    print(*row, sep=" | ")' "$1"
}

# Wants this answer of a query.
expect() {
  local found
  found="$(sql "$2")"
  [ "$found" = "$1" ] || die "$2: $found, not $1"
}

# No message is dead or charged.
harmless() {
  expect 0 "SELECT count(*) FROM outbox WHERE status IN ('dead', 'expired') OR attempts > 0"
  sql "SELECT 'channel ' || channel, state, coalesce(reason_code, ''), coalesce(reason, '') FROM outbox_channel"
}

# How many different messages, and how many requests, the backend has answered.
ledger() {
  local keys requests
  keys="$(sort -u ledger | wc -l)"
  requests="$(wc -l <ledger)"
  echo "the backend has $keys different messages from $requests requests"
  [ "$keys" = "$1" ] || die "$keys messages arrived, not $1"
}
