"""mkernel.compile_pass on PyTorch's CPU tensors: functional all-gather + mm, mm + reduce-scatter and mm + all-reduce become ag_gemm, gemm_rs and gemm_ar, of
torch.distributed.tensor.parallel's too, forward and backward, with the results of before; what does not fit is left alone."""
import copy
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module
import mkernel
from cases import case, main, ranks, refuses, scene
from torch_ranks import bf16, end, near, start

H, INNER = 64, 96


def seen(graph):
    """Names of the collectives and operators of a graph, in order."""
    known = {"all_gather_into_tensor": "ag", "reduce_scatter_tensor": "rs", "all_reduce": "ar", "wait_tensor": "wait"}
    names = [str(getattr(node.target, "__name__", node.target)).split(".")[0] for node in graph.nodes if node.op == "call_function"]
    spaces = [str(node.target).split(".")[0] for node in graph.nodes if node.op == "call_function"]
    return [known.get(name, name) for name, space in zip(names, spaces) if name in known or space == "mkernel"]


class Backend:
    """What torch.compile makes of a program before Inductor writes code: its graphs behind the pass, run as they are."""

    def __init__(self, made):
        self.made, self.graphs = made, []

    def __call__(self, module, inputs):
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd
        from torch._inductor.decomposition import select_decomp_table
        from torch._inductor.fx_passes.post_grad import stable_topological_sort

        def compiler(module, _):
            self.made(module.graph)
            stable_topological_sort(module.graph)
            module.graph.lint()
            module.recompile()
            self.graphs.append(seen(module.graph))
            return make_boxed_func(module)

        return aot_autograd(fw_compiler=compiler, decompositions=select_decomp_table)(module, inputs)


def compiled(function, made, **more):
    torch._dynamo.reset()
    backend = Backend(made)
    return torch.compile(function, backend=backend, fullgraph=True, **more), backend.graphs


def plain(comm, made):
    """Functional collectives as one writes them."""
    group, W = dist.group.WORLD, comm.world
    x, w, v = bf16(6, 2, H), bf16(INNER, H), bf16(INNER, H)
    bias = bf16(INNER)

    def check(wanted, function, *arguments, empty=False, **more):
        right = function(*arguments)
        program, graphs = compiled(function, made, **more)
        with torch.no_grad():
            got = program(*arguments)
        for one, other in zip(got if isinstance(got, tuple) else (got,), right if isinstance(right, tuple) else (right,)):
            assert one.shape == other.shape, (one.shape, other.shape)
            near(one, other) if not empty else torch.testing.assert_close(one, other)
        assert graphs == [wanted], graphs

    def gathers(dim, *weights, bias=None, more=None):
        def function(x, *weights):
            whole = functional.all_gather_tensor(x, 0, group)
            whole = torch.cat(whole.chunk(W), 1) if dim else whole  # what all_gather_tensor does for it
            made = tuple(torch.nn.functional.linear(whole, w, bias) for w in weights)
            return made if more is None else (*made, more(whole))

        return function, x if dim == 0 else x.transpose(0, 1).contiguous(), *weights

    check(["ag_gemm"], *gathers(0, w))
    check(["ag_gemm"], *gathers(1, w))  # two sequences: rows are brought into order
    check(["ag_gemm_bias"], *gathers(1, w, bias=bias))
    check(["ag_gemm", "ag_gemm"], *gathers(0, w, v))  # more columns than rows
    few = bf16(8, H)
    check(["ag_gemm"], *gathers(1, few, few * 2))  # one launch
    check(["ag", "wait"], *gathers(0, w, more=lambda whole: whole + 1))
    check(["ag", "wait"], *gathers(0, w, more=lambda whole: whole))
    check(["ag", "wait"], lambda x, w: functional.all_gather_tensor(x, 0, group).float() @ w, x, bf16(H, 8).float())
    check(["ag", "wait"], lambda x, w: functional.all_gather_tensor(x, 0, group) @ w, bf16(4, 12), bf16(12, 8))  # 24 bytes
    one = bf16(1, 6, H)
    check(["ag_gemm"], lambda x, w: functional.all_gather_tensor(x, 0, group).view(1, -1, H) @ w, one, bf16(H, 8))
    any_rows = bf16(4, H)
    torch._dynamo.mark_dynamic(any_rows, 0)
    check(["ag_gemm"], lambda x, w: functional.all_gather_tensor(x, 0, group) @ w, any_rows, bf16(H, 8))
    check(["ag", "wait"], lambda x, w: functional.all_gather_tensor(x, 0, group) @ w, bf16(6, H), bf16(H, 8), dynamic=True)  # columns that nobody knows

    def sums(dim, scatters=True, word="sum"):
        def function(a, b):
            if scatters:
                return functional.reduce_scatter_tensor(a @ b, word, dim, group)
            return functional.all_reduce(a @ b, word, group)

        return function

    for a, dim in ((bf16(4 * W, H), 0), (bf16(2 * W, 3, H), 0), (bf16(1, 4 * W, H), 1), (bf16(3, 4 * W, H), 1)):
        check(["gemm_rs"], sums(dim), a, bf16(H, 24))
    check(["gemm_ar"], sums(0, False), bf16(2, 5, H), bf16(H, 24))
    check(["ar", "wait"], sums(0, False, "max"), bf16(5, H), bf16(H, 24))
    # Nothing of an operator is empty: neither rows, nor columns, nor what is summed; nor what may be.
    check(["ar", "wait"], sums(0, False), bf16(0, H), bf16(H, 24), empty=True)
    check(["ar", "wait"], sums(0, False), bf16(5, 0), bf16(0, 24), empty=True)
    check(["rs", "wait"], sums(0), bf16(0, H), bf16(H, 24), empty=True)
    check(["rs", "wait"], sums(0), bf16(2 * W, 0), bf16(0, 24), empty=True)
    check(["ag", "wait"], lambda x, w: functional.all_gather_tensor(x, 0, group) @ w, bf16(0, H), bf16(H, 8), empty=True)
    check(["ar", "wait"], sums(0, False), bf16(5, H), bf16(H, 0), empty=True)
    for there in (bf16(4, H), torch.zeros(4, H).bfloat16()):
        check(["ar", "wait"], lambda a, b: functional.all_reduce(a[a.ne(0).any(1).nonzero().flatten()] @ b, "sum", group), there, bf16(H, 24), empty=True)
    check(["ar", "wait"], sums(0, False), bf16(5, H).float(), bf16(H, 24).float())
    check(["ar", "wait"], lambda a, b: (lambda c: functional.all_reduce(c, "sum", group) + c)(a @ b), bf16(5, H), bf16(H, 24))
    in_place = bf16(5, H)

    def reduced(a, b):  # as transformers does it
        y = a @ b
        dist.all_reduce(y)
        return y

    check(["gemm_ar"], reduced, in_place, bf16(H, 24))

    # What is left of PyTorch's has ended before an operator begins.
    def late(a, b, c):
        begun = functional.all_reduce(c, "sum", group)
        return functional.all_reduce(a @ b, "sum", group), begun

    check(["ar", "wait", "gemm_ar"], late, bf16(5, H), bf16(H, 24), torch.ones(4))
    with torch._inductor.config.patch(reorder_for_compute_comm_overlap=True):
        check(["ar", "wait"], sums(0, False), bf16(5, H), bf16(H, 24))
    others = dist.new_group(list(range(W)))  # of the same ranks
    check(["gemm_ar"], lambda a, b: functional.all_reduce(a @ b, "sum", others), bf16(5, H), bf16(H, 24))
    alone = [dist.new_group([r]) for r in range(W)][comm.rank]
    check(["ar", "wait"], lambda a, b: functional.all_reduce(a @ b, "sum", alone), bf16(5, H), bf16(H, 24))


class MLP(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = (torch.nn.Linear(H, INNER, bias=False) for _ in range(2))
        self.down_proj = torch.nn.Linear(INNER, H, bias=False)

    def forward(self, x):
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


def of_dtensor(comm, made):
    """Megatron's plan, trained: the sequence whole, and sharded."""
    torch.manual_seed(1)
    mesh, whole = init_device_mesh("cpu", (comm.world,)), MLP().bfloat16()
    x = bf16(2, 8 * comm.world, H)
    right = whole(x)
    right.float().square().sum().backward()
    for rows, wanted in ((Replicate(), [["gemm_ar"], ["gemm_ar"]]), (Shard(1), None)):
        model = copy.deepcopy(whole)
        model.zero_grad()
        plan = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel(output_layouts=rows)}
        parallelize_module(model, mesh, plan)
        parallelize_module(model, mesh, PrepareModuleInput(input_layouts=rows, desired_input_layouts=Replicate(), use_local_output=False))
        given = x if wanted else x.chunk(comm.world, 1)[comm.rank].contiguous()
        model = torch.nn.Sequential(model)  # whose child's hooks are compiled with it
        program, graphs = compiled(model, made)
        y = program(given.clone().requires_grad_())
        near(y, right if wanted else right.chunk(comm.world, 1)[comm.rank], 0.02)
        y.float().square().sum().backward()
        for name, p in model.named_parameters():
            near(p.grad.full_tensor(), whole.get_parameter(name[2:]).grad, 0.03)
        operators = [x for graph in graphs for x in graph if x not in ("ag", "rs", "ar", "wait")]
        assert operators.count("gemm_ar" if wanted else "gemm_rs") >= 1, graphs
        with torch.no_grad():
            program, graphs = compiled(model, made)
            near(program(given), right if wanted else right.chunk(comm.world, 1)[comm.rank], 0.02)
        assert graphs == ([["gemm_ar"]] if wanted else [["ag_gemm", "ag_gemm", "gemm_rs"]]), graphs


def by_inductor(comm):
    """The pass is where Inductor calls it, and at the end it is out."""
    config = torch._inductor.config
    group = dist.group.WORLD
    a, b, c = bf16(4, H), bf16(H, INNER), bf16(INNER, H)

    def layer(a, b, c):
        h = functional.all_gather_tensor(a, 0, group) @ b
        return functional.reduce_scatter_tensor(h @ c, "sum", 0, group)

    right, calls = layer(a, b, c), []
    torch._dynamo.reset()
    with config.patch(post_grad_custom_post_pass=lambda graph: calls.append(len(graph.nodes))):
        mine = config.post_grad_custom_post_pass
        with mkernel.compile_pass() as made:
            assert made.uuid() is None  # what another pass does nobody knows
            with torch.no_grad():
                near(torch.compile(layer)(a, b, c), right, 0.02)
        assert config.post_grad_custom_post_pass is mine and len(calls) == 1
    assert made.replaced == {"ag_gemm": 1, "gemm_rs": 1} and str(made) == "1 ag_gemm, 1 gemm_rs"
    with mkernel.compile_pass() as again:
        assert str(again) == "nothing" and again.uuid()[1:] == (((comm.handle, comm.world, tuple(range(comm.world))),), None)


@scene
def two_ranks():
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()  # nothing compiled before
    comm = start()
    with mkernel.compile_pass() as made:
        plain(comm, made)
        of_dtensor(comm, made)
    by_inductor(comm)
    end(comm)
    shutil.rmtree(os.environ["TORCHINDUCTOR_CACHE_DIR"])


@case
def collectives_and_products_become_operators():
    ranks(2, two_ranks)


@scene
def without_torch_distributed():
    comm = mkernel.init()
    refuses("the communicator's ranks are not of torch.distributed", mkernel.compile_pass)
    comm.close()


@case
def a_communicator_that_torch_distributed_does_not_know_is_refused():
    ranks(1, without_torch_distributed)


if __name__ == "__main__":
    main()
