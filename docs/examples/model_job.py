"""What docs/examples/model.py needs beside the model: the command line, the ranks, and measures of times and errors. Importing it joins the ranks."""
import argparse
import contextlib
import datetime
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

BEGAN = time.monotonic()
GPU = torch.cuda.is_available()
CONTEXT = 1024 if GPU else 8  # tokens in the cache of a sequence that decodes
ROUNDS = 9 if GPU else 3
COMPILE = 60 if GPU else 400  # s that a way may compile
NEAR = {"llama": 0.05, "qwen3-moe": 0.15}  # relative error of bf16's sums, in another order, through all layers; a router then takes other experts where two are nearly alike


def arguments():
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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


ARGS = arguments()
CONFIG = config_of(ARGS)
DEVICE = "cuda" if GPU else "cpu"
if GPU:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()), timeout=datetime.timedelta(seconds=120))
else:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
comm = mkernel.init(timeout_ns=(60 if GPU else 600) * 1_000_000_000, **({"heap_bytes": 6 << 30} if GPU else {}))


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

    wrong = False  # whether a result of any race is wrong

    def __init__(self, title, tokens, times):
        self.title, self.tokens, self.times = title, tokens, times if GPU else 1
        self.ways, self.said = {}, {}

    def way(self, name, make):
        """Adds a way. make() runs it once and returns the call to time, the errors as (words, error[, limit]), the call to profile, and perhaps notes."""
        made = attempt(f"{self.title} {name}", make)
        if made is None:
            return
        call, errors, step, *notes = made
        self.said[name] = "  ".join(["", ", ".join(f"{words} {self._judged(*e)}" for words, *e in errors), *notes])
        if name == "mkernel":
            part = attempt(f"{self.title} profile", lambda: (share(step),))
            self.said[name] += f"  {100 * part[0]:.0f} % in operators" if part and part[0] else ""
        self.ways[name] = call

    @staticmethod
    def _judged(e, near=NEAR[ARGS.model]):
        """The worst rank's error, for a line; one that is not small fails the program in the end."""
        e = worst(e)
        Race.wrong |= not e < near
        return f"{e:.4f}" + ("" if e < near else " WRONG")

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
            say(f"{self.title:14s} {name:13s} {median:9.3f} ms ({low:.3f} .. {high:.3f}) {self.tokens / median * 1e3:10.0f} tokens/s{self.said[name]}{ratios}")
        return medians


def error_of(got, right):
    """Relative, on this rank."""
    return ((got.float() - right.float()).norm() / right.float().norm()).nan_to_num(float("inf"), float("inf")).item()


def error_of_all(pairs):
    """Of many tensors as one: of a gradient that is nearly nothing, as of keys where softmax is flat, bf16 leaves little."""
    return (sum((x.float() - y.float()).square().sum() for x, y in pairs) / sum(y.float().square().sum() for _, y in pairs)).sqrt().nan_to_num(float("inf"), float("inf")).item()
