"""Maps of logical experts to the experts that ranks hold, of a MoE where several ranks hold the same.

A launch is told of its map by a word among the options, "expert_map=3", so that what compiles and caches launches need not know of maps.
"""
from __future__ import annotations

import ctypes
import itertools
import operator
import threading
import weakref

from ._library import Refused, error, library

_numbers = itertools.count(1)
_maps = weakref.WeakValueDictionary()  # number -> ExpertMap
_lock = threading.Lock()
_given = {}  # arrays that were given as they are: their numbers -> ExpertMap, the last used last
_GIVEN_KEPT = 64


def _rows(slots):
    """Lists of numbers: of an array, or of nested sequences; a number alone is a list of one."""
    try:
        slots = slots.tolist()  # numpy's, PyTorch's from whatever device
    except AttributeError:
        pass
    try:
        rows = [[row] if isinstance(row, int) else [operator.index(slot) for slot in row] for row in slots]
    except (TypeError, ValueError):
        rows = []
    if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
        raise Refused("a map of experts is an array of whole numbers, [L] or [L, copies]")
    return rows


class ExpertMap:
    """Which of the ranks' experts each logical expert is: the `expert_map` of the MoE operators.

    slots: [L] or [L, copies] whole numbers, an array of numpy or PyTorch or nested lists: the experts of ranks, 0 to E-1, of which rank r has
        those from r * E/W on, that hold logical expert l; below 0 for none. They have the same weights. No number is of two logical experts.
    It does not change. A map that is made once is told to a plan once; an array is compared in each call.
    """

    def __init__(self, slots):
        rows = _rows(slots)
        self._set([slot for row in rows for slot in row], len(rows), len(rows[0]))

    def _set(self, flat, logical, copies):
        if not all(-(1 << 31) <= slot < 1 << 31 for slot in flat):
            raise Refused("a map of experts has numbers of 32 bits")
        self._array = (ctypes.c_int32 * len(flat))(*flat)
        self._number = next(_numbers)
        self.logical: int = logical  # L, how many experts ids name
        self.copies: int = copies  # that each may have
        _maps[self._number] = self

    def __repr__(self):
        return f"<mkernel.ExpertMap of {self.logical} experts in {self.copies} columns>"

    @property
    def slots(self) -> list:
        """As it was given: a list of `copies` numbers for each logical expert."""
        return [list(self._array[i : i + self.copies]) for i in range(0, len(self._array), self.copies)]

    def held(self, experts: int) -> list:
        """By each of the ranks' `experts` experts the logical one whose weights it has, -1 for none: w[held[first:last]] are a rank's."""
        held = [-1] * experts
        for i, slot in enumerate(self._array):
            if slot >= experts:
                raise Refused(f"expert {i // self.copies} has a copy in slot {slot}: the ranks have slots 0 to {experts - 1}")
            if slot >= 0:
                held[slot] = i // self.copies
        return held


def balance(loads, experts: int, nodes: int, ranks: int, copies=None) -> ExpertMap:
    try:
        loads = [float(load) for load in (loads.tolist() if hasattr(loads, "tolist") else loads)]
    except (TypeError, ValueError):
        raise Refused("balance_experts: loads is an array of numbers, one for each logical expert") from None
    columns = min(ranks, experts - len(loads) + 1) if copies is None else copies
    if not (max(experts, ranks, columns) < 1 << 31 and 0 < len(loads) <= experts and ranks > 0 and experts % ranks == 0 and columns > 0 and nodes > 0
            and ranks % nodes == 0):
        raise Refused(f"balance_experts: {len(loads)} logical experts, {experts} experts of {ranks} ranks of {nodes} nodes, {columns} copies at most: the "
                      "nodes divide the ranks, the ranks their experts, and these are as many as the logical ones or more")
    made = ExpertMap.__new__(ExpertMap)
    flat = (ctypes.c_int32 * (len(loads) * columns))()
    result = library.mk_moe_balance((ctypes.c_double * len(loads))(*loads), len(loads), experts, nodes, ranks, columns, flat)
    if result:
        raise error(result, "balance_experts: loads are finite numbers, 0 or more")
    made._set(list(flat), len(loads), columns)
    return made


def words(expert_map) -> str:
    """The map as options of a launch."""
    if expert_map is None:
        return ""
    if not isinstance(expert_map, ExpertMap):
        rows = _rows(expert_map)
        key = tuple(map(tuple, rows))
        with _lock:
            kept = _given.pop(key, None)
            _given[key] = kept = ExpertMap(rows) if kept is None else kept
            if len(_given) > _GIVEN_KEPT:
                del _given[next(iter(_given))]
        expert_map = kept
    return f"logical={expert_map.logical} expert_map={expert_map._number}"


def taken(options: str):
    """The map that such options name, or None, and the other options."""
    if "expert_map=" not in options:
        return None, options
    found, others = None, []
    for word in options.split():
        name, _, number = word.partition("=")
        if name != "expert_map":
            others.append(word)
        elif not number.isdigit() or (found := _maps.get(int(number))) is None:
            raise Refused(f"{word}: there is no such map: give expert_map= an ExpertMap that the program keeps")
    return found, " ".join(others)
