"""Measured beside predicted times of plans (`mkernel sim --validate --plot`), behind experiments/common/picture.py."""


def scatter(asked):
    plans = sorted(asked["plans"])
    return {"title": "predicted and measured", "ops": {op: [row[1:] for row in plans if row[0] == op] for op, *_ in plans}}


def draw_scatter(d):
    a = axes(d["title"], 900, 800)
    both = [ms for plans in d["ops"].values() for row in plans for ms in row]
    ends = numpy.array([min(both), max(both)])
    a.plot(ends, ends, color="#000000", label="equal")
    for i, far in enumerate((1.15, 1 / 1.15)):
        a.plot(ends, ends * far, "--", color="#888888", label="_" if i else "15 %")
    for i, (op, plans) in enumerate(d["ops"].items()):
        a.plot(*zip(*plans), ".", ms=4, color=COLOURS[i % 4], label=op)
    a.set_xscale("log")
    a.set_yscale("log")
    logarithmic(a.xaxis)
    logarithmic(a.yaxis)
    a.set_aspect("equal")
    a.set_xlabel("measured, ms")
    a.set_ylabel("predicted, ms")
    return finished(a, 4)


picture({"scatter": (scatter, draw_scatter)})
