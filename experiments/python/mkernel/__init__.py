"""mkernel: operators that compute and communicate in one launch, on several GPUs and nodes.

    import torch, mkernel
    mkernel.init()                   # who the ranks are: torch.distributed, torchrun, srun, mpirun
    c = mkernel.ag_gemm(a, b)        # C = gather(A) B

`help(mkernel.operators)` says what holds for all operators; docs/PYTHON.md is the guide.
"""
from ._library import VERSION as __version__
from ._library import Error, Refused
from ._communicator import Begun, Communicator, Plan, default, init
from ._experts import ExpertMap
from ._frames import frame
from . import _shapes, operators
from .operators import balance_experts, ring_attention_rows, ring_attention_shard

globals().update((name, getattr(operators, name)) for name in _shapes.FUNCTIONS)

__all__ = [
    "Begun", "Communicator", "Error", "ExpertMap", "Plan", "Refused", "balance_experts", "compile_pass", "default", "empty", "frame", "from_bf16", "full_state_dict", "init", "load_checkpoint",
    "load_full_state_dict", "operators", "parallel_mode", "parallelize", "quantize", "ring_attention_rows", "ring_attention_shard", "save_checkpoint", "to_bf16", "trace",
    *_shapes.FUNCTIONS,
]


def empty(shape, dtype=None, *, comm=None):
    """An array in the symmetric heap: `Communicator.empty` of `comm`, default that of `mkernel.init`."""
    return (comm or default()).empty(shape, dtype)


def trace(path, *, comm=None):
    """Records what is launched in a `with` block: `Communicator.trace` of `comm`, default that of `mkernel.init`."""
    return (comm or default()).trace(path)


def parallelize(model, comm=None, *, mode="sequence", plan=None):
    """Divides a PyTorch model's Linear modules and experts among the ranks, in place, and returns the model. All ranks call, with the same weights.

    model: has layers in one ModuleList or Sequential, each with blocks of gate_proj, up_proj and down_proj (an MLP) or q_proj, k_proj, v_proj
        and o_proj (an attention), as `transformers` names them; weights are bf16 or fp16 (experts: bf16), on the communicator's device, or all of the model is on meta: then it gets memory for this rank's
        part, and `load_checkpoint` the weights.
    mode: "sequence" (prefill, training): ranks hold parts of the rows between blocks; ag_gemm and gemm_rs; the number of ranks divides the
        sequence. "decode": all rows on all ranks; products of this rank's columns, then gemm_ar; no gradients. `parallel_mode` changes it.
    plan: other names, {"layers.*.mlp.fc1": "colwise", "layers.*.mlp.fc2": "rowwise"}: the modules that read a block's input and the one
        that makes its output, children of one module. No other Linear modules are then looked for.
    Experts are modules of gate_up_proj [E, 2 I, H] and down_proj [E, H, I], called with rows, ids and weights: moe_ffn, without gradients.
    comm: default the one of `mkernel.init`.
    Inputs and results of the model are whole and alike on all ranks, and so is the loss; .grad of what is divided is this rank's part.
    Raises Refused, and has changed nothing, where a block cannot be divided.
    """
    from . import _parallelize

    return _parallelize.parallelize(model, comm, mode, plan)


def parallel_mode(model, mode):
    """From now on `model`, which `parallelize` has divided, works in this mode: "sequence" or "decode". All ranks call."""
    from . import _parallelize

    _parallelize.set_mode(model, mode)


def compile_pass(*comms):
    """From now on torch.compile (Inductor) puts ag_gemm in place of an all-gather and the products of its rows, gemm_rs and gemm_ar in place of a product
    and the reduce-scatter or all-reduce of it, where they are functional collectives, as torch.distributed.tensor.parallel makes them.

    comms: the communicators whose ranks those groups have; default the one of `mkernel.init`. Other groups, types than bf16 and fp16 and rows that are not
        whole 16 bytes are left alone, and so are gathered rows that another thing than a product reads.
    Returns an object that says what has been put in (`str`, `.replaced`), and that as a context (`with`) takes the pass out at its end.
    """
    from . import _compile

    return _compile.compile_pass(comms)


def full_state_dict(model):
    """The state dict of a parallelised model as it was before: whole tensors, on the CPU, on every rank. Collective."""
    from . import _checkpoint

    return _checkpoint.full_state_dict(model)


def load_full_state_dict(model, state):
    """Copies this rank's parts of whole tensors into a parallelised model."""
    from . import _checkpoint

    _checkpoint.load_full_state_dict(model, state)


def load_checkpoint(model, path):
    """Copies this rank's parts of a checkpoint, and no more of it, into a parallelised model.

    path: a file of safetensors, an index of several (model.safetensors.index.json), or a folder with model.safetensors or that index. Names are the state
        dict's; experts may be there one by one, as `transformers` saves them. Tensors that the model has not are named in a warning.
    Does not communicate. Raises Refused, and has changed nothing, where a tensor is missing or has another shape.
    """
    from . import _checkpoint

    _checkpoint.load(model, path)


def save_checkpoint(model, path, *, file_bytes=5 << 30):
    """Writes the whole tensors of a parallelised model as safetensors to the folder `path`, for `transformers`, too. Collective: rank 0 writes.

    file_bytes: the most a file has, where a tensor has no more; of several files there is an index. Names are those of the checkpoint that was
        loaded, else the state dict's. A model of `transformers` has its config.json written, too. Whenever the program ends, the folder has the old
        checkpoint or the new one, whole: files of an index have new names, and the old ones go last.
    No rank holds more than its part and pieces of 64 MiB; rank 0 has the tensors of one file on the CPU besides. Raises on all ranks where rank 0 cannot write: there what went wrong, elsewhere
    Refused.
    """
    from . import _checkpoint

    _checkpoint.save(model, path, file_bytes)


def quantize(x, block=(1, 128)):
    """e4m3 codes and fp32 scales of `x`, as the FP8 operators take them: x is about codes * scales. No communicator is needed.

    x: [..., K], bf16 or fp32, of numpy (on the host) or PyTorch (on the CPU, or on its GPU in the order of the current stream); K is a multiple of 16.
    block: what shares a scale, and the scales' shape, where R rows are all dimensions but the last:
        (1, 128)    activations: [ceil(K/128), R]
        (128, 128)  weights, a matrix [N, K]: [ceil(N/128), ceil(K/128) rounded up to a multiple of 4], of which those of no block are 0
        "row"       [..., 1]
        "tensor"    [1, 1]
        "records"   tokens of moe_dispatch_gemm_fp8 and moe_ffn_fp8: 1 x 128, each row's scales behind its codes; one array alone is returned, uint8
                    [..., K + 4 ceil(K/128) rounded up to a multiple of 16]
    amax is the largest finite |x| of a block: scale = amax / 448, code = e4m3(x * (448 / amax)), in fp32, to nearest, ties to even. A block whose amax is
    below 2^-110 has scale 1 and zeros; what is not finite becomes NaN in its own element. The same bits on CPU and GPU.
    Returns (codes, scales); codes are torch.float8_e4m3fn, for numpy ml_dtypes.float8_e4m3fn, or uint8 where that package is not there.

        a, a_scales = mkernel.quantize(x)
        b, b_scales = mkernel.quantize(weight.detach(), (128, 128))     # weight [N, K]
        c = mkernel.ag_gemm_fp8(a, b.t(), a_scales, b_scales)
    """
    from . import _quantize

    return _quantize.quantize(x, block)


def to_bf16(x):
    """For numpy: the bits (uint16) of the bfloat16 numbers nearest to `x`, of x's shape; ties to even."""
    from . import _numpy

    return _numpy.to_bf16(x)


def from_bf16(x):
    """For numpy: the numbers (float32) whose bfloat16 bits (uint16) are in `x`, of x's shape."""
    from . import _numpy

    return _numpy.from_bf16(x)
