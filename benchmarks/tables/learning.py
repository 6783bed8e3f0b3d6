"""Tables on learning: near-duplicate images that the checks find, and the gain from more training images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import fmean
from typing import Any

from tables import percent, read, source, table

LIMITS = ((0, 30), (30, 100), (100, 10_000))
"""Images per class: more than the first, up to the second."""
SMALL = {
    *("bangla_digits", "bridge_crack", "devanagari_digits", "fashion_mnist", "food101", "gtsrb"),
    *("hoda_persian_digits", "kannada_mnist", "math_symbols", "mnist", "notmnist", "quickdraw3"),
    *("rock_paper_scissors", "telugu_digits"),
}
"""Tasks whose images have 64 pixels on a side or fewer."""


def learning_curve() -> str:
    rows = [[words, str(len(tasks)), *_means(tasks)] for words, tasks in _by_images((*LIMITS, (30, 10_000)))]
    head = (
        "training images per class | tasks | training accuracy, % | validation accuracy, % | test accuracy with "
        "half of the images, % | with all images, % | gain, points | smallest and largest gain"
    )
    return f"{table(head, rows)}\n\n{source('learning-curve')}"


def learning_curve_headline() -> str:
    rows = [[words, str(len(tasks)), *_means(tasks)[2:5]] for words, tasks in _by_images(LIMITS)]
    head = "training images per class | tasks | test accuracy with half of them, % | with all, % | gain, points"
    return f"{table(head, rows)}\n\n{source('learning-curve')}"


def _by_images(limits: Iterable[tuple[int, int]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield for each range of images per class the range in words, and its tasks."""
    tasks = read("learning-curve")["tasks"]
    for low, high in limits:
        words = f"up to {high}" if not low else f"over {low}" + (f", up to {high}" if high < 10_000 else "")
        yield words, [task for task in tasks if low < task["images_per_class"] <= high]


def _means(tasks: list[dict[str, Any]]) -> list[str]:
    keys = ("training_accuracy", "validation_accuracy", "test_accuracy_with_half", "test_accuracy")
    gains = [100 * (task["test_accuracy"] - task["test_accuracy_with_half"]) for task in tasks]
    means = [percent(fmean(task[key] for task in tasks)) for key in keys]
    return [*means, f"{fmean(gains):+.1f}", f"{min(gains):+.1f} to {max(gains):+.1f}"]


def near_twins() -> str:
    result = read("near-twins")
    small, large = (
        [task for task in result["tasks"] if (task["task"] in SMALL) == wanted] for wanted in (True, False)
    )
    rows = [
        [
            way,
            percent(share),
            *(percent(fmean(task["found"][way] for task in part)) for part in (large, small)),
            percent(result["found_of_views"][way]),
        ]
        for way, share in result["found"].items()
    ]
    head = (
        f"how the copy was saved | found in all tasks, % | in {len(large)} tasks with images over 64 pixels, % "
        f"| in {len(small)} tasks with smaller images, % | if the original was learned as a view, %"
    )
    return f"{table(head, rows)}\n\n{source('near-twins')}"


def twins_in_tasks() -> str:
    tasks = [task for task in read("near-twins")["tasks"] if task["pairs"]]
    rows = [
        [
            task["task"],
            f"{task['images']:,}",
            f"{len(task['pairs']):,}",
            str(len(task["pairs_of_two_classes"])),
            *(str(task["left_out"][split]) for split in ("train", "val", "test")),
        ]
        for task in tasks
    ]
    head = (
        "task | images | pairs of near-duplicates | pairs in two classes | images left out of training "
        "| left out of validation | left out of test"
    )
    return f"{table(head, rows)}\n\n{source('near-twins')}"
