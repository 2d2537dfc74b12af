"""What `mkernel bench moe_dispatch_gemm` is set beside: PyTorch's grouped product and NCCL's all-to-all. One process per GPU:

    python3 -m torch.distributed.run --nproc-per-node 2 torch_moe_dispatch_gemm.py [--b-nk] [--routing R] [--skew S] T,H,I,E,K [...]

as `--moe T,H,I,E,K` (T tokens a rank, E experts of all). Rank 0 prints lines of CSV, in ms, the slowest rank's median, least and most:

    T,H,I,E,K,product,ms,min,max  torch._grouped_mm of a rank's rows, which are there, expert after expert
    T,H,I,E,K,comm,ms,min,max     the all-to-all of tokens, a row for each of a token's experts
    T,H,I,E,K,in_turn,ms,min,max  rows by rank, all-to-all, rows by expert, product; how many rows go where every rank knows before

Experts are drawn as `--routing` and `--skew` of mkernel do. Exit status 0, or 77 where this PyTorch has no grouped product.
"""
import argparse
import os
import sys

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
import torch
import torch.distributed as dist


def measure(run):
    """(median, least, most) of the rank whose median is the largest, ms of run()."""
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
    mine = torch.tensor([(times[9] + times[10]) / 2, times[0], times[-1]], device="cuda")
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return max((t.tolist() for t in every), key=lambda t: t[0])


def draw(tokens, experts, k, routing, skew):
    """[tokens, k] of expert numbers; `experts` names none."""
    weights = torch.arange(1, experts + 1, device="cuda", dtype=torch.float32).log()
    scores = -skew * weights - torch.empty(tokens, experts, device="cuda").exponential_().log()
    if routing == "few" and experts // 2 >= k:
        scores[:, 1::2] = -torch.inf
    ids = scores.topk(k, dim=1).indices
    if routing == "one":
        ids[:] = experts
        ids[:, 0] = 0
    if routing == "none":
        ids[0 if dist.get_rank() == dist.get_world_size() - 1 else tokens - tokens // 8:] = experts
    return ids


def bench(tokens, hidden, inner, experts, k, options):
    world, here = dist.get_world_size(), experts // dist.get_world_size()
    x = torch.randn(tokens, hidden, device="cuda").bfloat16()
    b = torch.randn(here, *((inner, hidden) if options.b_nk else (hidden, inner)), device="cuda").bfloat16()
    if options.b_nk:
        b = b.transpose(1, 2)
    ids = draw(tokens, experts, k, options.routing, options.skew).flatten()
    order = ids.argsort(stable=True)[: int((ids < experts).sum())]
    of_rows = order // k  # the tokens of the rows that leave, by expert, and so by rank
    counts = torch.bincount(ids[order], minlength=experts)
    all_counts = torch.empty(world, experts, device="cuda", dtype=counts.dtype)
    dist.all_gather_into_tensor(all_counts, counts)
    mine = all_counts[:, dist.get_rank() * here : (dist.get_rank() + 1) * here]  # by source, expert
    send, receive = counts.view(world, here).sum(1).tolist(), mine.sum(1).tolist()
    came = torch.empty(sum(receive), hidden, device="cuda", dtype=torch.bfloat16)
    expert_of_came = torch.arange(here, device="cuda").repeat(world).repeat_interleave(mine.flatten())
    by_expert = expert_of_came.argsort(stable=True)
    ends = mine.sum(0).cumsum(0).int()
    leaving, a = x[of_rows], torch.randn(sum(receive), hidden, device="cuda").bfloat16()

    def in_turn():
        dist.all_to_all_single(came, x[of_rows], receive, send)
        return torch._grouped_mm(came[by_expert], b, offs=ends)

    times = {
        "product": measure(lambda: torch._grouped_mm(a, b, offs=ends)),
        "comm": measure(lambda: dist.all_to_all_single(came, leaving, receive, send)),
        "in_turn": measure(in_turn),
    }
    c, row = in_turn(), int(ends[-1]) - 1  # the last row is right
    if row >= 0:
        last = int((ends > row).nonzero()[0])
        wanted = came[by_expert[row]].double() @ b[last].double()
        assert (c[row].double() - wanted).norm() < 0.01 * wanted.norm()
    return times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--b-nk", action="store_true")
    parser.add_argument("--routing", default="even")
    parser.add_argument("--skew", type=float, default=0.0)
    parser.add_argument("shapes", nargs="+")
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    torch.manual_seed(1 + dist.get_rank())
    for text in options.shapes:
        times = bench(*map(int, text.split(",")), options)
        if dist.get_rank() == 0:
            for name, three in times.items():
                print(f"{text},{name}," + ",".join(f"{ms:.4f}" for ms in three), flush=True)
        torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    if not hasattr(torch, "_grouped_mm"):
        sys.exit(77)
    main()
