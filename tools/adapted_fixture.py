"""Make the adapted modules of tests/fixtures/adapted, and PyTorch's answers with them.

python tools/adapted_fixture.py FOLDER    # needs the extra torch

Three drawn tasks of three classes, each with another adaptation. An agent that has imported them answers one test
image of every class, all on PyTorch; a test compares the answers of an environment without PyTorch.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ADAPTATIONS = {"dice": "biases", "shapes": "reprogramming", "flowers": "head2toe"}
CLASSES = 3


def main(out: Path) -> None:
    os.environ["SKILLMESH_ENGINE"] = "torch"
    from skillmesh import Adaptation, Agent
    from skillmesh.data.demo import write_demo_tasks
    from skillmesh.store.home import create_home

    (out / "images").mkdir(parents=True)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_demo_tasks(folder / "tasks", train=8, val=3, test=1, names=list(ADAPTATIONS))
        for name in ("teacher", "pupil"):
            create_home(folder / name, compact=True)
        with Agent(folder / "teacher") as teacher, Agent(folder / "pupil") as pupil:
            for task, kind in ADAPTATIONS.items():
                for split in (folder / "tasks" / task).iterdir():
                    for extra in sorted(split.iterdir())[CLASSES:]:
                        shutil.rmtree(extra)
                teacher.learn(folder / "tasks" / task, adaptation=Adaptation("always", kind, epochs=2))
                module = teacher.export(task, folder / f"{kind}.skill")
                pupil.import_file(module)
                (out / f"{kind}.skill.gz").write_bytes(gzip.compress(module.read_bytes(), mtime=0))
                for image in sorted((folder / "tasks" / task / "test").glob("*/*")):
                    shutil.copy(image, out / "images" / f"{task}-{image.parent.name}{image.suffix}")
            answers = {
                path.name: {guess.label: float(f"{guess.confidence:.6g}") for guess in pupil.predict(path).guesses}
                for path in sorted((out / "images").iterdir())
            }
    (out / "answers.json").write_text(json.dumps(answers, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
