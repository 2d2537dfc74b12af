"""mkernel.quantize gives the bits that PyTorch's own conversion gives by the rule of its documentation, for every block and type; its codes and scales
go into the FP8 operators as they are, and what only moves takes e4m3 and bytes; torch.compile(fullgraph=True) traces through both; what cannot be is
refused."""
import numpy
import torch
import mkernel
from cases import case, main, ranks, refuses, scene
from torch_ranks import bf16, end, gathered, start

E4M3 = torch.float8_e4m3fn


def tiles(x, high, wide):
    """x [rows, k] as [rows/high, k/wide, high * wide], zeros at the ends."""
    rows, k = x.shape
    padded = torch.zeros(-(-rows // high) * high, -(-k // wide) * wide)
    padded[:rows, :k] = x
    return padded.view(-1, high, padded.shape[1] // wide, wide).transpose(1, 2).flatten(2)


def reference(x, block):
    """By PyTorch, of a matrix: the codes' bits, and the scales [rows/high, k/wide]."""
    rows, k = x.shape
    high, wide = {"row": (1, k), "tensor": (rows, k)}.get(block, block)
    of = tiles(x.float(), high, wide)
    finite = torch.isfinite(of)
    amax = torch.where(finite, of.abs(), 0).amax(-1, keepdim=True)
    zeros = amax < 2.0**-110
    up = torch.where(zeros, torch.zeros_like(amax), torch.tensor(448.0) / amax)  # 448 / amax is 448 * (1 / amax) here
    codes = torch.where(finite, (of * up).to(E4M3).view(torch.uint8), 0x7F)
    codes = codes.view(*codes.shape[:2], high, wide).transpose(1, 2).reshape(codes.shape[0] * high, -1)[:rows, :k]
    return codes, torch.where(zeros, torch.ones_like(amax), amax / 448)[..., 0]


def sample(rows, k, dtype=torch.float32):
    x = torch.randn(rows, k) * 2.0 ** torch.randint(-40, 40, (rows, 1))
    x[rows // 2] = 0
    x[rows // 3, ::7] = 2.0**-115
    x[0, 1], x[-1, -1], x[-1, 0] = float("nan"), float("inf"), -float("inf")
    return x.to(dtype)


@case
def codes_and_scales_are_pytorchs_own_to_the_bit():
    torch.manual_seed(1)
    for dtype in (torch.bfloat16, torch.float32):
        for rows, k in ((1, 16), (129, 400), (256, 256), (40, 2064)):
            x = sample(rows, k, dtype)
            for block in ((1, 128), (128, 128), "row", "tensor"):
                codes, scales = mkernel.quantize(x, block)
                wanted, of_scales = reference(x, block)
                assert codes.dtype is E4M3 and codes.shape == x.shape and scales.dtype is torch.float32
                assert torch.equal(codes.view(torch.uint8), wanted), (dtype, rows, k, block)
                if block == (1, 128):
                    of_scales = of_scales.t()
                elif block == (128, 128):
                    of_scales = torch.nn.functional.pad(of_scales, (0, -of_scales.shape[1] % 4))
                assert torch.equal(scales, of_scales), (dtype, rows, k, block)
    # Every bf16 number there is beside 448, whose scale is 1: all roundings of PyTorch's conversion, and saturation never.
    every = torch.arange(1 << 16).to(torch.uint16).view(torch.bfloat16)
    x = every[every.abs() <= 448].view(-1, 1).expand(-1, 16).clone()
    x[:, 1] = 448
    codes, scales = mkernel.quantize(x)
    assert (scales == 1).all() and torch.equal(codes.view(torch.uint8), x.to(E4M3).view(torch.uint8))


@case
def an_array_may_lie_as_it_likes():
    x = sample(48, 160).view(3, 16, 160)
    for block in ((1, 128), "row", "tensor"):
        codes, scales = mkernel.quantize(x, block)
        flat, of_flat = mkernel.quantize(x.view(48, 160), block)
        assert codes.shape == x.shape and torch.equal(codes.view(torch.uint8).view(48, 160), flat.view(torch.uint8))
        assert scales.shape == ((3, 16, 1) if block == "row" else of_flat.shape) and torch.equal(scales.flatten(), of_flat.flatten())
    wide = sample(48, 160)
    for view in (wide[:, 3:147], wide[:32].t(), wide.flatten()[1:145].view(9, 16)):  # not contiguous; not aligned
        codes, scales = mkernel.quantize(view)
        wanted, of_scales = mkernel.quantize(view.clone(memory_format=torch.contiguous_format))
        assert torch.equal(codes.view(torch.uint8), wanted.view(torch.uint8)) and torch.equal(scales, of_scales)
    codes, scales = mkernel.quantize(torch.empty(0, 32))
    assert codes.shape == (0, 32) and scales.shape == (1, 0)


@case
def numpy_gives_the_same():
    x = sample(129, 400)
    for block in ((1, 128), (128, 128), "row", "tensor"):
        wanted, of_scales = mkernel.quantize(x, block)
        codes, scales = mkernel.quantize(x.numpy(), block)
        assert codes.dtype.itemsize == 1 and (codes.view(numpy.uint8) == wanted.view(torch.uint8).numpy()).all()
        assert (scales == of_scales.numpy()).all() and scales.dtype == numpy.float32
    bits = mkernel.to_bf16(x.numpy())
    codes, scales = mkernel.quantize(bits)
    wanted, of_scales = mkernel.quantize(x.bfloat16())
    assert (codes.view(numpy.uint8) == wanted.view(torch.uint8).numpy()).all() and (scales == of_scales.numpy()).all()


def close(c, wanted, most=0.05):
    """Two roundings to 3 bits of fraction, each at most 1/16 of a number, 1/38 of it in the mean square."""
    error = ((c.double() - wanted).norm() / wanted.norm()).item()
    assert error < most, error


@scene
def multiplying():
    comm = start()
    W, r = comm.world, comm.rank
    m, n, k = 32 * W, 136, 272
    x, weight = bf16(m, k), torch.nn.Parameter(bf16(n, k))
    wide = torch.randn(n, k)
    b, b_scales = mkernel.quantize(weight.detach(), (128, 128))
    a, a_scales = mkernel.quantize(x)
    product = x.double() @ weight.detach().double().t()
    total = sum(gathered(product))
    close(mkernel.gemm_ar_fp8(a, b.t(), a_scales, b_scales), total)
    close(mkernel.gemm_rs_fp8(a, b.t(), a_scales, b_scales), total.chunk(W)[r])
    for rows in 1, 3, 17:  # decoded tokens: as many as there are
        few, of_few = mkernel.quantize(x[:rows])
        close(mkernel.gemm_ar_fp8(few, b.t(), of_few, b_scales), total[:rows])
        close(mkernel.ag_gemm_fp8(few, b.t(), of_few, b_scales), torch.cat(gathered(x[:rows])).double() @ weight.detach().double().t())
    # RowWise: a scale for each row of A and each column of B, far from each other; zeros in one column and a NaN in another.
    far = weight.detach() * 2.0 ** torch.linspace(-20, 20, n).round()[:, None]
    far[6] = 0
    if r == W - 1:
        far[8, 3] = float("nan")
    total_far = sum(gathered(x.double() @ far.double().t()))
    kept = [column for column in range(n) if column not in (6, 8)]
    (a1, of_rows), (b1, of_columns) = mkernel.quantize(x, "row"), mkernel.quantize(far, "row")
    assert of_rows.shape == (m, 1) and of_columns.shape == (n, 1)
    for sums, wanted in ((mkernel.gemm_ar_fp8, total_far), (mkernel.gemm_rs_fp8, total_far.chunk(W)[r])):
        c = sums(a1, b1.t(), of_rows, of_columns)
        assert c[:, 8].isnan().all() and not c[:, 6].any()
        for column in kept:
            close(c[:, column], wanted[:, column], 0.08)  # of as few numbers
        assert all(torch.equal(sums(a1, b1.t(), of_rows, y)[:, kept], c[:, kept]) for y in (of_columns.t(), of_columns[:, 0]))
    assert "b_scales=columns" in comm.plans[-1].options
    mine = x.chunk(W)[r]
    c = mkernel.ag_gemm_fp8(a1.chunk(W)[r], b1.t(), of_rows.chunk(W)[r], of_columns)
    for column in [column for column in kept if r < W - 1 or column != 8]:
        close(c[:, column], (torch.cat(gathered(mine)).double() @ far.double().t())[:, column], 0.08)
    c = torch.compile(lambda x: mkernel.gemm_ar_fp8(*(lambda y: (y[0], b1.t(), y[1]))(mkernel.quantize(x, "row")), of_columns), fullgraph=True,
                      backend="aot_eager")(x)
    assert torch.equal(c[:, kept], mkernel.gemm_ar_fp8(a1, b1.t(), of_rows, of_columns)[:, kept])

    # One rank's NaN reaches its row of the sum on every rank and nothing else; so does a row that is zeros or far from 1 everywhere.
    odd = x.clone()
    if r == W - 1:
        odd[5, 270] = float("nan")
    odd[7], odd[9], odd[10] = 0, x[9] * 2.0**40, x[10] * 2.0**-40
    a, a_scales = mkernel.quantize(odd)
    c = mkernel.gemm_ar_fp8(a, b.t(), a_scales, b_scales)
    assert c[5].isnan().all() and not c[7].any()
    close(c[9], total[9] * 2.0**40), close(c[10], total[10] * 2.0**-40)
    kept = [row for row in range(m) if row not in (5, 7, 9, 10)]
    close(c[kept], total[kept])
    a, a_scales = mkernel.quantize(x)
    mine = x.chunk(W)[r]
    close(mkernel.ag_gemm_fp8(*(lambda q: (q[0], b.t(), q[1]))(mkernel.quantize(mine)), b_scales),
          torch.cat(gathered(mine)).double() @ weight.detach().double().t())
    folded, of_folded = mkernel.quantize(mine.view(-1, 4, k))
    assert torch.equal(mkernel.ag_gemm_fp8(folded, b.t(), of_folded, b_scales).view(m, n),
                       mkernel.ag_gemm_fp8(folded.view(-1, k), b.t(), of_folded, b_scales))

    # Tokens that bring their scales, all to the next rank's expert.
    tokens = bf16(5, k)
    experts = torch.full((5, 1), (r + 1) % W, dtype=torch.int32)
    c, rows = mkernel.moe_dispatch_gemm_fp8(mkernel.quantize(tokens, "records"), b[None].transpose(1, 2), experts, b_scales[None])
    assert rows.tolist() == [[0, 5]]
    close(c[:5], gathered(tokens)[r - 1].double() @ weight.detach().double().t())

    # A MoE's layer, all tokens to the next rank's expert: against the same of what codes and scales say, with the activation quantised.
    inner, every = 144, torch.ones((5, 1))
    gate, up, down = bf16(inner, k), bf16(inner, k), bf16(k, inner)
    (g, gs), (u, us), (d, ds) = (mkernel.quantize(w, (128, 128)) for w in (gate, up, down))
    y = mkernel.moe_ffn_fp8(mkernel.quantize(tokens, "records"), torch.cat((g.view(torch.uint8), u.view(torch.uint8)))[None].view(torch.float8_e4m3fn).transpose(1, 2),
                            experts, every, d[None].transpose(1, 2), torch.stack((gs, us))[None], ds[None])
    weights = [gathered(w)[(r + 1) % W].double() for w in (gate, up, down)]
    act = torch.nn.functional.silu(tokens.double() @ weights[0].t()) * (tokens.double() @ weights[1].t())
    close(y, act @ weights[2].t(), 0.1)  # of six such roundings

    # A layer: quantised where it is multiplied, in one graph.
    def layer(x):
        codes, scales = mkernel.quantize(x)
        return mkernel.gemm_ar_fp8(codes, b.t(), scales, b_scales, deterministic=True)

    assert torch.equal(torch.compile(layer, fullgraph=True)(x), layer(x))
    some = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (16, 24, 40):
        assert torch.equal(some(bf16(rows, k).fill_(rows)), layer(bf16(rows, k).fill_(rows)))
    both = torch.compile(lambda w: mkernel.quantize(w, (128, 128)), fullgraph=True)(wide)
    eager = mkernel.quantize(wide, (128, 128))
    assert torch.equal(both[0].view(torch.uint8), eager[0].view(torch.uint8)) and torch.equal(both[1], eager[1])
    for scaling in range(4):
        torch.library.opcheck(torch.ops.mkernel.quantize.default, (wide, scaling),
                              test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
    end(comm)


@case
def the_operators_take_what_it_gives():
    ranks(2, multiplying)


def bits(x):
    return x if x.dtype is torch.uint8 else x.view(torch.uint8)


@scene
def moving(nodes):
    comm = start(nodes=int(nodes) or None, nic="soft" if int(nodes) else None)
    W, r = comm.world, comm.rank
    code = torch.randint(0, 256, (6 * W, 3, 32), dtype=torch.uint8)
    for x in (code, code.view(E4M3)):
        every = gathered(code)
        whole = mkernel.all_gather(x)
        assert whole.dtype is x.dtype and torch.equal(bits(whole), torch.cat(every))
        assert "dtype=" + ("bytes" if x is code else "fp8") in comm.plans[-1].options
        moved = comm.plans[-1].nvlink_bytes + comm.plans[-1].network_bytes
        assert int(nodes) or moved == (W - 1) * x.numel()
        swapped = mkernel.all_to_all(x)
        assert swapped.dtype is x.dtype and torch.equal(bits(swapped), torch.cat([y.chunk(W)[r] for y in every]))
        out = torch.empty_like(x)
        assert mkernel.all_to_all(x, out) is out and torch.equal(bits(out), bits(swapped))
        for dynamic in (False, True):
            backend = "inductor" if dynamic and x is code and not int(nodes) else "aot_eager"  # Inductor takes seconds
            there = torch.compile(lambda x: mkernel.all_to_all(mkernel.all_gather(x)), fullgraph=True, dynamic=dynamic, backend=backend)
            assert torch.equal(bits(there(x)), bits(mkernel.all_to_all(whole)))
    x = torch.randn(4 * W, 512)
    codes, scales = mkernel.quantize(x)  # an activation on its way: codes and scales by the same operator
    codes, scales = mkernel.all_gather(codes), mkernel.all_gather(scales.t().contiguous().view(torch.uint8)).view(torch.float32)
    wanted = [mkernel.quantize(y) for y in gathered(x)]
    assert torch.equal(bits(codes), torch.cat([bits(y) for y, _ in wanted])) and torch.equal(scales, torch.cat([y.t() for _, y in wanted]))
    assert (mkernel.all_gather(torch.ones(4, 8, dtype=torch.bfloat16)) == 1).all()
    refuses("A is of torch.int8, and should be of torch.bfloat16", mkernel.all_gather, code.view(torch.int8))
    refuses("the next K that works is 32", mkernel.all_gather, code[..., :24].contiguous())
    refuses("options='dtype=bytes': the arrays say the type", mkernel.all_gather, torch.ones(4, 16, dtype=torch.bfloat16), options="dtype=bytes")
    refuses("options='dtype=bf16': the arrays say the type", mkernel.all_gather, code[:, 0].contiguous(), options="dtype=bf16")
    refuses("A is of torch.uint8, and should be of torch.bfloat16", mkernel.reduce_scatter, code[:, 0].contiguous())
    assert not hasattr(mkernel, "all_gather_fp8") and "uint8, e4m3" in mkernel.all_gather.__doc__
    end(comm)


@case
def what_only_moves_takes_e4m3_and_bytes():
    ranks(2, moving, 0)
    ranks(4, moving, 2)


@case
def what_cannot_be_quantised_is_refused():
    x = torch.ones(4, 32)
    refuses("x is of torch.float16, and should be of torch.bfloat16 or torch.float32", mkernel.quantize, x.half())
    refuses("x is [4, 24]: the last dimension is a multiple of 16", mkernel.quantize, x[:, :24])
    refuses("x has 1 dimensions, [32], and should have 2 or more", mkernel.quantize, x[0])
    refuses("x has 3 dimensions, [1, 4, 32], and should have 2, a matrix's", mkernel.quantize, x[None], (128, 128))
    refuses("block is (1, 64), and should be (1, 128), (128, 128), 'row', 'tensor' or 'records'", mkernel.quantize, x, (1, 64))
    refuses("x is a list, and should be an array of numpy or PyTorch", mkernel.quantize, [[1.0] * 16])
    refuses("x is of float64, and should be of uint16 or bfloat16 or float32", mkernel.quantize, numpy.ones((4, 16)))
    refuses("quantize has no backward: call it under torch.no_grad(), or detach its input", mkernel.quantize, x.clone().requires_grad_())


main()
