"""What the tests of the package with PyTorch's CPU tensors share: how ranks begin and end, random tensors, and what is near."""
import os

import torch
import torch._inductor.compile_fx  # 2 s of a core, in the first process; else in each rank that compiles, or has an optimizer
import torch.distributed as dist
import mkernel

LATE = 600_000_000_000  # ns: one rank may still compile while the other waits in a launch


def start(**settings):
    """As a user's program begins."""
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]))
    dist.init_process_group("gloo")
    comm = mkernel.init(timeout_ns=LATE, **settings)
    assert (comm.rank, comm.world) == (dist.get_rank(), dist.get_world_size()) and comm.device == "cpu"
    torch.manual_seed(comm.rank)
    return comm


def end(comm):
    comm.close()
    dist.destroy_process_group()


def bf16(*shape):
    return torch.randn(shape).div(4).bfloat16()


def near(got, wanted, bound=0.01):
    error = ((got.double() - wanted.double()).norm() / wanted.double().norm()).item()
    assert error < bound, f"relative error {error}"


def gathered(x):
    """x of every rank, by torch.distributed."""
    whole = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(whole, x)
    return whole
