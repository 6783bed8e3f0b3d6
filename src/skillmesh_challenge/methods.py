"""Methods of the challenge: by name, or by a small TOML file.

A method is anything that learns a list of tasks and is tested on them after each. `SkillMethod` is ours and the
paper's: agents with a common backbone that share modules, with a choice of representation, head, biases and
mapper. Methods that learn in another way (such as one network trained task after task) register their own kind.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, get_type_hints

from pydantic import TypeAdapter, ValidationError

from skillmesh.backbone.spec import names_folder, require_engine, resolve
from skillmesh.common.choices import AdaptationKind, AdaptMode, AnchorKind, Representation
from skillmesh.common.config import AgentConfig
from skillmesh.common.extras import TORCH
from skillmesh.errors import BackboneError
from skillmesh_challenge.errors import RunError

if TYPE_CHECKING:
    from skillmesh_challenge.run import Plan
    from skillmesh_challenge.stage import Stage

BiasMode = Literal["never", "auto", "always"]
"""Names as in the records of runs; `Adaptation.mode` calls the first one `none`."""
HeadKind = Literal["linear", "head2toe"]


class Method(Protocol):
    """Interface of a method of the challenge."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str:
        """Name under which its class is registered."""
        ...

    def settings(self) -> dict[str, Any]:
        """Return all settings that affect its results as a JSON-compatible dict, with `name` and `kind`."""
        ...

    def refuse(self, plan: Plan) -> None:
        """Raise RunError, before a run begins, if the plan asks for something that this method cannot do."""
        ...

    def play(self, stage: Stage) -> None:
        """Learn the stage's tasks in order and test after each; write all results with the stage's `keep_…`.

        Parts that the record already holds are not repeated, so that a killed run resumes where it was.
        """
        ...


def refuse_wrong_settings(method: Any) -> None:
    """Raise RunError if a setting does not match its field's type: a choice, or a number within bounds."""
    for name, kind in _types(method.__class__).items():
        value = getattr(method, name)
        try:
            kind.validate_python(value, strict=True)
        except ValidationError as error:
            expected = _in_words(kind.json_schema())
            raise RunError(f"the method {method.name!r} has {name} = {value!r}; expected {expected}") from error


@cache
def _types(settings: type[Any]) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(settings, include_extras=True)
    return {field.name: TypeAdapter(hints[field.name]) for field in fields(settings)}


def _in_words(schema: dict[str, Any]) -> str:
    schema = next((kind for kind in schema.get("anyOf", ()) if kind["type"] != "null"), schema)
    if "enum" in schema:
        return ", ".join(schema["enum"])
    if "exclusiveMinimum" in schema:
        return f"more than {schema['exclusiveMinimum']:g}, up to {schema['maximum']:g}"
    words = {"string": "a text", "boolean": "true or false", "number": "a number", "integer": "a whole number"}
    return words[schema["type"]] + (f" from {schema['minimum']:g} up" if "minimum" in schema else "")


@dataclass(frozen=True)
class SkillMethod:
    """Agents that share modules: representation × head × biases × mapper."""

    name: str
    backbone: str = "lite0"
    weights: str | None = None
    calibration: str | None = None
    representation: Representation = "descriptor"
    compact: bool = False
    head: HeadKind = "linear"
    biases: BiasMode = "never"
    adaptation: AdaptationKind = "biases"
    """Kind of adaptation that `biases` switches on; a `head2toe` head has its own kind."""
    layers: str = "all"
    epochs: int | None = None
    mapper: AnchorKind = "sketch"
    rank: int = 8
    clusters: int = 25
    variance_floor: float = 1e-6
    images_per_class: int = 5

    kind = "skill"

    def __post_init__(self) -> None:
        refuse_wrong_settings(self)
        if self.head == "head2toe" and self.biases == "never":
            raise RunError(
                f"the method {self.name!r} has a head2toe head, which needs biases; set biases to auto or always"
            )
        self.config("check", 0)

    def settings(self) -> dict[str, Any]:
        return asdict(self) | {"kind": self.kind}

    @property
    def adapt_mode(self) -> AdaptMode:
        return "none" if self.biases == "never" else self.biases

    @property
    def adapts(self) -> AdaptationKind:
        return "head2toe" if self.head == "head2toe" else self.adaptation

    def config(self, agent: str, seed: int) -> AgentConfig:
        """Return the settings of one of its agents."""
        return AgentConfig.of(
            {
                "name": agent,
                "backbone": self.backbone,
                "weights": self.weights,
                "representation": self.representation,
                "compact": self.compact,
                "anchor": self.mapper,
                "rank": self.rank,
                "clusters": self.clusters,
                "variance_floor": self.variance_floor,
                "images_per_class": self.images_per_class,
                "seed": seed,
            }
        )

    def refuse(self, plan: Plan) -> None:
        """Raise an error if a package is missing; accept every plan."""
        from skillmesh.anchors import require_to_fit

        require_engine(self.backbone, None if self.weights is None else Path(self.weights))
        require_to_fit(self.mapper)
        if self.biases != "never":
            TORCH.require("training an adaptation", BackboneError)

    def play(self, stage: Stage) -> None:
        from skillmesh_challenge.agents import play

        play(self, stage)


KINDS: dict[str, Callable[..., Method]] = {"skill": SkillMethod}
"""Kinds of methods by name; each is called with a method's settings."""
METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        SkillMethod("sketch"),
        SkillMethod("sketch-compact", compact=True),
        SkillMethod("sketch-auto", biases="auto"),
        SkillMethod("gmmc", representation="features", mapper="gmmc"),
        SkillMethod("gmmc-floored", representation="sqrt-features", mapper="gmmc", variance_floor=0.01),
        SkillMethod("maha", representation="features", mapper="maha"),
        SkillMethod("gmmc-biases", representation="features", mapper="gmmc", biases="always"),
        SkillMethod("maha-biases", representation="features", mapper="maha", biases="always"),
    )
}


def register_kind(kind: str, make: Callable[..., Method]) -> None:
    """Allow `kind = "…"` in method files; `make` is called with all their other settings."""
    if kind in KINDS:
        raise RunError(f"a kind of method is named {kind!r} already; choose another name")
    KINDS[kind] = make


def register(method: Method) -> None:
    """Make a method available by its name for `--method`."""
    if method.name in METHODS:
        raise RunError(f"a method is named {method.name!r} already; choose another name")
    METHODS[method.name] = method


def find_method(text: str, changes: dict[str, Any] | None = None) -> Method:
    """Return a method by its name or from a TOML file, with the settings in `changes` replaced."""
    method = _from_file(Path(text)) if text.endswith(".toml") else METHODS.get(text)
    if method is None:
        raise RunError(f"there is no method {text!r}; expected {', '.join(METHODS)}, or a .toml file")
    changes = {name: value for name, value in (changes or {}).items() if value is not None}
    if not changes:
        return method
    if "backbone" in changes:
        changes |= _resolved(changes["backbone"], changes.get("weights"))
        if changes["backbone"] != method.settings().get("backbone"):  # the method's own files belong to that one
            changes = {name: None for name in ("weights", "calibration") if name in method.settings()} | changes
    unknown = [name for name in changes if name not in method.settings()]
    if unknown or not is_dataclass(method):
        raise RunError(f"the method {method.name!r} takes no {', '.join(unknown or changes)}; leave it out")
    return cast(Method, replace(method, **changes))


def _resolved(backbone: str, weights: str | None = None) -> dict[str, str]:
    """Return a backbone that a user typed as settings; it may be the folder of an exported network."""
    name, path = resolve(backbone, None if weights is None else Path(weights))
    return {"backbone": name} | ({} if path is None else {"weights": str(path)})


def _from_file(path: Path) -> Method:
    """Return the method in a file such as `base = "gmmc"`, `clusters = 50`; the file's name is the default."""
    try:
        given = tomllib.loads(path.read_text())
        written = dict(given)
    except FileNotFoundError:
        raise RunError(f'there is no file {path}; expected one with lines such as base = "gmmc"') from None
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read the method {path}: {error}; expected lines such as clusters = 50") from error
    if not given.keys() & {"base", "kind"}:
        raise RunError(
            f'{path} does not say which method it changes; begin it with a line such as base = "sketch"'
        )
    base = METHODS.get(str(given.get("base")))
    kind = given.pop("kind", "skill" if base is None else base.kind)
    if str(kind) not in KINDS:
        raise RunError(f"{path} has kind = {kind!r}; expected {', '.join(KINDS)}")
    values = {"name": path.stem} | given
    if "base" in given:
        del values["base"]
        if base is None or base.kind != kind:
            same = ", ".join(
                name for name, method in METHODS.items() if "kind" not in written or method.kind == kind
            )
            raise RunError(f"{path} has base = {given['base']!r}; expected {same}")
        values = {name: value for name, value in base.settings().items() if name != "kind"} | values
    _beside(path, values)
    make = KINDS[kind]
    known = [field.name for field in fields(make)] if is_dataclass(make) else list(values)
    if unknown := [name for name in values if name not in known]:
        raise RunError(
            f"{path} sets {', '.join(unknown)}, which {kind} does not have; expected {', '.join(known)}"
        )
    try:
        return make(**values)
    except TypeError as error:
        raise RunError(f"{path} cannot be read as a method: {error}; expected {', '.join(known)}") from error


def _beside(path: Path, values: dict[str, Any]) -> None:
    """Make paths in a method's file relative to the folder of that file; a backbone with a slash is one too."""
    for name in ("weights", "calibration"):
        if values.get(name) is not None:
            values[name] = str(path.parent / str(values[name]))
    if names_folder(backbone := str(values.get("backbone", ""))):
        values |= _resolved(str((path.parent / backbone).absolute()), values.get("weights"))
