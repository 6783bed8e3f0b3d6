"""The commands that measure: eval, calibrate, backbone, demo."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillmesh.cli import options
from skillmesh.cli.app import app
from skillmesh.errors import AgentError

if TYPE_CHECKING:
    from skillmesh.agent import Agent
    from skillmesh.challenge.evaluate import Evaluation

Json = Annotated[
    Path | None,
    typer.Option(
        "--json", metavar="FILE", show_default=False, help="Write the results here; - for standard output."
    ),
]


@app.command("eval")
def eval_(
    context: typer.Context,
    folders: Annotated[list[Path], typer.Argument(help="Tasks, or folders of tasks.")],
    home: options.Home = None,
    json: Json = None,
    learn: Annotated[
        bool,
        typer.Option("--learn/--no-learn", help="Learn into a fresh agent, or ask the agent at --home as it is."),
    ] = True,
    mapper: options.MapperKind = "sketch",
    representation: options.Representation = "descriptor",
    compact: options.Compact = False,
    backbone: options.BackboneName = "lite0",
    weights: options.Weights = None,
    calibration: options.CalibrationFile = None,
    clusters: options.Clusters = 25,
    variance_floor: options.VarianceFloor = 1e-6,
    images_per_class: options.ImagesPerClass = 5,
    seed: options.Seed = 0,
    corrective: Annotated[
        bool,
        typer.Option("--corrective", help="Count an equivalent class of another task as right, too, and list it."),
    ] = False,
    encoder: options.NameEncoder = "minilm",
    device: options.Device = None,
) -> None:
    """Measure: accuracy with the task given, task recognition, and accuracy with no task given."""
    from skillmesh.agent import Agent
    from skillmesh.challenge.corrective import corrective as corrected
    from skillmesh.challenge.evaluate import evaluate
    from skillmesh.challenge.provenance import provenance
    from skillmesh.cli import show
    from skillmesh.data.folder import find_tasks
    from skillmesh.home import create_home, home_folder
    from skillmesh.synergy.matching.remembered import remembering

    paths = find_tasks(folders)
    if json is not None and str(json) != "-":
        _refuse_missing_folder(json)
    names = remembering(encoder) if corrective else None
    with TemporaryDirectory(prefix="skillmesh-eval-") as fresh, show.progress_bar() as bar:
        if learn:
            settings = {
                "name": "eval",
                "mapper": mapper,
                "representation": representation,
                "compact": compact,
                "backbone": backbone,
                "weights": weights,
                "calibration": calibration,
                "clusters": clusters,
                "variance_floor": variance_floor,
                "images_per_class": images_per_class,
                "seed": seed,
            }
            create_home(Path(fresh), **settings)
        agent = Agent(Path(fresh) if learn else home_folder(home or context.obj), device=device)
        origin = provenance(show.command_line(), paths, seed)
        result = evaluate(agent, paths, learn=learn, keep_said=corrective, progress=bar)
        found = {} if names is None else {"corrective": corrected(result.said, names)}
        report = _report(agent, result) | found | {"provenance": origin}
    if json is not None and str(json) != "-":
        import json as json_library

        json.write_text(json_library.dumps(report, ensure_ascii=False, indent=1) + "\n")
    if json is not None and str(json) == "-":
        show.print_json(report)
    else:
        _print_report(report)


def _report(agent: Agent, result: Evaluation) -> dict[str, Any]:
    config = agent.config.model_dump(mode="json", exclude={"name", "weights", "calibration"})
    mapper = agent.mapper()[1]
    threshold = round(mapper.threshold, 6) if math.isfinite(mapper.threshold) else None  # JSON has no infinity
    found = {"unknown_threshold": threshold, "task_temperature": round(mapper.temperature, 4)}
    return {"settings": config | {"backbone_fingerprint": agent.bank.backbone}} | result.summary() | found


def _print_report(report: dict[str, Any]) -> None:
    from skillmesh.cli import show

    rows = show.table(None, "task", ">classes", ">task given", ">task found", ">final", ">unknown", ">module")
    for t in report["tasks"]:
        figures = [
            show.percent(t[k]) for k in ("oracle_accuracy", "task_accuracy", "final_accuracy", "known_unknown")
        ]
        rows.add_row(t["task"], str(t["classes"]), *figures, show.kilobytes(t["module_bytes"]))
    for t in report["hidden"]:
        rows.add_row(f"{t['task']} (never learned)", "", "", "", "", show.percent(t["unknown"]), "")
    if report["tasks"]:
        keys = ("oracle_accuracy", "task_accuracy", "final_accuracy", "known_unknown")
        rows.add_row(
            show.bold("mean"),
            "",
            *(show.percent(report[k]) for k in keys),
            show.kilobytes(report["module_bytes"]),
        )
    show.console.print(rows)
    typer.echo(f"anchor {show.kilobytes(report['anchor_bytes'] or 0)} per task")
    typer.echo(f"learned in {report['learn_seconds']:.1f} s, answered in {report['answer_seconds']:.1f} s")
    typer.echo(f"confidence is off by {show.percent(report['confidence_error'])} on average")
    if "corrective" in report:
        _print_corrections(report["corrective"])


def _print_corrections(found: dict[str, Any]) -> None:
    from skillmesh.cli import show

    for least, at in found["thresholds"].items():
        typer.echo(
            f"equivalent names count from {least} on: {show.percent(found['final_accuracy'])} → "
            f"{show.percent(at['final_accuracy'])}, {at['images']} images"
        )
    rows = show.table(None, "task", "class", "answered by", "with", ">score", ">images")
    for c in found["corrections"]:
        rows.add_row(c["task"], c["label"], c["said_task"], c["said"], f"{c['score']:.3f}", str(c["images"]))
    show.console.print(rows if found["corrections"] else "nothing was corrected")


@app.command()
def calibrate(
    folders: Annotated[list[Path], typer.Argument(help="Two or more tasks, or folders of tasks.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write the calibration.")],
    backbone: options.BackboneName = "lite0",
    weights: options.Weights = None,
    seed: options.Seed = 0,
    device: options.Device = None,
) -> None:
    """Measure a backbone's calibration on training images of some tasks. Agents that share need the same one."""
    from skillmesh.backbone.cache import DescriptorCache, default_folder
    from skillmesh.backbone.calibrating import calibrate_on
    from skillmesh.backbone.network import Network
    from skillmesh.cli import show
    from skillmesh.data.folder import find_tasks

    _refuse_missing_folder(out)
    network = Network(backbone, weights, device)
    cache = DescriptorCache(default_folder(), network.fingerprint)
    paths = find_tasks(folders)
    with show.progress_bar() as bar:
        made = calibrate_on(network, paths, cache, seed=seed, progress=bar)
    made.save(out)
    typer.echo(f"wrote {out}: {made.source}; {show.kilobytes(out.stat().st_size)}, {made.fingerprint[:16]}…")


@app.command()
def backbone(
    name: Annotated[str, typer.Argument(help="lite0, xception or any timm name.")] = "lite0",
    weights: options.Weights = None,
    json: options.Json = False,
) -> None:
    """Show what a backbone is: sizes, descriptor, and where beneficial biases could act."""
    from skillmesh.backbone.network import Network
    from skillmesh.cli import show

    network = Network(name, weights, "cpu")
    positions = {place.path: place.channels for place in network.places}
    facts = {
        "name": network.spec.name,
        "timm_name": network.spec.timm_name,
        "input": network.size,
        "parameters": network.parameters,
        "features": network.features,
        "descriptor": network.width,
        "taps": list(network.spec.taps or ()),
        "network_fingerprint": network.fingerprint,
        "bias_layers": len(positions),
        "bias_positions": sum(positions.values()),
    }
    if json:
        show.print_json(facts | {"biases": positions})
        return
    for key, value in facts.items():
        typer.echo(f"{key}: {value}")
    for layer, channels in positions.items():
        typer.echo(f"  {layer}: {channels}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where images, agents and picture go.")] = Path(
        "demo-out"
    ),
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Several agents learn drawn tasks, share them over the mesh, and all answer everything. Needs no download."""
    from skillmesh.cli.demo import run

    run(out, device, json)


def _refuse_missing_folder(target: Path) -> None:
    """Say it before the work, not after."""
    if not target.parent.is_dir() or target.is_dir():
        raise AgentError(f"cannot write {target}: there is no folder {target.parent}, or {target} is one itself")
