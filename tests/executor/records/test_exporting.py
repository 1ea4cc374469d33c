"""Folders that other libraries read: what is in them, and that none is ever half written."""

import json
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file, load_model
from support import handmade
from support.chains import tasks_for
from support.fit import fit
from torch import Tensor, nn

from executor import outputs, run
from executor.errors import RunError, UsageError
from executor.records import exporting, try_exports
from executor.records.exporting import export


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def flat(model: nn.Module) -> nn.Module:
    """The model with all parameters in one storage, as the host store has them."""
    parameters = list(model.parameters())
    whole = torch.cat([p.detach().reshape(-1) for p in parameters])
    for p, own in zip(parameters, whole.split([p.numel() for p in parameters]), strict=True):
        p.data = own.view_as(p)
    return model


class Tied(nn.Module):
    """Two layers with one weight, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 8)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.arange(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x) + self.seen.sum())


def test_a_trained_module_is_a_state_dict(tmp_path: Path) -> None:
    """It gives the same outputs when it is loaded, and stays of use in the store."""
    plan = handmade.streamed()
    (task,) = tasks_for(plan)
    result = run(fit(plan, [task]), [task])
    result.save("a", tmp_path / "x" / "a")
    fresh, trained = task.model().eval(), result.model("a").eval()
    fresh.load_state_dict(load_file(tmp_path / "x" / "a" / "model.safetensors"))
    inputs, _ = task.data(7)
    assert torch.equal(fresh(inputs), trained(inputs))
    assert names(tmp_path / "x") == {"a"}


def test_ties_are_written_once(tmp_path: Path) -> None:
    model, fresh = flat(Tied()), Tied()
    export(model, tmp_path / "a")
    file = tmp_path / "a" / "model.safetensors"
    assert len(load_file(file).keys() & {"embed.weight", "head.weight"}) == 1
    load_model(fresh, file)
    assert torch.equal(fresh(torch.arange(8)), model(torch.arange(8)))


def test_a_library_writes_its_own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of transformers is in several files with an index if it is large, and with its base's
    tokenizer; what it gives when it is read is equal."""
    transformers = pytest.importorskip("transformers")
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "tokenizer.json").write_text("{}")
    config = transformers.GPT2Config(vocab_size=64, n_embd=16, n_layer=2, n_head=2)
    config.name_or_path = str(tmp_path / "base")
    model = flat(transformers.GPT2LMHeadModel(config)).eval()
    monkeypatch.setattr(exporting, "_SHARD", "20KB")
    export(model, tmp_path / "a")
    index = json.loads((tmp_path / "a" / "model.safetensors.index.json").read_text())
    shards = set(index["weight_map"].values())
    assert len(shards) > 1
    others = {"config.json", "generation_config.json", "tokenizer.json"}
    assert names(tmp_path / "a") == shards | others | {"model.safetensors.index.json"}
    assert "lm_head.weight" not in index["weight_map"]
    read = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "a")
    text = torch.arange(8)[None]
    assert torch.equal(read(text).logits, model(text).logits)


def test_an_earlier_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    export(nn.Linear(2, 2), tmp_path / "a")
    (tmp_path / "a" / "model-00001-of-00002.safetensors").touch()
    model = nn.Linear(3, 3)
    export(model, tmp_path / "a")
    assert names(tmp_path) == {"a"}
    assert names(tmp_path / "a") == {"model.safetensors"}
    assert torch.equal(load_file(tmp_path / "a" / "model.safetensors")["bias"], model.bias)


def test_nothing_is_left_of_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """And what was there before stays."""
    export(nn.Linear(2, 2), tmp_path / "a")
    before = (tmp_path / "a" / "model.safetensors").read_bytes()
    model = nn.Linear(3, 3)
    model.save_pretrained = partial(_half, model)
    with pytest.raises(RunError, match=r"a: cannot be written: OSError: .* No space left"):
        export(model, tmp_path / "a")
    assert names(tmp_path) == {"a"}
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == before


def _half(model: nn.Module, folder: str) -> None:
    """Save as a library does whose disk is full."""
    (Path(folder) / "model.safetensors").write_bytes(b"half")
    raise OSError(28, "No space left on device")


def test_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    """What holds no model that was saved is not written over."""
    (tmp_path / "a").mkdir()
    try_exports(tmp_path, {"a": 1})
    (tmp_path / "a" / "thesis.tex").touch()
    with pytest.raises(UsageError, match="a: cannot be written: it is there already and holds no"):
        try_exports(tmp_path, {"a": 1})
    assert names(tmp_path) == {"a"}


def test_room_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "free_bytes", lambda folder: 9)
    with pytest.raises(UsageError, match=r"x: cannot be written: 1 file.* \(10 bytes\), it has "):
        try_exports(tmp_path / "x", {"a": 10})
