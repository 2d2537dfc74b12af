"""What `mkernel bench moe_dispatch_gemm` and `bench moe_ffn` are set beside: PyTorch's grouped products and NCCL's all-to-all. One
process per GPU:

    python3 -m torch.distributed.run --nproc-per-node 2 torch_moe_ffn.py [--b-nk] [--routing R] [--skew S] T,H,I,E,K [...]

as `--moe T,H,I,E,K` (T tokens a rank, E experts of all); torch_moe_dispatch_gemm.py in the same way. Rank 0 prints lines of CSV, in
ms, the slowest rank's median, least and most:

    T,H,I,E,K,product,ms,min,max  torch._grouped_mm of a rank's rows, which are there, expert after expert; of the layer the first
    T,H,I,E,K,second,ms,min,max   of the layer: its second product
    T,H,I,E,K,comm,ms,min,max     the all-to-all of tokens, a row for each of a token's experts
    T,H,I,E,K,back,ms,min,max     of the layer: the all-to-all of results
    T,H,I,E,K,in_turn,ms,min,max  rows by rank, all-to-all, rows by expert, product; of the layer also SwiGLU, product, rows by rank,
                                  all-to-all, each token's sum by weight. How many rows go where every rank knows before

Experts are drawn as `--routing` and `--skew` of mkernel do. Exit status 0, or 77 where this PyTorch has no grouped product.
"""
import argparse
import sys

import torch_measure
from torch_measure import DEVICE, dist, measure, torch


def draw(tokens, experts, k, routing, skew):
    """[tokens, k] of expert numbers; `experts` names none."""
    weights = torch.arange(1, experts + 1, device=DEVICE, dtype=torch.float32).log()
    scores = -skew * weights - torch.empty(tokens, experts, device=DEVICE).exponential_().log()
    if routing == "few" and experts // 2 >= k:
        scores[:, 1::2] = -torch.inf
    ids = scores.topk(k, dim=1).indices
    if routing == "one":
        ids[:] = experts
        ids[:, 0] = 0
    if routing == "none":
        ids[0 if dist.get_rank() == dist.get_world_size() - 1 else tokens - tokens // 8:] = experts
    return ids


def normal(*shape, scale=1.0):
    return (torch.randn(*shape, device=DEVICE) * scale).bfloat16()


def stack(experts, k, n, b_nk):
    """A matrix [k, n] of each expert, as it lies in memory."""
    return normal(experts, n, k, scale=k**-0.5).transpose(1, 2) if b_nk else normal(experts, k, n, scale=k**-0.5)


def swiglu(h):
    gate, up = h.chunk(2, dim=1)
    return torch.nn.functional.silu(gate) * up


class Routed:
    """Where this rank's tokens go, and what comes here."""

    def __init__(self, tokens, experts, k, options):
        world, rank = dist.get_world_size(), dist.get_rank()
        here = experts // world
        self.ids = draw(tokens, experts, k, options.routing, options.skew)
        ids = self.ids.flatten()
        self.order = ids.argsort(stable=True)[: int((ids < experts).sum())]  # places that leave, by expert, and so by rank
        self.tokens = self.order // k
        counts = torch.bincount(ids[self.order], minlength=experts)
        all_counts = [torch.empty_like(counts) for _ in range(world)]
        dist.all_gather(all_counts, counts)
        mine = torch.stack(all_counts)[:, rank * here : (rank + 1) * here]  # by source, expert
        self.send, self.receive = counts.view(world, here).sum(1).tolist(), mine.sum(1).tolist()
        expert_of_came = torch.arange(here, device=DEVICE).repeat(world).repeat_interleave(mine.flatten())
        self.by_expert = expert_of_came.argsort(stable=True)
        self.by_rank = self.by_expert.argsort()
        self.ends = mine.sum(0).cumsum(0).int()
        place = torch.zeros(tokens * k, device=DEVICE, dtype=torch.long)
        place[self.order] = torch.arange(len(self.order), device=DEVICE)
        self.place = place  # of what comes back; of a place that names no expert the first, with weight 0
        weights = torch.rand(tokens, k, device=DEVICE) + 1
        self.weights = ((weights / weights.sum(1, keepdim=True)) * (self.ids < experts)).bfloat16()


def check(x, b1, b2, r, hidden, inner, result):
    """Of the layer: the first token that names an expert, by weights of all ranks."""
    b1, b2 = b1.contiguous(), b2.contiguous()
    all1, all2 = ([torch.empty_like(b) for _ in range(dist.get_world_size())] for b in (b1, b2))
    dist.all_gather(all1, b1)
    dist.all_gather(all2, b2)
    if not len(r.tokens):
        return
    token, wanted = int(r.tokens.min()), torch.zeros(hidden, device=DEVICE, dtype=torch.float64)
    for expert, weight in zip(r.ids[token].tolist(), r.weights[token].double()):
        if weight:
            of, number = all1[expert // len(b1)], expert % len(b1)
            h = swiglu((x[token : token + 1].double() @ of[number].double()))
            wanted += weight * (h @ all2[expert // len(b1)][number].double())[0]
    assert (result[token].double() - wanted).norm() < 0.02 * wanted.norm()


def bench(tokens, hidden, inner, experts, k, options, layer):
    here = experts // dist.get_world_size()
    x = normal(tokens, hidden)
    b1 = stack(here, hidden, inner * (2 if layer else 1), options.b_nk)
    b2 = stack(here, inner, hidden, options.b_nk) if layer else None
    r = Routed(tokens, experts, k, options)
    rows = sum(r.receive)
    came, returned = torch.empty(rows, hidden, device=DEVICE, dtype=x.dtype), torch.empty(sum(r.send), hidden, device=DEVICE, dtype=x.dtype)
    leaving, a, act = x[r.tokens], normal(rows, hidden), normal(rows, inner)

    def in_turn(_):
        dist.all_to_all_single(came, x[r.tokens], r.receive, r.send)
        c = torch._grouped_mm(came[r.by_expert], b1, offs=r.ends)
        if not layer:
            return c
        y = torch._grouped_mm(swiglu(c), b2, offs=r.ends)
        dist.all_to_all_single(returned, y[r.by_rank], r.send, r.receive)
        if not len(returned):
            return torch.zeros_like(x)
        return torch.bmm(r.weights.unsqueeze(1), returned[r.place].view(tokens, k, hidden)).squeeze(1)

    times = {
        "product": measure(lambda _: torch._grouped_mm(a, b1, offs=r.ends)),
        "comm": measure(lambda _: dist.all_to_all_single(came, leaving, r.receive, r.send)),
    }
    if layer:
        times["second"] = measure(lambda _: torch._grouped_mm(act, b2, offs=r.ends))
        times["back"] = measure(lambda _: dist.all_to_all_single(returned, a, r.send, r.receive))
    times["in_turn"] = measure(in_turn)
    c = in_turn(0)
    if layer:
        check(x, b1, b2, r, hidden, inner, c)
    elif rows:  # the last row is right
        last = int((r.ends > rows - 1).nonzero()[0])
        wanted = came[r.by_expert[rows - 1]].double() @ b1[last].double()
        assert (c[rows - 1].double() - wanted).norm() < 0.01 * wanted.norm()
    return times


def main(layer):
    parser = argparse.ArgumentParser()
    parser.add_argument("--b-nk", action="store_true")
    parser.add_argument("--routing", default="even", choices=["even", "one", "few", "none"])
    parser.add_argument("--skew", type=float, default=0.0)
    parser.add_argument("shapes", nargs="+")
    options = parser.parse_args()
    if not hasattr(torch, "_grouped_mm"):
        sys.exit(77)
    torch_measure.start()
    torch.manual_seed(1 + dist.get_rank())
    for text in options.shapes:
        torch_measure.tell(text, bench(*map(int, text.split(",")), options, layer))
        torch_measure.empty_cache()
    dist.destroy_process_group()
