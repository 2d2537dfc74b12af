"""mkernel.load_checkpoint and save_checkpoint: of one file or several each rank reads its own part alone, also into a model that was made on meta, and what is
written is the whole model, bit by bit: for a model of the tests' own, and for Llama, Mixtral and Qwen3-MoE as transformers writes and reads them. What does not
fit is refused with a sentence, and then nothing is changed; so is a folder that cannot be written."""
import importlib
import importlib.util
import json
import pathlib
import shutil
import sys
import tempfile
import warnings

import torch
import mkernel
from mkernel import _checkpoint
from cases import Skip, case, main, ranks, refuses, scene
from torch_model import DIM, H, HEADS, INNER, KV, WORDS, Model, routed
from torch_ranks import end, start

INDEX = "model.safetensors.index.json"


def package():
    if importlib.util.find_spec("safetensors") is None:
        raise Skip("this Python has no package safetensors")


def shared(comm):
    """A folder that all ranks have."""
    name = [tempfile.mkdtemp() if comm.rank == 0 else ""]
    torch.distributed.broadcast_object_list(name)
    return pathlib.Path(name[0])


def leave(comm, folder):
    torch.distributed.barrier()
    if comm.rank == 0:
        shutil.rmtree(folder)
    end(comm)


def alike(one, other):
    assert set(one) == set(other), set(one) ^ set(other)
    for name, x in one.items():
        assert x.dtype is other[name].dtype and torch.equal(x, other[name]), name


def on_meta(make):
    with torch.device("meta"):
        return make()


def bits(folder):
    """All files' tensors, as the package itself reads them."""
    from safetensors.torch import load_file

    return {name: x for file in folder.glob("*.safetensors") for name, x in load_file(file).items()}


@scene
def own_model():
    comm = start()
    folder = shared(comm)
    _checkpoint._PIECE = 1000  # a matrix is several pieces
    for make in (lambda: Model(bias=True), routed):
        torch.manual_seed(1)
        model = make().bfloat16()
        state = {name: x.clone() for name, x in model.state_dict().items()}
        ids = torch.randint(0, WORDS, (2, 4 * comm.world))
        mkernel.parallelize(model)
        with torch.no_grad():
            logits = model(ids)
        for file_bytes in (1 << 30, 20_000):
            mkernel.save_checkpoint(model, folder, file_bytes=file_bytes)
            torch.distributed.barrier()
            files = sorted(x.name for x in folder.iterdir())
            assert (files == ["model.safetensors"]) if file_bytes > 1 << 20 else (len(files) > 3 and INDEX in files and "model.safetensors" not in files), files
            most = max(file_bytes, *[x.numel() * 2 for x in state.values()])
            assert all(x.stat().st_size < most + 8192 for x in folder.iterdir())
            alike(bits(folder), state)

            again = on_meta(lambda: make().bfloat16())
            mkernel.parallelize(again)
            refuses("its weights have not been loaded: mkernel.load_checkpoint brings them", again, ids)
            refuses("its weights have not been loaded: there is nothing to save", mkernel.save_checkpoint, again, folder)
            mkernel.load_checkpoint(again, folder)
            alike(mkernel.full_state_dict(again), state)
            with torch.no_grad():
                assert torch.equal(again(ids), logits)
            torch.distributed.barrier()
        if comm.rank == 0:
            for x in folder.iterdir():
                x.unlink()
        torch.distributed.barrier()
    refusals(comm, folder)
    leave(comm, folder)


def refusals(comm, folder):
    from safetensors.torch import save_file
    from mkernel import _safetensors

    torch.manual_seed(1)
    model = Model().bfloat16()
    mkernel.parallelize(model)
    refuses("has neither model.safetensors.index.json nor model.safetensors", mkernel.load_checkpoint, model, folder)
    refuses("No such file or directory", mkernel.load_checkpoint, model, folder / "none.safetensors")
    state = mkernel.full_state_dict(model)
    torch.distributed.barrier()

    def refused(words, change):
        """Of a checkpoint whose tensors are changed so."""
        own = folder / str(comm.rank)
        tensors = {name: x * 3 for name, x in state.items()}
        change(tensors)
        own.mkdir(exist_ok=True)
        save_file(tensors, own / "model.safetensors")
        refuses(words, mkernel.load_checkpoint, model, own)
        alike(mkernel.full_state_dict(model), state)

    name = "layers.1.mlp.up_proj.weight"
    refused(f"lacks {name}", lambda tensors: tensors.pop(name))
    refused(f"is [{INNER - 1}, {H}], and should be [{INNER}, {H}]: the whole of all ranks", lambda tensors: tensors.update({name: tensors[name][1:]}))
    file = folder / f"{comm.rank}/model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    refuses("is no file of safetensors", mkernel.load_checkpoint, model, file)
    index = file.with_name(INDEX)
    index.write_text(json.dumps({"weight_map": {name: "other.safetensors"}}))
    refuses("other.safetensors cannot be read: No such file", mkernel.load_checkpoint, model, index)
    index.write_text("{}")
    refuses("is no index of a checkpoint", mkernel.load_checkpoint, model, index)
    for outside in ("../model.safetensors", str(file), ".."):
        index.write_text(json.dumps({"weight_map": {name: outside}}))
        refuses(f"names {outside}: an index names files of its own folder", mkernel.load_checkpoint, model, index)
    torch.distributed.barrier()
    words = "Not a directory" if comm.rank == 0 else "rank 0 says why"
    refuses(words, mkernel.save_checkpoint, model, file / "in")
    # The disk is full in the midst of it: rank 0 goes on with the others, and what was there stays.
    mkernel.save_checkpoint(model, folder)
    before = bits(folder)
    with torch.no_grad():
        for x in model.parameters():
            x.mul_(2)
    real = _safetensors.Writer.write
    _safetensors.Writer.write = lambda self, key, *more: full() if key == name else real(self, key, *more)
    refuses("No space left" if comm.rank == 0 else "rank 0 says why", mkernel.save_checkpoint, model, folder)
    _safetensors.Writer.write = real
    torch.distributed.barrier()
    assert not list(folder.glob("*.partial"))
    alike(bits(folder), before)
    failures(comm, folder, model, before)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        state["tail"] = torch.zeros(1)
        save_file(state, file)
        mkernel.load_checkpoint(model, file)
    assert [str(x.message) for x in said if "tail" in str(x.message)] or comm.rank, said
    state.pop("tail")
    alike(mkernel.full_state_dict(model), state)

    half = on_meta(lambda: Model().bfloat16())
    half.embed = torch.nn.Embedding(WORDS, H, dtype=torch.bfloat16)
    refuses("is on meta and embed.weight is not", mkernel.parallelize, half)
    turned = on_meta(lambda: Model().bfloat16())
    turned.register_buffer("turn", torch.empty(4, device="meta"), persistent=False)
    refuses("turn is a buffer on meta that no checkpoint has", mkernel.parallelize, turned)
    assert turned.layers[0].mlp.up_proj.weight.shape == (INNER, H)


class Killed(BaseException):
    """Stands for the end of the process: what would follow on rank 0 does not happen."""


def failures(comm, folder, model, before):
    """Whatever rank 0 raises, all ranks raise, and what was there stays; and whenever it is killed, a reader finds one whole checkpoint, old or new."""
    from mkernel import _safetensors

    def wrong(*_, **__):
        raise ValueError("a generation config that makes no sense")

    real, finish, abandon = _safetensors.os.replace, _safetensors.Writer.finish, _safetensors.Writer.abandon
    after = mkernel.full_state_dict(model)
    for at in ("write", "finish", "__init__"):
        whole = getattr(_safetensors.Writer, at)
        setattr(_safetensors.Writer, at, wrong)
        e = None
        try:
            mkernel.save_checkpoint(model, folder)
        except ValueError as error:  # Refused is one
            e = error
        assert e and ("makes no sense" if comm.rank == 0 else "rank 0 says why") in str(e), e
        setattr(_safetensors.Writer, at, whole)
    model.config = type("Config", (), {"save_pretrained": wrong})()
    try:
        mkernel.save_checkpoint(model, folder, file_bytes=20_000)
        assert False, "nothing was raised"
    except ValueError as error:
        assert ("makes no sense" if comm.rank == 0 else "rank 0 says why") in str(error), error
    del model.config
    torch.distributed.barrier()
    alike(_safetensors.read(folder), before)
    alike(bits(folder), before)  # and there is no other file
    news = 0
    for one, other in ((1 << 30, 20_000), (20_000, 1 << 30), (20_000, 20_000), (1 << 30, 1 << 30)):
        for step in range(100):
            count = 0

            def step_of(function):
                def counted(*arguments):
                    nonlocal count
                    count += 1
                    if count > step:
                        raise Killed
                    return function(*arguments)

                return counted

            own = shared(comm)
            for x in model.parameters():
                x.data.mul_(0.5)
            mkernel.save_checkpoint(model, own, file_bytes=one)
            for x in model.parameters():
                x.data.mul_(2)
            if comm.rank == 0:
                _safetensors.Writer.abandon = lambda self: None
                remove = _safetensors.os.remove
                _safetensors.os.replace, _safetensors.os.remove = step_of(real), step_of(remove)
            ended = True
            try:
                mkernel.save_checkpoint(model, own, file_bytes=other)
            except (Killed, mkernel.Refused):
                ended = False
            if comm.rank == 0:
                _safetensors.os.replace, _safetensors.os.remove, _safetensors.Writer.abandon = real, remove, abandon
                found = _safetensors.read(own)
                new = all(torch.equal(x, after[name]) for name, x in found.items())
                alike(found, after if new else before)
                assert new or not ended
                news += new
            torch.distributed.barrier()
            if comm.rank == 0:
                shutil.rmtree(own)
            if ended:
                break
        assert 0 < step < 99, step
    assert news > 4 or comm.rank


def full():
    raise OSError(28, "No space left on device")


@case
def a_model_is_written_whole_and_read_by_parts_and_what_does_not_fit_is_refused():
    package()
    ranks(2, own_model)


@case
def a_python_without_the_package_is_told_so():
    theirs = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "safetensors"}
    sys.modules["safetensors"] = None
    refuses("checkpoints need the package safetensors: pip install safetensors", importlib.import_module, "mkernel._safetensors")
    del sys.modules["safetensors"]
    sys.modules.update(theirs)


@scene
def of_transformers():
    import transformers as t

    comm = start()
    folder = shared(comm)
    sizes = dict(vocab_size=WORDS, hidden_size=H, intermediate_size=INNER, num_hidden_layers=2, num_attention_heads=HEADS, num_key_value_heads=KV, max_position_embeddings=64)
    few = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=DIM)
    for config in (t.LlamaConfig(**sizes, tie_word_embeddings=True), t.MixtralConfig(**sizes, num_local_experts=4), t.Qwen3MoeConfig(**sizes, **few)):
        theirs, ours = folder / config.model_type, folder / f"{config.model_type}-back"
        torch.manual_seed(1)
        if comm.rank == 0:
            t.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(theirs, max_shard_size="20KB")
        torch.distributed.barrier()
        assert len(list(theirs.glob("*.safetensors"))) > 2
        whole = t.AutoModelForCausalLM.from_pretrained(theirs, dtype=torch.bfloat16).eval()
        model = on_meta(lambda: t.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)).eval()
        mkernel.parallelize(model)
        mkernel.load_checkpoint(model, theirs)
        alike(mkernel.full_state_dict(model), whole.state_dict())
        ids = torch.randint(0, WORDS, (2, 8), generator=torch.Generator().manual_seed(2))
        with torch.no_grad():
            got, right = model(ids).logits.float(), whole(ids).logits.float()
        assert (got - right).norm() < 0.05 * right.norm()
        mkernel.save_checkpoint(model, ours, file_bytes=30_000)
        torch.distributed.barrier()
        alike(bits(ours), bits(theirs))  # under the names of the checkpoint
        back = t.AutoModelForCausalLM.from_pretrained(ours, dtype=torch.bfloat16)
        alike(back.state_dict(), whole.state_dict())
        # of weights that are from no checkpoint
        again = t.AutoModelForCausalLM.from_pretrained(theirs, dtype=torch.bfloat16)
        mkernel.parallelize(again)
        mkernel.save_checkpoint(again, ours.with_suffix(".own"))
        torch.distributed.barrier()
        alike(t.AutoModelForCausalLM.from_pretrained(ours.with_suffix(".own"), dtype=torch.bfloat16).state_dict(), whole.state_dict())
    leave(comm, folder)


@case
def checkpoints_of_transformers_are_read_and_written():
    if importlib.util.find_spec("transformers") is None:
        raise Skip("this Python has no transformers")
    ranks(2, of_transformers)


if __name__ == "__main__":
    main()
