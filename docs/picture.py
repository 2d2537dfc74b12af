#!/usr/bin/env python3
"""A picture of a terminal: reads what `tmux capture-pane -e -p` prints, writes a PNG by ImageMagick's convert.

usage: tmux capture-pane -e -p -t PANE | docs/picture.py OUT.png

Characters are drawn by the font; block characters as rectangles of their cell, as terminals do."""
import re
import subprocess
import sys
import unicodedata

W, H, SIZE = 9, 19, 15
FONT = "DejaVu-Sans-Mono"
BACK, FORE = "#101418", "#d0d4d8"
BASIC = ["#000000", "#cd3131", "#0dbc79", "#e5e510", "#2472c8", "#bc3fbc", "#11a8cd", "#e5e5e5",
         "#666666", "#f14c4c", "#23d18b", "#f5f543", "#3b8eea", "#d670d6", "#29b8db", "#ffffff"]


def colour(n):
    if n < 16:
        return BASIC[n]
    if n >= 232:
        v = 8 + 10 * (n - 232)
        return f"#{v:02x}{v:02x}{v:02x}"
    n -= 16
    levels = [0, 95, 135, 175, 215, 255]
    return "#%02x%02x%02x" % (levels[n // 36], levels[n // 6 % 6], levels[n % 6])


def mix(a, b, t):
    x, y = (tuple(int(c[i:i + 2], 16) for i in (1, 3, 5)) for c in (a, b))
    return "#%02x%02x%02x" % tuple(round(p + (q - p) * t) for p, q in zip(x, y))


def cells(text):
    """Rows of (glyph, foreground, background, bold)."""
    rows = []
    for line in text.split("\n"):
        fore, back, bold, dim, reverse, row = FORE, BACK, False, False, False, []
        for part in re.findall(r"\x1b\[[0-9;]*m|\x1b.|[^\x1b]", line):
            if not part.startswith("\x1b"):
                f = mix(fore, BACK, 0.45) if dim else fore
                row.append((part, back, f, bold) if reverse else (part, f, back, bold))
                continue
            codes = [int(c or 0) for c in part[2:-1].split(";")] if part.startswith("\x1b[") else []
            i = 0
            while i < len(codes):
                c = codes[i]
                if c == 0:
                    fore, back, bold, dim, reverse = FORE, BACK, False, False, False
                elif c == 1:
                    bold = True
                elif c == 2:
                    dim = True
                elif c == 7:
                    reverse = True
                elif c == 27:
                    reverse = False
                elif c == 22:
                    bold = dim = False
                elif c in (38, 48) and codes[i + 1:i + 2] == [5]:
                    fore, back = (colour(codes[i + 2]), back) if c == 38 else (fore, colour(codes[i + 2]))
                    i += 2
                elif 30 <= c <= 37:
                    fore = colour(c - 30)
                elif c == 39:
                    fore = FORE
                elif 40 <= c <= 47:
                    back = colour(c - 40)
                elif c == 49:
                    back = BACK
                i += 1
        rows.append(row)
    while rows and not rows[-1]:
        rows.pop()
    return rows


def main():
    rows = cells(sys.stdin.read())
    width = max(len(r) for r in rows) * W
    out = [f"viewbox 0 0 {width} {len(rows) * H}", f"fill '{BACK}' rectangle 0,0 {width},{len(rows) * H}",
           f"font-size {SIZE}", f"font {FONT}"]
    shade = {"█": 1, "▓": 0.75, "▒": 0.5, "░": 0.3}
    for y, row in enumerate(rows):
        for x, (glyph, fore, back, bold) in enumerate(row):
            left, top = x * W, y * H
            if back != BACK:
                out.append(f"fill '{back}' rectangle {left},{top} {left + W - 1},{top + H - 1}")
            if glyph in shade:
                out.append(f"fill '{mix(back, fore, shade[glyph])}' rectangle {left},{top} {left + W - 1},{top + H - 1}")
            elif "▁" <= glyph <= "▇":
                high = round(H * (ord(glyph) - 0x2580) / 8)
                out.append(f"fill '{fore}' rectangle {left},{top + H - high} {left + W - 1},{top + H - 1}")
            elif glyph != " " and unicodedata.category(glyph)[0] != "C":
                quoted = glyph.replace("\\", "\\\\").replace("'", "\\'")
                face = FONT + ("-Bold" if bold else "")
                out.append(f"font {face} fill '{fore}' text {left},{top + H - 5} '{quoted}'")
    subprocess.run(["convert", "mvg:-", "-depth", "8", "-colors", "64", sys.argv[1]], input="\n".join(out).encode(),
                   check=True)


if __name__ == "__main__":
    main()
