"""Open a collection: find its datasets below a folder, thin them out, hold them against its list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from skillmesh.data.folder import TaskImages, find_tasks, open_task, refuse_too_few_classes, survey_task
from skillmesh.errors import DataError
from skillmesh_challenge.datasets.catalogue import catalogued_names, has_catalogue, open_catalogued
from skillmesh_challenge.datasets.collection import Collection, DatasetRow, collection
from skillmesh_challenge.datasets.places import places
from skillmesh_challenge.datasets.thinning import MAX_CLASSES, Rule, subsample


@dataclass(frozen=True)
class ArchiveMember:
    """One dataset of a collection: what was found of it, and what is wrong with that."""

    row: DatasetRow
    path: Path
    task: TaskImages | None
    """None where it is missing or cannot be read."""
    fault: str = ""
    """Why it cannot be opened, or is not the dataset that the list means."""
    difference: str = ""
    """Sizes that are others than the list's."""

    @property
    def missing(self) -> bool:
        return self.task is None and not self.fault


def open_collection(
    name: str, folder: str | Path, *, seed: int = 0, rule: Rule = "appendix", partial: bool = False
) -> list[TaskImages]:
    """Open the datasets of a collection in its order, thinned out by a seeded draw where the collection says so.

    Parameters
    ----------
    partial
        Take what is there; otherwise a missing dataset, or one with other classes than the list has, is refused.
    """
    members = survey_collection(name, Path(folder), seed=seed, rule=rule)
    missing = missing_words(collection(name), Path(folder), members)
    faults = [f"{member.row.name}: {member.fault}" for member in members if member.fault]
    tasks = [_with_notes(member) for member in members if member.task is not None]
    broken = any(member.fault and member.task is None for member in members)
    if (not partial and (missing or faults)) or broken or not tasks:
        raise DataError("\n".join(filter(None, [missing, *faults])))
    return tasks


def open_tasks(
    words: Sequence[str | Path],
    *,
    dataset: str | None = None,
    seed: int = 0,
    rule: Rule = "appendix",
    partial: bool = False,
) -> list[TaskImages]:
    """Open whatever the user names: tasks, folders of tasks and `NAME:DIR`, in the order given."""
    tasks: list[TaskImages] = []
    for place in places(words, dataset):
        if place.dataset is not None:
            tasks += open_collection(place.dataset, place.path, seed=seed, rule=rule, partial=partial)
        else:
            tasks += [
                open_task(path, hold_out=("val", "test"), seed=seed, one_task=True)
                for path in find_tasks([place.path])
            ]
    twice = sorted(name for name, count in Counter(task.name for task in tasks).items() if count > 1)
    if twice:
        raise DataError(f"two tasks each are named {', '.join(twice)}; rename one, or name its folder once")
    return tasks


def task_paths(words: Sequence[str | Path], *, dataset: str | None = None) -> list[Path]:
    """Where the tasks lie that `open_tasks` opens, as far as they are there."""
    found: list[Path] = []
    for place in places(words, dataset):
        if place.dataset is None:
            found += find_tasks([place.path])
        else:
            known = collection(place.dataset)
            found += [path for row in known.rows if (path := _place_of(known, row, place.path)) is not None]
    return found


def survey_collection(name: str, folder: Path, *, seed: int = 0, rule: Rule = "appendix") -> list[ArchiveMember]:
    """Look for every dataset of the list, in its order; nothing is refused but a folder that is not there."""
    known = collection(name)
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; {how_to_get(known)}")
    catalogued = catalogued_names(folder) if known.subsampled and has_catalogue(folder) else set()
    return [_survey(known, row, folder, catalogued, seed, rule) for row in known.rows]


def _survey(
    known: Collection, row: DatasetRow, folder: Path, catalogued: set[str], seed: int, rule: Rule
) -> ArchiveMember:
    path = _place_of(known, row, folder)
    if path is None:
        return ArchiveMember(row, folder / row.name, None)
    try:
        if row.name in catalogued:
            task = open_catalogued(folder, row.name)
        else:
            hold_out = ("val",) if known.val_as_test else ("val", "test")
            task = survey_task(path, name=row.name, hold_out=hold_out, seed=seed, val_as_test=known.val_as_test)
        refuse_too_few_classes(task, path)
    except (DataError, OSError) as error:
        return ArchiveMember(row, path, None, str(error))
    fault = _fault(row, len(task.classes), known.subsampled)
    if known.subsampled:
        task = subsample(task, rule=rule, seed=seed)
    return ArchiveMember(row, path, task, fault, _difference(known, row, task))


def _place_of(known: Collection, row: DatasetRow, folder: Path) -> Path | None:
    names = known.folder_names(row)
    candidates = [folder / name for name in names] + [folder / f"{name}.zip" for name in names]
    return next((path for path in candidates if path.exists()), None)


def _fault(row: DatasetRow, classes: int, subsampled: bool) -> str:
    allowed = {row.classes, min(row.classes, MAX_CLASSES) if subsampled else row.classes}
    if classes in allowed:
        return ""
    return f"{classes:,} classes were found, the list says {row.classes:,}; complete it, or take it so (--partial)"


def _difference(known: Collection, row: DatasetRow, task: TaskImages) -> str:
    """Sizes beside the list's. Where `val` is tested on, validation images were cut from `train`."""
    found = {split: len(part) for split, part in task.splits.items()}
    listed = {"train": row.train, "val": row.val, "test": row.test}
    if known.val_as_test:
        found = {"train and val": found["train"] + found["val"], "test": found["test"]}
        listed = {"train and val": row.train, "test": row.val}
    other = [split for split in found if found[split] != listed[split]]
    sizes = ", ".join(f"{found[split]:,} images in {split} (the list says {listed[split]:,})" for split in other)
    return f"other sizes than the list's: {sizes}" if other else ""


def _with_notes(member: ArchiveMember) -> TaskImages:
    assert member.task is not None
    return replace(member.task, notes=(*member.task.notes, *filter(None, (member.fault, member.difference))))


def missing_words(known: Collection, folder: Path, members: list[ArchiveMember]) -> str:
    """Say which datasets are missing, which were found, and where the missing ones are to be had."""
    missing = [member.row.name for member in members if member.missing]
    if not missing:
        return ""
    found = [member.row.name for member in members if not member.missing]
    return (
        f"{known.name} at {folder}: {len(missing)} of {len(members)} datasets are missing ({', '.join(missing)}); "
        f"found {len(found)} ({', '.join(found) or 'none'}); {how_to_get(known)}; "
        "--partial takes what is there"
    )


def how_to_get(known: Collection) -> str:
    return f"{known.title} is to be had at {known.source}; expected {known.layout}"
