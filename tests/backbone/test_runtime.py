"""The network on ONNX Runtime: the same descriptors as PyTorch's, alone or in company, adapted or not."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import load_file, save_file

from skillmesh.backbone import network as network_module
from skillmesh.backbone import runtime
from skillmesh.backbone.backbone import Backbone, DescriptorCache
from skillmesh.backbone.calibration import LabelledRaw, calibrate
from skillmesh.backbone.network import describe, load_network
from skillmesh.backbone.runtime import KEPT, OnnxNetwork
from skillmesh.backbone.spec import CALIBRATION, CARD, GRAPH, WEIGHTS, choose_toes, resolve
from skillmesh.backbone.weights import lite0_weights
from skillmesh.common.choices import Adaptation
from skillmesh.data.inputs import as_images
from skillmesh.errors import BackboneError, DeviceError
from skillmesh.learning.trial import refuse_impossible

if TYPE_CHECKING:
    from skillmesh.backbone.torch_network import TorchNetwork

STEP = 2**-10
"""Relative distance of neighbouring float16 numbers."""


@pytest.fixture(scope="module")
def network() -> OnnxNetwork:
    return OnnxNetwork.lite0()


@pytest.fixture(scope="module")
def torch_lite0() -> TorchNetwork:
    pytest.importorskip("torch")
    from skillmesh.backbone.torch_network import TorchNetwork

    return TorchNetwork("lite0", device="cpu")


@pytest.fixture(scope="module")
def images(network: OnnxNetwork) -> np.ndarray:
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (6, 14, 14, 3), dtype=np.uint8)
    return np.ascontiguousarray(coarse.repeat(16, axis=1).repeat(16, axis=2))


@pytest.fixture(scope="module")
def added(network: OnnxNetwork) -> np.ndarray:
    return (0.1 * np.random.default_rng(1).standard_normal(network.bias_count)).astype(np.float32)


def steps_apart(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest difference in float16 steps; numbers near zero count as being of size 0.01."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(np.max(np.abs(a - b) / (STEP * np.maximum(0.01, np.abs(b)))))


def test_it_is_the_same_network_as_torch_has(network: OnnxNetwork, torch_lite0: TorchNetwork):
    for name in ("fingerprint", "width", "features", "channels", "places", "parameters", "forward_macs", "size"):
        assert getattr(network, name) == getattr(torch_lite0, name), name
    assert network.toe_sizes == torch_lite0.toe_sizes


def test_descriptors_differ_from_torch_by_rounding_only(network, torch_lite0, images):
    ours, theirs = network.forward(images), torch_lite0.forward(images)
    assert ours.dtype == np.float16
    assert steps_apart(ours, theirs) <= 2
    assert np.mean(ours != theirs) < 0.02


def test_adapted_descriptors_differ_from_torch_by_rounding_only(network, torch_lite0, images, added):
    assert steps_apart(network.forward(images, added), torch_lite0.forward(images, added)) <= 2
    assert not np.array_equal(network.forward(images, added), network.forward(images))


def test_head2toe_inputs_differ_from_torch_by_rounding_only(network, torch_lite0, images, added):
    toes = choose_toes(added)
    ours, theirs = (n.toe_features(images, added, toes) for n in (network, torch_lite0))
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=1e-3)


def test_a_descriptor_depends_neither_on_the_batch_nor_on_threads(network, images):
    alone = np.stack([network.describe_one(image) for image in images])
    with ThreadPoolExecutor(4) as pool:
        beside = np.stack(list(pool.map(network.describe_one, [*images, *images])))
    assert np.array_equal(network.forward(images), alone)
    assert np.array_equal(beside, np.concatenate([alone, alone]))


def test_activations_are_merged_into_the_convolutions_before_them(images, tmp_path: Path, monkeypatch):
    """Unmerged, they make a pass of lite0 1.4 times as long."""
    sessions = []

    def profiled(graph: bytes, options: Any, **rest: Any) -> onnxruntime.InferenceSession:
        options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
        sessions.append(InferenceSession(graph, options, **rest))
        return sessions[-1]

    InferenceSession = onnxruntime.InferenceSession
    monkeypatch.setattr(onnxruntime, "InferenceSession", profiled)
    OnnxNetwork.lite0().forward(images[:1])
    events = json.loads(Path(sessions[-1].end_profiling()).read_text())
    kinds = [event["args"]["op_name"] for event in events if event["name"].endswith("_kernel_time")]
    assert kinds.count("Conv") + kinds.count("FusedConv") == 49
    assert "Clip" not in kinds


def test_sessions_of_the_last_tasks_are_kept_and_those_before_are_made_again(network, images, added):
    first = network.forward(images[:1], added)
    for factor in range(2, KEPT + 3):
        network.forward(images[:1], factor * added)
    assert len(network._sessions) == KEPT
    assert np.array_equal(network.forward(images[:1], added), first)


@pytest.fixture(scope="module")
def state(network: OnnxNetwork) -> dict[str, np.ndarray]:
    """Return lite0's weights under the names of its own network."""
    return dict(zip([name for name, _ in network.card.state], lite0_weights().values(), strict=True))


def test_weights_are_read_again_for_tasks_with_biases_and_must_not_have_changed(
    network, state, images, added, tmp_path
):
    weights = tmp_path / "lite0.safetensors"
    save_file(state, weights)
    ours, changed = OnnxNetwork.lite0(weights), OnnxNetwork.lite0(weights)
    assert np.array_equal(ours.forward(images[:1], added), network.forward(images[:1], added))
    save_file(state | {"bn1.weight": state["bn1.weight"] + np.float32(1e-3)}, weights)
    assert np.array_equal(ours.forward(images[:1], 2 * added), network.forward(images[:1], 2 * added))
    assert np.array_equal(changed.forward(images[:1]), network.forward(images[:1]))
    with pytest.raises(BackboneError, match=r"lite0\.safetensors have changed; start this program again"):
        changed.forward(images[:1], added)


def test_a_classifier_in_a_file_is_ignored_and_other_tensors_are_refused(state, network, tmp_path: Path):
    """As PyTorch's engine does."""
    weights = tmp_path / "lite0.safetensors"
    save_file(state | {"classifier.weight": np.zeros((9, 1280), dtype=np.float32)}, weights)
    assert OnnxNetwork.lite0(weights).fingerprint == network.fingerprint
    renamed = {f"its.{name}": tensor for name, tensor in lite0_weights().items()}
    read = {"fc.weight": np.zeros((9, 1280), dtype=np.float32)} | renamed
    assert list(runtime._named(read, network.card, "a file")) == [name for name, _ in network.card.state]
    save_file(state | {"another.weight": np.zeros(3, dtype=np.float32)}, weights)
    with pytest.raises(BackboneError, match=r"1 tensors are unexpected \(another\.weight\)"):
        OnnxNetwork.lite0(weights)


def test_one_image_is_described_in_the_callers_thread_and_several_are_not(network, images, monkeypatch):
    threads: list[threading.Thread] = []
    describe_one = network.describe_one

    def note(*arguments):
        threads.append(threading.current_thread())
        return describe_one(*arguments)

    monkeypatch.setattr(network, "describe_one", note)
    one, several = (describe(network, as_images(list(images[:n]))[0]).raw for n in (1, 3))
    assert threads[0] is threading.current_thread()
    assert threading.current_thread() not in threads[1:]
    assert np.array_equal(one, several[:1])


@pytest.mark.parametrize(
    ("engine", "expected"),
    [(None, "onnx"), ("", "onnx"), ("onnx", "onnx"), pytest.param("torch", "torch", marks=pytest.mark.torch)],
)
def test_the_engine_is_the_one_that_the_user_chooses(monkeypatch, engine, expected):
    if engine is None:
        monkeypatch.delenv("SKILLMESH_ENGINE", raising=False)
    else:
        monkeypatch.setenv("SKILLMESH_ENGINE", engine)
    assert load_network("lite0", device="cpu").engine == expected


def test_an_engine_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setenv("SKILLMESH_ENGINE", "tensorflow")
    with pytest.raises(BackboneError, match="'tensorflow'; expected onnx or torch"):
        load_network("lite0", device="cpu")


def test_a_network_without_a_graph_is_refused_on_onnx_runtime(monkeypatch):
    monkeypatch.setenv("SKILLMESH_ENGINE", "onnx")
    with pytest.raises(BackboneError, match="`skillmesh backbone resnet18 --export DIR`"):
        load_network("resnet18", device="cpu")


@pytest.mark.parametrize(
    ("providers", "sign", "device", "expected"),
    [
        (["CPUExecutionProvider"], True, None, "cpu"),
        (["CUDAExecutionProvider", "CPUExecutionProvider"], True, None, "cuda"),
        (["CUDAExecutionProvider", "CPUExecutionProvider"], False, None, "cpu"),  # a build for GPUs, no GPU
        (["CUDAExecutionProvider", "CPUExecutionProvider"], True, "cpu", "cpu"),
        (["CUDAExecutionProvider", "CPUExecutionProvider"], True, "cuda", "cuda"),
    ],
)
def test_a_gpu_is_used_if_onnx_runtime_can_use_one(monkeypatch, providers, sign, device, expected):
    monkeypatch.setattr(runtime.ort, "get_available_providers", lambda: providers)
    assert runtime.usable_device(device, sign) == expected


@pytest.mark.parametrize("device", ["cuda", "mps", "cuda:1", "tpu"])
def test_a_device_that_onnx_runtime_cannot_use_is_refused(monkeypatch, device):
    monkeypatch.setattr(runtime.ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(DeviceError, match=f"{device!r} cannot be used by ONNX Runtime here; expected cpu"):
        runtime.usable_device(device)


def test_a_gpu_build_without_a_usable_gpu_falls_back_to_the_cpu(monkeypatch, caplog):
    """ONNX Runtime itself then runs on the CPU, unless the user has named the GPU."""
    monkeypatch.delenv("SKILLMESH_ENGINE", raising=False)
    monkeypatch.setattr(runtime.ort, "get_available_providers", lambda: [runtime.CUDA, "CPUExecutionProvider"])
    monkeypatch.setattr(network_module, "sign_of_gpu", lambda: True)
    monkeypatch.setattr(network_module, "has_torch", lambda: False)
    assert load_network("lite0").on_cpu
    assert "using the CPU" in caplog.text
    with pytest.raises(DeviceError, match="or name the device cpu"):
        load_network("lite0", device="cuda")


def test_descriptors_of_one_engine_are_not_taken_for_those_of_another(tmp_path: Path):
    """They differ by rounding, and modules of one engine are to be bit-identical."""
    first, second = (DescriptorCache(tmp_path, "f" * 64, engine=engine) for engine in ("onnx", "torch"))
    first.put([(b"key", np.ones(4, dtype=np.float16))])
    assert second.get(b"key") is None
    assert DescriptorCache(tmp_path, "f" * 64, engine="onnx").get(b"key") is not None


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ResNet with random weights, which has batch norms that are not folded."""
    torch = pytest.importorskip("torch")
    from skillmesh.backbone.building import import_timm
    from skillmesh.backbone.exporting import export_network
    from skillmesh.backbone.torch_network import TorchNetwork

    folder = tmp_path_factory.mktemp("exported")
    torch.manual_seed(0)
    torch.save(import_timm().create_model("resnet18").state_dict(), folder / "random.pth")
    export_network(TorchNetwork("resnet18", folder / "random.pth", "cpu"), folder / "resnet18")
    return folder / "resnet18"


def test_an_exported_network_is_opened_without_torch_and_is_the_same(exported: Path):
    from skillmesh.backbone.torch_network import TorchNetwork

    network = load_network("resnet18", exported)
    same = TorchNetwork("resnet18", exported, "cpu")
    assert isinstance(network, OnnxNetwork)
    assert network.spec.name == "resnet18"
    assert network.fingerprint == same.fingerprint
    image = np.random.default_rng(0).integers(0, 256, (1, network.size, network.size, 3), dtype=np.uint8)
    added = (0.1 * np.random.default_rng(1).standard_normal(network.bias_count)).astype(np.float32)
    assert steps_apart(network.forward(image), same.forward(image)) <= 4
    assert steps_apart(network.forward(image, added), same.forward(image, added)) <= 4


def test_a_folder_where_a_command_runs_does_not_change_a_named_network(copied: Path, monkeypatch):
    for name in ("lite0", "resnet18"):
        shutil.copytree(copied, copied.parent / "here" / name)
    monkeypatch.chdir(copied.parent / "here")
    monkeypatch.delenv("SKILLMESH_ENGINE", raising=False)
    assert resolve("lite0", None) == ("lite0", None)
    assert resolve("./lite0", None) == ("resnet18", Path("lite0").resolve())
    assert resolve("resnet18", copied) == ("resnet18", copied)
    assert resolve("resnet18", None) == ("resnet18", Path("resnet18").resolve()), "a user may type it without ./"
    with monkeypatch.context() as patch:
        patch.setattr(network_module, "load_torch_network", lambda *names: SimpleNamespace(names=names))
        network = load_network("resnet18")  # as settings name it
    assert network.names == ("resnet18", None, None)


def test_a_folder_that_is_gone_is_named_and_a_second_one_refused(copied: Path, tmp_path: Path):
    with pytest.raises(BackboneError, match=r"no weights file or exported network at .*gone"):
        load_network("resnet18", tmp_path / "gone")
    with pytest.raises(BackboneError, match="too long for a backbone"):
        resolve("a" * 5000, None)
    with pytest.raises(BackboneError, match="expected one of the two"):
        resolve(str(copied), copied / WEIGHTS)


def test_an_export_that_computes_something_else_leaves_no_network(exported: Path, tmp_path: Path, monkeypatch):
    from skillmesh.backbone import exporting
    from skillmesh.backbone.torch_network import TorchNetwork

    monkeypatch.setattr(exporting, "TOLERANCE", -1.0)
    with pytest.raises(BackboneError, match="cannot be exported"):
        exporting.export_network(TorchNetwork("resnet18", exported, "cpu"), tmp_path / "net")
    assert not list((tmp_path / "net").iterdir())


def test_an_export_that_fails_names_the_network_and_leaves_nothing(exported: Path, tmp_path: Path, monkeypatch):
    torch = pytest.importorskip("torch")
    from skillmesh.backbone import exporting
    from skillmesh.backbone.torch_network import TorchNetwork

    def fail(*_: object, **__: object) -> None:
        try:
            raise RuntimeError("no such operation\nand a long list")
        except RuntimeError as error:
            raise ValueError("Failed to export the model. Next steps:") from error

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(
        BackboneError, match=r"'resnet18' cannot be exported: no such operation; use it with PyTorch"
    ):
        exporting.export_network(TorchNetwork("resnet18", exported, "cpu"), tmp_path / "net")
    assert not list((tmp_path / "net").iterdir())


def test_an_export_without_space_on_the_disk_leaves_nothing(exported: Path, tmp_path: Path, monkeypatch):
    pytest.importorskip("torch")
    from skillmesh.backbone import exporting
    from skillmesh.backbone.torch_network import TorchNetwork

    def fail(*_: object) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(exporting, "_safetensors", fail)
    with pytest.raises(OSError, match="No space left"):
        exporting.export_network(TorchNetwork("resnet18", exported, "cpu"), tmp_path / "net")
    assert not list((tmp_path / "net").iterdir())


@pytest.mark.long
def test_an_export_of_a_layer_that_runs_twice_says_so(exported: Path, tmp_path: Path):
    pytest.importorskip("torch")
    from skillmesh.backbone import exporting
    from skillmesh.backbone.torch_network import TorchNetwork

    network = TorchNetwork("resnet18", exported, "cpu")
    network.model.layer1[1].conv2 = network.model.layer1[1].conv1
    with pytest.raises(BackboneError, match=r"cannot be exported: layer1\.1\.conv1 runs more than once"):
        exporting.export_network(network, tmp_path / "net")


def test_as_a_model_with_its_weights_inside_it_computes_the_same(network, exported: Path, images):
    onnx = pytest.importorskip("onnx")
    for own in (network, load_network("resnet18", exported)):
        model = own.as_model()
        onnx.checker.check_model(model, full_check=True)
        session = onnxruntime.InferenceSession(model.SerializeToString())
        raw = np.concatenate([session.run(["raw"], {"pixels": image[None]})[0] for image in images[:2]])
        assert steps_apart(raw.astype(np.float16), own.forward(images[:2])) <= 1


@pytest.mark.parametrize("missing", [CARD, GRAPH, WEIGHTS])
def test_an_incomplete_folder_is_refused(missing: str, exported: Path, tmp_path: Path):
    shutil.copytree(exported, tmp_path / "net")
    (tmp_path / "net" / missing).unlink()
    with pytest.raises(BackboneError, match=r"export"):
        OnnxNetwork.open(tmp_path / "net")


def test_weights_that_do_not_fit_are_refused(exported: Path, tmp_path: Path):
    shutil.copytree(exported, tmp_path / "net")
    state = load_file(exported / WEIGHTS)
    save_file(
        {name: tensor for name, tensor in state.items() if name != "conv1.weight"}, tmp_path / "net" / WEIGHTS
    )
    with pytest.raises(BackboneError, match=r"conv1\.weight"):
        OnnxNetwork.open(tmp_path / "net")


def test_changed_weights_change_the_fingerprint(exported: Path, tmp_path: Path):
    shutil.copytree(exported, tmp_path / "net")
    state = dict(load_file(exported / WEIGHTS))
    state["conv1.weight"] = state["conv1.weight"] * 1.001
    save_file(state, tmp_path / "net" / WEIGHTS)
    assert OnnxNetwork.open(tmp_path / "net").fingerprint != OnnxNetwork.open(exported).fingerprint


@pytest.fixture
def copied(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "net"))


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"spec": 1}', '{"spec": {"name": "x", "timm_name": "x"}}', "[" * 100_000]
)
def test_a_damaged_card_is_refused(content: str, copied: Path):
    (copied / CARD).write_text(content)
    with pytest.raises(BackboneError, match="does not describe a network"):
        OnnxNetwork.open(copied)


ODD = [
    *({"spec": {"size": size}} for size in (10**9, "224", 0, -5, None, 224.5)),
    *({"spec": {"name": name}} for name in (5, "../../x", "a\x1b[31m", "a" * 10_000)),
    *({"spec": {"taps": taps}} for taps in (5, [5])),
    *({"features": features} for features in (10**12, -1, float("inf"))),
    *({"channels": {"layer1": 10**12}}, {"parameters": "many"}, {"macs": -1}),
    *({"tensors": ["conv1.weight", "zz"]}, {"tensors": "abc"}, {"layers": []}),
    *({"first": {"channels": channels}} for channels in ("64", 10**13, -64)),
    *(
        {"first": {"path": "nowhere"}},
        {"first": {"norm": ["nowhere", 1e-5]}},
        {"first": {"path": "layer1.0.conv1"}},
    ),
]


@pytest.mark.parametrize("change", ODD, ids=lambda change: str(change)[:60])
def test_a_card_of_absurd_values_is_refused(change: dict[str, Any], copied: Path):
    card = json.loads((copied / CARD).read_text())
    for key, value in change.items():
        if key in ("spec", "first"):
            (card["spec"] if key == "spec" else card["layers"][0]).update(value)
        else:
            card[key] = value
    (copied / CARD).write_text(json.dumps(card))
    with pytest.raises(BackboneError, match="does not describe a network"):
        OnnxNetwork.open(copied)


@pytest.mark.parametrize("name", [CARD, GRAPH])
def test_a_file_that_is_a_pipe_or_far_too_large_is_refused(name: str, copied: Path):
    with (copied / name).open("r+b") as file:
        file.truncate(2**40)  # a hole: it takes no room on the disk
    with pytest.raises(BackboneError, match=f"{name} has more than"):
        OnnxNetwork.open(copied)
    if hasattr(os, "mkfifo"):
        (copied / name).unlink()
        os.mkfifo(copied / name)
        with pytest.raises(BackboneError, match=f"it has no file {name}"):
            OnnxNetwork.open(copied)


def test_a_card_that_does_not_fit_its_graph_is_refused(copied: Path, images):
    card = json.loads((copied / CARD).read_text())
    (copied / CARD).write_text(json.dumps(card | {"spec": card["spec"] | {"size": 448}}))
    with pytest.raises(BackboneError, match=r"cannot run the graph of 'resnet18'.*224, 224"):
        OnnxNetwork.open(copied)
    (copied / CARD).write_text(json.dumps(card | {"features": 100}))
    with pytest.raises(BackboneError, match=r"cannot run the graph of 'resnet18'.*not \(1, 1124\)"):
        OnnxNetwork.open(copied).forward(images[:1])


def test_weights_that_are_no_finite_numbers_are_refused(copied: Path, state, images, tmp_path: Path):
    own = load_file(copied / WEIGHTS)
    save_file(own | {"conv1.weight": own["conv1.weight"] * np.float32(np.nan)}, copied / WEIGHTS)
    with pytest.raises(BackboneError, match=r"conv1\.weight has values that are no finite numbers"):
        OnnxNetwork.open(copied)
    save_file(own | {"bn1.running_var": -own["bn1.running_var"]}, copied / WEIGHTS)
    with pytest.raises(BackboneError, match="no numbers"):
        OnnxNetwork.open(copied).forward(images[:1])
    save_file(state | {"bn1.running_var": -state["bn1.running_var"]}, tmp_path / "lite0.safetensors")
    with pytest.raises(BackboneError, match=r"conv_stem\.weight has values that are no finite numbers"):
        OnnxNetwork.lite0(tmp_path / "lite0.safetensors")


def test_a_graph_cannot_read_files(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """ONNX Runtime would look for tensors' data in the current folder."""
    onnx = pytest.importorskip("onnx")
    (tmp_path / "private").write_bytes(b"a" * 16)
    monkeypatch.chdir(tmp_path)
    model = onnx.load_model(copied / GRAPH, load_external_data=False)
    added = model.graph.initializer.add(name="stolen", dims=[4], data_type=1, data_location=1)
    for key, value in (("location", "private"), ("length", "16")):
        added.external_data.add(key=key, value=value)
    model.graph.node.add(op_type="Identity", input=["stolen"], output=["seen"])
    replace_graph(copied, model.SerializeToString())
    with pytest.raises(BackboneError, match="cannot run the graph"):
        OnnxNetwork.open(copied)


def replace_graph(folder: Path, graph: bytes) -> None:
    """Replace the graph of an exported network, and its hash in the card."""
    (folder / GRAPH).write_bytes(graph)
    card = json.loads((folder / CARD).read_text())
    (folder / CARD).write_text(json.dumps(card | {"graph": hashlib.sha256(graph).hexdigest()}))


def with_last(folder: Path, *node: Any, **attributes: Any) -> None:
    """Add a node to the graph of an exported network, from its descriptor to what it gives out."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load_model(folder / GRAPH, load_external_data=False)
    for each in model.graph.node:
        each.output[:] = ["true" if name == "raw" else name for name in each.output]
    model.graph.node.append(onnx.helper.make_node(*node, **attributes))
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].ClearField("type")
    replace_graph(folder, model.SerializeToString())


@pytest.mark.parametrize(
    ("node", "attributes", "kind"),
    [
        (("Cast", ["true"], ["raw"]), {"to": 8}, "object"),  # texts
        (("Cast", ["true"], ["raw"]), {"to": 7}, "int64"),
        (("SequenceConstruct", ["true"], ["raw"]), {}, "list"),
    ],
)
def test_an_output_of_another_kind_is_refused(node, attributes, kind: str, copied: Path, images):
    with_last(copied, *node, **attributes)
    with pytest.raises(BackboneError, match=f"an output is {kind}, not an array of float32"):
        OnnxNetwork.open(copied).forward(images[:1])


@pytest.mark.parametrize("output", ["raw", "output.layer1.0.conv1"])
def test_a_layer_whose_output_is_another_is_refused(output: str, copied: Path, images):
    card = json.loads((copied / CARD).read_text())
    card["layers"][-1]["output"] = output
    (copied / CARD).write_text(json.dumps(card))
    network = OnnxNetwork.open(copied)
    added = np.ones(network.bias_count, np.float32)
    with pytest.raises(BackboneError, match=r"the layer .* gives \(1, .*\), not 512 channels"):
        network.toe_features(images[:1], added, choose_toes(added, share=1))


def test_descriptors_of_another_graph_are_cached_apart(copied: Path, tmp_path: Path):
    """A folder of strangers must not change what is cached for others of the same weights."""
    network = OnnxNetwork.open(copied)
    tasks = [LabelledRaw(np.zeros((4, network.width), np.float16), np.arange(4) % 2)] * 2
    calibrate(network.fingerprint, network.features, tasks, "").save(copied / CALIBRATION)
    other = Path(shutil.copytree(copied, tmp_path / "other"))
    with_last(other, "Neg", ["true"], ["raw"])
    both = [Backbone.from_settings("resnet18", each, cache_folder=tmp_path / "cache") for each in (copied, other)]
    assert both[0].fingerprint == both[1].fingerprint
    assert both[0].cache.path != both[1].cache.path


def test_a_graph_that_fails_prints_nothing(copied: Path, capfd: pytest.CaptureFixture[str]):
    with_last(copied, "Fooo", ["true"], ["raw"])
    replace_graph(copied, (copied / GRAPH).read_bytes().replace(b"Fooo", b"F\xffoo"))
    with pytest.raises(BackboneError, match="cannot run the graph"):
        OnnxNetwork.open(copied)
    assert capfd.readouterr().out == ""


def test_a_damaged_graph_is_refused(copied: Path):
    graph = (copied / GRAPH).read_bytes()
    replace_graph(copied, graph[: len(graph) // 2])
    with pytest.raises(BackboneError, match="ONNX Runtime cannot run"):
        OnnxNetwork.open(copied)


def test_a_graph_of_another_export_is_refused(copied: Path):
    """Weights of equal shapes would fit, and the fingerprint would be theirs."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load_model(copied / GRAPH, load_external_data=False)
    (mean,) = [tensor for tensor in model.graph.initializer if tensor.name == "pixel_mean"]
    mean.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(mean) + 1, mean.name))
    (copied / GRAPH).write_bytes(model.SerializeToString())
    with pytest.raises(BackboneError, match=r"graph\.onnx is not the graph that network\.json describes"):
        OnnxNetwork.open(copied)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_weights_of_other_precision_have_one_fingerprint_on_both_engines(
    dtype, tmp_path: Path, state, torch_lite0
):
    from skillmesh.backbone.torch_network import TorchNetwork

    save_file({name: tensor.astype(dtype) for name, tensor in state.items()}, tmp_path / "w.safetensors")
    ours = OnnxNetwork.lite0(tmp_path / "w.safetensors")
    assert ours.fingerprint == TorchNetwork("lite0", tmp_path / "w.safetensors", "cpu").fingerprint
    assert (ours.fingerprint == torch_lite0.fingerprint) == (dtype == np.float64)


def test_on_a_gpu_products_are_not_rounded_to_tf32(monkeypatch):
    asked = []

    class Session(onnxruntime.InferenceSession):
        def __init__(self, graph: bytes, options: object, providers: list[Any], **_: object) -> None:
            asked.append(providers)
            super().__init__(graph, options, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(runtime.ort, "InferenceSession", Session)
    with pytest.raises(DeviceError):
        OnnxNetwork.lite0(device="cuda")
    (((name, options),),) = asked
    assert name == runtime.CUDA
    assert options["use_tf32"] == "0"


@pytest.mark.long
def test_the_shipped_graph_is_what_the_script_makes(network, images, tmp_path: Path):
    pytest.importorskip("torch")
    from skillmesh.backbone.exporting import export_network
    from skillmesh.backbone.torch_network import TorchNetwork

    export_network(TorchNetwork("lite0", device="cpu"), tmp_path)
    folder = Path(runtime.__file__).parent / "networks" / "lite0"
    shipped, made = (json.loads((each / CARD).read_text()) for each in (folder, tmp_path))
    graphs = [each.pop("graph") for each in (shipped, made)]
    assert shipped == made
    assert graphs[0] == hashlib.sha256((folder / GRAPH).read_bytes()).hexdigest()
    np.testing.assert_array_equal(OnnxNetwork.open(tmp_path).forward(images), network.forward(images))


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "vit_tiny_patch16_224",  # its linear layers work on tokens
        "legacy_xception",  # its layers run in another order than they are listed, some before work in place
    ],
)
def test_inputs_of_head2toe_are_those_of_torch_on_exported_networks(name: str, tmp_path: Path):
    torch = pytest.importorskip("torch")
    from skillmesh.backbone.building import import_timm
    from skillmesh.backbone.exporting import export_network
    from skillmesh.backbone.torch_network import TorchNetwork

    torch.manual_seed(0)
    torch.save(import_timm().create_model(name).state_dict(), tmp_path / "random.pth")
    theirs = TorchNetwork(name, tmp_path / "random.pth", "cpu")
    export_network(theirs, tmp_path / "net")
    ours = OnnxNetwork.open(tmp_path / "net")
    image = np.random.default_rng(2).integers(0, 256, (1, ours.size, ours.size, 3), dtype=np.uint8)
    added = (0.05 * np.random.default_rng(3).standard_normal(ours.bias_count)).astype(np.float32)
    for toes in (choose_toes(added), choose_toes(added, share=0.2)):
        found, expected = (n.toe_features(image, added, toes) for n in (ours, theirs))
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.long
def test_a_network_of_windows_is_exported_and_refused_for_head2toe_only(tmp_path: Path):
    torch = pytest.importorskip("torch")
    from skillmesh.backbone.building import import_timm
    from skillmesh.backbone.exporting import export_network
    from skillmesh.backbone.torch_network import TorchNetwork

    torch.manual_seed(0)
    name = "swin_tiny_patch4_window7_224"
    torch.save(import_timm().create_model(name).state_dict(), tmp_path / "random.pth")
    theirs = TorchNetwork(name, tmp_path / "random.pth", "cpu")
    export_network(theirs, tmp_path / "net")
    ours = OnnxNetwork.open(tmp_path / "net")
    image = np.random.default_rng(2).integers(0, 256, (1, 224, 224, 3), dtype=np.uint8)
    added = np.zeros(ours.bias_count, dtype=np.float32)
    assert steps_apart(ours.forward(image, added), theirs.forward(image, added)) <= 4
    for network in (ours, theirs):
        with pytest.raises(BackboneError, match="gives 64 outputs for 1 image, so"):
            network.toe_features(image, added, choose_toes(added))
        with pytest.raises(BackboneError, match=r"gives \d+ outputs for 2 images.*choose the adaptation biases"):
            refuse_impossible(Adaptation(mode="always", kind="head2toe"), network)
