"""cuDNN's attention through PyTorch, timed shape by shape as asked on standard input.

A line "batch heads kv_heads sequence dim causal launches" is answered by "ms", the time of a launch; "sequence" rows of
queries and as many of keys, bf16. Exit status 77 where PyTorch or its cuDNN attention is missing.
"""
import sys

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    sys.exit(77)


def main():
    if not torch.cuda.is_available():
        sys.exit(77)
    print(torch.__version__, torch.backends.cudnn.version(), flush=True)
    kept, run = None, None
    for line in sys.stdin:
        *shape, launches = map(int, line.split())
        if shape != kept:
            batch, heads, kv_heads, sequence, dim, causal = kept = shape
            q, k, v = (
                [torch.randn(batch, n, sequence, dim, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
                for n in (heads, kv_heads, kv_heads)
            )

            def run(i):
                with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                    torch.nn.functional.scaled_dot_product_attention(
                        q[i % 2], k[i % 2], v[i % 2], is_causal=bool(causal), enable_gqa=heads != kv_heads)

            for i in range(3):
                run(i)
        run(0)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for i in range(launches):
            run(i)
        stop.record()
        stop.synchronize()
        print(start.elapsed_time(stop) / launches, flush=True)


main()
