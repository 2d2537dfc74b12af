"""mkernel.parallelize on PyTorch's CPU tensors: logits, gradients and the state dict of a divided model are those of the whole one, in both
modes, for a model of the test's own and for Llama, Mistral, Qwen2 and Qwen3 of transformers, and without gradients for experts, Mixtral's, Qwen2-MoE's and Qwen3-MoE's too;
what cannot be divided is refused, and then nothing is changed. docs/examples/model.py measures."""
import copy
import importlib.util
import sys

import torch
import mkernel
from mkernel._blocks import gate_of
from cases import Skip, case, free_port, main, program, ranks, refuses, run, says, scene
from torch_model import DIM, H, HEADS, INNER, KV, MLP, WORDS, Attention, Model, Norm, routed
from torch_ranks import end, gathered, near, start

EXAMPLE = "docs/examples/parallelize.py"


def step(model, ids):
    """Logits and gradients of a training step; on the whole model in float32."""
    logits = model(ids)
    logits = getattr(logits, "logits", logits)
    torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), (ids * 7 % WORDS).flatten()).backward()
    return logits.detach(), {name: p.grad for name, p in model.named_parameters()}


def own(comm, name, x):
    """This rank's part, by the module's name alone."""
    if any(f"{row}.weight" in name for row in ("o_proj", "down_proj", "fc2")):
        return x.chunk(comm.world, 1)[comm.rank]
    if any(f"{column}." in name for column in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "fc1")):
        return x.chunk(comm.world)[comm.rank]
    return x


def sums_are(seen, name, blocks, bias):
    """In a profile the sums over ranks have a residual and a norm behind them; with a bias none has, and rows that are a rank's end behind the last layer."""
    counts = [seen.get(f"mkernel::{name}{epilogue}", 0) for epilogue in ("", "_residual", "_residual_rmsnorm")]
    last = int(name == "gemm_rs")
    assert counts == ([blocks, 0, 0] if bias else [0, last, blocks - last]), seen
    assert not [x for x in seen if x.startswith("mkernel::gemm") and not x.startswith(f"mkernel::{name}")], seen


def gathers_are(seen, attentions, plan, mlps=None):
    """One gather for q, k, v; one for gate and up, with what the MLP makes of them in its epilogue. A plan's modules have no gate."""
    plain, gated = (sum(seen.get(f"mkernel::ag_gemm{gate}{bias}", 0) for bias in ("", "_bias")) for gate in ("", "_gated"))
    assert (plain, gated) == (attentions, 0 if plan else attentions if mlps is None else mlps), seen


def is_right(comm, make, plan=None):
    torch.manual_seed(1)  # the same weights and ids on every rank
    model = make().bfloat16()
    whole = copy.deepcopy(model).float()
    ids = torch.randint(0, WORDS, (3, 8 * comm.world))
    state = {name: x.clone() for name, x in model.state_dict().items()}
    wanted, gradients = step(whole, ids)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)  # parameters stay the same objects
    assert mkernel.parallelize(model, plan=plan) is model
    held = dict(model.named_parameters())
    divided = [name for name, x in held.items() if x.shape != state[name].shape]
    assert divided and all(held[name].numel() * comm.world == state[name].numel() for name in divided)

    weights = {name: x for name, x in model.named_parameters() if name in divided and x.ndim == 2}
    for x in weights.values():
        x.main_grad = torch.zeros(x.shape)
    step(model, ids)
    for name, x in weights.items():
        assert x.grad is None, name
        near(x.main_grad.bfloat16(), own(comm, name, gradients[name]), 0.06)
        del x.main_grad
    model.zero_grad()

    logits, got = step(model, ids)
    near(logits, wanted, 0.03)
    assert all(torch.equal(x, logits) for x in gathered(logits))
    most = max(x.norm() for x in gradients.values())
    for name, x in gradients.items():
        if x.norm() > 1e-5 * most:
            near(got[name], own(comm, name, x), 0.06)
        else:  # the bias of keys: softmax does not see it
            assert got[name].norm() < 1e-2 * most, (name, got[name].norm(), most)
    if hasattr(model, "checkpointed"):
        for model.checkpointed in ("reentrant", "not reentrant", ""):
            model.zero_grad()
            for name, x in step(model, ids)[1].items():
                assert x is not None, (model.checkpointed, name)
                if gradients[name].norm() > 1e-5 * most:
                    near(x, got[name], 0.03)
    layers = len(model.layers if hasattr(model, "layers") else model.model.layers)
    with torch.profiler.profile() as profile, torch.no_grad():
        inferred = model(ids)
        inferred = getattr(inferred, "logits", inferred)
    near(inferred, logits, 0.02)  # biases are added before the rounding here
    seen = {event.key: event.count for event in profile.key_averages()}
    blocks, bias = layers * (1 if plan else 2), any(name.endswith(("o_proj.bias", "fc2.bias")) for name in state)
    gathers_are(seen, layers, plan)
    sums_are(seen, "gemm_rs", blocks, bias)

    full = mkernel.full_state_dict(model)
    assert list(full) == list(state) and all(torch.equal(full[name], x) for name, x in state.items())
    changed = {name: x * 2 for name, x in state.items()}
    mkernel.load_full_state_dict(model, changed)
    full = mkernel.full_state_dict(model)
    assert all(torch.equal(full[name], x) for name, x in changed.items())
    mkernel.load_full_state_dict(model, state)
    model.double().bfloat16()  # parameters move: weights are no longer one under another
    with torch.no_grad():
        assert torch.equal(getattr(model(ids), "logits", model(ids)), inferred)

    mkernel.parallel_mode(model, "decode")
    with torch.no_grad():
        for some in (ids, ids[:, :1], ids[:1, :5], ids[:1, :1]):
            with torch.profiler.profile() as profile:
                decoded, right = model(some), whole(some)
            near(getattr(decoded, "logits", decoded), getattr(right, "logits", right), 0.03)
            seen = {event.key: event.count for event in profile.key_averages()}
            sums_are(seen, "gemm_ar", blocks, bias)
            gathers_are(seen, 0, plan, layers if some.numel() > 32 else 0)
    refuses("mode \"decode\" has no backward", model, ids)
    mkernel.parallel_mode(model, "sequence")
    refuses(f"the sequence is {8 * comm.world - 1} long, and {comm.world} ranks do not divide it", model, ids[:, 1:])

    optimizer.step()  # what is trained is what is used
    with torch.no_grad():
        near(getattr(model(ids), "logits", model(ids)), step_of(whole, ids), 0.04)
    refuses("the model is parallelised already", mkernel.parallelize, model)


def experts_are_right(comm, make):
    torch.manual_seed(1)
    model = make().bfloat16().eval()
    whole, ids = copy.deepcopy(model), torch.randint(0, WORDS, (3, 8 * comm.world))
    state = {name: x.clone() for name, x in model.state_dict().items()}
    mkernel.parallelize(model)
    parts = [name for name in state if name.endswith(("gate_up_proj", "down_proj"))]
    assert parts and all(len(model.get_parameter(name)) * comm.world == len(state[name]) for name in parts)
    with torch.no_grad():
        logits = model(ids)
        near(getattr(logits, "logits", logits), getattr(whole(ids), "logits", whole(ids)), 0.05)
    refuses("experts are computed by moe_ffn, which has no backward: call the model under torch.no_grad()", model, ids)
    mkernel.parallel_mode(model, "decode")
    with torch.no_grad():
        for some in (ids, ids[:, :1], ids[:1, :1]):  # three rows and one, which the ranks do not divide
            got, right = model(some), whole(some)
            near(getattr(got, "logits", got), getattr(right, "logits", right), 0.05)
    full = mkernel.full_state_dict(model)
    assert list(full) == list(state) and all(torch.equal(full[name], x) for name, x in state.items())
    mkernel.load_full_state_dict(model, {name: x * 2 for name, x in state.items()})
    full = mkernel.full_state_dict(model)
    assert all(torch.equal(full[name], x * 2) for name, x in state.items())


def experts_refused(comm):
    def refused(words, model, change=None):
        for layer in model.layers:
            change and change(layer.mlp.experts)
        before = {name: x.clone() for name, x in model.bfloat16().state_dict().items()}
        refuses(words, mkernel.parallelize, model)
        assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())

    def taller(experts):
        experts.down_proj = torch.nn.Parameter(torch.randn(4, INNER, H))

    def call(experts):
        experts.forward = lambda x: x

    refused("layers.0.mlp.experts has 3 experts, which 2 ranks do not divide", routed(3))
    refused("its forward does not make the sum of weight * (silu(x gate) * (x up)) down", routed(act=torch.nn.functional.gelu))
    refused("and should be [E, 2 I, H] and [E, H, I]", routed(), taller)
    refused("its forward should take rows [T, H], ids [T, K] and weights [T, K]", routed(), call)
    model = routed()
    for layer in model.layers:
        layer.mlp.experts.bias = torch.nn.Parameter(torch.zeros(H))
    refused("is in no block", model)  # not such experts: a third parameter


def step_of(whole, ids):
    torch.optim.SGD(whole.parameters(), lr=0.5).step()
    logits = whole(ids)
    return getattr(logits, "logits", logits)


@scene
def own_model_with_biases():
    comm = start()
    is_right(comm, lambda: Model(bias=True, counts=True))
    end(comm)


@case
def a_model_with_biases_and_numbers_of_heads_on_four_ranks_is_the_whole_one():
    ranks(4, own_model_with_biases)


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Linear(H, INNER), torch.nn.Linear(INNER, H)

    def forward(self, x):
        return self.fc2(torch.nn.functional.gelu(self.fc1(x)))


class Gate(MLP):
    """f(gate) * up, by a function of both."""

    def __init__(self, f):
        super().__init__(False)
        self.f = f

    def forward(self, x):
        return self.down_proj(self.f(self.gate_proj(x), self.up_proj(x)))


def gates_are_told():
    """From gates that are something else, if only by a little."""
    f = torch.nn.functional
    for bias in (False, True):
        assert gate_of(MLP(bias), ("gate_proj", "up_proj"), "down_proj") == "silu"
        assert gate_of(MLP(bias).bfloat16(), ("gate_proj", "up_proj"), "down_proj") == "silu"
        assert gate_of(MLP(bias).to("meta"), ("gate_proj", "up_proj"), "down_proj") == "silu"
    assert gate_of(Gate(lambda gate, up: up * f.gelu(gate, approximate="tanh")), ("gate_proj", "up_proj"), "down_proj") == "gelu_tanh"
    for other in (lambda gate, up: up * f.gelu(gate), lambda gate, up: f.silu(up) * gate, lambda gate, up: f.silu(gate) + up, lambda gate, up: f.silu(gate) * (up + 1),
                  lambda gate, up: f.silu(gate.clamp(-2, 2)) * up):
        assert gate_of(Gate(other), ("gate_proj", "up_proj"), "down_proj") == ""
    with_norm = MLP(False)
    with_norm.norm = Norm(H)
    assert gate_of(with_norm, ("gate_proj", "up_proj"), "down_proj") == "" == gate_of(Plain(), ("fc1",), "fc2")


class Residual(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp, self.norm = Plain(), Norm(H)

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(WORDS, H), torch.nn.Linear(H, WORDS)
        self.layers = torch.nn.Sequential(Residual(), Residual())

    def forward(self, ids):
        return self.head(self.layers(self.embed(ids)))


PLAN = {"layers.*.mlp.fc1": "colwise", "layers.*.mlp.fc2": "rowwise"}


class Wide(Attention):
    def __init__(self):
        super().__init__(False, False)
        self.hidden_size = HEADS * DIM

    def forward(self, hidden_states):
        return self.o_proj(self.q_proj(hidden_states).reshape(*hidden_states.shape[:2], self.hidden_size))


class Two(Plain):
    def forward(self, x, y):
        return super().forward(x)


class Inside(Plain):
    def forward(self, x):
        return super().forward(x * 2)


class Shifted(Norm):
    def forward(self, x):
        return torch.nn.functional.rms_norm(x, (x.shape[-1],), 1 + self.weight, 1e-6)


class Odd(torch.nn.Module):
    """Does with a block's output what no layer of `transformers` does."""

    def __init__(self):
        super().__init__()
        self.mlp, self.norm, self.shifted = MLP(False), Norm(H), Shifted(H)

    def forward(self, x):
        y = self.mlp(x)
        x = x + y  # taken twice, by no RMSNorm
        x = self.shifted(x) + x
        y = self.mlp(x) * 0.5
        y += self.mlp(x)
        x = self.norm(y[:, :1] + x)
        return x + self.mlp(x)


def what_is_no_residual_and_norm_is_computed_as_it_is_written(comm):
    torch.manual_seed(1)
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([Odd(), Odd()])}).bfloat16()
    model.forward = lambda x: model["layers"][1](model["layers"][0](x))  # a sum that waits is the result
    x = torch.randn(2, 8, H).bfloat16()
    with torch.no_grad():
        wanted = model(x)
        mkernel.parallelize(model, mode="decode")
        with torch.profiler.profile() as profile:
            got = model(x)
    near(got, wanted, 0.03)
    assert type(got) is torch.Tensor
    seen = {event.key: event.count for event in profile.key_averages() if event.key.startswith("mkernel::gemm")}
    assert seen == {"mkernel::gemm_ar_residual": 4, "mkernel::gemm_ar": 4}, seen


def compiles(comm):
    torch.manual_seed(1)
    model, ids = Model(layers=1).bfloat16(), torch.randint(0, WORDS, (2, 4 * comm.world))
    mkernel.parallelize(model)
    logits, gradients = step(model, ids)
    wanted = {name: x.clone() for name, x in gradients.items()}
    model.zero_grad()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")  # inductor takes a minute, and what it is given is this
    got, _ = step(compiled, ids)
    near(got, logits, 0.02)
    for name, p in model.named_parameters():
        near(p.grad, wanted[name], 0.03)


def refusals(comm):
    torch.manual_seed(1)

    def refused(words, model, change=None, **more):
        model = model.bfloat16()
        if change:
            change(model)
        before = {name: x.clone() for name, x in model.state_dict().items()}
        refuses(words, mkernel.parallelize, model, **more)
        assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())

    def narrow(mlp, n):
        mlp.gate_proj, mlp.up_proj = (torch.nn.Linear(H, n, dtype=torch.bfloat16) for _ in range(2))

    def heads(model):
        for layer in model.layers:
            layer.self_attn.k_proj, layer.self_attn.v_proj = (torch.nn.Linear(H, DIM, dtype=torch.bfloat16) for _ in range(2))

    refused("no module of the model has gate_proj", Stack())
    refused("mode is \"pipeline\"", Model(), mode="pipeline")
    refused("layers.0.self_attn.k_proj has 1 heads, which 2 ranks do not divide", Model(), heads)
    refused("which 2 ranks do not divide", Model(counts=True), lambda m: [setattr(x.self_attn, "num_heads", 7) for x in m.layers])
    refused("has neither head_dim nor num_heads", Model(), lambda m: [delattr(x.self_attn, "head_dim") for x in m.layers])
    refused("is of torch.float32, and should be of torch.bfloat16 or torch.float16: convert by model.to(torch.bfloat16)", Model(), lambda m: m.float())
    refused("up_proj.weight is of torch.float16 and down_proj's of torch.bfloat16: they should be alike", Model(), lambda m: m.layers[0].mlp.up_proj.half())
    refused("is a Residual, and should be a torch.nn.Linear", Model(), lambda m: setattr(m.layers[0].mlp, "up_proj", Residual().bfloat16()))
    refused("has a parameter [128] for all ranks' columns", Model(), lambda m: [setattr(x.self_attn, "q_norm", Norm(HEADS * DIM)) for x in m.layers])
    refused("layers.1 has not the blocks that layers.0 has", Model(), lambda m: setattr(m.layers[1], "mlp", torch.nn.Identity()))
    refused("layers.0.extra has a weight [64, 64] and is in no block", Model(), lambda m: setattr(m.layers[0], "extra", torch.nn.Linear(H, H)))
    refused("are one parameter", Model(), lambda m: setattr(m.layers[1].mlp.up_proj, "weight", m.layers[0].mlp.up_proj.weight))
    refused("layers.0.mlp.gate_proj has 95 rows, which 2 ranks do not divide", Model(), lambda m: [narrow(x.mlp, 95) for x in m.layers])
    refused("layers.0.mlp.down_proj has 95 columns, which 2 ranks do not divide", Model(),
            lambda m: [setattr(x.mlp, "down_proj", torch.nn.Linear(95, H, dtype=torch.bfloat16)) for x in m.layers])
    refused("should take as many columns as down_proj makes", Model(),
            lambda m: [setattr(x.mlp, "down_proj", torch.nn.Linear(INNER, 32, dtype=torch.bfloat16)) for x in m.layers])
    refused("layers.0.self_attn: its forward shapes by self.hidden_size, which is all ranks'", Model(), lambda m: [setattr(x, "self_attn", Wide().bfloat16()) for x in m.layers])
    renamed = torch.nn.Sequential(torch.nn.Module())
    renamed[0].head_dim, renamed[0].wk, renamed[0].wo = DIM, torch.nn.Linear(H, 3 * DIM), torch.nn.Linear(3 * DIM, H)
    refused("0.wk has 3 heads, which 2 ranks do not divide", renamed, plan={"*.wk": "colwise", "*.wo": "rowwise"})
    refused("not in one ModuleList or Sequential", MLP(False))
    refused("no module is named mlp.fc3", Stack(), plan={"mlp.fc3": "colwise"})
    refused("is \"sideways\"", Stack(), plan={"layers.*.mlp.fc1": "sideways"})
    refused("it needs one or more, and one", Stack(), plan={"layers.*.mlp.fc1": "colwise"})
    refuses("has not been parallelised", mkernel.full_state_dict, Model())
    model = Stack().bfloat16()
    for layer in model.layers:
        layer.mlp = Inside().bfloat16()
    mkernel.parallelize(model, plan=PLAN)
    refuses("have to be given the input of layers.0.mlp itself", model, torch.zeros(1, 4, dtype=torch.int64))
    refuses("mode is \"tokens\"", mkernel.parallel_mode, model, "tokens")
    x = torch.zeros(1, 2, H, dtype=torch.bfloat16)
    two = torch.nn.Sequential(Two()).bfloat16()
    mkernel.parallelize(two, plan={"0.fc1": "colwise", "0.fc2": "rowwise"})
    refuses("0: its input should be one tensor [..., 64], and there are 2", two[0], x, x)
    refuses("should be [96, 64]: the whole of all ranks", mkernel.load_full_state_dict, model, dict(model.named_parameters()))
    mkernel.load_full_state_dict(model, model.state_dict())
    refuses("the state dict lacks embed.weight", mkernel.load_full_state_dict, model, {})
    refuses("has tail, which the model has not", mkernel.load_full_state_dict, model,
            {**mkernel.full_state_dict(model), "tail": torch.zeros(1)})


@scene
def two_ranks():
    comm = start()
    gates_are_told()
    is_right(comm, Model)
    is_right(comm, Stack, PLAN)
    what_is_no_residual_and_norm_is_computed_as_it_is_written(comm)
    compiles(comm)
    refusals(comm)
    experts_are_right(comm, routed)
    experts_refused(comm)
    alone = comm.alone()
    assert alone is comm.alone() and alone.world == 1 and not alone.closed
    end(comm)
    assert alone.closed


@case
def models_on_two_ranks_are_the_whole_ones_by_their_names_and_by_a_plan_and_refusals_change_nothing():
    ranks(2, two_ranks)


@case
def the_example_runs_under_torchrun():
    said = run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()), EXAMPLE])
    says(said, "parallelize: rank 0 of 2 done", "parallelize: rank 1 of 2 done", "the whole state dict is back")


def norms_and_weights(comm, whole, gradients, model, call=None, parameters=None):
    """The gradients of a step are those of the whole model, alike on all ranks where all have the parameter."""
    for x in model.parameters():
        x.grad = None
    loss_of(call or model, IDS).backward()
    for name, x in (parameters or dict(model.named_parameters())).items():
        near(x.grad, own(comm, name, gradients[name]), 0.06)
        if x.shape == gradients[name].shape:
            assert all(torch.equal(y, x.grad) for y in gathered(x.grad)), name


IDS = torch.arange(48).reshape(3, 16) * 7 % WORDS


def loss_of(model, ids):
    logits = model(ids)
    return torch.nn.functional.cross_entropy(getattr(logits, "logits", logits).float().flatten(0, 1), (ids * 7 % WORDS).flatten())


class Reads(torch.nn.Module):
    """A layer that computes by a norm's weight itself, as fused kernels do."""

    def __init__(self):
        super().__init__()
        self.mlp, self.norm = MLP(False), Norm(H)

    def forward(self, x):
        return x + self.mlp(torch.nn.functional.rms_norm(x, (H,), self.norm.weight))


def replaced_parameters_have_whole_gradients(comm):
    def pair(make=Model, before=lambda model: None):
        torch.manual_seed(1)
        model = make().bfloat16()
        whole = copy.deepcopy(model).float()
        loss_of(whole, IDS).backward()
        before(model)
        mkernel.parallelize(model)
        return whole, {name: x.grad for name, x in whole.named_parameters()}, model

    # frozen at first
    of = pair(before=lambda model: [x.requires_grad_(False) for name, x in model.named_parameters() if "before" in name or "q_norm" in name])
    for x in of[2].parameters():
        x.requires_grad_(True)
    norms_and_weights(comm, *of)
    whole, gradients, model = of
    # a state dict that takes the parameters' place, of state_dict() and of parts; what it is read from then
    model.load_state_dict({name: x.clone() for name, x in model.state_dict().items()}, assign=True)
    norms_and_weights(comm, *of)
    model.load_state_dict({name: x.detach().clone() for name, x in model.named_parameters()}, assign=True)
    norms_and_weights(comm, *of)
    assert model.layers[0].mlp.mkernel_block.laid["weight"][0] is model.layers[0].mlp.gate_proj.weight  # no copy in each call
    # a copy, and a copy of that
    for model in (copy.deepcopy(model), copy.deepcopy(copy.deepcopy(model))):
        norms_and_weights(comm, whole, gradients, model)
    # new parameters
    for module in model.modules():
        for name, x in list(module._parameters.items()):
            if x is not None:
                setattr(module, name, torch.nn.Parameter(x.detach().clone()))
    norms_and_weights(comm, whole, gradients, model)
    # parameters of a functional call, on which the model's memory does not depend afterwards
    given = {name: x.detach().clone().requires_grad_() for name, x in model.named_parameters()}
    at = {name: x.data_ptr() for name, x in given.items()}
    norms_and_weights(comm, whole, gradients, model, lambda ids: torch.func.functional_call(model, given, (ids,)), given)
    assert at == {name: x.data_ptr() for name, x in given.items()}
    norm = torch.nn.utils.clip_grad_norm_(given.values(), 1e9)
    near(norm, torch.stack([x.norm() for x in gradients.values()]).norm(), 0.02)
    # weights that were moved by .data: what is there is what is used
    with torch.no_grad():
        wanted = model(IDS)
        for x in model.parameters():
            x.data = x.data.clone()
        assert torch.equal(model(IDS), wanted)
    refuses("a weight of 96 rows was put in the place of this rank's 48", functional, model, {"layers.0.mlp.up_proj.weight": whole.layers[0].mlp.up_proj.weight.bfloat16()})
    # a norm that the layer reads by itself, checkpointed or not
    for name in ("", "reentrant", "not reentrant"):
        def make():
            model = Model()
            model.layers, model.checkpointed = torch.nn.ModuleList([Reads(), Reads()]), name
            return model
        norms_and_weights(comm, *pair(make))
    # a module that was put into a layer later
    whole, gradients, model = pair()
    for of_model in (whole, model):
        torch.manual_seed(2)
        for layer in of_model.layers:
            layer.after = torch.nn.Sequential(layer.after, Norm(H).to(layer.after.weight.dtype))
        of_model.zero_grad()
    loss_of(whole, IDS).backward()
    norms_and_weights(comm, whole, {name: x.grad for name, x in whole.named_parameters()}, model)
    # another module in a divided one's place, and a whole state dict
    model.layers[0].mlp.up_proj = torch.nn.Sequential(model.layers[0].mlp.up_proj)
    refuses("layers.0.mlp.up_proj is a Sequential, which was put there after mkernel.parallelize", model, IDS)
    try:
        import pickle
        pickle.dumps(model)
        raise AssertionError("pickled")
    except mkernel.Refused as e:
        says(str(e), "mkernel.save_checkpoint(model, path) writes the whole")


def functional(model, given):
    return torch.func.functional_call(model, given, (IDS,))


def norms_of_gradients_are_of_all_ranks(comm):
    """Clipped, the divided model is the whole one, and weights that all ranks have stay alike."""
    for norm_type in (2.0, 1.0, float("inf")):
        torch.manual_seed(1)
        model = Model().bfloat16()
        whole = copy.deepcopy(model).float()
        mkernel.parallelize(model)
        for of in (model, whole):
            loss_of(of, IDS).backward()
        right = torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.1, norm_type)
        near(torch.nn.utils.get_total_norm([x.grad for x in model.parameters()], norm_type), right, 0.02)
        got = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type)
        near(got, right, 0.02)
        assert all(torch.equal(x, got) for x in gathered(got))
        wanted = dict(whole.named_parameters())
        for name, x in model.named_parameters():
            near(x.grad, own(comm, name, wanted[name].grad), 0.08)
            if x.shape == wanted[name].shape:
                assert all(torch.equal(y, x.grad) for y in gathered(x.grad)), name
        near(torch.nn.utils.get_total_norm(model.parameters(), norm_type), torch.nn.utils.get_total_norm(whole.parameters(), norm_type))
    # a step that one rank leaves out for what it found in its part
    for rank in (0, 1, None):
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = mkernel.full_state_dict(model)
        optimizer.zero_grad()
        scaler.scale(loss_of(model, IDS)).backward()
        if comm.rank == rank:
            model.layers[0].mlp.up_proj.weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (4.0 if rank is None else 2.0)
        after = mkernel.full_state_dict(model)
        assert all(torch.equal(x, after[name]) for name, x in before.items()) == (rank is not None)
    model.layers[0].mlp.up_proj.weight.grad.fill_(float("inf") if comm.rank == 0 else 0)
    try:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        raise AssertionError("not finite")
    except RuntimeError as e:
        says(str(e), "non-finite")


def checkpoints_of_torch_distributed_are_whole(comm):
    import pathlib
    import tempfile
    import torch.distributed.checkpoint as dcp

    folder = [tempfile.mkdtemp() if comm.rank == 0 else ""]
    torch.distributed.broadcast_object_list(folder)
    torch.manual_seed(1)
    model = Model().bfloat16()
    state = {name: x.clone() for name, x in model.state_dict().items()}
    mkernel.parallelize(model)
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder[0])
    read = {"model": {name: torch.zeros_like(x) for name, x in state.items()}}
    dcp.load(read, checkpoint_id=folder[0])
    assert all(torch.equal(read["model"][name], x) for name, x in state.items())
    other = mkernel.parallelize(copy.deepcopy(Model()).bfloat16())
    held = {"model": other.state_dict()}
    dcp.load(held, checkpoint_id=folder[0])
    other.load_state_dict(held["model"])
    full = mkernel.full_state_dict(other)
    assert all(torch.equal(full[name], x) for name, x in state.items())
    assert torch.equal(other(IDS), model(IDS))
    torch.distributed.barrier()
    if comm.rank == 0:
        import shutil
        shutil.rmtree(pathlib.Path(folder[0]))


def optimizers_states_are_whole(comm):
    """In a checkpoint of torch.distributed, whatever their shapes; a rank's own file is that rank's."""
    import io
    import shutil
    import tempfile
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, get_state_dict, set_state_dict

    def steps(model, optimizer, count):
        for _ in range(count):
            optimizer.zero_grad()
            loss_of(model, IDS).backward()
            optimizer.step()
        return mkernel.full_state_dict(model)

    def new(kind):
        torch.manual_seed(1)
        model = mkernel.parallelize(Model().bfloat16())
        return model, kind(model.parameters(), lr=1e-2)

    for kind in (torch.optim.AdamW, lambda *of, **named: torch.optim.SGD(*of, momentum=0.9, **named), torch.optim.Adafactor):
        folder = [tempfile.mkdtemp() if comm.rank == 0 else ""]
        torch.distributed.broadcast_object_list(folder)
        model, optimizer = new(kind)
        steps(model, optimizer, 2)
        of_model, of_optimizer = get_state_dict(model, optimizer)
        dcp.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=folder[0])
        state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
        own = io.BytesIO()
        torch.save(state, own)
        name = "layers.0.self_attn.o_proj.weight"  # columns
        p = model.layers[0].self_attn.o_proj.weight
        whole = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))["state"].get(name)
        for key, x in optimizer.state[p].items():
            if x.ndim and comm.rank == 0:
                assert torch.equal(whole[key].chunk(comm.world, 1)[0], x) and whole[key].shape[1] == comm.world * x.shape[1], key
        wanted = steps(model, optimizer, 1)
        for way in ("torch.distributed.checkpoint", "torch.save"):
            model, optimizer = new(kind)
            if way == "torch.save":
                own.seek(0)
                of_model, of_optimizer = torch.load(own)
                model.load_state_dict(of_model)
                optimizer.load_state_dict(of_optimizer)
            else:
                of_model, of_optimizer = get_state_dict(model, optimizer)
                dcp.load({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=folder[0])
                set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
            assert all(type(x) is torch.Tensor for y in optimizer.state.values() for x in y.values())
            got = steps(model, optimizer, 1)
            assert all(torch.equal(got[name], x) for name, x in wanted.items()), way
        files = [None] * comm.world
        torch.distributed.all_gather_object(files, own.getvalue())
        others = torch.load(io.BytesIO(files[1 - comm.rank]))
        says_whose = f"is rank {1 - comm.rank}'s part, and this is rank {comm.rank}: torch.save writes what the rank has that calls it"
        refuses(says_whose, model.load_state_dict, others[0])
        refuses(says_whose, optimizer.load_state_dict, others[1])
        torch.distributed.barrier()
        if comm.rank == 0:
            shutil.rmtree(folder[0])
    # that the program has not imported
    tensor, torch.distributed.tensor = torch.distributed.tensor, None
    del torch.distributed.tensor
    try:
        model.load_state_dict(model.state_dict())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    finally:
        torch.distributed.tensor = tensor


def wrappers_of_the_same_ranks_are_refused(comm):
    """They would take parts for copies, or for a whole of which they make parts."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(1)
    model = mkernel.parallelize(Model().bfloat16())
    before = mkernel.full_state_dict(model)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (comm.world,))
    for named in ({}, {"process_group": torch.distributed.group.WORLD}, {"device_mesh": mesh}):
        refuses("wrap with process_group=mesh[\"data\"].get_group()", DistributedDataParallel, model, **named)
    refuses("take torch.distributed.fsdp.fully_shard", FullyShardedDataParallel, model)
    assert all(torch.equal(x, before[name]) for name, x in mkernel.full_state_dict(model).items())
    for of in (lambda: fully_shard(model.layers[0]), lambda: fully_shard(torch.nn.Sequential(model)), lambda: fully_shard(model, mesh=mesh)):
        refuses("wrap with mesh=mesh[\"data\"]", of)
        model = mkernel.parallelize(Model().bfloat16())
    wrapped = DistributedDataParallel(Model().bfloat16())
    refuses("mkernel.parallelize first, then wrap", mkernel.parallelize, wrapped)


def what_is_fused_is_what_is_there(comm):
    """Without gradients a hook, another activation, another eps is what the model's code says, whether it was fused before or not."""
    def check(change, mode="sequence", make=Model, moves=True):
        torch.manual_seed(1)
        model = make().bfloat16()
        whole = copy.deepcopy(model)
        mkernel.parallelize(model, mode=mode)
        with torch.no_grad():
            before = model(IDS)
            for of in (whole, model):
                for layer in of.layers:
                    change(layer)
            right = whole(IDS)
            assert not moves or (right - before).norm() > 0.05 * before.norm()
            near(model(IDS), right, 0.03)
            near(copy.deepcopy(model)(IDS), right, 0.03)

    def act():
        class Own(MLP):
            def __init__(self):
                super().__init__(False)
                self.act_fn, self.scale = torch.nn.SiLU(), 1.0

            def forward(self, x):
                return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))

        model = Model()
        for layer in model.layers:
            layer.mlp = Own()
        return model

    twice = lambda module, arguments, result: result * 2
    for mode in ("sequence", "decode"):
        check(lambda layer: layer.mlp.gate_proj.register_forward_hook(twice), mode)
        check(lambda layer: layer.mlp.up_proj.register_forward_hook(twice), mode)
        check(lambda layer: layer.mlp.down_proj.register_forward_hook(twice), mode)
        check(lambda layer: layer.mlp.act_fn.register_forward_hook(twice), mode, act)
        check(lambda layer: setattr(layer.mlp, "act_fn", torch.nn.ReLU()), mode, act)
        check(lambda layer: setattr(layer.mlp.act_fn, "forward", torch.nn.functional.relu), mode, act)
        check(lambda layer: [setattr(x, "variance_epsilon", 4.0) for x in (layer.before, layer.after)], mode, eps)
        check(lambda layer: layer.after.register_forward_hook(twice), mode)
        check(lambda layer: layer.after.register_parameter("weight", torch.nn.Parameter(layer.after.weight.detach() * 2)), mode)
        check(lambda layer: layer.mlp.eval(), mode, moves=False)
    model = mkernel.parallelize(routed().bfloat16())
    model.layers[1].mlp.experts.act = torch.nn.functional.relu
    with torch.no_grad():
        refuses("layers.1.mlp.experts has changed since mkernel.parallelize", model, IDS)


class Eps(Norm):
    def __init__(self, n):
        super().__init__(n)
        self.variance_epsilon = 1e-6

    def forward(self, x):
        return torch.nn.functional.rms_norm(x, (x.shape[-1],), self.weight, self.variance_epsilon)


def eps():
    model = Model()
    for layer in model.layers:
        layer.before, layer.after = Eps(H), Eps(H)
    return model


@scene
def of_frameworks():
    comm = start()
    replaced_parameters_have_whole_gradients(comm)
    norms_of_gradients_are_of_all_ranks(comm)
    checkpoints_of_torch_distributed_are_whole(comm)
    optimizers_states_are_whole(comm)
    wrappers_of_the_same_ranks_are_refused(comm)
    what_is_fused_is_what_is_there(comm)
    end(comm)


@case
def what_frameworks_replace_copy_clip_save_and_hook_is_right_or_refused():
    ranks(2, of_frameworks)


def two_groups():
    """Two groups of two ranks, "data" between them and "model" in them: the mesh, the group's communicator and number, words for both
    groups, and a model to divide with the same as a whole one."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    comm = mkernel.init(group=mesh["model"].get_group(), timeout_ns=600_000_000_000)
    torch.manual_seed(1)
    model = Model().bfloat16()
    ids = torch.randint(0, WORDS, (2, 3, 16), generator=torch.Generator().manual_seed(5))
    return mesh, comm, mesh["data"].get_local_rank(), ids, model, copy.deepcopy(model).float()


def trains_as(model, whole, ids, data, before_step=lambda: None, after_step=lambda: None):
    """Four steps of SGD: the model's on the group's own words ids[data], the whole one's on all."""
    optimizers = [torch.optim.SGD(of.parameters(), lr=1.0) for of in (model, whole)]
    for step in range(4):
        got = loss_of(model, ids[data])
        losses = [loss_of(whole, x) for x in ids]
        near(got.detach(), losses[data].detach(), 0.02)
        got.backward()
        (sum(losses) / 2).backward()
        before_step()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        after_step()


@scene
def with_fsdp():
    """Two groups of two ranks: FSDP2 between the groups, parallelize in them."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    mesh, comm, data, ids, model, whole = two_groups()
    refuses("mkernel.parallelize first, then wrap", mkernel.parallelize, fully_shard(copy.deepcopy(model), mesh=mesh["data"]))
    mkernel.parallelize(model)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])

    def clipped_alike():
        norms = [torch.nn.utils.clip_grad_norm_(of.parameters(), 1.0) for of in (model, whole)]
        near(norms[0], norms[1], 0.03)

    def alike_without_gradients():
        with torch.no_grad():  # which must not take the memory away that FSDP gathers into
            near(loss_of(model, ids[data]), loss_of(whole, ids[data]), 0.02)

    trains_as(model, whole, ids, data, clipped_alike, alike_without_gradients)
    full, wanted = mkernel.full_state_dict(model), whole.state_dict()
    for name, x in full.items():
        near(x, wanted[name], 0.03)
    refuses("mkernel.full_state_dict(model) gives the whole", model.state_dict)
    trained = torch.optim.AdamW(model.parameters())
    loss_of(model, ids[data]).backward()
    trained.step()
    refuses("optimizer.state is this rank's, save it by rank", trained.state_dict)
    refuses("mkernel.full_state_dict(model) gives the whole", mkernel.save_checkpoint, model, "/nowhere")
    refuses("before the model is wrapped", mkernel.load_full_state_dict, model, full)
    comm.close()
    dist.destroy_process_group()


@case
def a_model_that_fsdp_shards_between_groups_trains_as_the_whole_one():
    ranks(4, with_fsdp)


@scene
def with_ddp():
    """Two groups of two ranks: DistributedDataParallel between the groups, parallelize in them."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    mesh, comm, data, ids, model, whole = two_groups()
    mkernel.parallelize(model)
    ranks_of_group = f"what ranks {2 * data}, {2 * data + 1} have for copies"
    refuses(ranks_of_group, DistributedDataParallel, model, process_group=mesh["model"].get_group())
    wrapped = DistributedDataParallel(model, process_group=mesh["data"].get_group())
    trains_as(wrapped, whole, ids, data)
    wanted = whole.state_dict()
    for name, x in mkernel.full_state_dict(model).items():
        near(x, wanted[name], 0.03)
    comm.close()
    dist.destroy_process_group()


@case
def a_model_in_ddp_between_groups_trains_as_the_whole_one():
    ranks(4, with_ddp)


@scene
def of_transformers():
    import transformers as t

    comm = start()
    sizes = dict(vocab_size=WORDS, hidden_size=H, intermediate_size=INNER, num_hidden_layers=2, num_attention_heads=HEADS, num_key_value_heads=KV,
                 max_position_embeddings=256, tie_word_embeddings=False)
    for config, model in ((t.LlamaConfig, t.LlamaForCausalLM), (t.Qwen2Config, t.Qwen2ForCausalLM), (t.Qwen3Config, t.Qwen3ForCausalLM),
                          (t.MistralConfig, t.MistralForCausalLM)):
        is_right(comm, lambda: model(config(**sizes)))
    few = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
    experts_are_right(comm, lambda: t.MixtralForCausalLM(t.MixtralConfig(**sizes, num_local_experts=4)))
    experts_are_right(comm, lambda: t.Qwen2MoeForCausalLM(t.Qwen2MoeConfig(**sizes, **few, shared_expert_intermediate_size=INNER)))
    experts_are_right(comm, lambda: t.Qwen3MoeForCausalLM(t.Qwen3MoeConfig(**sizes, **few, head_dim=DIM)))

    refuses("mkernel.save_checkpoint(model, path) writes the whole", mkernel.parallelize(t.LlamaForCausalLM(t.LlamaConfig(**sizes)).bfloat16()).save_pretrained, "/nowhere")
    # Checkpointed as transformers does it; a prompt in one mode and the next word in the other, with one cache; generate.
    torch.manual_seed(1)
    model = t.LlamaForCausalLM(t.LlamaConfig(**sizes)).bfloat16()
    whole, ids = copy.deepcopy(model), torch.randint(0, WORDS, (2, 6))
    mkernel.parallelize(model)
    wanted = {name: x.clone() for name, x in step(model, ids)[1].items()}
    for reentrant in (False, True):  # of which the second calls layers without gradients, and once more with them
        model.zero_grad()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        for name, x in step(model.train(), ids)[1].items():
            assert x is not None, (reentrant, name)
            near(x, wanted[name], 0.03)
        model.gradient_checkpointing_disable()
    with torch.no_grad():
        prompt = model.eval()(ids, use_cache=True, output_hidden_states=True)
        assert [(type(x), x.shape[1]) for x in prompt.hidden_states] == [(torch.Tensor, n) for n in (3, 3, 6)]  # parts, and no sum that waits
        mkernel.parallel_mode(model, "decode")
        near(model(ids[:, :1], past_key_values=prompt.past_key_values).logits, whole(torch.cat([ids, ids[:, :1]], 1)).logits[:, -1:], 0.03)
    words = model.generate(ids, max_new_tokens=4, do_sample=False, eos_token_id=-1)
    assert words.shape == (2, 10) and all(torch.equal(words, x) for x in gathered(words))
    end(comm)


@case
def models_of_transformers_are_the_whole_ones():
    if importlib.util.find_spec("transformers") is None:
        raise Skip("this Python has no transformers")
    ranks(2, of_transformers)


@case
def the_script_that_measures_a_model_runs_on_cpus():
    if importlib.util.find_spec("transformers") is None:
        raise Skip("this Python has no transformers")
    script = "docs/examples/model.py", "--no-compile", "--layers", "1"
    said = run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()), *script,
                "--only", "prefill 16|decode 3|train"])
    for title in ("prefill 16", "decode 3", "train 16"):
        lines = [line for line in said.splitlines() if line.startswith(title)]
        assert len(lines) == (2 if title == "decode 3" else 3) and all("tokens/s" in line and "error" in line for line in lines), said
    says(said, "% in operators", "x in turn", "x DTensor")
    said = ranks(2, program, *script, "--model", "qwen3-moe", "--only", "decode 3", "--norms")[0]
    says(said, "decode 3       mkernel", "decode 3       one launch", "decode 3       norm behind", "decode 3       own norms", "decode 3       DTensor")
    said = ranks(1, program, *script, "--only", "prefill 16", "--budget", "0")[0]
    says(said, "prefill 16: left out, no time left of 0 s")


if __name__ == "__main__":
    main()
