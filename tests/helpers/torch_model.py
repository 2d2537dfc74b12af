"""A decoder of the tests' own, with the names that mkernel.parallelize knows."""
import torch
from torch.utils.checkpoint import checkpoint

H, HEADS, KV, DIM, INNER, WORDS = 64, 8, 4, 16, 96, 50


class Norm(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(n) + 0.5)

    def forward(self, x):
        return torch.nn.functional.rms_norm(x, (x.shape[-1],), self.weight)


class Attention(torch.nn.Module):
    """Views by num_heads where `counts`, else by -1."""

    def __init__(self, bias, counts):
        super().__init__()
        self.head_dim, self.counts = DIM, counts
        if counts:
            self.num_heads, self.num_kv_heads = HEADS, KV
        for name, n in (("q_proj", HEADS), ("k_proj", KV), ("v_proj", KV)):
            setattr(self, name, torch.nn.Linear(H, n * DIM, bias=bias))
        self.o_proj = torch.nn.Linear(HEADS * DIM, H, bias=bias)
        self.q_norm = Norm(DIM)

    def forward(self, hidden_states, mask=None):
        B, S = hidden_states.shape[:2]
        q = self.q_proj(hidden_states).view(B, S, self.num_heads if self.counts else -1, self.head_dim).transpose(1, 2)
        k, v = (f(hidden_states).view(B, S, self.num_kv_heads if self.counts else -1, self.head_dim).transpose(1, 2) for f in (self.k_proj, self.v_proj))
        y = torch.nn.functional.scaled_dot_product_attention(self.q_norm(q), k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).reshape(B, S, -1)), None


class MLP(torch.nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.gate_proj, self.up_proj = (torch.nn.Linear(H, INNER, bias=bias) for _ in range(2))
        self.down_proj = torch.nn.Linear(INNER, H, bias=bias)

    def forward(self, x):
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(torch.nn.Module):
    def __init__(self, bias, counts):
        super().__init__()
        self.self_attn, self.mlp, self.before, self.after = Attention(bias, counts), MLP(bias), Norm(H), Norm(H)

    def forward(self, x):
        x = x + self.self_attn(hidden_states=self.before(x))[0]
        return x + self.mlp(self.after(x))


class Model(torch.nn.Module):
    def __init__(self, bias=False, counts=False, layers=2):
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, H)
        self.layers = torch.nn.ModuleList([Layer(bias, counts) for _ in range(layers)])
        self.norm, self.head, self.checkpointed = Norm(H), torch.nn.Linear(H, WORDS, bias=False), ""

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.checkpointed == "reentrant") if self.checkpointed else layer(x)
        return self.head(self.norm(x))


class Experts(torch.nn.Module):
    def __init__(self, count, act=torch.nn.functional.silu):
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(torch.randn(count, 2 * INNER, H) / H**0.5)
        self.down_proj = torch.nn.Parameter(torch.randn(count, H, INNER) / INNER**0.5)
        self.act = act

    def forward(self, x, ids, weights):
        y = torch.zeros_like(x)
        for place in range(ids.shape[1]):
            for expert in range(len(self.gate_up_proj)):
                rows = ids[:, place] == expert
                gate, up = (x[rows] @ self.gate_up_proj[expert].t()).chunk(2, -1)
                y[rows] += (weights[rows, place, None] * ((self.act(gate) * up) @ self.down_proj[expert].t())).to(y.dtype)
        return y


class Routed(torch.nn.Module):
    """Two of the experts for each token, by its numbers alone, and one expert that all share."""

    def __init__(self, experts):
        super().__init__()
        self.gate, self.experts, self.shared_expert = torch.nn.Linear(H, len(experts.gate_up_proj), bias=False), experts, MLP(False)

    def forward(self, x):
        rows = x.reshape(-1, H)
        weights, ids = self.gate(rows).float().softmax(-1).topk(2, -1)
        return (self.experts(rows, ids, weights) + self.shared_expert(rows)).reshape(x.shape)


def routed(count=4, act=torch.nn.functional.silu):
    model = Model()
    for layer in model.layers:
        layer.mlp = Routed(Experts(count, act))
    return model
