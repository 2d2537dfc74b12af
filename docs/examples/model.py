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
    ours compiled   prefill and training of two sequences: mkernel.parallelize's layers, each by torch.compile
    compiled     the same: DTensor with the sequence sharded, each layer by torch.compile; so are the next two,
    async TP     with PyTorch's async tensor parallelism,
    the pass     and with mkernel.compile_pass
A line has the time of a step in ms (of the slowest rank: the median over the turns, and the middle half), tokens/s, the relative error against
the whole model on one GPU (of the logits; for train of the loss, of all gradients together and of the worst one), and for mkernel the share of
the GPU's time in its operators. Without GPUs a tiny model runs on the CPUs over gloo, which checks this program; its times mean nothing.
Exits with status 1 where a result is wrong, with 77 where there is no transformers. model_job.py has the command line and the ranks,
model_ways.py the ways other than mkernel's.
"""
import contextlib
import functools
import re
import sys
import time

import torch
import torch.distributed as dist
import transformers
from model_job import ARGS, BEGAN, COMPILE, CONFIG, CONTEXT, DEVICE, GPU, comm
from model_job import Race, attempt, begins, error_of, error_of_all, limited, say, wanted
from model_ways import in_turn, with_async_tp, with_dtensor, with_our_pass
from torch.distributed.tensor import DTensor, Replicate

import mkernel

LLAMA = ARGS.model == "llama"


def own(name, x):
    """This rank's part of a whole tensor, as mkernel.parallelize cuts it; DTensor's parts are the same."""
    if re.search(r"(o|down)_proj\.weight$", name):
        return x.chunk(comm.world, 1)[comm.rank]
    return x.chunk(comm.world)[comm.rank] if re.search(r"(q|k|v|gate|up)_proj\.weight$", name) else x


def local(x):
    """This rank's part of a DTensor; of a gradient that ranks have parts of, its sum."""
    if not isinstance(x, DTensor):
        return x
    return x.redistribute(placements=[Replicate() if p.is_partial() else p for p in x.placements]).to_local()


# ---- prefill ----


def last_logits(model, ids):
    with torch.no_grad():
        return model(ids, logits_to_keep=min(64, ids.shape[1])).logits


def race_of(models, race, make, others):
    """Runs mkernel.parallelize's model, with --norms also by the norms that it does not choose, and PyTorch's ways of `others`.

    make(model, around) returns what Race.way takes; `around` is a context for the model's calls. Returns DTensor's model."""

    def way(name, model, around=contextlib.nullcontext):
        race.way(name, functools.partial(make, model, around))

    way("mkernel", models.ours)
    if ARGS.norms and not race.title.startswith("train"):
        for name, kind in (("one launch", "epilogue"), ("norm behind", "kernel"), ("own norms", "")):
            way(name, models.ours, functools.partial(normed_by, models.ours.mkernel_of, kind))
        way("own gates", models.ours, functools.partial(without_gates, models.ours))
    if "in turn" in others:
        way("in turn", models.ours, in_turn)
    theirs = attempt(f"{race.title} DTensor", models.dtensor) if "DTensor" in others else None
    if theirs is not None:
        way("DTensor", theirs)
    race.run()
    return theirs


def prefill(models, tokens):
    race = Race(f"prefill {tokens}", tokens, max(1, 40_000 // tokens))
    ids = ids_of(1, tokens)

    def make(model, around):
        def call():
            with around(), torch.no_grad():
                return model(ids, logits_to_keep=1).logits

        with around():
            e = error_of(last_logits(model, ids), models.right[race.title])
        call()
        return call, [("error", e)], call

    mkernel.parallel_mode(models.ours, "sequence")
    race_of(models, race, make, ("in turn", "DTensor") if LLAMA else ("DTensor",))


@contextlib.contextmanager
def normed_by(of, kind):
    before, of.norms = of.norms, kind
    try:
        yield
    finally:
        of.norms = before


@contextlib.contextmanager
def without_gates(model):
    """Silu and its product with up by kernels of PyTorch's."""
    blocks = [x.mkernel_block for x in model.modules() if hasattr(x, "mkernel_block")]
    before = [x.gate for x in blocks]
    for x in blocks:
        x.gate = ""
    try:
        yield
    finally:
        for x, gate in zip(blocks, before):
            x.gate = gate


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
    race = Race(f"decode {sequences}", sequences, 20)
    kept = []  # caches live as long as graphs that read them

    def make(model, around):
        decoding = Decoding(model, sequences, around)
        decoding.step()
        replay = decoding.captured()
        kept.append(decoding)
        return replay, [("error", error_of(replay(), models.right[race.title]))], decoding.step

    mkernel.parallel_mode(models.ours, "decode")
    race_of(models, race, make, ("in turn",) if LLAMA else ("DTensor",))


# ---- training ----


def trained(model, ids):
    """The loss; gradients are in .grad."""
    forget_gradients(model)
    loss = torch.nn.functional.cross_entropy(model(ids).logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    return loss.detach()


def gradients_of(model):
    return {name: local(p.grad) for name, p in model.named_parameters()}


def errors_of_training(model, got, right):
    loss, gradients = right
    every = [(x, gradients[of]) for of, x in gradients_of(model).items()]
    most = max(error_of(*pair) for pair in every)
    return [("error of the loss", error_of(got, loss)), ("of gradients", error_of_all(every)), ("of one at most", most, float("inf"))]


def train(models, tokens):
    race = Race(f"train {tokens}", tokens, 2)
    ids = ids_of(1, tokens)

    def make(model, around):
        def call():
            with around():
                return trained(model, ids)

        return call, errors_of_training(model, call(), models.right[race.title]), call

    mkernel.parallel_mode(models.ours, "sequence")
    theirs = race_of(models, race, make, ("in turn", "DTensor"))
    for model in (models.ours, theirs):
        if model is not None:
            forget_gradients(model)


# ---- compiled ----


def two_of(tokens, kind="prefill"):
    """Two sequences: PyTorch's async tensor parallelism does not find the gathers of one."""
    return f"{kind} 2x{tokens // 2}", ids_of(2, tokens // 2)


def compiled(models, title, ids):
    """A prefill or a training step by layers that torch.compile has made. They take turns no more: each is compiled, measured and forgotten."""
    right, medians, training = models.right[title], {}, title.startswith("train")

    def way(name, model, prepare, seconds):
        if not begins(f"{title} {name}", seconds if GPU else 0):
            return

        def call():
            if training:
                return trained(model, ids)
            with torch.no_grad():
                return model(ids, logits_to_keep=1).logits

        def make():
            with limited(COMPILE), prepare() as count:
                errors = errors_of_training(model, call(), right) if training else [("error", error_of(last_logits(model, ids), right))]
            call()
            return call, errors, call, *([count()] if count else [])

        race = Race(title, ids.numel(), 2 if training else max(1, 40_000 // ids.numel()))
        race.way(name, make)
        medians.update(race.run())
        forget_gradients(model)

    mkernel.parallel_mode(models.ours, "sequence")
    way("mkernel", models.ours, contextlib.nullcontext, 5)
    sharded = attempt(f"{title} DTensor", lambda: models.dtensor(True))
    for name, model, prepare in (("ours compiled", models.ours, contextlib.nullcontext), ("the pass", sharded, with_our_pass),
                                 ("async TP", sharded, with_async_tp), ("compiled", sharded, contextlib.nullcontext)):
        if model is not None:
            torch._dynamo.reset()
            for layer in model.model.layers:
                layer.compile()
            way(name, model, prepare, COMPILE + 10)
            for layer in model.model.layers:
                layer._compiled_call_impl = None
    if "mkernel" in medians and len(medians) > 1:
        say(f"{title}: mkernel " + ", ".join(f"{ms / medians['mkernel']:.2f} x {name}" for name, ms in medians.items() if name != "mkernel"))


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

        def gradients(ids):
            loss = trained(self.ours, ids)
            return loss, {name: own(name, p.grad).clone() for name, p in self.ours.named_parameters()}

        for n in prefills:
            keep(f"prefill {n}", lambda: last_logits(self.ours, ids_of(1, n)))
        for n in decodes:
            keep(f"decode {n}", lambda: Decoding(self.ours, n).step())
        for n in trains:
            keep(f"train {n}", lambda: gradients(ids_of(1, n)))
        if LLAMA and not ARGS.no_compile:
            for title, ids in [two_of(n) for n in prefills]:
                keep(title, lambda: last_logits(self.ours, ids))
            for title, ids in [two_of(n, "train") for n in trains]:
                keep(title, lambda: gradients(ids))
        forget_gradients(self.ours)
        mkernel.parallelize(self.ours)
        if GPU:
            torch.cuda.empty_cache()

    def dtensor(self, sequence=False):
        if sequence not in self._dtensor:
            self._dtensor[sequence] = with_dtensor(whole_model(), sequence)
        return self._dtensor[sequence]


def forget_gradients(model):
    for p in model.parameters():
        p.grad = None


def main():
    prefills, decodes, trains = ((4096, 16384), (1, 8, 64), (8192,)) if GPU else ((16, 32), (1, 3), (16,))
    trains = trains if LLAMA else ()
    device = torch.cuda.get_device_name() if GPU else "CPUs"
    versions = f"PyTorch {torch.__version__}, transformers {transformers.__version__}"
    say(f"{ARGS.model}, {ARGS.layers} layers, {comm.world} ranks, {device}, {versions}")
    models = attempt("the model", lambda: Models(prefills, decodes, trains))
    if models is None:
        return 1
    say(f"models are there after {time.monotonic() - BEGAN:.0f} s")
    order = [(f"prefill {prefills[0]}", prefill, prefills[0])] + [(f"decode {n}", decode, n) for n in decodes]
    order += [(f"train {n}", train, n) for n in trains] + [(f"prefill {prefills[1]}", prefill, prefills[1])]
    for title, measure, n in order:
        if title in models.right and begins(title, 10 if GPU else 0):
            measure(models, n)
    for title, ids in [two_of(n) for n in prefills] + [two_of(n, "train") for n in trains]:
        if title in models.right:
            compiled(models, title, ids)
    comm.wait()
    say(f"done after {time.monotonic() - BEGAN:.0f} s" + (", and a result is wrong" if Race.wrong else ""))
    return int(Race.wrong)


status = main()
sys.stdout.flush()
comm.close()
dist.destroy_process_group()
sys.exit(status)
