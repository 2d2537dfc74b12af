"""Attention of PyTorch, timed shape by shape as asked on standard input.

    torch_attention.py [GPU [cudnn|flash]]

By default cuDNN's; flash is FlashAttention-2, whose products are mma.sync.

A line "batch heads kv_heads queries keys dim causal launches" is answered by "ms ms ...", the time of each launch, bf16. Launches
are CUDA graphs where PyTorch captures them, so that Python's time is not in them, on operands that rotate through more than L2
holds. Exit status 77 where PyTorch or this attention is missing.
"""
import math
import sys

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    sys.exit(77)

BACKEND = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION"}[sys.argv[2] if len(sys.argv) > 2 else "cudnn"]
COLD = 200e6  # bytes of operands in rotation


def launches_of(batch, heads, kv_heads, queries, keys, dim, causal):
    """What launches attention, on one set of operands after the other."""
    sets = range(max(2, math.ceil(COLD / (4 * batch * dim * (queries * heads + keys * kv_heads)))))

    def random(n, rows):
        return torch.randn(batch, n, rows, dim, device="cuda", dtype=torch.bfloat16)

    operands = [(random(heads, queries), random(kv_heads, keys), random(kv_heads, keys)) for _ in sets]

    def run(i):
        with sdpa_kernel(getattr(SDPBackend, BACKEND)):
            torch.nn.functional.scaled_dot_product_attention(*operands[i], is_causal=bool(causal), enable_gqa=heads != kv_heads)

    def plain(i):
        return lambda: run(i)

    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        for i in range(3):
            run(i % len(sets))
    aside.synchronize()
    try:
        graphs = []
        for i in sets:
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[i]):
                run(i)
        return [graph.replay for graph in graphs]
    except RuntimeError:
        return [plain(i) for i in sets]


def main():
    if not torch.cuda.is_available() or not hasattr(SDPBackend, BACKEND):
        sys.exit(77)
    torch.cuda.set_device(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print(torch.__version__, torch.backends.cudnn.version(), flush=True)
    kept, launch = None, None
    for line in sys.stdin:
        *shape, launches = map(int, line.split())
        if shape != kept:
            launch = None
            torch.cuda.empty_cache()
            launch, kept = launches_of(*shape), shape
            launch[0]()
            torch.cuda.synchronize()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(launches + 1)]
        launch[-1]()
        for i, event in enumerate(events):
            event.record()
            if i < launches:
                launch[i % len(launch)]()
        torch.cuda.synchronize()
        print(*(f"{events[i].elapsed_time(events[i + 1]):.5f}" for i in range(launches)), flush=True)


main()
