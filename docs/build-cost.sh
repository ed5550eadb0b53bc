#!/usr/bin/env bash
# What linking the library costs: crates, time of a clean release build, size of a small program.
# Prints the table of the README. Needs cargo, strip and some minutes.

set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
export CARGO_TARGET_DIR="$scratch/target"
TIMEFORMAT='%R %U %S'

# measure NAME DEPENDENCY: builds src/main.rs from the standard input.
measure() {
  rm -rf "$scratch/target" "$scratch/hello"
  mkdir -p "$scratch/hello/src"
  cd "$scratch/hello"
  cat >src/main.rs
  printf '[package]\nname = "hello"\nedition = "2024"\n[workspace]\n[dependencies]\n%s\n' "$2" >Cargo.toml
  # The versions that were measured, where they are ours.
  cp "$root/Cargo.lock" .
  cargo fetch -q
  read -r real user sys < <({ time cargo build -q --release >&2; } 2>&1 | tail -n 1)
  crates=$(($(cargo tree -e normal --prefix none | sed 's/ (\*)$//' | sort -u | wc -l) - 1))
  strip -o stripped "$CARGO_TARGET_DIR/release/hello"
  awk -v name="$1" -v crates="$crates" -v real="$real" -v cpu="$(echo "$user $sys" | awk '{print $1 + $2}')" \
    -v full="$(wc -c <"$CARGO_TARGET_DIR/release/hello")" -v small="$(wc -c <stripped)" \
    'BEGIN { printf "| %s | %d | %.0f s | %.0f s | %.2f MB | %.2f MB |\n", name, crates, real, cpu, full / 1e6, small / 1e6 }'
}

echo '| a program with | crates | build | CPU time | binary | stripped |'
echo '|---|---|---|---|---|---|'

measure 'nothing' '' <<'RUST'
fn main() {
    println!("hello");
}
RUST

measure '`rusqlite`, bundled' 'rusqlite = { version = "0.40", features = ["bundled"] }' <<'RUST'
fn main() {
    let conn = rusqlite::Connection::open("till.db").unwrap();
    conn.execute_batch("CREATE TABLE IF NOT EXISTS sale (id TEXT)").unwrap();
}
RUST

measure '`sqlite-outbox` without `http`' \
  "sqlite-outbox = { path = \"$root\", default-features = false, features = [\"bundled\"] }" <<'RUST'
use sqlite_outbox::{Delivery, Message, Outbox, Outcome};

fn main() -> sqlite_outbox::Result<()> {
    let outbox = Outbox::open("till.db")?;
    outbox.transaction(|tx| outbox.enqueue(tx, &Message::text("sales", "hello")))?;
    println!("{}", outbox.drain(&|_: &Delivery| Ok(Outcome::delivered()))?.sent);
    Ok(())
}
RUST

measure '`sqlite-outbox`' "sqlite-outbox = { path = \"$root\" }" <<'RUST'
use sqlite_outbox::{HttpDispatcher, Message, Outbox, Route};

fn main() -> sqlite_outbox::Result<()> {
    let outbox = Outbox::open("till.db")?;
    outbox.transaction(|tx| outbox.enqueue(tx, &Message::text("sales", "hello")))?;
    let route = Route::post("https://erp.example/sales");
    let erp = HttpDispatcher::builder().channel("sales", route).build()?;
    println!("{}", outbox.drain(&erp)?.sent);
    Ok(())
}
RUST
