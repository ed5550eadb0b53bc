#!/usr/bin/env bash
# Measures anew what PERFORMANCE.md shows: its table, and the plots in this folder. A quarter of an
# hour on a machine that has nothing else to do.

set -euo pipefail
cd "$(dirname "$0")/.."

table="$(mktemp)"
trap 'rm -f "$table"' EXIT
cargo bench --bench limits | tee "$table"
awk -v table="$table" '
  /<!-- table -->/ { print; print ""; while ((getline line < table) > 0) print line; print ""; skip = 1 }
  /<!-- end -->/ { skip = 0 }
  !skip && !/<!-- table -->/ { print }
' PERFORMANCE.md >"$table.md"
mv "$table.md" PERFORMANCE.md
cargo bench --bench limits -- --plot docs
