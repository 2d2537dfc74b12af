"""PyTorch's fused GEMM+ReduceScatter (symmetric memory), as a baseline. One process per GPU:

    python3 -m torch.distributed.run --nproc-per-node 8 torch_gemm_rs.py M,N,K [M,N,K ...]

K is per rank, A is [M, K], B is [K, N]. Rank 0 prints one line per shape: M,N,K,ms,min_ms,max_ms,relative_error (median of the slowest
rank). Exit status 0, or 77 where this PyTorch has no such operator.
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


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    group = dist.group.WORLD.group_name
    enable_symm_mem_for_group(group)
    for text in sys.argv[1:]:
        m, n, k = map(int, text.split(","))
        sets = max(2, int(200e6 // (2 * (m * k + k * n))) + 1)
        a = [torch.rand(m, k, device="cuda").mul_(2).sub_(1).bfloat16() for _ in range(sets)]
        b = [torch.rand(k, n, device="cuda").mul_(2).sub_(1).bfloat16() for _ in range(sets)]

        def run(i):
            return torch.ops.symm_mem.fused_matmul_reduce_scatter(a[i % sets], b[i % sets], "sum", 0, group)

        for i in range(3):
            c = run(i)
        rows = torch.randperm(m // world, device="cuda", generator=torch.Generator("cuda").manual_seed(1))[:64]
        reference = None
        for owner in range(world):  # every rank adds its part of the rows that are checked on each owner
            part = a[2 % sets][owner * (m // world) + rows].double() @ b[2 % sets].double()
            dist.reduce(part, owner)
            reference = part if owner == rank else reference
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


main()
