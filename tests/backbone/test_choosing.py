"""Which network, engine, device and calibration a name, a folder or settings choose; and the same for training."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from running import Ran
from safetensors.numpy import save_file

from skillmesh.backbone import backbone as backbone_module
from skillmesh.backbone import network as network_module
from skillmesh.backbone import runtime
from skillmesh.backbone.backbone import Backbone, load_calibration
from skillmesh.backbone.calibration import Calibration
from skillmesh.backbone.network import load_network
from skillmesh.backbone.runtime import OnnxNetwork
from skillmesh.backbone.spec import CALIBRATION, CARD, WEIGHTS, resolve
from skillmesh.backbone.weights import lite0_weights
from skillmesh.common.choices import Adaptation
from skillmesh.core import Core
from skillmesh.errors import BackboneError, CalibrationError, DeviceError
from skillmesh.store.home import create_home

GPU, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


@pytest.fixture(scope="module")
def state() -> dict[str, np.ndarray]:
    """Return lite0's weights, but for one number, under the names of its own network."""
    names = [name for name, _ in OnnxNetwork.lite0().card.state]
    state = dict(zip(names, lite0_weights().values(), strict=True))
    return state | {"bn1.weight": state["bn1.weight"] + np.float32(1e-3)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, state) -> Path:
    """Return an exported network with a calibration: lite0's graph under another name, with those weights."""
    folder = tmp_path_factory.mktemp("exported") / "tuned"
    with as_file(files("skillmesh.backbone") / "networks" / "lite0") as package:
        shutil.copytree(package, folder)
    card = json.loads((folder / CARD).read_text())
    card["spec"]["name"] = "tuned-lite0"
    (folder / CARD).write_text(json.dumps(card))
    save_file(state, folder / WEIGHTS)
    shipped, own = load_calibration("lite0"), OnnxNetwork.open(folder).fingerprint
    Calibration._of(shipped.tensors, own, "a test").save(folder / CALIBRATION)
    return folder


@pytest.fixture(scope="module")
def fingerprint(folder: Path) -> str:
    return OnnxNetwork.open(folder).fingerprint


@pytest.fixture(autouse=True)
def _usual_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKILLMESH_ENGINE", raising=False)


class TestTraining:
    """On PyTorch, the network that runs on ONNX Runtime, and no other."""

    @pytest.fixture
    def loaded(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
        """Return what the network for training is loaded by, without loading it."""
        pytest.importorskip("torch")
        loaded = []

        def note(*what: Any) -> SimpleNamespace:
            loaded.append(what)
            return SimpleNamespace(fingerprint=fingerprint)

        fingerprint = OnnxNetwork.lite0().fingerprint
        monkeypatch.setattr(network_module, "load_torch_network", note)
        return loaded

    @pytest.mark.parametrize("device", ["cpu", None])
    @pytest.mark.parametrize("engine", ["onnx", ""])
    def test_is_on_the_device_that_the_user_named(self, loaded, monkeypatch, device, engine):
        monkeypatch.setenv("SKILLMESH_ENGINE", engine)
        monkeypatch.setattr(network_module, "sign_of_gpu", lambda: False)
        _ = Backbone.load(device=device).torch_network
        assert loaded == [("lite0", None, device)]

    @pytest.mark.torch
    def test_takes_the_weights_of_an_exported_folder(self, folder: Path, fingerprint: str, monkeypatch):
        monkeypatch.chdir(folder.parent)
        for name in (str(folder), "tuned"):
            backbone = Backbone.load(name, device="cpu")
            assert backbone.network.engine == "onnx"
            assert backbone.torch_network.fingerprint == backbone.network.fingerprint == fingerprint

    @pytest.mark.torch
    def test_takes_the_weights_of_a_loaded_network(self, folder: Path, fingerprint: str):
        network = load_network("tuned-lite0", folder, "cpu")
        backbone = Backbone(network, Calibration.load(folder / CALIBRATION))
        assert backbone.torch_network.fingerprint == fingerprint

    @pytest.mark.torch
    def test_refuses_other_weights_than_those_that_run(self, state, tmp_path: Path):
        weights = tmp_path / "lite0.safetensors"
        save_file(state, weights)
        network = OnnxNetwork.lite0(weights)
        backbone = Backbone(network, Calibration._of(load_calibration("lite0").tensors, network.fingerprint, ""))
        save_file(state | {"bn1.bias": state["bn1.bias"] + np.float32(1e-3)}, weights)
        with pytest.raises(BackboneError, match=r"PyTorch loads other weights .* start this program again"):
            _ = backbone.torch_network

    @pytest.mark.torch
    def test_takes_the_weights_of_a_network_that_was_opened_directly(self, folder: Path, fingerprint: str):
        backbone = Backbone(OnnxNetwork.open(folder), Calibration.load(folder / CALIBRATION))
        assert backbone.torch_network.fingerprint == fingerprint


class TestSettings:
    def test_are_not_changed_by_a_folder_where_a_command_runs(self, folder: Path, tmp_path: Path, monkeypatch):
        """An agent of a network from timm's hub keeps it beside an exported one of the same name."""
        calibration = tmp_path / "c.safetensors"
        shutil.copy(folder / CALIBRATION, calibration)
        monkeypatch.setattr("skillmesh.store.home.require_engine", lambda *_: None)
        create_home(tmp_path / "home", backbone="resnet18", calibration=calibration)
        shutil.copytree(folder, tmp_path / "here" / "resnet18")
        monkeypatch.chdir(tmp_path / "here")
        assert resolve("resnet18", None)[1] == tmp_path / "here" / "resnet18", "what a user types may be one"
        loaded = []

        def note(*what: Any) -> OnnxNetwork:
            loaded.append(what)
            return OnnxNetwork.open(folder)

        monkeypatch.setattr(network_module, "load_torch_network", note)
        with monkeypatch.context() as patch:
            patch.setenv("SKILLMESH_CACHE", str(tmp_path / "cache"))
            _ = Core(tmp_path / "home", device="cpu").backbone
        assert loaded == [("resnet18", None, "cpu")]

    def test_name_an_exported_folder_that_is_found_from_anywhere(
        self, folder: Path, fingerprint: str, tmp_path: Path, monkeypatch
    ):
        monkeypatch.chdir(folder.parent)
        create_home(tmp_path / "home", backbone="tuned")
        monkeypatch.chdir(tmp_path)
        agent = Core(tmp_path / "home", device="cpu", cache_folder=tmp_path / "cache")
        assert (agent.config.backbone, agent.config.weights) == ("tuned-lite0", folder)
        assert agent.backbone.network.fingerprint == fingerprint

    def test_take_the_name_of_the_exported_network(self, folder: Path, tmp_path: Path):
        for name in ("lite0", "xception", "tuned-lite0"):
            assert resolve(name, folder) == ("tuned-lite0", folder)
        create_home(tmp_path / "home", weights=folder)
        assert Core(tmp_path / "home").config.backbone == "tuned-lite0"


class TestCalibration:
    def test_is_found_in_an_exported_folder(self, folder: Path, fingerprint: str):
        backbone = Backbone.load(str(folder), device="cpu")
        assert backbone.name == "tuned-lite0"
        assert backbone.network.fingerprint == backbone.calibration.network == fingerprint

    def test_given_is_taken_before_the_one_in_the_folder(self, folder: Path, other_calibration: Path):
        with pytest.raises(CalibrationError, match="was made for network"):
            Backbone.load(str(folder), calibration=other_calibration, device="cpu")

    def test_missing_in_an_exported_folder_says_how_to_make_one(self, folder: Path, tmp_path: Path):
        shutil.copytree(folder, tmp_path / "net")
        (tmp_path / "net" / CALIBRATION).unlink()
        with pytest.raises(
            CalibrationError, match=rf"--backbone {tmp_path}/net --out {tmp_path}/net/{CALIBRATION}"
        ):
            Backbone.load(str(tmp_path / "net"), device="cpu")
        with pytest.raises(CalibrationError, match=f"the exported network in {tmp_path}/net has no"):
            load_calibration("lite0", weights=tmp_path / "net")  # and not the one of the package

    @pytest.mark.parametrize("name", ["{}/resnet18", "../calibrations/lite0", "../../backbone/calibrations/lite0"])
    def test_of_the_package_is_found_by_a_plain_name_only(self, name: str, folder: Path, tmp_path: Path):
        shutil.copy(folder / CALIBRATION, tmp_path / "resnet18.safetensors")
        with pytest.raises(CalibrationError, match="no calibration is shipped"):
            load_calibration(name.format(tmp_path))

    @pytest.mark.torch
    @pytest.mark.long
    def test_goes_with_a_network_that_is_exported_again(
        self, command: Callable[..., Ran], folder: Path, tmp_path: Path
    ):
        pytest.importorskip("onnxscript")
        ran = command("backbone", folder, "--export", tmp_path / "again")
        assert ran.code == 0, ran.err
        assert (
            Calibration.load(tmp_path / "again" / CALIBRATION).network
            == Calibration.load(folder / CALIBRATION).network
        )

    @pytest.mark.torch
    def test_that_is_damaged_is_not_left_out_of_an_export(
        self, command: Callable[..., Ran], folder: Path, tmp_path: Path
    ):
        shutil.copytree(folder, tmp_path / "net")
        (tmp_path / "net" / CALIBRATION).write_bytes(b"damaged")
        ran = command("backbone", tmp_path / "net", "--export", tmp_path / "again")
        assert ran.code == 1
        assert str(tmp_path / "net" / CALIBRATION) in ran.err


@pytest.mark.torch
class TestNamedGpu:
    """PyTorch and ONNX Runtime are installed for a GPU or not, each by itself."""

    @pytest.fixture
    def opened(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Return engine and device of what is opened on this pretended machine with a GPU."""
        opened: list[str] = []

        def note(engine: str) -> Callable[..., SimpleNamespace]:
            def made(*what: Any) -> SimpleNamespace:
                opened.append(f"{engine} {what[-1]}")
                return SimpleNamespace()

            return made

        monkeypatch.setattr(network_module, "sign_of_gpu", lambda: True)
        monkeypatch.setattr(network_module, "load_torch_network", note("torch"))
        monkeypatch.setattr(OnnxNetwork, "lite0", note("onnx"))
        return opened

    @pytest.mark.parametrize("device", ["cuda", None])
    @pytest.mark.parametrize(
        ("best", "providers", "expected"),
        [
            ("cpu", [GPU, CPU], "onnx cuda"),
            ("cuda", [CPU], "torch {}"),
            ("cuda", [GPU, CPU], "torch {}"),
        ],
    )
    def test_is_used_by_the_engine_that_can(self, opened, monkeypatch, device, best, providers, expected):
        monkeypatch.setattr("skillmesh.backbone.torch_network.best_torch_device", lambda: best)
        monkeypatch.setattr(runtime.ort, "get_available_providers", lambda: providers)
        load_network(device=device)
        assert opened == [expected.format(device)]

    def test_that_no_engine_can_use_is_refused(self, opened, monkeypatch):
        monkeypatch.setattr("skillmesh.backbone.torch_network.best_torch_device", lambda: "cpu")
        monkeypatch.setattr(runtime.ort, "get_available_providers", lambda: [CPU])
        with pytest.raises(DeviceError, match="'cuda' cannot be used by ONNX Runtime here"):
            load_network(device="cuda")
        load_network()
        assert opened == ["onnx cpu"]


@pytest.mark.torch
class TestBrokenTorch:
    """PyTorch is installed, but a library that it needs is not."""

    @pytest.fixture(autouse=True)
    def broken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr("skillmesh.backbone.torch_network", raising=False)
        monkeypatch.setitem(sys.modules, "skillmesh.backbone.torch_network", None)

    def test_is_not_needed_on_a_machine_with_a_gpu(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(network_module, "sign_of_gpu", lambda: True)
        assert load_network().engine == "onnx"

    def test_is_named_if_it_is_needed(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("SKILLMESH_ENGINE", "torch")
        with pytest.raises(BackboneError, match="PyTorch is installed, but cannot be loaded"):
            load_network()

    def test_is_named_if_an_adaptation_needs_it(self, tiny_tasks: Path, tmp_path: Path):
        create_home(tmp_path / "home")
        with pytest.raises(BackboneError, match="PyTorch is installed, but cannot be loaded"):
            Core(tmp_path / "home").learn(tiny_tasks / "dice", adaptation=Adaptation("always"))


class TestWeightsOfLite0:
    @pytest.fixture(params=["zip", "wrapped", "wrapped before zip"])
    def saved(self, request: pytest.FixtureRequest, state, tmp_path: Path) -> Path:
        """Return a file that only PyTorch reads."""
        torch = pytest.importorskip("torch")
        tensors = {name: torch.from_numpy(np.array(tensor)) for name, tensor in state.items()}
        wrapped = {"epoch": 3, "state_dict": tensors}
        path = tmp_path / "lite0.pth"
        torch.save(
            tensors if request.param == "zip" else wrapped,
            path,
            _use_new_zipfile_serialization=request.param != "wrapped before zip",
        )
        return path

    def test_that_only_pytorch_reads_run_on_pytorch(self, saved: Path, fingerprint: str):
        network = load_network("lite0", saved, "cpu")
        assert (network.engine, network.fingerprint) == ("torch", fingerprint)

    @pytest.mark.torch
    def test_that_both_engines_read_run_on_onnx_runtime(self, state, fingerprint: str, tmp_path: Path):
        import torch

        save_file(state, tmp_path / "lite0.safetensors")
        tensors = {name: torch.from_numpy(np.array(tensor)) for name, tensor in state.items()}
        torch.save(tensors, tmp_path / "lite0.pth", _use_new_zipfile_serialization=False)
        for name in ("lite0.safetensors", "lite0.pth"):
            network = load_network("lite0", tmp_path / name, "cpu")
            assert (network.engine, network.fingerprint) == ("onnx", fingerprint)

    def test_in_zip_format_are_refused_without_pytorch(self, monkeypatch, tmp_path: Path):
        (tmp_path / "lite0.pth").write_bytes(b"PK\3\4")
        monkeypatch.setattr(network_module, "has_torch", lambda: False)
        with pytest.raises(BackboneError, match="zip format of torch; save them as safetensors"):
            load_network("lite0", tmp_path / "lite0.pth", "cpu")


@pytest.mark.parametrize("file", ["method.toml", None])
def test_a_method_of_the_challenge_may_name_an_exported_folder(
    file: str | None, folder: Path, tmp_path: Path, monkeypatch
):
    from skillmesh_challenge.methods import find_method
    from skillmesh_challenge.run import _beside, _fingerprint

    if file is None:
        monkeypatch.chdir(folder.parent)
        method = find_method("sketch", {"backbone": "tuned"})
    else:
        (folder.parent / file).write_text('base = "sketch"\nbackbone = "./tuned"\n')
        method = find_method(str(folder.parent / file))
    monkeypatch.chdir(tmp_path)
    settings = method.settings()
    assert (settings["backbone"], settings["weights"]) == ("tuned-lite0", str(folder))
    own = backbone_module.backbone_fingerprint(Calibration.load(folder / CALIBRATION))
    assert _fingerprint(method) == own
    trained = {"backbone": "tuned-lite0", "weights": str(folder)}  # as of a baseline, which has no calibration
    bound = _beside(trained)
    assert bound is not None
    assert _fingerprint(bound) == own


def test_an_option_replaces_all_of_the_backbone_of_a_method(folder: Path):
    from skillmesh_challenge.methods import find_method

    file = folder.parent / "method.toml"
    file.write_text('base = "sketch"\nbackbone = "./tuned"\ncalibration = "c.safetensors"\n')
    settings = find_method(str(file), {"backbone": "lite0"}).settings()
    assert (settings["backbone"], settings["weights"], settings["calibration"]) == ("lite0", None, None)
    settings = find_method(str(file), {"backbone": str(folder)}).settings()
    assert settings["calibration"] == str(folder.parent / "c.safetensors"), "it is the same backbone"


@pytest.mark.torch
def test_a_baseline_trains_the_network_of_an_exported_folder(folder: Path, state):
    from skillmesh_challenge.baselines.network import build_body

    method = SimpleNamespace(backbone="tuned-lite0", weights=str(folder), start="pretrained", size=None)
    body = build_body(method, 0)  # type: ignore[arg-type]
    assert body.size == 224
    assert np.array_equal(body.model.get_submodule("bn1").weight.detach().numpy(), state["bn1.weight"])


@pytest.mark.long
def test_a_run_and_a_study_of_the_challenge_take_an_exported_folder(
    command: Callable[..., Ran], folder: Path, tiny_tasks: Path, tmp_path: Path
):
    tasks = [tiny_tasks / name for name in ("dice", "shapes")]
    options = ("--backbone", folder, "--device", "cpu")
    ran = command("challenge", "run", *tasks, "--out", tmp_path / "run", "--no-bound", *options)
    assert ran.code == 0, ran.err
    method = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["method"]
    assert (method["backbone"], method["weights"]) == ("tuned-lite0", str(folder))
    ran = command("challenge", "study", "clusters", *tasks, *options)
    assert ran.code == 0, ran.err
