"""Options that several commands take, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skillmesh.common import choices as names

Report = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE.html",
        show_default=False,
        help="Write a page with figures, confused classes and the images answered wrongly.",
    ),
]
Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="DIR",
        show_default=False,
        help="The agent's folder; default SKILLMESH_HOME or the user's data folder.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="cpu|cuda|mps", show_default=False, help="Default: what is there."),
]
BackboneName = Annotated[str, typer.Option("--backbone", metavar="NAME", help="lite0, xception or any timm name.")]
Weights = Annotated[
    Path | None, typer.Option("--weights", metavar="FILE", show_default=False, help="Weights of the backbone.")
]
CalibrationFile = Annotated[
    Path | None,
    typer.Option("--calibration", metavar="FILE", show_default=False, help="As `skillmesh calibrate` makes it."),
]
AnchorKind = Annotated[names.AnchorKind, typer.Option("--anchor", help="Kind of anchor to recognise tasks by.")]
Representation = Annotated[
    names.Representation, typer.Option("--representation", help="What heads and anchors work on.")
]
Compact = Annotated[
    bool, typer.Option("--compact", help="Store modules in the calibration's basis: a third of the bytes.")
]
Support = Annotated[
    names.Support,
    typer.Option("--support", help="By what names equivalent classes of several tasks support one another."),
]
NameEncoder = Annotated[
    str, typer.Option("--encoder", help="Of class names: minilm, clip, or letters (spelling alone).")
]
Clusters = Annotated[int, typer.Option("--clusters", min=1, max=4096, help="gmmc: Gaussians per task.")]
VarianceFloor = Annotated[float, typer.Option("--variance-floor", min=1e-9, help="gmmc: added to every variance.")]
ImagesPerClass = Annotated[
    int, typer.Option("--images-per-class", min=1, max=255, help="maha: samples per class.")
]
Continue = Annotated[
    str | None,
    typer.Option(
        "--continue", metavar="TASK", show_default=False, help="Add images or classes to a task of your own."
    ),
]
OneTask = Annotated[
    bool,
    typer.Option("--one-task", help="Learn one task even where its classes look like tasks of their own."),
]
EachFolder = Annotated[
    bool, typer.Option("--each-folder", help="Learn every folder and zip in FOLDER as a task of its own.")
]
Note = Annotated[str | None, typer.Option(show_default=False, help="A note for the card.")]
Tag = Annotated[
    list[str] | None,
    typer.Option("--tag", show_default=False, help="A word by which others choose what to take; repeatable."),
]
Adapt = Annotated[
    names.AdaptMode,
    typer.Option("--adapt", help="Adapt the backbone to the task; auto keeps that where it pays."),
]
AdaptationKind = Annotated[
    names.AdaptationKind,
    typer.Option("--adaptation", help="What --adapt trains: biases, these with Head2Toe, or an input pattern."),
]
Layers = Annotated[
    str,
    typer.Option(
        "--layers", metavar="all|last-half|last-N|after-norm|NAMES", help="Behind which layers biases act."
    ),
]
Epochs = Annotated[
    int | None, typer.Option("--epochs", min=1, show_default=False, help="How long --adapt trains; default: 3.")
]
Mirrored = Annotated[bool, typer.Option("--mirrored", help="--adapt: mirror images at random while training.")]
FromPlainHead = Annotated[
    bool, typer.Option("--from-plain-head", help="--adapt: begin with the plain head, not a random one.")
]
WarmMode = Annotated[
    names.WarmMode,
    typer.Option("--warm-start", help="auto: begin with rows of classes that the bank knows by name, if it pays."),
]
WarmForm = Annotated[
    names.WarmForm,
    typer.Option("--warm-form", help="Rows as centre of a prior, or the paper's epochs with a norm of the rows."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of splits and random choices.")]
Network = Annotated[
    names.Network | None,
    typer.Option("--network", show_default=False, help="For this run; `skillmesh config network=…` keeps it."),
]
Listen = Annotated[
    list[str] | None,
    typer.Option("--listen", metavar="HOST:PORT", show_default=False, help="Where others reach this; repeatable."),
]
Connect = Annotated[
    list[str] | None,
    typer.Option("--connect", metavar="HOST:PORT", show_default=False, help="Whom to reach; repeatable."),
]
TrustMode = Annotated[
    names.Trust | None,
    typer.Option("--trust", show_default=False, help="listed: teachers added by `trust add`; open: everyone."),
]
