"""A PyTorch model on W ranks by one line: trained, then asked for words, then saved whole.

    torchrun --nproc-per-node 2 parallelize.py            # on GPUs where there are any
    python3 -m mkernel.launch -n 2 parallelize.py

The model is written here; one of `transformers`, LlamaForCausalLM or Qwen2ForCausalLM, goes the same way. tests/ run this file.
"""
import os

import torch
import torch.distributed as dist
import mkernel

if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
if "RANK" in os.environ:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
comm = mkernel.init(timeout_ns=120_000_000_000)
WORDS, D, HEAD, HEADS, INNER = 64, 128, 16, 8, 256


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head_dim = HEAD  # tells how many heads a projection has
        self.q_proj, self.k_proj, self.v_proj = (torch.nn.Linear(D, HEADS * HEAD, bias=False) for _ in range(3))
        self.o_proj = torch.nn.Linear(HEADS * HEAD, D, bias=False)

    def forward(self, x):
        # -1: as many heads as there are. The projections are given the input itself.
        q, k, v = (f(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class MLP(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = torch.nn.Linear(D, INNER, bias=False), torch.nn.Linear(D, INNER, bias=False)
        self.down_proj = torch.nn.Linear(INNER, D, bias=False)

    def forward(self, x):
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.mlp, self.norm1, self.norm2 = Attention(), MLP(), torch.nn.RMSNorm(D), torch.nn.RMSNorm(D)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.layers = torch.nn.Embedding(WORDS, D), torch.nn.ModuleList([Layer(), Layer()])
        self.norm, self.head = torch.nn.RMSNorm(D), torch.nn.Linear(D, WORDS, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


torch.manual_seed(1)  # the same weights and words on every rank
model = Model().to(comm.device, torch.bfloat16)
ids = torch.randint(0, WORDS, (2, 16 * comm.world), device=comm.device)
with torch.no_grad():
    whole = model(ids).float()

mkernel.parallelize(model)  # this is all
with torch.no_grad():
    error = ((model(ids).float() - whole).norm() / whole.norm()).item()
print(f"rank {comm.rank}: holds {sum(p.numel() for p in model.layers.parameters())} numbers of the layers; relative error {error:.4f}")
assert error < 0.02

optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
for step in range(3):
    loss = torch.nn.functional.cross_entropy(model(ids)[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"rank {comm.rank}: losses {' '.join(f'{loss:.4f}' for loss in losses)}")
assert losses[0] > losses[1] > losses[2]

mkernel.parallel_mode(model, "decode")  # few rows: gemm_ar, any number of words
with torch.no_grad():
    print(f"rank {comm.rank}: next words {model(ids[:, :5])[:, -1].argmax(-1).tolist()}")

state = mkernel.full_state_dict(model)
again = Model().bfloat16()
again.load_state_dict(state)
print(f"rank {comm.rank}: the whole state dict is back: {sum(x.numel() for x in state.values())} numbers")

rank, world = comm.rank, comm.world
comm.close()
if "RANK" in os.environ:
    dist.destroy_process_group()
print(f"parallelize: rank {rank} of {world} done")
