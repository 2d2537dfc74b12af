"""What the baselines in PyTorch share: a process for each GPU, operands there, and how long a launch takes.

Without a GPU they run on the CPU over gloo, so that a test sees whether they work; the times mean nothing then.
"""
import os
import time

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
import torch
import torch.distributed as dist

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
TIMES = 20 if GPU else 2  # measurements


def start():
    """Joins the job that torchrun has started."""
    if GPU:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    else:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")


def empty_cache():
    if GPU:
        torch.cuda.empty_cache()


def clocked(run):
    """ms of run(0), run(1), ..., which follow each other."""
    if not GPU:
        begins = [time.perf_counter()]
        for i in range(TIMES):
            run(i)
            begins.append(time.perf_counter())
        return [1e3 * (end - begin) for begin, end in zip(begins, begins[1:])]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(TIMES + 1)]
    torch.cuda.synchronize()
    for i, event in enumerate(events):
        event.record()
        if i < TIMES:
            run(i)
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in zip(events, events[1:])]


def measure(run, together=1, before=3):
    """(median, least, most) of the rank whose median is the largest: ms of a launch, of which run(i) makes `together`."""
    for i in range(before):
        run(i)
    dist.barrier()
    times = sorted(ms / together for ms in clocked(run))
    mine = torch.tensor([(times[TIMES // 2 - 1] + times[TIMES // 2]) / 2, times[0], times[-1]], device=DEVICE)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return max((t.tolist() for t in every), key=lambda t: t[0])


def in_turns(runs, together, rounds):
    """By name the median of the rounds' medians, the least and the most, as measure: the runs take turns."""
    times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(measure(run, together, 1))
    return {name: (sorted(t[0] for t in of)[len(of) // 2], min(t[1] for t in of), max(t[2] for t in of)) for name, of in times.items()}


def tell(text, times):
    """Rank 0: a line of CSV for each name in `times`, behind the shape."""
    for name, three in times.items():
        if dist.get_rank() == 0:
            print(f"{text},{name}," + ",".join(f"{ms:.4f}" for ms in three), flush=True)
