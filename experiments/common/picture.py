"""Pictures: what they share. `mkernel` runs this text and behind it that of one folder's pictures (results_plot.py, trace_plot.py,
validate_plot.py), which calls `picture`. Standard input: what is asked for, with its numbers, as JSON. Argument: png or svg, which
go to standard output, or data, which is what would be drawn, as JSON. Exit status 2 with a sentence where that cannot be drawn, 3
where matplotlib is missing."""
import io
import json
import os
import sys

DEBIANS = "/usr/bin/python3"  # Debian's packages are for this one, whichever comes first in PATH
try:
    import matplotlib.ticker
    import numpy
    from matplotlib.figure import Figure
except ImportError:
    if sys.executable != DEBIANS and os.access(DEBIANS, os.X_OK):
        os.execv(DEBIANS, [DEBIANS, *sys.argv])
    print("matplotlib is not installed (package python3-matplotlib)", file=sys.stderr)
    sys.exit(3)

# Colours that colour-blind people can tell apart (Okabe and Ito, Color Universal Design, 2008), in the order of their use.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"]
GREY = "#dddddd"
CONTROL = {c: "?" for c in (*range(32), *range(127, 160))}  # moves a cursor, and is no XML


def fail(sentence):
    print(sentence, file=sys.stderr)
    sys.exit(2)


def texts(x, table):
    """x with the characters of all its texts replaced."""
    if isinstance(x, str):
        return x.translate(table)
    if isinstance(x, dict):
        return {texts(k, table): texts(v, table) for k, v in x.items()}
    return [texts(v, table) for v in x] if isinstance(x, list) else x


def axes(title, width, height):
    """Axes of a picture of so many pixels."""
    a = Figure(figsize=(width / 100, height / 100), dpi=100).add_subplot()
    a.set_title(title, fontsize=11)
    a.spines[["top", "right"]].set_visible(False)
    a.grid(color=GREY)
    a.set_axisbelow(True)
    return a


def logarithmic(axis):
    """Numbers as people write them, also between powers of ten."""
    axis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(matplotlib.ticker.NullFormatter())


def finished(a, columns=2):
    """Axes, with a key below them that names what is drawn."""
    handles, labels = a.get_legend_handles_labels()
    rows = -(-len(labels) // columns)
    if rows:
        a.figure.legend(handles, labels, loc="lower center", ncol=columns, frameon=False, fontsize=9)
    a.figure.tight_layout(rect=(0, (rows * 20 + 8 * (rows > 0)) / 100 / a.figure.get_figheight(), 1, 1))
    return a


def picture(kinds):
    """kinds: by name, what collects the numbers of a kind from what is asked, and what draws them."""
    asked = texts(json.loads(sys.stdin.buffer.read().decode("utf-8", "replace")), CONTROL)
    collect, draw = kinds[asked["kind"]]
    drawn = collect(asked)
    if sys.argv[1] == "data":
        print(json.dumps(drawn))
        return
    matplotlib.rcdefaults()
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "mkernel"})
    made = io.BytesIO()
    a = draw(texts(drawn, {ord("$"): r"\$"}))  # no text is a formula
    a.figure.savefig(made, format=sys.argv[1], metadata={"Date": None} if sys.argv[1] == "svg" else None)
    sys.stdout.buffer.write(made.getvalue())
