"""What `mkernel bench ring_attention` is set beside: cuDNN's attention through PyTorch, and NCCL. One process per GPU:

    python3 -m torch.distributed.run --nproc-per-node 2 torch_ring_attention.py B,S,H,G,D[,causal] [...]

as `--attention B,S,H,G,D` (S over all ranks). Rank 0 prints one line per shape, in ms, medians of the slowest rank:

    shape attention ATTENTION gather GATHER in_turn IN_TURN ideal IDEAL

attention: a rank's queries against all keys, which are there; gather: K and V of all ranks by NCCL; in_turn: one after the
other; ideal: the larger of the first two. Causal: cuDNN takes square masks only, so attention is a square problem of as many
products as a rank has of the whole, S / sqrt(ranks) rows.
"""
import math
import os
import sys

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    for text in sys.argv[1:]:
        causal = text.endswith(",causal")
        batch, sequence, heads, kv_heads, dim = map(int, text.removesuffix(",causal").split(","))
        rows = sequence // world
        # The sequence comes first, so that what is gathered lies as one tensor.
        own = [random(rows, batch, kv_heads, dim) for _ in range(2)]
        whole = [random(sequence, batch, kv_heads, dim) for _ in range(2)]
        square = round(sequence / math.sqrt(world) / 128) * 128
        q = random(batch, heads, square if causal else rows, dim)
        k, v = (t[:square if causal else sequence].permute(1, 2, 0, 3) for t in whole)

        def attention():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != kv_heads)

        def gather():
            for to, part in zip(whole, own):
                dist.all_gather_into_tensor(to, part)

        def in_turn():
            gather()
            attention()

        medians = []
        for run in (attention, gather, in_turn):
            for _ in range(3):
                run()
            events = [torch.cuda.Event(enable_timing=True) for _ in range(21)]
            dist.barrier()
            torch.cuda.synchronize()
            for i, event in enumerate(events):
                event.record()
                if i < 20:
                    run()
            torch.cuda.synchronize()
            times = sorted(events[i].elapsed_time(events[i + 1]) for i in range(20))
            slowest = torch.tensor((times[9] + times[10]) / 2, device="cuda")
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            medians.append(slowest.item())
        if rank == 0:
            print(f"{text} attention {medians[0]:.4f} gather {medians[1]:.4f} in_turn {medians[2]:.4f} "
                  f"ideal {max(medians[:2]):.4f}", flush=True)
    dist.destroy_process_group()


main()
