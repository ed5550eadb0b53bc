#!/usr/bin/env bash
# nginx as reverse proxy before a backend that is stopped, slow, limited and restarted.

source "$(dirname "$0")/common.sh"
command -v nginx >/dev/null || debian nginx-light
nginx -v

front="$(port)"
back="$(port)"
: >ledger
mkdir logs
cat >nginx.conf <<CONF
$([ "$(id -u)" != 0 ] || echo "user root;")
daemon off;
worker_processes 1;
pid nginx.pid;
error_log logs/error.log;
events {}
http {
  access_log off;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  limit_req_zone \$binary_remote_addr zone=till:1m rate=20r/s;
  server {
    listen 127.0.0.1:$front;
    proxy_read_timeout 1s;
    location / { proxy_pass http://127.0.0.1:$back; }
    location /limited { limit_req zone=till; proxy_pass http://127.0.0.1:$back; }
    location /limited429 {
      limit_req zone=till;
      limit_req_status 429;
      add_header Retry-After 1 always;
      proxy_pass http://127.0.0.1:$back;
    }
  }
}
CONF
cat >outbox.toml <<CONF
[channel.sales]
url = "http://127.0.0.1:$front/sales"
[channel.limited]
url = "http://127.0.0.1:$front/limited"
[channel.limited429]
url = "http://127.0.0.1:$front/limited429"
CONF

serve() {
  start nginx -p "$work" -c nginx.conf
  nginx=$pid
  listening "$front"
}

# Drains again and again, as a till would, until nothing is left.
persist() {
  local rounds=0
  until "$outbox" drain till.db --config outbox.toml --now >last 2>&1; do
    rounds=$((rounds + 1))
    [ "$rounds" -lt 100 ] || die "not delivered in 100 drains: $(cat last)"
    sleep 0.3
  done
  expect 0 "SELECT count(*) FROM outbox WHERE status <> 'sent'"
  echo "delivered after $((rounds + 1)) drains; most charged attempts of one message:" \
    "$(sql "SELECT max(attempts) FROM outbox")"
}

step "the backend is stopped: 502"
serve
till 20
drain 3
harmless
expect http_502 "SELECT reason_code FROM outbox_channel"

step "the backend is slow: 504"
start python3 "$here/backend.py" "$back" 3
slow=$pid
listening "$back"
drain 3
harmless
expect http_504 "SELECT reason_code FROM outbox_channel"
stop "$slow"

step "nginx is stopped too: refused"
stop "$nginx"
drain 3
harmless
expect refused "SELECT reason_code FROM outbox_channel"

step "everything is back"
serve
start python3 "$here/backend.py" "$back"
listening "$back"
drain 0 --now
ledger 20

step "limited to 20 requests a second, 503 without Retry-After"
: >ledger
till 20 limited
persist
ledger 20

step "limited to 20 requests a second, 429 with Retry-After"
: >ledger
till 5 limited429
persist
ledger 5

step "restarted in the middle of a drain"
: >ledger
till 2000
("$outbox" drain till.db --config outbox.toml >first 2>&1 || true) &
first=$!
until [ "$(wc -l <ledger)" -ge 300 ]; do sleep 0.02; done
stop "$nginx"
sleep 1
serve
wait "$first"
head -n 1 first
persist
ledger 2000
