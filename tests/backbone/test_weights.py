"""Weights from files, packages and hubs: each kind of error has its own message."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from skillmesh.backbone.building import State, build, import_timm, read_state
from skillmesh.backbone.spec import NAMED, spec_of
from skillmesh.errors import BackboneError

SPEC = spec_of("test_efficientnet")


@pytest.fixture(scope="module")
def state() -> State:
    torch.manual_seed(0)
    return import_timm().create_model(SPEC.timm_name).state_dict()


def without_counters(state: State) -> State:
    return {name: tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked")}


def renamed(state: State) -> State:
    return {f"module.{name}": t for name, t in state.items() if not name.startswith("classifier")}


WRITERS: dict[str, tuple[str, Callable[[State, Path], None]]] = {
    "safetensors": ("w.safetensors", save_file),
    "state dict": ("w.pt", torch.save),
    "checkpoint": ("w.pth", lambda state, path: torch.save({"epoch": 3, "state_dict": state}, path)),
    "no classifier": (
        "w.pt",
        lambda state, path: torch.save({n: t for n, t in state.items() if "classifier" not in n}, path),
    ),
    "no counters": ("w.pt", lambda state, path: torch.save(without_counters(state), path)),
    "other names": ("w.pt", lambda state, path: torch.save(renamed(state), path)),
    "half precision": (
        "w.safetensors",
        lambda state, path: save_file(
            {n: t.half() if t.is_floating_point() else t for n, t in state.items()}, path
        ),
    ),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_of_file_loads(kind: str, state: State, tmp_path: Path):
    name, write = WRITERS[kind]
    write(state, tmp_path / name)
    loaded = build(SPEC, tmp_path / name).state_dict()
    assert not any(name.startswith("classifier") for name in loaded)
    for key, tensor in without_counters(loaded).items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, state[key], rtol=0, atol=1e-3 if kind == "half precision" else 0)


def test_lite0_comes_with_its_package():
    state = build(NAMED["lite0"], None).state_dict()
    assert state["conv_stem.weight"].shape == (32, 3, 3, 3)
    assert state["bn1.running_var"].std() > 0
    assert state["conv_stem.weight"].equal(build(NAMED["lite0"], None).state_dict()["conv_stem.weight"])


class TestRefused:
    @pytest.fixture
    def build_from(self, tmp_path: Path) -> Callable[[Any], None]:
        def build_from(content: Any) -> None:
            torch.save(content, tmp_path / "w.pt")
            build(SPEC, tmp_path / "w.pt")

        return build_from

    def test_a_missing_tensor_is_named(self, state: State, build_from):
        with pytest.raises(BackboneError, match=r"w\.pt do not fit: 1 tensors are missing \(conv_stem\.weight\)"):
            build_from({name: tensor for name, tensor in state.items() if name != "conv_stem.weight"})

    def test_an_unexpected_tensor_is_named(self, state: State, build_from):
        with pytest.raises(BackboneError, match=r"1 are unexpected \(extra\.weight\)"):
            build_from({**state, "extra.weight": torch.zeros(1)})

    def test_a_wrong_shape_is_named_with_both_shapes(self, state: State, build_from):
        with pytest.raises(BackboneError, match=r"conv_stem\.weight has shape \(2, 3\), expected \(24, 3, 3, 3\)"):
            build_from({**state, "conv_stem.weight": torch.zeros(2, 3)})

    def test_other_tensor_names_in_another_order_are_reported(self, state: State, build_from):
        with pytest.raises(BackboneError, match="has shape"):
            build_from(dict(reversed(renamed(state).items())))

    def test_another_networks_weights_are_reported(self, build_from):
        with pytest.raises(BackboneError, match=r"tensors are missing \(.*, …\)"):
            build_from(import_timm().create_model("test_vit").state_dict())

    @pytest.mark.parametrize("content", [[torch.zeros(1)], {"a": "text"}, {"state_dict": 7}, torch.zeros(3)])
    def test_a_file_that_is_no_state_dict_is_reported(self, content: Any, build_from):
        with pytest.raises(BackboneError, match=r"holds (list|dict|Tensor); expected a state dict"):
            build_from(content)

    @pytest.mark.filterwarnings("ignore:Detected pickle protocol")
    def test_a_pickle_that_would_run_code_is_refused(self, tmp_path: Path):
        trap = tmp_path / "sprung"

        class Trap:
            def __reduce__(self) -> Any:
                return Path.touch, (trap,)

        for write in (torch.save, lambda o, p: p.write_bytes(pickle.dumps(o))):
            write({"conv_stem.weight": Trap()}, tmp_path / "evil.pt")
            with pytest.raises(BackboneError, match=r"evil\.pt cannot be read as weights .*tensors only"):
                read_state(tmp_path / "evil.pt")
            assert not trap.exists()

    @pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
    @pytest.mark.parametrize("content", [b"", b"hello", bytes(100)])
    def test_a_damaged_file_is_reported(self, name: str, content: bytes, tmp_path: Path):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BackboneError, match=f"{name} cannot be read as weights"):
            read_state(tmp_path / name)

    def test_a_missing_file_is_reported(self, tmp_path: Path):
        with pytest.raises(BackboneError, match=r"there is no weights file at .*nowhere\.pt"):
            build(SPEC, tmp_path / "nowhere.pt")
        with pytest.raises(BackboneError, match="there is no weights file at"):
            build(SPEC, tmp_path)
