"""Pictures of results (`mkernel results FILE plot`), behind experiments/common/picture.py. A point is as `results export --json` has
it."""
SIZE = "size: bytes of the tensor that moves (of one rank: operations)"
CURVES, BARS, CELLS = 24, 60, 40  # as many as can still be told apart
WAYS = {"NVLink": ("nvlink_bytes", COLOURS[0]), "network": ("network_bytes", COLOURS[1])}


def value(point, name):
    return point["settings"].get(name, "default")


def label(point, without=None):
    """The settings that are not the same in all points."""
    return " ".join(text for name, text in point["varied"].items() if name != without) or value(point, "op")


def number(text):
    try:
        return float(text)
    except ValueError:
        return None


def words(points, name):
    """The values of a setting, each once: words as the sweep had them, then numbers in their order."""
    return sorted(dict.fromkeys(value(p, name) for p in points), key=lambda w: (number(w) is not None, number(w) or 0))


def titled(asked, what):
    return f"{asked['title']}: {what}" if asked["title"] else what


def per_rank(point):
    return point["gflops_per_rank"] and point["gflops_per_rank"] / 1e3


# ---- time, speed and efficiency: a curve for each combination of the settings that are not on the x axis


def curves(asked):
    points, kind, x = asked["points"], asked["kind"], asked["x"]
    ticks = [] if x in ("", "size") else words(points, x)
    if ticks and len(ticks) < 2:
        fail(f"--x {x}: it is the same in all points")
    numbers = all((number(w) or 0) > 0 for w in ticks)
    found = {}
    for p in points:
        y = {"time": p["ms"], "speed": per_rank(p), "efficiency": p["efficiency"]}[kind]
        at = (p["size_bytes"] or p["flop"]) if not ticks else number(value(p, x)) if numbers else ticks.index(value(p, x)) + 1
        shape = next((name for name in ("shape", "moe", "attention") if value(p, name) != "default"), None)
        if not at or (not p["ms"] and not p["published"]):
            continue
        c = found.setdefault(label(p, x if ticks else shape), {"points": [], "published": []})
        c["published"] += [[each["who"], at, each["flop_per_s"] / 1e12] for each in p["published"] if kind == "speed"]
        if p["ms"] and y:
            ends = [p["ms_low"], p["ms_high"]] if kind == "time" else [y * p["ms"] / p["ms_high"], y * p["ms"] / p["ms_low"]]
            c["points"].append([at, y, *ends])
    found = [{"label": name, "points": sorted(c["points"]), "published": c["published"]} for name, c in found.items() if c["points"]]
    if not found:
        fail({"time": "no point has a time", "speed": "no point computes",
              "efficiency": "no point has an efficiency: it is known of cuda, sim and traced points"}[kind])
    if len(found) > CURVES:
        fail(f"more than {CURVES} curves: choose with --only, or another --x")
    return {"title": titled(asked, kind), "kind": kind, "x": x if ticks else SIZE, "ticks": ticks, "words": not numbers, "curves": found}


def draw_curves(d):
    count = len(d["curves"])
    a = axes(d["title"], 1000, 500 + 24 * -(-count // 2))
    publishers = list(dict.fromkeys(who for c in d["curves"] for who, _, _ in c["published"]))
    for i, c in enumerate(d["curves"]):
        x, y, low, high = numpy.array(c["points"]).T
        aside = 0.12 / count * (i - (count - 1) / 2)  # side by side, as intervals would hide each other
        a.errorbar(x + aside if d["words"] else x * 2**aside, y, [numpy.fmax(y - low, 0), numpy.fmax(high - y, 0)], label=c["label"],
                   color=COLOURS[i % 7], marker="os^Dv<>ph8"[i % 10], linestyle=["-", "--", ":", "-."][i // 7], capsize=3)
        for who, at, tflops in c["published"]:
            a.plot(at, tflops, "x+*12|"[publishers.index(who) % 6], color=COLOURS[i % 7], ms=9, mew=2)
    for i, who in enumerate(publishers):
        a.plot([], [], "x+*12|"[i % 6], color="#000000", ms=9, mew=2, label=f"published: {who}")
    if not d["words"]:
        a.set_xscale("log", base=2)
    if d["ticks"]:
        at = range(1, len(d["ticks"]) + 1) if d["words"] else [float(w) for w in d["ticks"]]
        a.set_xticks(list(at), d["ticks"], rotation=-25 if d["words"] else 0, ha="left" if d["words"] else "center")
        a.minorticks_off()
    else:
        a.xaxis.set_major_formatter(binary)
    if d["kind"] == "efficiency":
        a.set_ylim(0)
    else:
        a.set_yscale("log")
        logarithmic(a.yaxis)
    a.set_xlabel(d["x"])
    a.set_ylabel({"time": "ms a launch, with its 95 % interval", "speed": "TFLOP/s of a rank, with its 95 % interval",
                  "efficiency": "efficiency: ideal time / time"}[d["kind"]])
    return finished(a)


def binary(x, _):
    power = max(0, min(6, int(numpy.log2(max(x, 1)) // 10)))
    return f"{x / 1024**power:g} {['', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei'][power]}B"


# ---- bars: what an ideal launch would have taken and what it took beyond; and measured beside simulated


def stack(asked):
    bars = [[label(p), p["efficiency"] * p["ms"], p["ms"]] for p in asked["points"] if p["ms"] and p["efficiency"] is not None]
    if not bars:
        fail("no point has an ideal time: it is known of cuda, sim and traced points")
    if len(bars) > BARS:
        fail(f"{len(bars)} bars are more than {BARS}: choose with --only")
    return {"title": titled(asked, "where the time goes"), "bars": bars}


def lying(d, rows, height):
    """Axes with a name a row, from the top."""
    a = axes(d["title"], 1000, height)
    a.set_yticks(range(len(rows)), [row[0] for row in rows])
    a.set_ylim(len(rows) - 0.4, -0.6)
    a.grid(False, axis="y")
    a.tick_params(axis="y", length=0)
    a.set_xlabel("ms a launch")
    return a


def draw_stack(d):
    a = lying(d, d["bars"], 120 + 34 * len(d["bars"]))
    _, ideal, ms = (numpy.array(column) for column in zip(*d["bars"]))
    a.barh(range(len(ms)), ideal, 0.7, color=COLOURS[0], label="ideal: the longest of products, memory, NVLink and network")
    a.barh(range(len(ms)), numpy.fmax(ms - ideal, 0), 0.7, ideal, color=COLOURS[1], label="exposed: what it took beyond")
    return finished(a, 1)


def simulated(asked):
    pairs = [[label(p), p["ms"], p["ms_low"], p["ms_high"], p["simulated_ms"]] for p in asked["points"] if p["ms"] and p["simulated_ms"]]
    if not pairs:
        fail("no point was measured and simulated, too: exec: [host, sim]")
    if len(pairs) > BARS:
        fail(f"more than {BARS} pairs: choose with --only")
    return {"title": titled(asked, "measured beside simulated"), "pairs": pairs}


def draw_simulated(d):
    a = lying(d, d["pairs"], 140 + 44 * len(d["pairs"]))
    _, ms, low, high, sim = (numpy.array(column) for column in zip(*d["pairs"]))
    rows = range(len(ms))
    a.hlines(rows, ms, sim, color="#bbbbbb", lw=2)
    a.errorbar(ms, rows, xerr=[numpy.fmax(ms - low, 0), numpy.fmax(high - ms, 0)], fmt="o", color=COLOURS[0], capsize=3,
               label="measured, with its 95 % interval")
    a.plot(sim, rows, "o", mfc="none", mew=2, ms=8, color=COLOURS[1], label="simulated")
    a.set_xscale("log")
    logarithmic(a.xaxis)
    return finished(a)


# ---- a heat map: a cell is one point


def heat(asked):
    x, y = asked["x"], asked["y"]
    if not x or not y:
        fail("heat has two axes: --x NAME and --y NAME")
    columns, rows = words(asked["points"], x)[:CELLS], words(asked["points"], y)[:CELLS]
    for option, name, found in (("--x", x, columns), ("--y", y, rows)):
        if len(found) < 2:
            fail(f"{option} {name}: it is the same in all points")
    cells = {}
    for p in (p for p in asked["points"] if p["ms"]):
        at = value(p, x), value(p, y)
        if at in cells:
            fail(f"several points have {x}={at[0]} and {y}={at[1]} ({label(cells[at])}; {label(p)}): choose with --only")
        cells[at] = p
    if not cells:
        fail("no point has a time")
    return {"title": titled(asked, "ms a launch"), "x": x, "y": y, "columns": columns, "rows": rows,
            "cells": [[cells[c, r]["ms"] if (c, r) in cells else None for c in columns] for r in rows]}


def draw_heat(d):
    a = axes(d["title"], 1000, 180 + 60 * len(d["rows"]))
    cells = numpy.array(d["cells"], float)
    # cividis (Nunez, Anderton, Renslow, 2018): the same to those who do not see all colours
    image = a.imshow(cells, "cividis_r", aspect="auto", origin="lower")
    for (row, column), ms in numpy.ndenumerate(cells):
        if ms == ms:
            a.text(column, row, f"{ms:.3g}", ha="center", va="center",
                   color="#ffffff" if ms > (numpy.nanmin(cells) + numpy.nanmax(cells)) / 2 else "#000000")
    short = max(map(len, d["columns"])) < 8
    a.set_xticks(range(len(d["columns"])), d["columns"], rotation=0 if short else -25, ha="center" if short else "left")
    a.set_yticks(range(len(d["rows"])), d["rows"])
    a.tick_params(length=0)
    a.grid(False)
    a.set_xlabel(d["x"])
    a.set_ylabel(d["y"])
    a.figure.colorbar(image, label="ms")
    return finished(a)


# ---- a roofline (Williams, Waterman, Patterson, CACM 52(4), 2009) with a slope for each way that bytes take: a point stands at the
# operations for each byte over NVLink, and once more at those for each byte over the network


def roofline(asked):
    roof, *slopes = asked["roofs"]
    if not roof > 0:
        fail("--roofs is missing: what these ranks can do is not in the results")
    found = {}
    for p in asked["points"]:
        if not p["ms"] or (asked["roofs_of_gpus"] and value(p, "exec") in ("host", "emulated")):
            continue  # what a CPU does does not stand under a GPU's roofs
        for way, (bytes_of, _) in WAYS.items():
            if p["flop"] and p[bytes_of]:
                found.setdefault((value(p, "op"), way), []).append([p["flop"] / p[bytes_of], per_rank(p)])
    if not found:
        fail("no point computes and moves bytes, too" + (", under a GPU's roofs (--roofs says others)" if asked["roofs_of_gpus"] else ""))
    return {"title": titled(asked, "roofline of a rank"), "tflops": roof / 1e12,
            "slopes": {way: slope / 1e9 for way, slope in zip(WAYS, slopes) if slope > 0},
            "points": [{"op": op, "way": way, "points": at} for (op, way), at in found.items()]}


def draw_roofline(d):
    a = axes(d["title"], 1000, 620)
    at = [x for each in d["points"] for x, _ in each["points"]]
    ridges = [d["tflops"] * 1e3 / slope for slope in d["slopes"].values()]
    low, high = min(at + [x / 4 for x in ridges]) / 2, max(at + [x * 4 for x in ridges]) * 2
    a.plot([low, high], [d["tflops"]] * 2, color="#000000", lw=2, label=f"products: {d['tflops']:.4g} TFLOP/s")
    for i, (way, slope) in enumerate(d["slopes"].items()):
        a.plot([low, d["tflops"] * 1e3 / slope], [low * slope / 1e3, d["tflops"]], "-" if i == 0 else "--", lw=2, color=WAYS[way][1],
               label=f"{way}: {slope:.4g} GB/s")
    ops = list(dict.fromkeys(each["op"] for each in d["points"]))
    for each in d["points"]:
        x, y = zip(*each["points"])
        a.plot(x, y, "os^Dv"[ops.index(each["op"]) % 5], color=WAYS[each["way"]][1], mfc=None if each["way"] == "NVLink" else "none",
               label=f"{each['op']}, by bytes over {'NVLink' if each['way'] == 'NVLink' else 'the network'}")
    a.set_xscale("log")
    a.set_yscale("log")
    a.set_xlim(low, high)
    a.set_ylim(min([y for each in d["points"] for _, y in each["points"]] + [d["tflops"] / 50]) / 2, d["tflops"] * 2)
    a.set_xlabel("operations for each byte that moves into a rank")
    a.set_ylabel("TFLOP/s of a rank")
    return finished(a)


picture({"time": (curves, draw_curves), "speed": (curves, draw_curves), "efficiency": (curves, draw_curves), "stack": (stack, draw_stack),
         "heat": (heat, draw_heat), "simulated": (simulated, draw_simulated), "roofline": (roofline, draw_roofline)})
