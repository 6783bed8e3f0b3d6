"""The frozen network's descriptors, compared number by number with the plain timm network."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from pathlib import Path
from typing import Any

import numpy as np
import torch
from models import random_model
from numpy.typing import NDArray
from PIL import Image

from skillmesh.backbone.building import build, fold_batch_norms, import_timm
from skillmesh.backbone.network import cpu_workers, describe
from skillmesh.backbone.spec import NAMED, spec_of
from skillmesh.backbone.torch_network import TorchNetwork
from skillmesh.data.inputs import as_image
from skillmesh.errors import BackboneError

timm = import_timm()
RNG = np.random.default_rng(0)


def plain(network: TorchNetwork, model: torch.nn.Module, pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return a raw descriptor by its definition, in float64 numpy, from the unfolded timm network."""
    outputs: list[NDArray[np.float64]] = []
    for path in network.spec.taps:
        # A copy: what follows may work in place.
        model.get_submodule(path).register_forward_hook(
            lambda _m, _i, o: outputs.append(o.double().numpy().copy())
        )
    mean, std = np.array(network.spec.mean), np.array(network.spec.std)
    normal = ((pixels / 255 - mean) / std).transpose(2, 0, 1)[None]
    with torch.inference_mode():
        features = model(torch.from_numpy(normal).float()).numpy()[0]
    means = [o[0].mean(axis=_places(network, o)) for o in outputs]
    stds = [o[0].std(axis=_places(network, o)) for o in outputs]
    return np.concatenate([features, *means, *stds])


def _places(network: TorchNetwork, output: NDArray[Any]) -> tuple[int, ...]:
    if output.ndim == 3:
        return (0,)
    return (0, 1) if network.spec.name in {"test_mambaout"} else (1, 2)


def image_for(network: TorchNetwork) -> NDArray[np.uint8]:
    """Return an image of blobs and noise: neither flat nor without structure."""
    coarse = RNG.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    big = np.asarray(Image.fromarray(coarse).resize((network.size, network.size)))
    return (0.8 * big + 0.2 * RNG.integers(0, 256, big.shape)).astype(np.uint8)


@pytest.fixture(scope="module")
def weights_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def load(weights_folder: Path):
    """Return a function that builds a network with random weights, and the plain timm network with the same."""
    loaded: dict[str, tuple[TorchNetwork, Path]] = {}

    def load(name: str) -> tuple[TorchNetwork, torch.nn.Module]:
        spec = spec_of(name)
        if name not in loaded:
            path = weights_folder / f"{name}.pt"
            torch.save(random_model(spec.timm_name).state_dict(), path)
            loaded[name] = TorchNetwork(name, path, "cpu"), path
        network, path = loaded[name]
        return network, build(spec, path).eval()

    return load


@pytest.fixture(scope="module")
def lite0() -> TorchNetwork:
    return TorchNetwork("lite0", device="cpu")


def compare(network: TorchNetwork, model: torch.nn.Module) -> None:
    pixels = image_for(network)
    raw, expected = network.describe_one(pixels), plain(network, model, pixels)
    assert raw.dtype == np.float16
    assert raw.shape == (network.width,) == expected.shape
    tapped = (network.width - network.features) // 2
    for part in np.split(np.arange(network.width), [network.features, network.features + tapped]):
        assert np.ptp(expected[part]) > 0
        small = 1e-3 * min(1, np.abs(expected[part]).max())
        np.testing.assert_allclose(raw[part].astype(np.float64), expected[part], rtol=1e-3, atol=small)


class TestLite0:
    def test_feature_and_descriptor_sizes(self, lite0: TorchNetwork):
        assert (lite0.width, lite0.features, lite0.size) == (2912, 1280, 224)
        assert lite0.parameters == 3_371_008

    def test_the_descriptor_is_features_then_means_then_stds_in_module_order(self, lite0: TorchNetwork):
        compare(lite0, build(NAMED["lite0"], None).eval())

    def test_two_builds_have_one_fingerprint(self, lite0: TorchNetwork, load):
        assert TorchNetwork("lite0", device="cpu").fingerprint == lite0.fingerprint
        assert load("lite0")[0].fingerprint != lite0.fingerprint

    def test_an_image_in_a_batch_gives_the_same_descriptor_up_to_rounding(self, lite0: TorchNetwork):
        images = np.stack([image_for(lite0) for _ in range(3)])
        alone = np.stack([lite0.describe_one(image) for image in images])
        together = lite0.forward(images)
        assert np.abs(alone.astype(np.float32) - together).max() < 0.02


@pytest.mark.parametrize("name", ["lite0", "test_efficientnet"])
def test_folding_batch_norms_changes_nothing_but_rounding(name: str):
    model = random_model(spec_of(name).timm_name)
    x = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        before = model(x)
        fold_batch_norms(model)
        after = model(x)
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in model.modules())
    assert before.std() > 0
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-4 * float(before.abs().max()))


@pytest.mark.long
class TestXception:
    def test_has_the_papers_size(self):
        def count(**options: Any) -> int:
            with torch.device("meta"):
                return sum(p.numel() for p in timm.create_model("legacy_xception", **options).parameters())

        assert round(count() / 1e6, 2) == 22.86
        assert count(num_classes=0) == count() - 2048 * 1000 - 1000 == 20_806_952

    def test_describes(self, load):
        network, model = load("xception")
        assert (network.features, network.width, network.size) == (2048, 4400, 299)
        assert network.parameters == 20_806_952
        compare(network, model)


class TestAnyTimmNetwork:
    @pytest.mark.parametrize(
        ("name", "features", "tapped"),
        [
            ("test_efficientnet", 256, 16 + 24 + 32 + 48 + 64),
            ("test_byobnet", 256, 24 + 32 + 64 + 128),  # the last stage is as wide as the features: not tapped
            ("test_vit", 64, 5 * 64),  # tokens
            ("test_mambaout", 256, 16 + 32 + 48 + 64),  # NHWC; and its features are wider than its last stage
        ],
    )
    def test_describes(self, load, name: str, features: int, tapped: int):
        network, model = load(name)
        assert (network.features, network.width, network.size) == (features, features + 2 * tapped, 160)
        compare(network, model)

    def test_a_descriptor_that_would_be_too_wide_taps_fewer_stages(self, load, weights_folder, monkeypatch):
        load("test_efficientnet")
        monkeypatch.setattr("skillmesh.backbone.torch_network.MAX_WIDTH", 256 + 2 * (16 + 32 + 64))
        network = TorchNetwork("test_efficientnet", weights_folder / "test_efficientnet.pt", "cpu")
        assert network.spec.taps == ("blocks.0", "blocks.2", "blocks.4")

    def test_other_weights_are_another_network(self, load, weights_folder: Path):
        network, model = load("test_efficientnet")
        state = model.state_dict()
        state["bn1.running_mean"][0] += 1e-3
        torch.save(state, weights_folder / "nudged.pt")
        nudged = TorchNetwork("test_efficientnet", weights_folder / "nudged.pt", "cpu")
        assert nudged.fingerprint != network.fingerprint

    def test_an_unknown_name_is_refused_with_similar_ones(self):
        with pytest.raises(BackboneError, match=r"there is no backbone 'resnet51'.*similar: .*resnet5"):
            TorchNetwork("resnet51")

    def test_without_internet_access_the_hub_error_tells_what_to_do(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ):
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        with pytest.raises(BackboneError, match=r"'test_vit' could not be fetched.*--weights FILE"):
            TorchNetwork("test_vit")

    def test_a_hub_error_without_a_message_is_reported_too(self, monkeypatch: pytest.MonkeyPatch):
        def time_out(*_args: Any, **_options: Any) -> None:
            raise TimeoutError

        monkeypatch.setattr(timm, "create_model", time_out)
        with pytest.raises(BackboneError, match="TimeoutError"):
            TorchNetwork("test_vit")


@pytest.mark.parametrize("name", ["lite0", "test_vit"])
def test_the_number_of_threads_changes_no_bit(name: str, lite0: TorchNetwork, load, monkeypatch):
    network = lite0 if name == "lite0" else load(name)[0]
    images = [as_image(image_for(network)) for _ in range(6)]
    results = []
    for threads in ("1", "2"):
        monkeypatch.setenv("SKILLMESH_THREADS", threads)
        assert cpu_workers() == int(threads)
        results.append(describe(network, images).raw)
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0][4], network.forward(images[4].pixels(b"", network.size)[None])[0])


def test_an_image_uses_one_thread_so_that_many_can_run(load, monkeypatch):
    network, _ = load("test_vit")
    describe_one, during = network.describe_one, []

    def watched(*arguments):
        during.append(torch.get_num_threads())
        return describe_one(*arguments)

    monkeypatch.setattr(network, "describe_one", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        describe(network, [as_image(image_for(network)) for _ in range(6)])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(during) == {1}


def test_workers_default_to_the_available_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SKILLMESH_THREADS", raising=False)
    assert cpu_workers() >= 1
