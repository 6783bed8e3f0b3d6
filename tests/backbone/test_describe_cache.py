"""Descriptors of many images with a cache: the same bits and the right rows, even after errors."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from skillmesh.backbone import backbone as cache_module
from skillmesh.backbone import network as describe_module
from skillmesh.backbone.backbone import DescriptorCache, content_key, default_folder
from skillmesh.backbone.network import Network, describe
from skillmesh.backbone.runtime import OnnxNetwork
from skillmesh.data.inputs import AnyImage, as_image

FINGERPRINT = "f" * 64
WIDTH = 40


@pytest.fixture(scope="module")
def on_torch(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """Return timm's smallest network."""
    torch = pytest.importorskip("torch")
    from skillmesh.backbone.building import import_timm
    from skillmesh.backbone.torch_network import TorchNetwork

    path = tmp_path_factory.mktemp("weights") / "w.pt"
    torch.manual_seed(0)
    torch.save(import_timm().create_model("test_efficientnet").state_dict(), path)
    return TorchNetwork("test_efficientnet", path, "cpu")


@pytest.fixture(scope="module", params=["onnx", pytest.param("torch", marks=pytest.mark.torch)])
def network(request: pytest.FixtureRequest) -> Network:
    return OnnxNetwork.lite0() if request.param == "onnx" else request.getfixturevalue("on_torch")


@pytest.fixture(scope="module")
def images() -> list[AnyImage]:
    rng = np.random.default_rng(0)
    return [as_image(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8), i) for i in range(5)]


@pytest.fixture
def cache(tmp_path: Path):
    cache = DescriptorCache(tmp_path / "cache", FINGERPRINT)
    yield cache
    cache.close()


def key(number: int) -> bytes:
    return content_key(str(number).encode())


def value(number: int, width: int = WIDTH) -> np.ndarray:
    return np.random.default_rng(number).standard_normal(width).astype(np.float16)


def forbid(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the network fail, to check that it is not used."""
    monkeypatch.setattr(network, "forward", lambda *_: pytest.fail("the network ran"))


class TestDescribe:
    def test_gives_a_row_of_float16_for_each_image(self, network: Network, images):
        described = describe(network, images)
        assert described.raw.dtype == np.float16
        assert described.raw.shape == (5, network.width)
        assert described.readable.tolist() == [0, 1, 2, 3, 4]
        assert described.unreadable == []
        assert np.array_equal(described.raw[3], network.describe_one(images[3].pixels(b"", network.size)))

    def test_cached_descriptors_are_bit_identical(self, network, images, cache, monkeypatch):
        plain, fresh = describe(network, images), describe(network, images, cache)
        forbid(network, monkeypatch)
        cached = describe(network, images, cache)
        assert plain.raw.tobytes() == fresh.raw.tobytes() == cached.raw.tobytes()

    def test_only_uncached_images_go_through_the_network(self, network, images, cache, monkeypatch):
        expected = describe(network, images)
        describe(network, images[:4], cache)
        passes = []
        real = network.forward
        monkeypatch.setattr(
            network, "forward", lambda batch, *rest: passes.append(len(batch)) or real(batch, *rest)
        )
        assert np.array_equal(describe(network, images, cache).raw, expected.raw)
        assert passes == [1]

    @pytest.mark.parametrize("cached", [False, True])
    def test_unreadable_images_are_listed_and_rows_keep_their_index(
        self, network, images, cache, tmp_path: Path, cached: bool
    ):
        broken = [as_image(b"not an image", 10), as_image(tmp_path / "gone.jpg"), as_image(b"", 12)]
        mixed = [broken[0], images[0], broken[1], broken[2], images[1], images[2]]
        if cached:
            describe(network, mixed, cache)
        described = describe(network, mixed, cache)
        assert described.readable.tolist() == [1, 4, 5]
        assert [u.name for u in described.unreadable] == ["image 10", str(tmp_path / "gone.jpg"), "image 12"]
        assert "not an image of a known format" in described.unreadable[0].reason
        assert "No such file" in described.unreadable[1].reason
        assert np.array_equal(described.raw, describe(network, images[:3]).raw)

    def test_no_images_give_no_rows(self, network):
        for nothing in ([], [as_image(b"junk")]):
            described = describe(network, nothing)
            assert described.raw.shape == (0, network.width)
            assert described.raw.dtype == np.float16
            assert len(described.readable) == 0

    def test_progress_counts_up_to_all_images_window_by_window(self, network, images, monkeypatch):
        monkeypatch.setattr(describe_module, "WINDOW", 2)
        steps: list[int] = []
        described = describe(network, [*images[:3], as_image(b"junk"), images[4]], progress=steps.append)
        assert steps == [2, 2, 1]
        assert described.readable.tolist() == [0, 1, 2, 4]

    def test_a_window_done_is_in_the_cache_when_the_next_one_fails(self, network, images, cache, monkeypatch):
        monkeypatch.setattr(describe_module, "WINDOW", 2)

        def stop(_done: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            describe(network, images, cache, progress=stop)
        forbid(network, monkeypatch)
        assert len(describe(network, images[:2], cache).raw) == 2

    @pytest.mark.torch
    def test_batches_for_a_gpu_keep_the_order(self, on_torch, images, monkeypatch):
        import torch

        network, expected = on_torch, describe(on_torch, images)
        monkeypatch.setattr(describe_module, "GPU_BATCH", 2)
        monkeypatch.setattr(network, "device", torch.device("cuda"))  # the model itself stays where it is
        monkeypatch.setattr(network, "_on_device", torch.tensor)
        described = describe(network, [images[0], as_image(b"junk"), *images[1:]])
        assert described.readable.tolist() == [0, 2, 3, 4, 5]
        np.testing.assert_allclose(described.raw, expected.raw, rtol=0.01, atol=0.01 * np.abs(expected.raw).max())
        assert len(np.unique(described.raw, axis=0)) == 5

    def test_the_name_of_a_file_does_not_matter_to_the_cache(self, network, cache, tmp_path, monkeypatch):
        for name in ("a.png", "b.png"):
            Image.new("RGB", (9, 9), "teal").save(tmp_path / name)
        first = describe(network, [as_image(tmp_path / "a.png")], cache)
        forbid(network, monkeypatch)
        assert np.array_equal(describe(network, [as_image(tmp_path / "b.png")], cache).raw, first.raw)


class TestCache:
    def test_gives_back_what_was_put_and_none_for_the_rest(self, cache):
        cache.put([(key(i), value(i)) for i in range(3)])
        assert cache.get(key(1)).tobytes() == value(1).tobytes()
        assert cache.get(key(1)).dtype == np.float16
        assert cache.get(key(7)) is None

    def test_entries_outlast_the_process(self, cache, tmp_path: Path):
        cache.put([(key(1), value(1))])
        cache.close()
        assert np.array_equal(DescriptorCache(tmp_path / "cache", FINGERPRINT).get(key(1)), value(1))

    def test_networks_do_not_share_descriptors(self, cache, tmp_path: Path):
        cache.put([(key(1), value(1))])
        assert DescriptorCache(tmp_path / "cache", "e" * 64).get(key(1)) is None

    def test_a_key_put_twice_keeps_the_first(self, cache):
        cache.put([(key(1), value(1)), (key(1), value(2))])
        assert np.array_equal(cache.get(key(1)), value(1))

    @pytest.mark.parametrize("content", [b"hello, I am no database", b"SQLite format 3\0" + b"\xff" * 5000])
    def test_a_file_that_is_no_database_is_put_aside(self, tmp_path: Path, caplog, content: bytes):
        path = tmp_path / f"descriptors-{FINGERPRINT[:16]}-onnx.sqlite"
        path.write_bytes(content)
        cache = DescriptorCache(tmp_path, FINGERPRINT)
        assert "damaged" in caplog.text
        assert path.with_suffix(".damaged").read_bytes() == content
        cache.put([(key(1), value(1))])
        assert np.array_equal(cache.get(key(1)), value(1))

    @pytest.mark.parametrize("verb", ["get", "put"])
    def test_a_damaged_database_is_put_aside_when_the_damage_is_detected(self, tmp_path: Path, caplog, verb: str):
        cache = DescriptorCache(tmp_path, FINGERPRINT)
        cache.put([(key(i), value(i, 2000)) for i in range(60)])
        cache.close()
        content = bytearray(cache.path.read_bytes())
        content[4096:] = b"\xa5" * (len(content) - 4096)  # the first page, with the schema, stays
        cache.path.write_bytes(content)
        cache = DescriptorCache(tmp_path, FINGERPRINT)
        if verb == "get":
            assert cache.get(key(1)) is None
        else:
            cache.put([(key(99), value(99))])
        assert "damaged" in caplog.text
        cache.put([(key(1), value(1))])
        assert np.array_equal(cache.get(key(1)), value(1))

    def test_drops_the_oldest_half_above_its_limit(self, tmp_path: Path):
        cache = DescriptorCache(tmp_path, FINGERPRINT)
        for i in range(40):
            cache.put([(key(i), value(i, 2000))])
        cache.close()
        before = cache.path.stat().st_size
        DescriptorCache(tmp_path, FINGERPRINT, limit_bytes=before).close()
        assert cache.path.stat().st_size == before, "at its limit nothing goes"
        cache = DescriptorCache(tmp_path, FINGERPRINT, limit_bytes=before - 1)
        assert [i for i in range(40) if cache.get(key(i)) is not None] == list(range(20, 40))
        cache.close()
        assert cache.path.stat().st_size < 0.7 * before

    def test_stays_below_its_limit_while_open(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(cache_module, "LOOK_AFTER", 50)
        limit = 10**6
        cache = DescriptorCache(tmp_path, FINGERPRINT, limit_bytes=limit)
        for i in range(1000):
            cache.put([(key(i), value(i, 2000))])
        assert cache.path.stat().st_size < 2 * limit
        assert cache.get(key(999)) is not None
        cache.close()

    def test_threads_share_one(self, cache):
        def work(thread: int) -> None:
            for i in range(thread, thread + 40):
                cache.put([(key(i), value(i))])
                assert np.array_equal(cache.get(key(i)), value(i))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, [0, 10, 20, 30]))
        assert all(np.array_equal(cache.get(key(i)), value(i)) for i in range(70))

    def test_processes_share_one(self, cache, tmp_path: Path):
        code = (
            "import hashlib, sys, numpy as np\n"
            "from pathlib import Path\n"
            "from skillmesh.backbone.backbone import DescriptorCache\n"
            f"cache = DescriptorCache(Path(sys.argv[1]), {FINGERPRINT!r})\n"
            "for i in range(50):\n"
            "    name = f'{sys.argv[2]} {i}'.encode()\n"
            "    cache.put([(hashlib.sha256(name).digest(), np.full(9, i, dtype=np.float16))])\n"
        )
        processes = [
            subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "cache"), who]) for who in ("ada", "eve")
        ]
        assert [process.wait(60) for process in processes] == [0, 0]
        for who in ("ada", "eve"):
            for i in range(50):
                stored = cache.get(hashlib.sha256(f"{who} {i}".encode()).digest())
                assert stored is not None
                assert stored.tolist() == [i] * 9
        assert not list((tmp_path / "cache").glob("*.damaged"))

    def test_the_environment_variable_sets_its_folder(self, monkeypatch, tmp_path: Path):
        monkeypatch.setenv("SKILLMESH_CACHE", str(tmp_path))
        assert default_folder() == tmp_path
        monkeypatch.delenv("SKILLMESH_CACHE")
        assert default_folder().name == "skillmesh"

    def test_of_an_earlier_release_is_used_by_pytorch_only(self, tmp_path: Path):
        """It has no engine in its name, since PyTorch was the only one."""
        before = DescriptorCache(tmp_path, FINGERPRINT, engine="torch")
        before.put([(key(1), value(1))])
        before.close()
        assert before.path == tmp_path / f"descriptors-{FINGERPRINT[:16]}.sqlite"
        assert np.array_equal(DescriptorCache(tmp_path, FINGERPRINT, engine="torch").get(key(1)), value(1))
        assert DescriptorCache(tmp_path, FINGERPRINT, engine="onnx").get(key(1)) is None
