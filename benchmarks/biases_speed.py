"""Measure answering when half of the tasks have biases, against one bare forward pass; and ways to add biases.

    python benchmarks/biases_speed.py

An agent that knows eight drawn tasks, four of them with biases, is asked about 256 images of all of them. The bare
pass processes the same images, already decoded, with the same network and threads.

Biases are constants of a session of ONNX Runtime that is made for a task. The other way, one session for all tasks
that takes the biases as inputs, is measured beside it, on one thread.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from skillmesh.backbone.network import cpu_workers
from skillmesh.backbone.runtime import OnnxNetwork
from skillmesh.backbone.spec import PREFIX
from skillmesh.common.choices import Adaptation, WarmStart
from skillmesh.core import Core
from skillmesh.data.demo import LEARNED, write_demo_tasks
from skillmesh.data.images import Pixels
from skillmesh.data.inputs import as_image
from skillmesh.evaluation.provenance import provenance
from skillmesh.learning.adaptation import Biases
from skillmesh.module import Module
from skillmesh.numerics.arrays import Floats
from skillmesh.numerics.process import one_thread_each, process_is_ours
from skillmesh.store.home import create_home

HERE = Path(__file__).parent
IMAGES = 256
SINGLE = 50
"""Number of images that each way to add biases runs, one after the other."""
ROUNDS = 3


def fastest(work: Callable[[], Any]) -> float:
    """Return the fastest of several rounds, in seconds: other processes can only add time."""
    durations = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        durations.append(time.perf_counter() - began)
    return min(durations)


def measure(folder: Path) -> dict[str, Any]:
    names = LEARNED[:8]
    write_demo_tasks(folder / "tasks", train=6, val=3, test=8, names=list(names))
    create_home(folder / "home", name="speed")
    agent = Core(folder / "home", device="cpu", cache_folder=folder / "cache")
    for index, name in enumerate(names):
        agent.learn(
            folder / "tasks" / name,
            adaptation=Adaptation(mode="always" if index % 2 else "none"),
            warm_start=WarmStart("never"),
        )
    agent.backbone.cache = None  # so that no descriptor comes from the cache
    paths = sorted((folder / "tasks").glob("*/test/*/*.jpg"))
    chosen = [paths[i] for i in np.random.default_rng(0).permutation(len(paths))[:IMAGES]]
    network = agent.backbone.network
    images = [as_image(path) for path in chosen]
    pixels = [image.pixels(image.content(), network.size) for image in images]

    def bare() -> None:
        with one_thread_each(cpu_workers()) as pool:
            list(pool.map(network.describe_one, pixels))

    answers = agent.answer(list(chosen))
    with_biases = sum(agent.bank.find(answer.best.task).card.biases is not None for answer in answers)
    found = {"bare_seconds": fastest(bare), "answer_seconds": fastest(lambda: agent.answer(list(chosen)))}
    return found | {
        "ratio": round(found["answer_seconds"] / found["bare_seconds"], 2),
        "images": len(chosen),
        "second_passes": with_biases,
        "milliseconds": ways_to_add(pixels[:SINGLE], biases_of(agent.bank.find(names[1]))),
    }


def biases_of(module: Module) -> Floats:
    assert module.card.biases is not None
    return Biases.read(module.tensors, module.card.biases[0]).added


def ways_to_add(pixels: Sequence[Pixels], added: Floats) -> dict[str, float]:
    """Return milliseconds per image for each way to add biases, and for making a task's session."""
    network = OnnxNetwork.lite0()
    as_inputs, biases = inputs_session(network), network._biases(added)
    feeds = {f"{PREFIX}{name}": bias for name, bias in biases.items()}
    ours = network.describe_one(pixels[0], added).astype(np.float32)
    theirs = as_inputs.run(["raw"], {"pixels": pixels[0][None], **feeds})[0][0]
    assert np.allclose(ours, theirs, rtol=1e-2, atol=1e-2), "both ways must compute the same"

    def per_image(run: Callable[[Pixels], Any]) -> float:
        return round(1000 * fastest(lambda: [run(image) for image in pixels]) / len(pixels), 2)

    return {
        "plain": per_image(network.describe_one),
        "constants": per_image(lambda image: network.describe_one(image, added)),
        "inputs": per_image(lambda image: as_inputs.run(["raw"], {"pixels": image[None], **feeds})),
        "making": round(1000 * fastest(lambda: network._session(network._tensors | biases, ())), 2),
    }


def inputs_session(network: OnnxNetwork) -> ort.InferenceSession:
    """Return a session of the same graph that takes the biases of all layers as inputs."""
    model = onnx.load_from_string(network._graph)
    names = [f"{PREFIX}{layer.place.path}.bias" for layer in network.card.layers]
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in names]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    for name, layer in zip(names, network.card.layers, strict=True):
        shape = [layer.place.channels]
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    weights = {f"{PREFIX}{name}": tensor for name, tensor in network._tensors.items()}
    left = {name: ort.OrtValue.ortvalue_from_numpy(t) for name, t in weights.items() if name not in names}
    options.add_external_initializers(list(left), list(left.values()))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results" / "biases-speed.json")
    options = parser.parse_args()
    process_is_ours()  # as in a command
    origin = provenance("python benchmarks/biases_speed.py", [], 0)
    with tempfile.TemporaryDirectory() as folder:
        report = measure(Path(folder)) | {"provenance": origin}
    print(json.dumps(report, indent=1))
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
