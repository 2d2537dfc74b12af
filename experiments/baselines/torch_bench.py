"""What the baselines of PyTorch's fused operators on symmetric memory have in common: one process per GPU times the operator for
each shape of the command line, M,N,K, on operands that rotate through more than L2 holds. Rank 0 prints one line per shape:
M,N,K,ms,min_ms,max_ms,relative_error (median of the slowest rank). Exit status 0, or 77 where this PyTorch has no such operator.
"""
import os
import sys

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
import torch
import torch.distributed as dist

try:
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group
except ImportError:
    sys.exit(77)


def main(rows_of_a, fused, some_rows):
    """rows_of_a(m, world): of a rank's A [rows, K]; its B is [K, N]. fused(a, b, group): the operator's result.
    some_rows(a, b, m): numbers of some rows of this rank's result, and what they should be, in float64."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    group = dist.group.WORLD.group_name
    enable_symm_mem_for_group(group)
    for text in sys.argv[1:]:
        m, n, k = map(int, text.split(","))
        sets = max(2, int(200e6 // (2 * (rows_of_a(m, world) * k + k * n))) + 1)
        a = [torch.rand(rows_of_a(m, world), k, device="cuda").mul_(2).sub_(1).bfloat16() for _ in range(sets)]
        b = [torch.rand(k, n, device="cuda").mul_(2).sub_(1).bfloat16() for _ in range(sets)]

        def run(i):
            return fused(a[i % sets], b[i % sets], group)

        for i in range(3):
            c = run(i)
        rows, reference = some_rows(a[2 % sets], b[2 % sets], m)
        error = ((c[rows].double() - reference).norm() / reference.norm()).item()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(21)]
        dist.barrier()
        torch.cuda.synchronize()
        for i, event in enumerate(events):
            event.record()
            if i < 20:
                run(i)
        torch.cuda.synchronize()
        times = sorted(events[i].elapsed_time(events[i + 1]) for i in range(20))
        mine = torch.tensor([(times[9] + times[10]) / 2, times[0], times[-1], error], device="cuda")
        every = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(every, mine)
        if rank == 0:
            slow = max(every, key=lambda t: t[0].item())
            print(f"{m},{n},{k}," + ",".join(f"{v:.4g}" for v in slow.tolist()[:3])
                  + f",{max(t[3].item() for t in every):.3g}", flush=True)
    dist.destroy_process_group()
