"""What `mkernel bench ring_attention` is set beside: NCCL's gather and cuDNN's attention one after the other, and PyTorch's context
parallelism. One process per GPU:

    python3 -m torch.distributed.run --nproc-per-node 2 torch_ring_attention.py [--causal] [--context-parallel] B,S,H,G,D [...]

as `--attention B,S,H,G,D` (S over all ranks). Rank 0 prints lines of CSV, in ms, the slowest rank's median, least and most:

    B,S,H,G,D,attention,ms,min,max         a rank's queries against all keys, which are there
    B,S,H,G,D,gather,ms,min,max            K and V of all ranks by NCCL
    B,S,H,G,D,in_turn,ms,min,max           one after the other
    B,S,H,G,D,context_parallel,ms,min,max  where asked for
    # B,S,H,G,D: why                       where this PyTorch has none for the shape

Launches are CUDA graphs where PyTorch captures them, so that Python's time is not in them (context parallelism is as PyTorch launches
it); operands rotate through more than L2 holds. Causal: cuDNN takes square masks only, so attention is a square problem of as many
products as a rank has of the whole, S / sqrt(ranks) rows. Exit status 0, or 77 where there is no cuDNN attention.
"""
import argparse
import math
import os
import sys

import torch_measure
from torch_measure import dist, measure, torch
from torch.nn.attention import SDPBackend, sdpa_kernel

COLD = 200e6  # bytes of operands in rotation


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def sdpa(backend, q, k, v, causal):
    with sdpa_kernel(backend):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def captured(run, sets):
    """run(i) as a graph for each set; run itself where it cannot be captured."""
    graphs = []
    for i in range(3):
        run(i)
    torch.cuda.synchronize()
    try:
        for i in sets:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                run(i)
            graphs.append(graph)
    except RuntimeError as error:
        print(f"not captured: {error}", file=sys.stderr)
        return run
    return lambda i: graphs[i % len(graphs)].replay()


def separate(batch, sequence, heads, kv_heads, dim, causal):
    """Attention alone, the gather alone, one after the other."""
    world = dist.get_world_size()
    rows = sequence // world
    square = round(sequence / math.sqrt(world) / 128) * 128 if causal else 0
    queries, keys = square or rows, square or sequence
    sets = range(max(2, math.ceil(COLD / (2 * batch * dim * (rows * heads + 2 * sequence * kv_heads)))))
    # The sequence comes first, so that what is gathered lies as one tensor.
    own = [[random(rows, batch, kv_heads, dim) for _ in range(2)] for _ in sets]
    whole = [[random(sequence, batch, kv_heads, dim) for _ in range(2)] for _ in sets]
    q = [random(batch, heads, queries, dim) for _ in sets]

    def attention(i):
        i %= len(sets)
        k, v = (t[:keys].permute(1, 2, 0, 3) for t in whole[i])
        sdpa(SDPBackend.CUDNN_ATTENTION, q[i], k, v, causal)

    def gather(i):
        i %= len(sets)
        for to, part in zip(whole[i], own[i]):
            dist.all_gather_into_tensor(to, part)

    def in_turn(i):
        gather(i)
        attention(i)

    whats = {"attention": attention, "gather": gather, "in_turn": in_turn}
    return {name: measure(captured(run, sets)) for name, run in whats.items()}


def context_parallel_time(batch, sequence, heads, kv_heads, dim, causal):
    """PyTorch's ring, on what it makes of whole tensors: a rank's shards. The first backend that it takes. After an error PyTorch's
    attention stays the ring's, so nothing else may follow in this process."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import _attention, context_parallel
    _attention._cp_options.enable_load_balance = causal  # PyTorch 2.11 refuses attention to everything otherwise
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    why = None
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        q = random(batch, heads, sequence, dim)
        k, v = (random(batch, kv_heads, sequence, dim) for _ in range(2))
        try:
            with torch.no_grad(), context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2], no_restore_buffers={q, k, v}):
                return measure(lambda i: sdpa(backend, q, k, v, causal))
        except Exception as error:  # whatever it is, it is the answer
            why = error
    raise RuntimeError(f"{type(why).__name__}: {why}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--context-parallel", action="store_true")
    parser.add_argument("shapes", nargs="+")
    options = parser.parse_args()
    torch_measure.start()
    shapes = {text: [*map(int, text.split(",")), options.causal] for text in options.shapes}

    for text, shape in shapes.items():
        torch_measure.tell(text, separate(*shape))
        torch.cuda.empty_cache()
    if options.context_parallel:  # behind all else: its errors leave PyTorch in no state to go on
        for text, shape in shapes.items():
            try:
                torch_measure.tell(text, {"context_parallel": context_parallel_time(*shape)})
            except Exception as error:
                if dist.get_rank() == 0:
                    print(f"# {text}: no context parallelism: {' '.join(str(error).split())}", flush=True)
                break
            torch.cuda.empty_cache()
    sys.stdout.flush()
    os._exit(0)  # what has been captured holds NCCL's communicators, which wait for each other at an orderly end


if __name__ == "__main__":
    if not hasattr(SDPBackend, "CUDNN_ATTENTION"):
        sys.exit(77)
    main()
