"""Ways to one result beside mkernel's: the same model by PyTorch's collectives and products, DTensor's plan, and what compiles it."""
import contextlib

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module

import mkernel
from model_job import DEVICE, GPU, comm


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

    def ag_gemm(a, b, bias=None, activation="", gated=False, comm=comm, **_):
        c = Gathered.apply(a, b) if comm.world > 1 else a @ b
        c = c if bias is None else c + bias
        if not gated:
            return c
        gate, up = c.chunk(2, -1)
        f = torch.nn.functional.silu(gate) if activation == "silu" else torch.nn.functional.gelu(gate, approximate="tanh")
        return f * up

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
