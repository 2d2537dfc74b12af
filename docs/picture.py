#!/usr/bin/env python3
"""A picture of the viewer's screen: reads what `mkernel tui FILE --dump-screen=attributes` prints, writes an SVG.

usage: mkernel tui FILE --dump-screen=attributes --size 140x40 | docs/picture.py OUT.svg

Characters are drawn by the font; block characters as rectangles of their cell, as terminals do."""
import sys
from xml.sax.saxutils import escape

W, H, SIZE = 9, 19, 15
BACK, FORE = "#101418", "#d0d4d8"
# tui/cells.c's letters, and the colours of tui/screen.c's palette as terminals of 256 colours show them
COLOURS = {".": FORE, ",": "#8a8a8a", "T": FORE, "C": "#0087ff", "P": "#ff8700", "S": "#d75fd7", "R": "#00d7d7", "d": "#d75f5f",
           "b": "#ff5f5f", "n": "#ff0000", "B": "#5fd75f", "i": "#585858", "L": "#5fd7d7", "N": "#af87ff", "M": "#ffd700",
           "E": "#ff005f"}
SHADES = {"█": 1, "▓": 0.75, "▒": 0.5, "░": 0.3}
BOLD, REVERSE, DIM = 1, 2, 8


def mix(a, b, t):
    x, y = (tuple(int(c[i:i + 2], 16) for i in (1, 3, 5)) for c in (a, b))
    return "#%02x%02x%02x" % tuple(round(p + (q - p) * t) for p, q in zip(x, y))


def cells(text):
    """Rows of (glyph, foreground, background, bold)."""
    screen, rest = text.split("\n--- colours\n")
    colours, attributes = rest.split("\n--- attributes", 1)
    attributes = attributes.split("\n", 1)[1]
    rows = []
    for line, of, what in zip(screen.split("\n"), colours.split("\n"), attributes.split("\n")):
        row = []
        for x, (colour, digit) in enumerate(zip(of, what)):
            glyph, bits = line[x] if x < len(line) else " ", int(digit, 16)
            fore = COLOURS[colour]
            fore = mix(fore, BACK, 0.45) if bits & DIM else fore
            row.append((glyph, BACK, fore, bits & BOLD) if bits & REVERSE else (glyph, fore, BACK, bits & BOLD))
        rows.append(row)
    return rows


def shape(glyph, fore, back):
    """What of its cell a block character fills, (from the top, height, colour); None: it is no such character."""
    if glyph in SHADES:
        return 0, H, mix(back, fore, SHADES[glyph])
    if "▁" <= glyph <= "▇":
        high = round(H * (ord(glyph) - 0x2580) / 8)
        return H - high, high, fore
    return None


def runs(row, of):
    """Neighbouring cells alike: (first, end, what `of` says of them)."""
    first = 0
    for x in range(1, len(row) + 1):
        if x == len(row) or of(row[x]) != of(row[first]):
            yield first, x, of(row[first])
            first = x


def main():
    rows = cells(sys.stdin.read())
    width, height = max(len(r) for r in rows) * W, len(rows) * H
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
           f'<rect width="{width}" height="{height}" fill="{BACK}"/>',
           f'<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="{SIZE}" xml:space="preserve">']
    for y, row in enumerate(rows):
        for first, end, back in runs(row, lambda c: c[2]):
            if back != BACK:
                out.append(f'<rect x="{first * W}" y="{y * H}" width="{(end - first) * W}" height="{H}" fill="{back}"/>')
        for first, end, block in runs(row, lambda c: shape(c[0], c[1], c[2])):
            if block:
                out.append(f'<rect x="{first * W}" y="{y * H + block[0]}" width="{(end - first) * W}" height="{block[1]}" '
                           f'fill="{block[2]}"/>')
        for first, end, (fore, bold, text) in runs(row, lambda c: (c[1], c[3], not shape(*c[:3]))):
            said = "".join(c[0] for c in row[first:end])
            if text and said.strip():
                out.append(f'<text x="{first * W}" y="{y * H + H - 5}" textLength="{(end - first) * W}" fill="{fore}"'
                           f'{" font-weight=" + chr(34) + "bold" + chr(34) if bold else ""}>{escape(said)}</text>')
    open(sys.argv[1], "w").write("\n".join(out) + "\n</g>\n</svg>\n")


if __name__ == "__main__":
    main()
