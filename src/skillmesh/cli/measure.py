"""The commands eval, calibrate, backbone and demo."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillmesh.cli import app, options, outlet
from skillmesh.common.choices import USUAL_VIEWS
from skillmesh.errors import ArgumentError

if TYPE_CHECKING:
    from skillmesh.core import Core
    from skillmesh.evaluation.evaluate import Evaluation
    from skillmesh.numerics.process import Progress


@app.command("eval")
def eval_(
    context: typer.Context,
    folders: Annotated[list[Path], typer.Argument(help="Task folders, or folders of tasks.")],
    home: options.Home = None,
    json: options.Json = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", show_default=False, help="Also write the JSON result to a file."),
    ] = None,
    report: options.Report = None,
    classes: Annotated[
        bool, typer.Option("--classes", help="Print recall and confusions for every class of every task.")
    ] = False,
    learn: Annotated[
        bool,
        typer.Option("--learn/--no-learn", help="Test a new agent that learns, or the agent at --home as it is."),
    ] = True,
    anchor: options.AnchorKind = "sketch",
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
        typer.Option("--corrective", help="Also count an equivalent class of another task as right, and list it."),
    ] = False,
    encoder: options.NameEncoder = "minilm",
    views: Annotated[
        bool,
        typer.Option(
            "--views", help="Also measure on views of the test images: smaller, blurred, turned, and others."
        ),
    ] = False,
    learn_views: options.LearnViews = None,
    device: options.Device = None,
) -> None:
    """Measure accuracy and task recognition. Accuracy is measured with the task given and with no task given."""
    from skillmesh.anchors import require_to_fit
    from skillmesh.cli import show
    from skillmesh.cli.outlet import refuse_bad_target
    from skillmesh.cli.task_report import print_evaluation, write_json, write_page
    from skillmesh.core import Core
    from skillmesh.data.folder import find_tasks
    from skillmesh.evaluation.corrective import corrective as corrected
    from skillmesh.evaluation.evaluate import evaluate
    from skillmesh.evaluation.provenance import provenance
    from skillmesh.learning.class_names.encoders import remembering
    from skillmesh.store.home import create_home, home_folder

    if learn:
        require_to_fit(anchor)
    elif learn_views is not None:
        raise ArgumentError("--no-learn measures tasks as they were learned; leave out --learn-views")
    paths = find_tasks(folders)
    for target in (out, report):
        refuse_bad_target(target)
    names = remembering(encoder) if corrective else None
    with TemporaryDirectory(prefix="skillmesh-eval-") as fresh, show.progress_bar() as bar:
        if learn:
            settings = {
                "name": "eval",
                "anchor": anchor,
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
        agent = Core(Path(fresh) if learn else home_folder(home or context.obj), device=device)
        origin = provenance(show.command_line(), paths, seed)
        result = evaluate(agent, paths, learn=learn, views=learn_views, keep_forced=corrective, progress=bar)
        corrections = {} if names is None else {"corrective": corrected(result.forced, names)}
        viewed = _measured_views(agent, result, bar) if views else {}
        used = (USUAL_VIEWS if learn_views is None else learn_views) if learn else None
        facts = _report(agent, result, classes, used) | corrections | viewed | {"provenance": origin}
    if out is not None:
        write_json(out, facts)
    if report is not None:
        write_page(report, result, facts)
    if json:
        show.print_json(facts)
    else:
        print_evaluation(facts, result if classes else None)


def _measured_views(agent: Core, result: Evaluation, progress: Progress) -> dict[str, Any]:
    from skillmesh.evaluation.views import evaluate_views, summary_of_views

    return summary_of_views(list(evaluate_views(agent, result, progress=progress)))


def _report(agent: Core, result: Evaluation, classes: bool, views: float | None) -> dict[str, Any]:
    config = agent.config.model_dump(mode="json", exclude={"name", "weights", "calibration"})
    mapper = agent.mapper()[1]
    threshold = round(mapper.threshold, 6) if math.isfinite(mapper.threshold) else None  # JSON has no infinity
    mapper_facts = {"unknown_threshold": threshold, "task_temperature": round(mapper.temperature, 4)}
    summary = result.summary()
    if classes:
        by_class = {answers.task: answers.class_facts() for answers in result.answers}
        summary["tasks"] = [task | {"by_class": by_class[task["task"]]} for task in summary["tasks"]]
    config |= {"backbone_fingerprint": agent.bank.backbone, "learn_views": views}
    return {"settings": config} | summary | mapper_facts


@app.command()
def calibrate(
    folders: Annotated[list[Path], typer.Argument(help="Two or more task folders, or folders of tasks.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write the calibration.")],
    backbone: options.BackboneName = "lite0",
    weights: options.Weights = None,
    seed: options.Seed = 0,
    device: options.Device = None,
) -> None:
    """Calibrate a backbone on training images of tasks. Agents that share need the same calibration."""
    from skillmesh.backbone.backbone import DescriptorCache, default_folder
    from skillmesh.backbone.calibrating import calibrate_on
    from skillmesh.backbone.network import load_network
    from skillmesh.backbone.spec import resolve
    from skillmesh.cli import show
    from skillmesh.cli.outlet import refuse_bad_target
    from skillmesh.data.folder import find_tasks

    refuse_bad_target(out)
    network = load_network(*resolve(backbone, weights), device)
    cache = DescriptorCache(default_folder(), network.fingerprint, engine=network.cached_as or network.engine)
    paths = find_tasks(folders)
    with show.progress_bar() as bar:
        calibration = calibrate_on(network, paths, cache, seed=seed, progress=bar)
    calibration.save(out)
    size = show.kilobytes(out.stat().st_size)
    outlet.line(f"wrote {out}: {calibration.source}; {size}, {calibration.fingerprint[:16]}…")


@app.command()
def backbone(
    name: Annotated[
        str, typer.Argument(help="lite0, xception, the name of any timm network, or an exported folder.")
    ] = "lite0",
    weights: options.Weights = None,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export",
            metavar="DIR",
            show_default=False,
            help="Write the network to a folder that agents use without PyTorch: `init --backbone DIR`.",
        ),
    ] = None,
    calibration: options.CalibrationFile = None,
    json: options.Json = False,
) -> None:
    """Show a backbone's sizes and layers (those where `learn --adapt` can add biases), or export it."""
    from skillmesh.backbone.network import load_network
    from skillmesh.backbone.spec import resolve
    from skillmesh.cli import show

    name, weights = resolve(name, weights)
    if export is not None:
        _export(name, weights, calibration, export)
        return
    network = load_network(name, weights, "cpu")
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
        outlet.line(f"{key}: {value}")
    for layer, channels in positions.items():
        outlet.line(f"  {layer}: {channels}")


def _export(name: str, weights: Path | None, calibration: Path | None, folder: Path) -> None:
    """Write a network, and its calibration if there is one, to a folder."""
    from skillmesh.backbone.backbone import load_calibration
    from skillmesh.backbone.network import load_torch_network
    from skillmesh.backbone.spec import CALIBRATION, calibration_in
    from skillmesh.cli import show
    from skillmesh.common.extras import EXPORT
    from skillmesh.errors import AgentError, BackboneError, CalibrationError

    EXPORT.require("exporting a network", BackboneError)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise AgentError(f"{folder} is not empty; expected a new folder; name another")
    network = load_torch_network(name, weights, "cpu")
    try:
        measured = load_calibration(name, calibration, weights)
    except CalibrationError:
        if calibration is not None or calibration_in(weights) is not None:
            raise
        measured = None
    if measured is not None and measured.network != network.fingerprint:
        raise CalibrationError(
            f"the calibration was made for network {measured.network[:12]}…, expected this network, "
            f"{network.fingerprint[:12]}…; make one for these weights with `skillmesh calibrate`"
        )
    from skillmesh.backbone.exporting import export_network

    export_network(network, folder)
    if measured is not None:
        measured.save(folder / CALIBRATION)
    size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    outlet.line(
        f"wrote {folder}: {network.spec.name}, {size:.1f} MB; use it with `skillmesh init --backbone {folder}`"
    )
    if measured is None:
        show.say(
            "it has no calibration yet; make one with "
            f"`skillmesh calibrate TASKS --backbone {folder} --out {folder / CALIBRATION}`"
        )


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for images, agents, picture.")] = Path(
        "demo-out"
    ),
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Run a demo of several agents. They learn drawn tasks, share them, and all answer everything; no download."""
    from skillmesh.cli.demo import run

    run(out, device, json)
