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
        help="Write an HTML page with the results, the confused classes and the wrongly answered images.",
    ),
]
Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="DIR",
        show_default=False,
        help="The agent's folder. Default: the variable SKILLMESH_HOME, or a folder in your user data.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="cpu|cuda|mps",
        show_default=False,
        help="Where the backbone runs. Default: the best one available.",
    ),
]
BackboneName = Annotated[
    str,
    typer.Option(
        "--backbone", metavar="NAME", help="lite0, xception, the name of any timm network, or an exported folder."
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option("--weights", metavar="FILE", show_default=False, help="File with the backbone's weights."),
]
CalibrationFile = Annotated[
    Path | None,
    typer.Option("--calibration", metavar="FILE", show_default=False, help="A file from `skillmesh calibrate`."),
]
AnchorKind = Annotated[names.AnchorKind, typer.Option("--anchor", help="Kind of anchor that recognises tasks.")]
Representation = Annotated[
    names.Representation, typer.Option("--representation", help="The image representation for heads and anchors.")
]
Compact = Annotated[
    bool, typer.Option("--compact", help="Store modules in the calibration's basis, at a third of the size.")
]
Support = Annotated[
    names.Support,
    typer.Option("--support", help="How to find equivalent classes of several tasks, which add up confidence."),
]
NameEncoder = Annotated[
    str, typer.Option("--encoder", help="How class names are compared: minilm, clip, or letters (spelling only).")
]
Clusters = Annotated[int, typer.Option("--clusters", min=1, max=4096, help="For gmmc: Gaussians per task.")]
VarianceFloor = Annotated[float, typer.Option("--variance-floor", min=1e-9, help="For gmmc: added to variances.")]
ImagesPerClass = Annotated[
    int, typer.Option("--images-per-class", min=1, max=255, help="For maha: sample images per class.")
]
Continue = Annotated[
    str | None,
    typer.Option("--continue", metavar="TASK", show_default=False, help="Add images or classes to your own task."),
]
OneTask = Annotated[
    bool,
    typer.Option("--one-task", help="Learn one task, even if its classes look like separate tasks."),
]
EachFolder = Annotated[
    bool, typer.Option("--each-folder", help="Learn every folder and zip in FOLDER as a separate task.")
]
Note = Annotated[str | None, typer.Option(show_default=False, help="A note for the module's card.")]
Tag = Annotated[
    list[str] | None,
    typer.Option("--tag", show_default=False, help="A tag that other agents can select tasks by; repeatable."),
]
Adapt = Annotated[
    names.AdaptMode,
    typer.Option("--adapt", help="Adapt the backbone to the task; auto: only if that improves accuracy."),
]
AdaptationKind = Annotated[
    names.AdaptationKind,
    typer.Option("--adaptation", help="What --adapt trains: biases, biases with Head2Toe, or an input pattern."),
]
Layers = Annotated[
    str,
    typer.Option(
        "--layers", metavar="all|last-half|last-N|after-norm|NAMES", help="The layers whose outputs get biases."
    ),
]
Epochs = Annotated[
    int | None, typer.Option("--epochs", min=1, show_default=False, help="Epochs for --adapt. Default: 3.")
]
Mirrored = Annotated[bool, typer.Option("--mirrored", help="For --adapt: mirror training images at random.")]
FromPlainHead = Annotated[
    bool, typer.Option("--from-plain-head", help="For --adapt: start from the plain head, not a random one.")
]
WarmMode = Annotated[
    names.WarmMode,
    typer.Option("--warm-start", help="auto: start from known classes of the same name, if that helps."),
]
WarmForm = Annotated[
    names.WarmForm,
    typer.Option("--warm-form", help="How it uses known rows: as a prior's centre, or the paper's two norms."),
]
_VIEWS = "Learn from views too: below 1, the share of images that they replace; from 1, how many are added."
_USUAL = f"{names.USUAL_VIEWS}; 0 with --adapt"
Views = Annotated[
    float | None, typer.Option("--views", min=0, max=names.MOST_VIEWS, help=_VIEWS, show_default=_USUAL)
]
LearnViews = Annotated[
    float | None,
    typer.Option("--learn-views", min=0, max=names.MOST_VIEWS, help=_VIEWS, show_default=str(names.USUAL_VIEWS)),
]
Sharing = Annotated[
    names.Sharing | None,
    typer.Option(
        "--sharing", show_default=False, help="Whether others get the task. Default: as before; shared if new."
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of splits and random choices.")]
Network = Annotated[
    names.Network | None,
    typer.Option("--network", show_default=False, help="For this run; save it with `config network=…`."),
]
Listen = Annotated[
    list[str] | None,
    typer.Option("--listen", metavar="HOST:PORT", show_default=False, help="Address to listen at; repeatable."),
]
Connect = Annotated[
    list[str] | None,
    typer.Option("--connect", metavar="HOST:PORT", show_default=False, help="Address to connect to; repeatable."),
]
TrustMode = Annotated[
    names.Trust | None,
    typer.Option("--trust", show_default=False, help="listed: teachers added by `trust add`; open: everyone."),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log more detail.")]
PagePort = Annotated[
    int | None,
    typer.Option(
        "--port", min=1, max=65535, show_default=False, help="The page's port. Default: 8737, or a free one."
    ),
]
PageHost = Annotated[
    str,
    typer.Option("--host", metavar="ADDRESS", help="The page's address; other machines reach 0.0.0.0, for one."),
]
PageName = Annotated[
    list[str] | None,
    typer.Option(
        "--name", show_default=False, help="Another name by which browsers may call the page; repeatable."
    ),
]
PageTls = Annotated[
    Path | None,
    typer.Option("--tls", metavar="DIR", show_default=False, help="Encrypt, with a folder from `certs issue`."),
]
PageInsecure = Annotated[
    bool, typer.Option("--insecure", help="Allow a --host that others reach without encryption.")
]
