"""Measure one thing in the installation whose Python runs this file; `light.py` runs it in two installations.

    python benchmarks/light_probe.py passes|load|answer|learn|command ...

It uses only what releases with and without ONNX Runtime have, and prints one JSON object.
"""

from __future__ import annotations

import time

BEGAN = time.perf_counter()

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import median  # noqa: E402
from typing import Any  # noqa: E402

PASSES = 96
"""Number of images described with each number of threads."""


def load() -> dict[str, float]:
    """Return the seconds to import and load the network, and the memory once it has described images."""
    backbone, images = _network_and_images(4)
    seconds = time.perf_counter() - BEGAN
    for image in images:
        backbone.network.forward(image[None])
    return {"seconds": seconds, "memory_mb": memory("VmRSS")}


def passes(threads: str) -> dict[str, float]:
    """Return images per second of the bare network, each image alone, in this many threads side by side."""
    from skillmesh.numerics.process import one_thread_each

    backbone, images = _network_and_images(PASSES)
    with one_thread_each(int(threads)) as pool:
        seconds = []
        for _ in range(4):
            started = time.perf_counter()
            list(pool.map(lambda image: backbone.network.forward(image[None]), images))
            seconds.append(time.perf_counter() - started)
    return {"images_per_second": len(images) / min(seconds[1:])}


def answer(home: str, rounds: str) -> dict[str, float]:
    """Return the seconds of an answer to one image, nothing cached, and of a bare pass, taken in turns."""
    from skillmesh.core import Core

    _process_is_ours()
    agent = Core(Path(home), device="cpu")
    agent.backbone.cache = None
    image = _noise(1)[0]
    network = agent.backbone.network
    _one_torch_thread()
    return _in_turns(lambda: agent.answer(image), lambda: network.forward(image[None]), int(rounds))


def learn(task: str, home: str, rounds: str) -> dict[str, float]:
    """Return the seconds of learning a task, nothing cached, and of bare passes over its images in memory."""
    from skillmesh.backbone.network import cpu_workers
    from skillmesh.common.choices import WarmStart
    from skillmesh.core import Core
    from skillmesh.data.folder import open_task
    from skillmesh.numerics.process import one_thread_each

    _process_is_ours()
    agent = Core.open(Path(home), device="cpu")
    agent.backbone.cache = None
    network = agent.backbone.network
    folder = open_task(Path(task))
    files = [*folder.splits["train"].files, *folder.splits["val"].files]
    pixels = [file.pixels(file.content(), network.size) for file in files]

    def bare() -> None:
        with one_thread_each(cpu_workers()) as pool:
            list(pool.map(lambda image: network.forward(image[None]), pixels))

    work = lambda: agent.learn(folder, replace=True, warm_start=WarmStart("never"))  # noqa: E731
    return _in_turns(work, bare, int(rounds)) | {"images": len(files)}


def command(*words: str) -> dict[str, float]:
    """Run a command of skillmesh from a cold start; return its seconds and its peak memory.

    The peak is that of the largest process: the command, or one that it has waited for. The system also counts the
    process that starts it, so that must be small: this one has imported nothing.
    """
    started = time.perf_counter()
    process = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "skillmesh", *words],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(process, 0)
    seconds = time.perf_counter() - started
    if status:
        raise SystemExit(
            f"`skillmesh {' '.join(words)}` failed with exit status {os.waitstatus_to_exitcode(status)}"
        )
    return {"seconds": seconds, "peak_mb": usage.ru_maxrss * 1024 / 1e6}


def _in_turns(work: Callable[[], object], bare: Callable[[], object], rounds: int) -> dict[str, float]:
    pairs = [(_timed(work), _timed(bare)) for _ in range(rounds + 1)][1:]
    seconds, floor = (median(column) for column in zip(*pairs, strict=True))
    return {"seconds": seconds, "bare_seconds": floor, "ratio": seconds / floor}


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _network_and_images(count: int) -> tuple[Any, Any]:
    from skillmesh.backbone.backbone import Backbone

    _process_is_ours()
    return Backbone.load(device="cpu"), _noise(count)


def _noise(count: int) -> Any:
    import numpy as np

    return np.random.default_rng(0).integers(0, 256, (count, 224, 224, 3), dtype=np.uint8)


def _process_is_ours() -> None:
    from skillmesh.numerics.process import process_is_ours

    process_is_ours()


def _one_torch_thread() -> None:
    """Let bare passes of PyTorch in this thread use one thread, as ONNX Runtime does."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


def memory(field: str, process: int | str = "self") -> float:
    """Return a process's memory in MB, as `/proc` states it: `VmRSS` now, `VmHWM` at its peak."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError(f"/proc/{process}/status has no {field}; this benchmark needs Linux")


def main(words: Sequence[str]) -> None:
    probes: dict[str, Callable[..., dict[str, float]]] = {
        "load": load,
        "passes": passes,
        "answer": answer,
        "learn": learn,
        "command": command,
    }
    print(json.dumps(probes[words[0]](*words[1:])))


if __name__ == "__main__":
    main(sys.argv[1:])
