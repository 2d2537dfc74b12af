"""Pictures of a trace (`mkernel trace plot`), behind experiments/common/picture.py: what the CTAs of each role did over time and what
each NIC had under way, or overlap by rank. Of a timeline, time begins at zero with the first launch, and what lies between launches
is cut out. A column is a stack, as high as the states' shares of the role's CTAs."""
COLUMNS = 600
MARKS = 60  # launches marked at most
STATES = {1: ("tile", "#0072b2"), 2: ("copy", "#009e73"), 3: ("command", "#56b4e9"), 4: ("reduce", "#cc79a7"),
          5: ("wait data", "#f0e442"), 6: ("wait back-pressure", "#999999"), 8: ("wait network", "#d55e00"),
          9: ("NIC: bytes under way", "#333333")}
OVERLAP = [("compute only", "#0072b2"), ("both", "#009e73"), ("communication only", "#d55e00"), ("idle", GREY)]


class Axis:
    """The launches' time in pieces, which follow each other with a small gap. A gap that is drawn as wide as it is, is not cut."""

    def __init__(self, launches):
        whole = sum(to - start for _, _, start, to in launches)
        self.gap = 0.1 * whole / len(launches) if len(launches) > 10 else 0.01 * whole
        pieces = []
        for _, _, start, to in launches:
            if pieces and start - pieces[-1][1] <= self.gap:
                pieces[-1][1] = max(pieces[-1][1], to)
            else:
                pieces.append([start, to])
        self.start, self.to = numpy.array(pieces, float).T
        lengths = self.to - self.start
        self.at = numpy.concatenate([[0], numpy.cumsum(lengths + self.gap)[:-1]])  # where pieces are drawn
        self.length = self.at[-1] + lengths[-1]

    def begin(self, time):
        """Where a begin is drawn: between two pieces, where the next one begins."""
        i = numpy.minimum(numpy.searchsorted(self.to, time, "right"), len(self.to) - 1)
        return numpy.clip(self.at[i] + numpy.maximum(time - self.start[i], 0), 0, self.length)

    def end(self, time):
        """Where an end is drawn: between two pieces, where the last one ended."""
        i = numpy.maximum(numpy.searchsorted(self.start, time, "left") - 1, 0)
        return numpy.clip(self.at[i] + numpy.minimum(time, self.to[i]) - self.start[i], 0, self.length)


def shares(row, axis):
    """By state, each column's share. A CTA may wait while its copies are under way: what adds up to more than its time is drawn in
    proportion."""
    edges = numpy.linspace(0, axis.length, COLUMNS + 1)
    start, to, state, weight = numpy.array(row["cells"], float).reshape(-1, 4).T
    start, to, found = axis.begin(start), axis.end(to), {}
    for s in STATES:
        some = (state == s) & (to > start)
        at, rate = numpy.concatenate([start[some], to[some]]), numpy.concatenate([weight[some], -weight[some]])
        order = numpy.argsort(at, kind="stable")
        if some.any():  # the integral of all weights, at the columns' edges
            area = numpy.concatenate([[0], numpy.cumsum(numpy.cumsum(rate[order])[:-1] * numpy.diff(at[order]))])
            found[s] = numpy.maximum(numpy.diff(numpy.interp(edges, at[order], area)), 0)
    whole = numpy.maximum(sum(found.values(), numpy.zeros(COLUMNS)), row["leaves"] * axis.length / COLUMNS)
    return {STATES[s][0]: (each / whole).round(4).tolist() for s, each in found.items()}


def timeline(asked):
    axis = Axis(asked["launches"])
    unit, name = next(each for each in ((1, "ns"), (1e3, "us"), (1e6, "ms"), (1e9, "s")) if axis.length < 2e4 * each[0] or each[0] == 1e9)
    marks, named = [], -axis.length
    for launch, start, begin, _ in asked["launches"][::-(-len(asked["launches"]) // MARKS)]:
        if start == begin:
            at = float(axis.begin(numpy.float64(start)))
            says = at - named >= 0.1 * axis.length  # where there is room
            marks.append([at / unit, f"launch {launch}" if says else ""])
            named = at if says else named
    rows = [{"name": row["name"], "nic": row["nic"], "shares": shares(row, axis)} for row in asked["rows"]]
    title = f"CTA roles over time{f' (the first {len(rows)} rows)' if asked['left_out'] else ''}: {asked['run']}"
    return {"title": title, "unit": name, "length": axis.length / unit, "rows": rows, "marks": marks,
            "cuts": [[(at - axis.gap) / unit, at / unit] for at in axis.at[1:].tolist()]}


def draw_timeline(d):
    a = axes(d["title"], 1200, 200 + 36 * min(len(d["rows"]), 60))
    edges, labels = numpy.linspace(0, d["length"], COLUMNS + 1), {}
    for i, row in enumerate(d["rows"]):
        bottom = numpy.full(COLUMNS, i + 0.95)
        for name, colour in STATES.values():
            if name in row["shares"]:
                top = bottom - 0.9 * numpy.array(row["shares"][name])
                labels[name] = a.stairs(top, edges, baseline=bottom, fill=True, color=colour, lw=0)
                bottom = top
    for start, to in d["cuts"]:
        a.axvspan(start, to, color=GREY, lw=0)
    for at, text in d["marks"]:
        a.axvline(at, color="#000000", lw=1, ls=":")
        a.annotate(text, (at, 1), xycoords=("data", "axes fraction"), xytext=(0, 3), textcoords="offset points", fontsize=9)
    for name, colour in STATES.values():
        if name in labels:
            a.fill([], [], color=colour, label=name)
    a.set_title(d["title"], fontsize=11, pad=18)
    a.grid(False)
    a.set_xlim(0, d["length"])
    a.set_ylim(len(d["rows"]), 0)
    a.set_yticks([i + 0.5 for i in range(len(d["rows"]))], [row["name"] for row in d["rows"]])
    a.set_xlabel(f"time, {d['unit']}" + (" in launches: what lies between them is cut out (grey)" if d["cuts"] else ""))
    return finished(a, 4)


def overlap(asked):
    return {"title": f"Overlap per rank: {asked['run']}", "ranks": [rank for rank, *_ in asked["ranks"]],
            "shares": {name: [row[1 + i] for row in asked["ranks"]] for i, (name, _) in enumerate(OVERLAP)}}


def draw_overlap(d):
    a = axes(d["title"], 1200, 500)
    bottom = numpy.zeros(len(d["ranks"]))
    for name, colour in OVERLAP:
        a.bar(range(len(bottom)), d["shares"][name], 0.8, bottom, color=colour, label=name)
        bottom += d["shares"][name]
    if len(bottom) <= 64:
        a.set_xticks(range(len(bottom)), d["ranks"])
    a.set_ylim(0, 100)
    a.set_ylabel("% of launch time")
    a.set_xlabel("rank")
    return finished(a, 4)


picture({"timeline": (timeline, draw_timeline), "overlap": (overlap, draw_overlap)})
