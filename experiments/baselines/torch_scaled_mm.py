"""cuBLAS's FP8 products through PyTorch, timed shape by shape as asked on standard input.

    torch_scaled_mm.py [GPU]

A line "m n k kind launches" is answered by the ms of a launch, of a CUDA graph of so many on operands that rotate through more
than L2 holds; bf16 results. kind: blocks (1 x 128 of A, 128 x 128 of B), tensor, tensor_fast (one scale each; fast: the tensor
core's own sums), rows, rows_fast. "nan" is answered where PyTorch refuses, and why on standard error. Exit status 77 where
PyTorch or its scaled_mm is missing.
"""
import math
import sys

try:
    import torch
    from torch.nn.functional import ScalingType, scaled_mm
except ImportError:
    sys.exit(77)

COLD = 400e6  # bytes of operands in rotation
E4M3 = torch.float8_e4m3fn


def codes(rows, k):
    return (torch.randn(rows, k, device="cuda") * 160).clamp(-448, 448).to(E4M3)


def product(m, n, k, kind):
    """What launches one product, on operands of its own."""
    a, b = codes(m, k), codes(n, k).t()
    if kind == "blocks":
        blocks = -(-k // 128)
        padded = (blocks + 3) // 4 * 4
        scale_a = (torch.rand(blocks, m, device="cuda") / 160).t()
        scale_b = (torch.rand(-(-n // 128), padded, device="cuda") / 160).t()
        return lambda: scaled_mm(a, b, scale_a, ScalingType.BlockWise1x128, scale_b, ScalingType.BlockWise128x128,
                                 output_dtype=torch.bfloat16)
    fast, one = kind.endswith("_fast"), kind.startswith("tensor")
    scale_a = torch.rand(() if one else (m, 1), device="cuda") / 160
    scale_b = torch.rand(() if one else (1, n), device="cuda") / 160
    return lambda: torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast)


def graph_of(m, n, k, kind, launches):
    sets = max(2, math.ceil(COLD / (m * k + n * k)))
    run = [product(m, n, k, kind) for _ in range(min(sets, 32))]
    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        for one in run:
            one()
    aside.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            run[i % len(run)]()
    return graph, run  # the graph reads what `run` keeps


def main():
    if not torch.cuda.is_available():
        sys.exit(77)
    torch.cuda.set_device(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print(torch.__version__, torch.version.cuda, flush=True)
    kept, graph = None, None
    for line in sys.stdin:
        if line != kept:
            graph, kept = None, line
            torch.cuda.empty_cache()
            *shape, kind, launches = line.split()
            try:
                graph = graph_of(*map(int, shape), kind, int(launches))
                graph[0].replay()
            except (RuntimeError, ValueError) as error:
                print(line.strip(), error, file=sys.stderr, flush=True)
        if not graph:
            print("nan", flush=True)
            continue
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph[0].replay()
        end.record()
        end.synchronize()
        print(f"{begin.elapsed_time(end) / int(line.split()[-1]):.6f}", flush=True)


main()
