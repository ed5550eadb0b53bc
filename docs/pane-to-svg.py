#!/usr/bin/env python3
"""A captured terminal pane as an SVG that follows the reader's light or dark mode.

docs/watch.svg is made so, from a real run. In one terminal a till with trouble:

    outbox init till.db
    outbox sink --port 8081 --mood slow --delay 150ms &
    outbox sink --port 8082 --mood reject &
    printf '[channel.default]\\nurl = "http://127.0.0.1:8081/erp/{channel}"\\n' > outbox.toml
    printf '[channel.returns]\\nurl = "http://127.0.0.1:8082/returns"\\n' >> outbox.toml
    printf '[channel.mail]\\nurl = "http://127.0.0.1:8083/send"\\n' >> outbox.toml  # nobody listens
    for n in 0 1 2; do outbox enqueue till.db --channel returns --key R-2207$n {}; done
    for n in $(seq 14); do outbox enqueue till.db --channel mail --key mail-31$n {}; done
    for n in $(seq 6); do outbox enqueue till.db --channel labels --key L-$n {}; done
    outbox pause till.db labels --reason 'printer is being moved'
    outbox run till.db --config outbox.toml -q &
    for n in $(seq 104522 106000); do
        outbox enqueue till.db --channel sales --key S-$n {}
        [ $((n % 50)) = 0 ] && sleep 1.5
    done

and beside it the view, captured while the sales go through:

    tmux new-session -d -s view -x 96 -y 26 'outbox watch till.db --every 500ms'
    sleep 45
    tmux capture-pane -e -p -t view | python3 docs/pane-to-svg.py > docs/watch.svg
"""
import re
import sys
from html import escape

WIDTH, HEIGHT, MARGIN = 8.4, 18, 12  # of a character at 14 px, and around all
COLOURS = {31: "red", 32: "green", 35: "magenta"}
STYLE = """
  text { font: 14px 'DejaVu Sans Mono', Menlo, Consolas, monospace; fill: #1f2328 }
  .back { fill: #ffffff; stroke: #d1d9e0 } .bar { fill: #1f2328 }
  .red { fill: #c62828 } .green { fill: #1a7f37 }
  .magenta { fill: #8250df }
  .bold { font-weight: bold } .reverse { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .back { fill: #0d1117; stroke: #3d444d } .bar { fill: #e6edf3 }
    .red { fill: #ff7b72 } .green { fill: #3fb950 } .magenta { fill: #d2a8ff } .reverse { fill: #0d1117 }
  }
"""


def runs(line, state):
    """Pieces of a line with the style in force: (column, text, classes)."""
    column = 0
    for codes, text in re.findall(r"\x1b\[([\d;]*)m|([^\x1b]+)", line):
        if text:
            yield column, text, {name for name in state.values() if name}
            column += len(text)
            continue
        codes = re.sub(r"\b38;5;(\d)\b", r"3\1", codes)  # the palette's first eight
        for code in map(int, (codes or "0").split(";")):
            if code == 0:
                state.clear()
            elif code in (1, 7):
                state[code] = {1: "bold", 7: "reverse"}[code]
            elif code in (22, 27):
                state.pop({22: 1, 27: 7}[code], None)
            elif 30 <= code <= 39:
                state["colour"] = COLOURS.get(code)


def main():
    lines = [line.rstrip("\n") for line in sys.stdin]
    while lines and not lines[-1].strip():
        lines.pop()
    state, body, columns = {}, [], 0
    for row, line in enumerate(lines):
        top = MARGIN + row * HEIGHT
        for column, text, classes in runs(line, state):
            columns = max(columns, column + len(text))
            left, width = MARGIN + column * WIDTH, len(text) * WIDTH
            if "reverse" in classes:
                classes -= set(COLOURS.values())
                body.append(f'<rect class="bar" x="{left:.1f}" y="{top}" width="{width:.1f}" height="{HEIGHT}"/>')
            names = " ".join(sorted(classes))
            names = f' class="{names}"' if names else ""
            bars = [(at, ord(it) - 0x2580) for at, it in enumerate(text) if "▁" <= it <= "█"]
            if bars:
                shapes = (f"M{left + at * WIDTH:.1f} {top + HEIGHT}h{WIDTH}v-{n * HEIGHT / 8:g}h-{WIDTH}z" for at, n in bars)
                body.append(f'<path{names} d="{"".join(shapes)}"/>')
                text = re.sub("[▁-█]", " ", text)
            # Each on its place, whatever a renderer makes of several spaces.
            for part in re.finditer(r"\S+( \S+)*", text):
                left, width = MARGIN + (column + part.start()) * WIDTH, len(part[0]) * WIDTH
                body.append(f'<text x="{left:.1f}" y="{top + 14}" textLength="{width:.1f}"{names}>{escape(part[0])}</text>')
    width, height = columns * WIDTH + 2 * MARGIN, len(lines) * HEIGHT + 2 * MARGIN
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}">')
    print(f"<style>{STYLE}</style>")
    print(f'<rect class="back" x=".5" y=".5" width="{width - 1:.0f}" height="{height - 1}" rx="8"/>')
    print("\n".join(body))
    print("</svg>")


main()
