#!/usr/bin/env bash
# RabbitMQ's management API, which answers 200 with `"routed": false` when a message went nowhere.

source "$(dirname "$0")/common.sh"
command -v rabbitmq-server >/dev/null || debian rabbitmq-server

# A node of its own, with ports, files and name server of its own.
api="$(port)"
export ERL_EPMD_PORT ERL_EPMD_ADDRESS=127.0.0.1 RABBITMQ_NODENAME=outbox@localhost HOME="$work"
ERL_EPMD_PORT="$(port)"
export RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 RABBITMQ_NODE_PORT RABBITMQ_DIST_PORT
RABBITMQ_NODE_PORT="$(port)"
RABBITMQ_DIST_PORT="$(port)"
export RABBITMQ_MNESIA_BASE="$work/data" RABBITMQ_LOG_BASE="$work/logs" RABBITMQ_PID_FILE="$work/pid"
export RABBITMQ_ENABLED_PLUGINS_FILE="$work/plugins" RABBITMQ_CONFIG_FILE="$work/rabbitmq.conf"
export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1}"
echo "[rabbitmq_management]." >plugins
cat >rabbitmq.conf <<CONF
management.tcp.ip = 127.0.0.1
management.tcp.port = $api
CONF
mkdir data logs
chmod 777 "$work" data logs
# The script of Debian changes to its own user; the server itself is right behind it.
server="$(ls /usr/lib/rabbitmq/bin/rabbitmq-server)"
start "$server"
at_end() { epmd -port "$ERL_EPMD_PORT" -kill >/dev/null 2>&1 || true; }
listening "$api"

call() { curl -sS --fail-with-body -u guest:guest -H 'Content-Type: application/json' "$@"; }
command -v curl >/dev/null || debian curl
for _ in $(seq 100); do
  call "http://127.0.0.1:$api/api/overview" >overview 2>/dev/null && break
  sleep 0.2
done
python3 -c 'import json; print("RabbitMQ", json.load(open("overview"))["rabbitmq_version"])'

settings() {
  cat >outbox.toml <<CONF
[channel.sales]
url = "http://127.0.0.1:$api/api/exchanges/%2F/amq.direct/publish"
basic = { user = "guest", password = { env = "RABBIT" } }
$1
CONF
}
publish='{"properties": {}, "routing_key": "sales", "payload": "sale N", "payload_encoding": "string"}'
rule='reply = { equals = { "/routed" = true } }'

step "without a rule, a 200 is a delivery: the messages are gone"
till 3 sales "$publish"
settings ""
RABBIT=guest drain 0

step "with the rule, a message that went nowhere stays"
till 5 sales "$publish"
settings "$rule"
RABBIT=guest drain 3
harmless
expect reply_rule "SELECT reason_code FROM outbox_channel"

step "a wrong password"
RABBIT=wr0ng-rabbit drain 3 --now
harmless
expect unauthorised "SELECT reason_code FROM outbox_channel"
if grep -l wr0ng-rabbit till.db*; then die "the password is in the file"; fi

step "the queue is bound"
call -X PUT "http://127.0.0.1:$api/api/queues/%2F/sales" -d '{"durable": true}'
call -X POST "http://127.0.0.1:$api/api/bindings/%2F/e/amq.direct/q/sales" -d '{"routing_key": "sales"}' >/dev/null
RABBIT=guest drain 0 --now
call -X POST "http://127.0.0.1:$api/api/queues/%2F/sales/get" \
  -d '{"count": 100, "ackmode": "ack_requeue_false", "encoding": "auto"}' >got
python3 -c '
import json
got = sorted(it["payload"] for it in json.load(open("got")))
print("in the queue:", ", ".join(got))
assert got == [f"sale {i}" for i in range(5)], got'
