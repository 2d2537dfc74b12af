"""What a Python call costs over the C call, in us: the same launch by mkernel.ag_gemm and by mk_launch alone.

    python3 experiments/baselines/python_call.py [numpy|torch] [ROUNDS]        # on the CPU; on a GPU where torch finds one
    torchrun --nproc-per-node 2 experiments/baselines/python_call.py torch     # the slower launches of several ranks

Rounds of the ways take turns; each figure is the median of the rounds' means, and the spread the middle half. What is timed is the
calling thread's own CPU time, so other processes and the wait for a launch on the CPU do not count. On a GPU a round's launches are
waited for after it.
"""
import ctypes
import statistics
import sys
import time

kind = sys.argv[1] if len(sys.argv) > 1 else "numpy"
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 200
if kind == "torch":
    import torch
import mkernel
from mkernel._library import library

CALLS = 20  # of a round
comm = mkernel.init()
if kind == "torch":
    a, b = (torch.zeros(shape, dtype=torch.bfloat16, device=comm.device) for shape in ((16, 64), (64, 16)))
    compiled = torch.compile(lambda a, b: mkernel.ag_gemm(a, b), fullgraph=True)
else:
    import numpy

    a, b = numpy.zeros((16, 64), numpy.uint16), numpy.zeros((64, 16), numpy.uint16)
c = mkernel.ag_gemm(a, b)

plan = comm.plans[0]._address
arguments = (ctypes.c_void_p * 3)(*comm._arrays.pointers((a, b), (c,)))
on_gpu = comm.device != "cpu"
stream = comm._arrays.stream(comm.device) if on_gpu else None


def in_c():
    library.mk_launch(plan, arguments, 3, stream)
    if not on_gpu:
        library.mk_wait(comm._address)


ways = {
    "mk_launch alone": in_c,
    "mkernel.ag_gemm(a, b, out)": lambda: mkernel.ag_gemm(a, b, c),
    "mkernel.ag_gemm(a, b)": lambda: mkernel.ag_gemm(a, b),
    "ctypes alone (mk_version)": library.mk_version,
}
if kind == "torch":
    ways["torch.compile of it"] = lambda: compiled(a, b)
times = {name: [] for name in ways}
for call in ways.values():
    call()
for _ in range(rounds):
    for name, call in ways.items():
        comm.wait()
        began = time.thread_time()
        for _ in range(CALLS):
            call()
        times[name].append((time.thread_time() - began) / CALLS * 1e6)
comm.wait()
if comm.rank == 0:
    alone = statistics.median(times["mk_launch alone"]) - statistics.median(times["ctypes alone (mk_version)"]) * (2 - on_gpu)
    print(f"{kind} on {comm.device}, {comm.world} ranks, {rounds} rounds of {CALLS} calls; a C call: {alone:.2f} us")
    for name, of in times.items():
        low, median, high = statistics.quantiles(of, n=4)
        over = "" if "alone" in name else f"   {median - alone:+.2f} over the C call"
        print(f"  {name:28s} {median:8.2f} us  ({low:.2f} .. {high:.2f}){over}")
comm.close()
