"""A pass of torch.compile: all-gather + mm becomes ag_gemm, mm + reduce-scatter gemm_rs, mm + all-reduce gemm_ar.

It runs on graphs that are functional ATen, the forward's and the backward's, behind PyTorch's own passes. There collectives are
_c10d_functional's, each with a wait_tensor, and views stand between them and the products. A gather along dimension 1 of [B, S/W, K] is that of
dimension 0, split and joined again; a scatter the reverse. With B = 1 this moves nothing; else rows are brought into the order of ranks
in front of gemm_rs and out of it behind ag_gemm, which are copies as those were.
"""
from __future__ import annotations

import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx.experimental.symbolic_shapes import statically_known_true

from . import _communicator, _torch  # noqa: F401 (torch.ops.mkernel is defined there)
from ._library import Refused

aten, functional = torch.ops.aten, torch.ops._c10d_functional
_VIEWS = {aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default, aten.unsqueeze.default,
          aten.alias.default, aten.clone.default}
_SPLITS = {aten.split.Tensor, aten.split_with_sizes.default}
_COLLECTIVES = {functional.all_gather_into_tensor.default, functional.reduce_scatter_tensor.default, functional.all_reduce.default}


def _is(node, targets) -> bool:
    return isinstance(node, torch.fx.Node) and node.op == "call_function" and node.target in targets


def _shape(node):
    return node.meta["val"].shape


def _weight_of(product):
    """w [N, K], an input of the graph, of mm(A, w.t()); else None."""
    b = product.args[-1]
    swaps = _is(b, {aten.t.default}) or _is(b, {aten.permute.default}) and list(b.args[1]) == [1, 0]
    return b.args[0] if product.target is aten.mm.default and swaps and b.args[0].op in ("placeholder", "get_attr") else None


def _getitems(split):
    """The pieces of a split in order; None where another thing reads them."""
    pieces = {}
    for user in split.users:
        if user.op != "call_function" or getattr(user.target, "__name__", "") != "getitem":
            return None
        pieces[user.args[1]] = user
    return [pieces[i] for i in sorted(pieces)]


def _joined(split, dimension: int, world: int, pieces_of: int):
    """The cat along `dimension` of all W pieces, in order, of a split along `pieces_of`, if that is all that reads them."""
    pieces = _getitems(split)
    if (split.args[2] if len(split.args) > 2 else 0) != pieces_of or not pieces or len(pieces) != world:
        return None
    users = {user for piece in pieces for user in piece.users}
    if len(users) != 1 or any(len(piece.users) != 1 for piece in pieces):
        return None
    (cat,) = users
    joins = _is(cat, {aten.cat.default}) and list(cat.args[0]) == pieces and (cat.args[1] if len(cat.args) > 1 else 0) == dimension
    return cat if joins and len({_shape(piece) for piece in pieces}) == 1 else None


class Pass(CustomGraphPass):
    """Installed by `mkernel.compile_pass`; as a context it is taken out at the end. `replaced`: how often each operator was put in."""

    def __init__(self, comms):
        self.comms, self.before, self.replaced = comms, config.post_grad_custom_post_pass, {}
        config.post_grad_custom_post_pass = self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if config.post_grad_custom_post_pass is self:
            config.post_grad_custom_post_pass = self.before

    def __deepcopy__(self, memo):  # Inductor copies its settings
        return self

    def __str__(self):
        return ", ".join(f"{count} {name}" for name, count in sorted(self.replaced.items())) or "nothing"

    def uuid(self):
        """What compiled programs on disk depend on."""
        before = self.before.uuid() if isinstance(self.before, CustomGraphPass) else self.before and None
        if self.before is not None and before is None:
            return None
        return get_hash_for_files((__file__,)), tuple((x.handle, x.world, x._peers) for x in self.comms), before

    def __call__(self, graph):
        if self.before is not None:
            self.before(graph)
        if config.reorder_for_compute_comm_overlap:
            return
        sum_before = sum(self.replaced.values())
        for node in list(graph.nodes):
            if _is(node, {functional.all_gather_into_tensor.default}):
                self._gather(graph, node)
            elif _is(node, {functional.reduce_scatter_tensor.default, functional.all_reduce.default}):
                self._sum(graph, node)
        if sum(self.replaced.values()) > sum_before:
            for node in list(graph.nodes):  # what is left of PyTorch's must have ended before an operator begins: both want SMs until their peers have come
                if _is(node, _COLLECTIVES):
                    for wait in [x for x in node.users if _is(x, {functional.wait_tensor.default})]:
                        node.append(wait)

    def _comm_of(self, group_name):
        """The communicator of the same ranks in the same order; None: there is none."""
        try:
            group = torch.distributed.distributed_c10d._resolve_process_group(group_name)
            peers = tuple(torch.distributed.get_process_group_ranks(group))
        except (RuntimeError, ValueError, KeyError):
            return None
        for comm in self.comms:
            if not comm.closed and comm._peers == peers:
                return comm
        return None

    def _fits(self, comm, *tensors):
        """bf16 or fp16, all alike, on the communicator's device, rows of whole 16 bytes that are known now, and nothing empty: operators take one row and more."""
        of = None
        for node in tensors:
            x = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
            if not isinstance(x, torch.Tensor) or x.dtype not in (torch.bfloat16, torch.float16) or x.device != comm._place:
                return False
            if not isinstance(x.shape[-1], int) or x.shape[-1] % 8 or not all(statically_known_true(n > 0) for n in x.shape):
                return False
            of = of or x.dtype
            if x.dtype is not of:
                return False
        return True

    def _count(self, name):
        self.replaced[name] = self.replaced.get(name, 0) + 1

    # ---- all-gather + mm ----

    def _gather(self, graph, gather):
        shard, world, group_name = gather.args
        comm = self._comm_of(group_name)
        if comm is None or not self._fits(comm, shard) or len(gather.users) != 1:
            return
        wait = next(iter(gather.users))
        if not _is(wait, {functional.wait_tensor.default}):
            return
        products, batch = [], 1
        chain, todo = [gather, wait], list(wait.users)
        for node in todo:  # all that is made of the gathered rows
            chain.append(node)
            if _is(node, _VIEWS):
                todo.extend(x for x in node.users if x not in todo)
            elif _is(node, _SPLITS) and node.args[0] is wait and len(_shape(wait)) == 3:
                cat = _joined(node, 1, world, 0)
                if cat is None:
                    return
                chain += [*_getitems(node), cat]
                todo.extend(x for x in cat.users if x not in todo)
                batch = _shape(shard)[0]
            elif _is(node, {aten.mm.default, aten.addmm.default}):
                products.append(node)
            else:
                return
        columns = _shape(shard)[-1]
        for node in products:
            a, b = node.args[-2:]
            if a not in chain or b in chain or _shape(a)[-1] != columns or not self._fits(comm, a, b, node):
                return
            if node.target is aten.addmm.default and (node.kwargs or len(_shape(node.args[0])) != 1 or not self._fits(comm, node.args[0])):
                return
        if not products or not isinstance(batch, int) or (batch > 1 and not all(isinstance(x, int) for x in _shape(shard))):
            return
        rows, together = _shape(products[0])[0], sum(_shape(node)[1] for node in products)
        weights = [_weight_of(node) for node in products]
        if len(products) > 1 and isinstance(rows, int) and together <= rows and all(weights):
            self._ag_gemm_together(graph, comm, shard, products, weights, batch)
        else:
            for node in products:
                self._ag_gemm(graph, comm, shard, node, batch)
        for node in reversed(chain):
            if not node.users:
                graph.erase_node(node)

    def _ag_gemm(self, graph, comm, shard, node, batch):
        bias = (node.args[0],) if node.target is aten.addmm.default else ()
        with graph.inserting_before(node):
            made = self._product(graph, comm, shard, node.args[-1], bias, batch)
        node.replace_all_uses_with(made)

    def _ag_gemm_together(self, graph, comm, shard, products, weights, batch):
        """One launch for several products of the same rows. Their weights are copied into one, which is less than gathering the rows again where those are more."""
        with graph.inserting_before(products[0]):
            b = self._call(graph, aten.permute.default, self._call(graph, aten.cat.default, weights), [1, 0])
            made = self._product(graph, comm, shard, b, (), batch)
        at, start = made, 0
        for node in products:
            columns = _shape(node)[1]
            with graph.inserting_after(at):
                at = self._call(graph, aten.slice.Tensor, made, 1, start, start + columns)
            with graph.inserting_after(at):
                at = self._call(graph, aten.clone.default, at)
            node.replace_all_uses_with(at)
            start += columns

    def _product(self, graph, comm, shard, b, bias, batch):
        a = self._call(graph, aten.reshape.default, shard, [-1, _shape(shard)[-1]])
        target = torch.ops.mkernel.ag_gemm_bias.default if bias else torch.ops.mkernel.ag_gemm.default
        made = self._call(graph, target, a, b, *bias, False, False, "", comm.handle << 20 | comm.world)
        self._count("ag_gemm")
        return self._rows(graph, made, (comm.world, batch, _shape(shard)[1])) if batch > 1 else made

    def _rows(self, graph, x, order):
        """Rows of x [P Q R, N], of the first two dimensions changed."""
        p, q, r = order
        columns = _shape(x)[-1]
        x = self._call(graph, aten.reshape.default, x, [p, q, r, columns])
        x = self._call(graph, aten.permute.default, x, [1, 0, 2, 3])
        return self._call(graph, aten.reshape.default, x, [p * q * r, columns])

    @staticmethod
    def _call(graph, target, *arguments):
        """A node, with what its result looks like."""
        node = graph.call_function(target, arguments)
        of = torch.fx.map_arg(arguments, lambda x: x.meta["val"])
        fakes = torch._guards.detect_fake_mode(of)
        with fakes:
            node.meta["val"] = target(*of)
        return node

    # ---- mm + reduce-scatter, mm + all-reduce ----

    def _sum(self, graph, node):
        scatter = node.target is functional.reduce_scatter_tensor.default
        x, operation, group_name = node.args[0], node.args[1], node.args[-1]
        comm = self._comm_of(group_name)
        if comm is None or operation != "sum" or len(node.users) != 1:
            return
        wait = next(iter(node.users))
        if not _is(wait, {functional.wait_tensor.default}):
            return
        for copy in [x for x in wait.users if _is(x, {aten.copy.default}) and x.args[1] is wait]:  # an all-reduce in place
            if _shape(copy) != _shape(wait) or copy.meta["val"].dtype is not wait.meta["val"].dtype:
                return
            copy.replace_all_uses_with(wait)
            old = copy
            while not old.users and old.op == "call_function" and (old is copy or _is(old, _VIEWS)):  # and the views for it
                above = old.args[0]
                graph.erase_node(old)
                old = above
        chain, order = [wait, node], None
        while not _is(x, {aten.mm.default}):
            if not isinstance(x, torch.fx.Node) or len(x.users) != 1:
                return
            chain.append(x)
            if scatter and order is None and _is(x, {aten.cat.default}) and isinstance(x.args[0][0], torch.fx.Node):
                split = x.args[0][0].args[0] if x.args[0][0].args else None
                if not _is(split, _SPLITS) or _joined(split, 0, comm.world, 1) is not x or len(_shape(split.args[0])) != 3 or len(split.args[0].users) != 1:
                    return
                chain += [*x.args[0], split]
                order = _shape(split.args[0])
                x = split.args[0]
            elif _is(x, _VIEWS):
                x = x.args[0]
            else:
                return
        if len(x.users) != 1:
            return
        chain.append(x)
        a, b = x.args
        shape = _shape(wait)
        if not self._fits(comm, a, b, x) or shape[-1] != _shape(x)[-1] or sum(not isinstance(n, int) for n in shape) > 1:
            return
        if scatter and len(shape) < 2 or order is not None and not all(isinstance(n, int) for n in order):
            return
        name = "gemm_rs" if scatter else "gemm_ar"
        with graph.inserting_before(x):
            if order is not None and order[0] > 1:  # [B, W, S/W] -> [W, B, S/W]
                a = self._rows(graph, a, (order[0], comm.world, order[1] // comm.world))
            flags = (False, int(torch.are_deterministic_algorithms_enabled()), "", comm.handle << 20 | comm.world)
            made = self._call(graph, getattr(torch.ops.mkernel, name).default, a, b, *flags)
            made = self._call(graph, aten.reshape.default, made, [n if isinstance(n, int) else -1 for n in shape])
        wait.replace_all_uses_with(made)
        for old in chain:
            if not old.users:
                graph.erase_node(old)
        self._count(name)


def compile_pass(comms) -> Pass:
    comms = comms or (_communicator.default(),)
    for comm in comms:
        if comm._arrays.NAME != "torch":
            raise Refused("the communicator's arrays are numpy's: import torch before mkernel.init")
        if comm._peers is None:
            raise Refused("the communicator's ranks are not of torch.distributed, whose collectives the pass looks for: call init_process_group before mkernel.init")
    return Pass(tuple(comms))
