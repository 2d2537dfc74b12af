"""A model of `transformers` on all GPUs of a host: mkernel.parallelize beside PyTorch's own tensor parallelism, in one run.

    torchrun --nproc-per-node 2 docs/examples/model.py                    # Llama-3-8B's shape, 8 layers, random weights
    torchrun --nproc-per-node 2 docs/examples/model.py --model qwen3-moe  # Qwen3-30B-A3B's: inference alone

    prefill N    N tokens of one sequence, the last one's logits
    decode N     a token of each of N sequences, 1024 tokens in the cache, replayed from a CUDA graph
    train N      forward, loss and backward of N tokens; attention's backward is PyTorch's
Each is done by these, which take turns; a way that fails says so in a line, and the others go on:
    mkernel      mkernel.parallelize: ag_gemm and gemm_rs (decode: gemm_ar; experts: moe_ffn)
    in turn      the same model, and in place of each operator NCCL's collective and PyTorch's product, sum and (one kernel) rms_norm
    DTensor      torch.distributed.tensor.parallel over NCCL, eager: its all-reduces
    compiled     prefill of two sequences alone: DTensor with the sequence sharded, each layer by torch.compile; so are the next two,
    async TP     with PyTorch's async tensor parallelism,
    the pass     and with mkernel.compile_pass
A line has ms of a step (median over the turns, the slowest rank's, and the middle half), tokens/s, the relative error against the whole model on one GPU
(logits; for train the loss, the gradients together and the worst one) and of mkernel the share of the GPU's time in its operators. Without GPUs a tiny model runs on the CPUs over gloo: a check of this
program, whose times say nothing. Ends with status 1 where a result is wrong, with 77 where there is no transformers.
"""
import argparse
import contextlib
import datetime
import functools
import os
import re
import signal
import statistics
import sys
import time

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
import torch
import torch.distributed as dist
import mkernel

try:
    import transformers
except ImportError:
    print("this Python has no transformers")
    sys.exit(77)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module

BEGAN = time.monotonic()
GPU = torch.cuda.is_available()
CONTEXT = 1024 if GPU else 8  # tokens in the cache of a sequence that decodes
ROUNDS = 9 if GPU else 3
COMPILE = 60 if GPU else 400  # s that a way may compile
NEAR = {"llama": 0.05, "qwen3-moe": 0.15}  # relative error of bf16's sums, in another order, through all layers; a router then takes other experts where two are nearly alike


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("llama", "qwen3-moe"), default="llama")
    parser.add_argument("--layers", type=int, default=8 if GPU else 2)
    parser.add_argument("--budget", type=float, default=200 if GPU else 1e6, help="seconds after which nothing new begins (default %(default)s)")
    parser.add_argument("--only", default=".", help="measures whose names match: 'prefill 4096', 'decode', 'train|2x2048'")
    parser.add_argument("--norms", action="store_true", help="inference also with each way to norm: in gemm_ar's or gemm_rs's launch, by PyTorch's kernel behind it, by the model's own code")
    parser.add_argument("--no-compile", action="store_true", help="leave out what torch.compile takes part in")
    return parser.parse_args()


def config_of(args):
    common = dict(num_hidden_layers=args.layers, attn_implementation="sdpa", use_cache=False, tie_word_embeddings=False, pad_token_id=None)
    if not GPU:
        common.update(vocab_size=96, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=256)
        if args.model == "llama":
            return transformers.LlamaConfig(**common)
        return transformers.Qwen3MoeConfig(**common, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32)
    if args.model == "llama":
        return transformers.LlamaConfig(**common, vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8,
                                        head_dim=128, rope_theta=500000.0, max_position_embeddings=32768)
    return transformers.Qwen3MoeConfig(**common, vocab_size=151936, hidden_size=2048, intermediate_size=6144, num_attention_heads=32, num_key_value_heads=4,
                                       head_dim=128, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, max_position_embeddings=32768)


# ---- the job ----


def say(text):
    if dist.get_rank() == 0:
        print(text, flush=True)


def worst(x):
    """The largest of the ranks."""
    t = torch.tensor([float(x)], device=DEVICE)
    dist.all_reduce(t, dist.ReduceOp.MAX)
    return t.item()


def attempt(name, function):
    """What it returns; None, and a line that says why, where it fails on a rank."""
    sentence, made = "", None
    try:
        made = function()
    except Exception as e:
        sentence = " ".join(f"{type(e).__name__}: {e}".split())[:600]
        print(f"{name}: rank {dist.get_rank()} failed: {sentence}", flush=True)
    return None if worst(bool(sentence)) else made


def left():
    """Seconds, alike on all ranks."""
    return -worst(time.monotonic() - BEGAN - ARGS.budget)


def wanted(name):
    return re.search(ARGS.only, name) is not None


def begins(name, seconds):
    """Whether this measure begins: it is wanted, and there is time."""
    if not wanted(name):
        return False
    if left() < seconds:
        say(f"{name}: left out, no time left of {ARGS.budget:.0f} s")
        return False
    return True


@contextlib.contextmanager
def limited(seconds):
    """Raises in the block after so long."""

    def late(*_):
        raise TimeoutError(f"not compiled within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# ---- measures ----


def timed(call, times):
    """ms of a call, of the slowest rank."""
    dist.barrier()
    if GPU:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
    began = time.perf_counter()
    for _ in range(times):
        call()
    if GPU:
        end.record()
        torch.cuda.synchronize()
        comm.wait()  # raises what failed in a launch
        return worst(begin.elapsed_time(end) / times)
    return worst((time.perf_counter() - began) / times * 1e3)


def share(call):
    """Of the kernels' time, in mkernel's operators; None where a profiler cannot tell."""
    with torch.profiler.profile() as profile:
        call()
        if GPU:
            torch.cuda.synchronize()
    every = profile.key_averages()
    if not GPU:
        return sum(e.cpu_time_total for e in every if e.key.startswith("mkernel::")) / max(sum(e.self_cpu_time_total for e in every), 1)
    kernels = sum(e.self_device_time_total for e in every if str(e.device_type).endswith("CUDA") and not getattr(e, "is_user_annotation", False))
    ours = sum(e.device_time_total for e in every if e.key.startswith("mkernel::") and str(e.device_type).endswith("CPU"))
    return ours / kernels if ours and kernels else None


class Race:
    """Ways to one result that take turns."""

    def __init__(self, title, tokens, times):
        self.title, self.tokens, self.times = title, tokens, times if GPU else 1
        self.ways, self.said = {}, {}

    def add(self, name, call, words=""):
        """A way that has run already; `words` for its line."""
        if call is not None:
            self.ways[name], self.said[name] = call, words

    def run(self):
        took = {name: [] for name in self.ways}
        for _ in range(ROUNDS):
            for name in list(took):
                ms = attempt(f"{self.title} {name}", lambda: timed(self.ways[name], self.times))
                if ms is None:
                    del took[name]
                else:
                    took[name].append(ms)
        medians = {name: statistics.median(ms) for name, ms in took.items()}
        for name, ms in took.items():
            low, median, high = statistics.quantiles(ms, n=4, method="inclusive")
            ratios = ""
            if name == "mkernel":
                ratios = "".join(f", {medians[other] / median:.2f} x {other}" for other in medians if other != name)
            say(f"{self.title:14s} {name:10s} {median:9.3f} ms ({low:.3f} .. {high:.3f}) {self.tokens / median * 1e3:10.0f} tokens/s{self.said[name]}{ratios}")
        return medians


def error_of(got, right):
    """Relative, on this rank."""
    return ((got.float() - right.float()).norm() / right.float().norm()).nan_to_num(float("inf"), float("inf")).item()


def error_of_all(pairs):
    """Of many tensors as one: of a gradient that is nearly nothing, as of keys where softmax is flat, bf16 leaves little."""
    return (sum((x.float() - y.float()).square().sum() for x, y in pairs) / sum(y.float().square().sum() for _, y in pairs)).sqrt().nan_to_num(float("inf"), float("inf")).item()


def judged(e):
    """The worst rank's error, for a line; one that is not small fails the program in the end."""
    global wrong
    e = worst(e)
    wrong |= not e < NEAR[ARGS.model]
    return f"{e:.4f}" + ("" if e < NEAR[ARGS.model] else " WRONG")


# ---- the ways ----


@contextlib.contextmanager
def in_turn():
    """In place of mkernel's operators PyTorch's collectives and products; the model is the same."""

    def gathered(a, **_):
        whole = a.new_empty(a.shape[0] * comm.world, a.shape[1])
        dist.all_gather_into_tensor(whole, a.contiguous())
        return whole

    def scattered(c):
        if not GPU:  # gloo's would be fp32 alone
            dist.all_reduce(c)
            return c.chunk(comm.world)[comm.rank].clone()
        mine = c.new_empty(c.shape[0] // comm.world, c.shape[1])
        dist.reduce_scatter_tensor(mine, c)
        return mine

    def summed(c):
        dist.all_reduce(c)
        return c

    class Gathered(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return gathered(a) @ b

        @staticmethod
        def backward(ctx, dc):
            a, b = ctx.saved_tensors
            return scattered(dc @ b.t()), (dc.t() @ gathered(a)).t()

    class Scattered(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return scattered(a @ b)

        @staticmethod
        def backward(ctx, dc):
            a, b = ctx.saved_tensors
            whole = gathered(dc)
            return whole @ b.t(), (whole.t() @ a).t()

    def gemm_rs(a, b, **epilogue):
        return with_norm(Scattered.apply(a, b), **epilogue)

    def ag_gemm(a, b, bias=None, **_):
        return Gathered.apply(a, b) if bias is None else Gathered.apply(a, b) + bias

    def gemm_ar(a, b, **epilogue):
        return with_norm(summed(a @ b), **epilogue)

    def with_norm(c, residual=None, norm_weight=None, eps=0, **_):
        if residual is None:
            return c
        c += residual
        return c if norm_weight is None else (torch.nn.functional.rms_norm(c, norm_weight.shape, norm_weight, eps), c)

    named = {"ag_gemm": ag_gemm, "gemm_rs": gemm_rs, "gemm_ar": gemm_ar, "all_gather": gathered}
    before = {name: getattr(mkernel.operators, name) for name in named}
    vars(mkernel.operators).update(named)
    try:
        yield
    finally:
        vars(mkernel.operators).update(before)


def with_dtensor(model, sequence):
    """Megatron's plan by torch.distributed.tensor.parallel, in place. Weights of experts are cut along their inner size, as transformers does."""
    mesh = init_device_mesh(DEVICE, (comm.world,))
    whole, rows = Replicate(), Shard(1) if sequence else Replicate()
    for i, layer in enumerate(model.model.layers):
        plan = {f"self_attn.{x}_proj": ColwiseParallel() for x in "qkv"}
        plan["self_attn.o_proj"] = RowwiseParallel(output_layouts=rows)
        if hasattr(layer.mlp, "gate_proj"):
            plan.update({"mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel(output_layouts=rows)})
        if sequence:
            plan.update({"input_layernorm": SequenceParallel(use_local_output=True), "post_attention_layernorm": SequenceParallel(use_local_output=True),
                         "self_attn": PrepareModuleInput(input_kwarg_layouts={"hidden_states": rows}, desired_input_kwarg_layouts={"hidden_states": whole},
                                                           use_local_output=True),
                         "mlp": PrepareModuleInput(input_layouts=rows, desired_input_layouts=whole, use_local_output=True)})
        parallelize_module(layer, mesh, plan)
        if hasattr(layer.mlp, "experts"):
            cut_experts(layer.mlp.experts)
    if sequence:
        parallelize_module(model, mesh, {"model.layers.0": PrepareModuleInput(input_layouts=whole, desired_input_layouts=rows, use_local_output=True),
                                         "model.norm": PrepareModuleInput(input_layouts=rows, desired_input_layouts=whole, use_local_output=True)})
    return model


def cut_experts(experts):
    gate, up = experts.gate_up_proj.data.chunk(2, 1)
    experts.gate_up_proj.data = torch.cat([x.chunk(comm.world, 1)[comm.rank] for x in (gate, up)], 1)
    experts.down_proj.data = experts.down_proj.data.chunk(comm.world, 2)[comm.rank].contiguous()
    experts.register_forward_hook(lambda module, given, y: (dist.all_reduce(y), y)[1])


def own(name, x):
    """This rank's part of a whole tensor, as mkernel.parallelize cuts it; DTensor's parts are the same."""
    if re.search(r"(o|down)_proj\.weight$", name):
        return x.chunk(comm.world, 1)[comm.rank]
    return x.chunk(comm.world)[comm.rank] if re.search(r"(q|k|v|gate|up)_proj\.weight$", name) else x


def local(x):
    return x.to_local() if isinstance(x, DTensor) else x


# ---- prefill ----


def last_logits(model, ids):
    with torch.no_grad():
        return model(ids, logits_to_keep=min(64, ids.shape[1])).logits


def prefill(models, tokens):
    title = f"prefill {tokens}"
    ids, right = ids_of(1, tokens), models.right[f"prefill {tokens}"]
    race = Race(title, tokens, max(1, 40_000 // tokens))

    def way(name, model, around=contextlib.nullcontext):
        def call():
            with around(), torch.no_grad():
                return model(ids, logits_to_keep=1).logits

        def first():
            with around():
                return error_of(last_logits(model, ids), right)

        e = attempt(f"{title} {name}", first)
        if e is not None and attempt(f"{title} {name}", lambda: call() is not None):
            race.add(name, call, f"  error {judged(e)}" + (shared(title, call) if name == "mkernel" else ""))

    mkernel.parallel_mode(models.ours, "sequence")
    ours(models, way)
    if ARGS.model == "llama":
        way("in turn", models.ours, in_turn)
    theirs = attempt(f"{title} DTensor", models.dtensor)
    if theirs is not None:
        way("DTensor", theirs)
    race.run()


def ours(models, way):
    """mkernel.parallelize's model; with --norms also with other norms than it takes."""
    way("mkernel", models.ours)
    if ARGS.norms:
        for name, kind in (("one launch", "epilogue"), ("norm behind", "kernel"), ("own norms", "")):
            way(name, models.ours, functools.partial(normed_by, models.ours.mkernel_of, kind))


@contextlib.contextmanager
def normed_by(of, kind):
    before, of.norms = of.norms, kind
    try:
        yield
    finally:
        of.norms = before


def shared(title, call):
    part = attempt(f"{title} profile", lambda: (share(call),))
    return f"  {100 * part[0]:.0f} % in operators" if part and part[0] else ""


# ---- decode ----


class Decoding:
    """A step of `sequences` sequences, whose caches hold CONTEXT random tokens."""

    def __init__(self, model, sequences, around=contextlib.nullcontext):
        self.model, self.around = model, around
        self.ids = ids_of(sequences, 1)
        length = CONTEXT + 8
        self.cache = transformers.StaticCache(config=model.config, max_cache_len=length)
        self.position = torch.full((1, 1), CONTEXT, device=DEVICE)
        self.mask = (torch.arange(length, device=DEVICE) <= CONTEXT).expand(sequences, 1, 1, length)
        self.step()  # it makes the cache's tensors, and mkernel's plans
        generator = torch.Generator(DEVICE).manual_seed(3)
        heads = model.config.num_key_value_heads
        for layer in self.cache.layers:
            for x in (layer.keys, layer.values):
                whole = torch.randn(sequences, heads, CONTEXT, x.shape[-1], generator=generator, device=DEVICE, dtype=x.dtype)
                x[:, :, :CONTEXT] = whole if x.shape[1] == heads else whole.chunk(comm.world, 1)[comm.rank]

    def step(self):
        for layer in self.cache.layers:
            if getattr(layer, "is_initialized", False) and hasattr(layer, "cumulative_length"):
                layer.cumulative_length.fill_(CONTEXT)  # each step writes at the same place
        with self.around(), torch.no_grad():
            return self.model(self.ids, attention_mask=self.mask, position_ids=self.position, past_key_values=self.cache, use_cache=True).logits

    def captured(self):
        """A replay of the step; the step itself where there are no GPUs."""
        if not GPU:
            return self.step
        torch.cuda.synchronize()
        dist.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self.step()
        self.graph = graph
        return lambda: (graph.replay(), logits)[1]


def decode(models, sequences):
    title = f"decode {sequences}"
    right, race = models.right[title], Race(title, sequences, 20)
    mkernel.parallel_mode(models.ours, "decode")

    def way(name, model, around=contextlib.nullcontext):
        def make():
            decoding = Decoding(model, sequences, around)
            decoding.step()
            replay = decoding.captured()
            return replay, error_of(replay(), right), decoding

        made = attempt(f"{title} {name}", make)
        if made:
            replay, e, decoding = made
            kept.append(decoding)
            race.add(name, replay, f"  error {judged(e)}" + (shared(title, decoding.step) if name == "mkernel" else ""))

    kept = []  # caches live as long as graphs that read them
    ours(models, way)
    if ARGS.model == "llama":
        way("in turn", models.ours, in_turn)
    else:
        theirs = attempt(f"{title} DTensor", models.dtensor)
        if theirs is not None:
            way("DTensor", theirs)
    race.run()


# ---- training ----


def trained(model, ids):
    """The loss; gradients are in .grad."""
    forget_gradients(model)
    loss = torch.nn.functional.cross_entropy(model(ids).logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    return loss.detach()


def gradients_of(model):
    return {name: local(p.grad) for name, p in model.named_parameters()}


def train(models, tokens):
    title = f"train {tokens}"
    ids, race, (loss, gradients) = ids_of(1, tokens), Race(title, tokens, 2), models.right[title]

    def way(name, model, around=contextlib.nullcontext):
        def call():
            with around():
                return trained(model, ids)

        def first():
            got = call()
            every = [(x, gradients[of]) for of, x in gradients_of(model).items()]
            return error_of(got, loss), error_of_all(every), max(error_of(*pair) for pair in every)

        e = attempt(f"{title} {name}", first)
        if e:
            race.add(name, call, f"  error of the loss {judged(e[0])}, of gradients {judged(e[1])}, of one at most {worst(e[2]):.4f}" + (shared(title, call) if name == "mkernel" else ""))

    mkernel.parallel_mode(models.ours, "sequence")
    way("mkernel", models.ours)
    way("in turn", models.ours, in_turn)
    theirs = attempt(f"{title} DTensor", models.dtensor)
    if theirs is not None:
        way("DTensor", theirs)
    race.run()
    for model in (models.ours, theirs):
        if model is not None:
            forget_gradients(model)


# ---- compiled ----


def two_of(tokens):
    """Two sequences: PyTorch's async tensor parallelism does not find the gathers of one."""
    return f"prefill 2x{tokens // 2}", ids_of(2, tokens // 2)


def compiled(models, tokens):
    """Prefill by layers that torch.compile has made."""
    title, ids = two_of(tokens)
    right, medians = models.right[title], {}

    def way(name, model, prepare, seconds):
        if not begins(f"{title} {name}", seconds if GPU else 0):
            return

        def first():
            with limited(COMPILE), prepare() as count:
                return error_of(last_logits(model, ids), right), count

        def call():
            with torch.no_grad():
                return model(ids, logits_to_keep=1).logits

        made = attempt(f"{title} {name}", first)
        if made and attempt(f"{title} {name}", lambda: call() is not None):
            race = Race(title, tokens, max(1, 40_000 // tokens))
            race.add(name, call, f"  error {judged(made[0])}" + (f"  {made[1]()}" if made[1] else ""))
            medians.update(race.run())

    mkernel.parallel_mode(models.ours, "sequence")
    way("mkernel", models.ours, contextlib.nullcontext, 5)
    sharded = attempt(f"{title} DTensor", lambda: models.dtensor(True))
    for name, prepare in (("the pass", with_our_pass), ("async TP", with_async_tp), ("compiled", contextlib.nullcontext)):
        if sharded is not None:
            torch._dynamo.reset()
            for layer in sharded.model.layers:
                layer.compile()
            way(name, sharded, prepare, COMPILE + 10)
    if "mkernel" in medians and len(medians) > 1:
        say(f"{title}: mkernel " + ", ".join(f"{ms / medians['mkernel']:.2f} x {name}" for name, ms in medians.items() if name != "mkernel"))


@contextlib.contextmanager
def with_our_pass():
    with mkernel.compile_pass() as replaced:
        yield lambda: f"replaced {replaced}"


@contextlib.contextmanager
def with_async_tp():
    if not GPU:
        raise RuntimeError("symmetric memory is on GPUs alone")
    from torch._inductor.fx_passes import micro_pipeline_tp
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    enable_symm_mem_for_group(dist.group.WORLD.group_name)
    found = [0]

    def counted(function):
        def count(*a, **k):
            found[0] += 1
            return function(*a, **k)

        return count

    names = [x for x in ("_insert_fused_all_gather_matmul", "_insert_fused_matmul_reduce_scatter") if hasattr(micro_pipeline_tp, x)]
    before = {x: getattr(micro_pipeline_tp, x) for x in names}
    vars(micro_pipeline_tp).update({x: counted(f) for x, f in before.items()})
    try:
        with torch._inductor.config.patch(_micro_pipeline_tp=True):
            yield lambda: f"fused {found[0]}"
    finally:
        vars(micro_pipeline_tp).update(before)


# ---- all ----


def ids_of(sequences, tokens):
    generator = torch.Generator(DEVICE).manual_seed(2)
    return torch.randint(0, CONFIG.vocab_size, (sequences, tokens), generator=generator, device=DEVICE)


def whole_model():
    torch.manual_seed(1)  # the same weights on every rank, and in each model
    with torch.device(DEVICE):
        return transformers.AutoModelForCausalLM.from_config(CONFIG, dtype=torch.bfloat16).eval()


class Models:
    """What is right, by the whole model; that model divided by mkernel; and DTensor's, made when first asked for."""

    def __init__(self, prefills, decodes, trains):
        self._dtensor = {}
        self.ours = whole_model()
        self.right = {}

        def keep(title, make):
            made = attempt(f"{title} of the whole model", make) if wanted(title) else None
            if made is not None:
                self.right[title] = made

        def gradients(n):
            loss = trained(self.ours, ids_of(1, n))
            return loss, {name: own(name, p.grad).clone() for name, p in self.ours.named_parameters()}

        for n in prefills:
            keep(f"prefill {n}", lambda: last_logits(self.ours, ids_of(1, n)))
        for n in decodes:
            keep(f"decode {n}", lambda: Decoding(self.ours, n).step())
        if with_compiled():
            title, ids = two_of(prefills[0])
            keep(title, lambda: last_logits(self.ours, ids))
        for n in trains:
            keep(f"train {n}", lambda: gradients(n))
        forget_gradients(self.ours)
        mkernel.parallelize(self.ours)
        if GPU:
            torch.cuda.empty_cache()

    def dtensor(self, sequence=False):
        if sequence not in self._dtensor:
            self._dtensor[sequence] = with_dtensor(whole_model(), sequence)
        return self._dtensor[sequence]


def with_compiled():
    return ARGS.model == "llama" and not ARGS.no_compile


def forget_gradients(model):
    for p in model.parameters():
        p.grad = None


def main():
    prefills, decodes, trains = ((4096, 16384), (1, 8, 64), (8192,)) if GPU else ((16, 32), (1, 3), (16,))
    if ARGS.model != "llama":
        trains = ()
    say(f"{ARGS.model}, {ARGS.layers} layers, {comm.world} ranks, {torch.cuda.get_device_name() if GPU else 'CPUs'}, PyTorch {torch.__version__}, transformers {transformers.__version__}")
    models = attempt("the model", lambda: Models(prefills, decodes, trains))
    if models is None:
        return 1
    say(f"models are there after {time.monotonic() - BEGAN:.0f} s")
    order = [(f"prefill {prefills[0]}", prefill, prefills[0])] + [(f"decode {n}", decode, n) for n in decodes]
    order += [(f"train {n}", train, n) for n in trains] + [(f"prefill {prefills[1]}", prefill, prefills[1])]
    for title, measure, n in order:
        if title in models.right and begins(title, 10 if GPU else 0):
            measure(models, n)
    if two_of(prefills[0])[0] in models.right:
        compiled(models, prefills[0])
    comm.wait()
    say(f"done after {time.monotonic() - BEGAN:.0f} s" + (", and a result is wrong" if wrong else ""))
    return int(wrong)


ARGS = arguments()
CONFIG = config_of(ARGS)
wrong = False
if GPU:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
else:
    torch.set_num_threads(1)
if GPU:
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()), timeout=datetime.timedelta(seconds=120))
else:
    dist.init_process_group("gloo")
DEVICE = "cuda" if GPU else "cpu"
comm = mkernel.init(timeout_ns=(60 if GPU else 600) * 1_000_000_000, **({"heap_bytes": 6 << 30} if GPU else {}))
status = main()
sys.stdout.flush()
comm.close()
dist.destroy_process_group()
sys.exit(status)
