"""What a new user sees first in a report: their tasks, classes and images, and no misleading figure."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reports import column, copied, lengthened, table_of
from running import LEARNED

from skillmesh_challenge.methods import METHODS
from skillmesh_challenge.metrics import FEWEST_TASKS, results_of
from skillmesh_challenge.record import read_record
from skillmesh_challenge.report import Report, curves, dots, lines, make_report, speedup, write_report
from skillmesh_challenge.report.bounds import bounds_in_words
from skillmesh_challenge.report.collect import collect
from skillmesh_challenge.run import Plan, run

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def tasks(tiny_tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return four tiny tasks; in one, a training image of one class is among the test images of the other."""
    folder = tmp_path_factory.mktemp("tasks") / "own"
    for name in LEARNED:
        shutil.copytree(tiny_tasks / name, folder / name)
    first, second = sorted(path.name for path in (folder / "shapes" / "test").iterdir())
    image = sorted((folder / "shapes" / "train" / second).iterdir())[0]
    shutil.copy(image, folder / "shapes" / "test" / first / "misplaced.jpg")
    return folder


@pytest.fixture(scope="module")
def plan(one_network: None, tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    out = tmp_path_factory.mktemp("runs") / "sketch"
    return Plan([tasks / name for name in LEARNED], METHODS["sketch"], out, agents=2, workers=1, threads=1)


@pytest.fixture(scope="module")
def made(plan: Plan) -> Path:
    """A run with all parts of a record. Tests must not change it."""
    return run(plan).folder


@pytest.fixture(scope="module")
def report(made: Path) -> Report:
    return make_report([made])


@pytest.fixture(scope="module")
def text(report: Report, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(report, tmp_path_factory.mktemp("report")).read_text()


def share_of(value: float) -> Callable[[dict[str, Any]], None]:
    """Return a function that sets all figures of a step to this share."""

    def change(step: dict[str, Any]) -> None:
        for task in step["tasks"]:
            task["final"] = task["given"] = task["found"] = value

    return change


def with_bound(folder: Path, share: float) -> Path:
    """Set the accuracy of the classifier on all data together."""
    bounds = json.loads((folder / "bounds.json").read_text())
    for task in bounds["tasks"]:
        task["final"] = share
    (folder / "bounds.json").write_text(json.dumps(bounds))
    (folder / "results.json").write_text(json.dumps(results_of(read_record(folder))))
    return folder


# The order of the page.


def test_the_page_opens_with_the_users_tasks_and_the_paper_comes_last_and_folded(report: Report, text: str):
    titles = [section.title for section in report.sections]
    assert titles[:3] == ["Your tasks", "Errors by class", "Confused tasks"]
    assert titles[-1] == "Beside the paper"
    own, paper = text.index('id="your-tasks"'), text.index('<section id="beside-the-paper">')
    assert own < text.index('id="per-task"') < text.index('id="classes-sketch"') < paper
    folded = text[paper:]
    assert folded.startswith('<section id="beside-the-paper">\n<details class="part"><summary>')
    inside = folded.partition("</section>")[0]
    for name in ("table-1", "table-2", "task-1", "first-ten", "mapper"):
        assert f'id="{name}"' in inside
        assert text.count(f'id="{name}"') == 1
    assert "<details class=" not in text[:paper], "nothing of the user's own is folded"


def test_every_task_is_first_with_its_accuracy_and_most_frequent_mistake(report: Report, text: str, made: Path):
    first = report.sections[0]
    assert first.tables[0].name == "your-tasks"
    record = read_record(made)
    table = first.tables[0]
    assert [row[1].text for row in table.rows] == list(LEARNED)
    assert column(table, "final") == [task.final for task in record.steps[-1].tasks]
    assert record.results is not None
    sentence = f"sketch: {100 * record.results['final_accuracy']:.1f} % of the test images"
    assert sentence in first.lead[0]
    assert sentence in text
    assert "(1 of 3 images)" in table.rows[LEARNED.index("shapes")][-1].text


# Axes.


@pytest.mark.parametrize("share", [1.0, 0.985, 0.31])
def test_axes_of_per_cents_end_at_100(made: Path, tmp_path: Path, share: float):
    folder = copied(made, tmp_path / "run", share_of(share))
    other = copied(made, tmp_path / "other", share_of(share), agents=4)
    comparison = collect([folder, other])
    forgotten = dots.learned_and_forgotten(comparison)
    recognition = lines.mapper(comparison, [0.5])
    ahead = lines.mapper(collect([lengthened(made, tmp_path / "long", 20, lambda _: share)]), [0.5])
    assert forgotten is not None
    assert recognition is not None
    assert ahead is not None
    drawn = [curves.task_1, curves.average, curves.first_ten]
    upright = [axes for figure in drawn for axes in figure(comparison).draw().axes]
    upright += [*recognition.draw().axes, *ahead.draw().axes]
    ends = [axes.get_ylim() for axes in upright if axes.get_visible()]
    left, _, right = forgotten.draw().axes
    ends += [left.get_xlim(), right.get_xlim()]
    assert [high for _, high in ends] == [100.0] * len(ends)
    for axes in upright:
        for line in axes.lines:
            if line.get_marker() not in ("", "None", None):
                assert not line.get_clip_on(), "a marker at 100 % would be cut in half"
                assert min(line.get_ydata()) >= axes.get_ylim()[0]


def test_a_task_that_got_better_is_not_cut_off_at_100(made: Path, tmp_path: Path):
    def better(step: dict[str, Any]) -> None:
        for task in step["tasks"]:
            task["final"] = 0.5 + 0.05 * step["known"]

    figure = curves.first_ten(collect([copied(made, tmp_path / "better", better)]))
    (axes,) = figure.draw().axes
    assert axes.get_ylim()[1] >= 100 * 0.7 / 0.55 > 100


def test_a_band_is_not_cut_off_at_the_lower_end(made: Path, tmp_path: Path):
    both = [copied(made, tmp_path / f"{seed}", share_of(0.9 + 0.02 * seed), seed=seed) for seed in range(2)]
    comparison = collect(both)
    lowest = comparison.shown[0].average_curve("final")[0]
    assert lowest is not None
    assert lowest.half_width is not None
    (axes,) = curves.average(comparison).draw().axes
    assert axes.get_ylim()[0] <= 100 * (lowest.mean - lowest.half_width)


def test_the_axis_of_efficiency_ends_at_1(made: Path, tmp_path: Path):
    copied(made, tmp_path / "one", agents=1, assignment={"a001": list(LEARNED)})
    figure = speedup.speedup(collect([made, tmp_path / "one"]))
    assert figure is not None
    assert figure.draw().axes[1].get_ylim() == (0.0, 1.0)


# Bounds.


def test_a_bound_below_the_result_is_not_called_an_upper_bound(made: Path, tmp_path: Path):
    folder = with_bound(copied(made, tmp_path / "run", share_of(0.8)), 0.7)
    report = make_report([folder])
    words = "one classifier trained on all data together is not a bound here: the result is higher"
    assert words in bounds_in_words(report.comparison.shown)
    figure = curves.average(report.comparison)
    assert "upper bound" not in figure.title.lower()
    assert words in figure.caption
    assert "Upper bound: the task given." in figure.caption
    assert "sketch, all data (not a bound here)" in figure.table.columns
    names = [text.get_text() for text in figure.draw().axes[0].texts]
    assert "sketch, all data (not a bound here), 70.0 %" in names
    for name in ("accuracy", "table-1", "table-2"):
        table = table_of(report, name)
        cell = next(row for row in table.rows if row[0].text in ("ours", "sketch"))
        marked = cell[table.columns.index("all data together")]
        assert dict(table.notes)[marked.mark].endswith("not a bound here: the result is higher.")
        assert "Upper bounds" not in table.about
    table_of(report, "accuracy").write(tmp_path)
    assert "all data together: note 1" in (tmp_path / "accuracy.csv").read_text()


def test_a_bound_at_or_above_the_result_is_called_an_upper_bound(made: Path, tmp_path: Path):
    for share in (0.8, 0.9):
        report = make_report([with_bound(copied(made, tmp_path / f"{share}", share_of(0.8)), share)])
        table = table_of(report, "accuracy")
        assert "Upper bounds: the task given, and one classifier trained on all data together." in table.about
        assert not table.notes
        assert "sketch, all data" in curves.average(report.comparison).table.columns


def test_methods_above_and_below_the_bound_are_distinguished(made: Path, tmp_path: Path):
    low = with_bound(copied(made, tmp_path / "low", share_of(0.5)), 0.7)
    high = copied(low, tmp_path / "high", share_of(0.8), method=METHODS["maha"].settings())
    words = bounds_in_words(collect([low, high]).shown)
    assert "one classifier trained on all data together (for sketch)" in words
    assert "For maha, one classifier trained on all data together is not a bound here" in words


# No extrapolation from a few tasks.


def test_nothing_is_extrapolated_from_a_few_tasks_and_the_page_says_why(report: Report, text: str):
    (note,) = [note for note in report.notes if "extrapolated" in note]
    assert note.startswith(
        "No line is fitted and nothing is extrapolated for sketch (4 tasks): that takes 20 tasks."
    )
    assert "100/n points" in note
    assert "nothing is extrapolated" in text
    figure = lines.mapper(report.comparison, [0.5, 0.0])
    assert figure is not None
    assert [axes.get_xlim()[1] <= 5 for axes in figure.draw().axes] == [True], (
        "one panel, no further than the data"
    )
    ours = [row for row in figure.table.rows if row[0].text == "ours"]
    assert [[cell.text for cell in row[4:]] for row in ours] == [["–", "–", "–"]]
    results = report.comparison.records[0].results
    assert results is not None
    assert results["lifelong"]["mapper_line"] is None


def test_a_line_is_extrapolated_from_the_minimum_number_of_tasks(made: Path, tmp_path: Path):
    def falling(known: int) -> float:
        return 1 - 0.01 * known

    few = collect([lengthened(made, tmp_path / "few", FEWEST_TASKS - 1, falling)])
    enough = collect([lengthened(made, tmp_path / "enough", FEWEST_TASKS, falling)])
    assert lines.why_no_line(few)
    assert not lines.why_no_line(enough)
    figure = lines.mapper(enough, [0.0])
    assert figure is not None
    assert len(figure.draw().axes) == 2
    assert column(figure.table, "meets 0 % at T =")[0] == pytest.approx(100)
    results = enough.records[0].results
    assert results is not None
    assert results["lifelong"]["mapper_line"]["slope"] == pytest.approx(-0.01)


# Errors by class.


def test_a_run_records_the_confusions_of_every_class(made: Path, tasks: Path):
    record = read_record(made)
    assert record.answers is not None
    assert [task.task for task in record.answers.tasks] == list(LEARNED)
    for task, step in zip(record.answers.tasks, record.steps[-1].tasks, strict=True):
        assert sum(each.right for each in task.classes) / step.images == pytest.approx(step.final)
        assert sum(each.images for each in task.classes) == step.images
        for each in task.classes:
            assert each.right + sum(mistake.images for mistake in each.mistakes) == each.images
            for name in (*each.samples, *(name for mistake in each.mistakes for name in mistake.samples)):
                assert (tasks / task.task / name).is_file()
    shapes = record.answers.tasks[LEARNED.index("shapes")]
    first, second = shapes.classes
    misplaced = (f"test/{first.label}/misplaced.jpg",)
    (mistake,) = [mistake for mistake in first.mistakes if mistake.samples == misplaced]
    assert (mistake.taken_for, mistake.answer, mistake.images) == ("shapes", second.label, 1)


def test_recall_of_every_class_and_the_confused_pairs_are_listed(report: Report, made: Path):
    table = table_of(report, "classes-sketch")
    record = read_record(made)
    assert record.answers is not None
    assert len(table.rows) == sum(len(task.classes) for task in record.answers.tasks)
    assert column(table, "recall") == sorted(column(table, "recall")), "the lowest come first"
    first, second = (each.label for each in record.answers.tasks[LEARNED.index("shapes")].classes)
    row = next(row for row in table.rows if (row[0].text, row[1].text) == ("shapes", first))
    assert row[table.columns.index("recall")].value == pytest.approx(2 / 3)
    assert row[table.columns.index("other class")].value == 1
    assert row[table.columns.index("most often taken for")].text == f"{second}, 1"
    pairs = table_of(report, "class-pairs-sketch")
    assert ["shapes", first, second, "1", "0", "20.00 %"] in [[cell.text for cell in row] for row in pairs.rows]
    assert column(pairs, "images") == sorted(column(pairs, "images"), reverse=True)


def test_images_answered_right_and_wrong_are_embedded_in_the_page(report: Report, text: str):
    (samples,) = report.sections[1].samples
    assert {task.task for task in samples.tasks} == set(LEARNED)
    shares = [task.right_images / task.images for task in samples.tasks]
    assert shares == sorted(shares), "the lowest accuracy comes first"
    shapes = next(task for task in samples.tasks if task.task == "shapes")
    assert shapes.right
    assert [thumbnail.name.endswith("misplaced.jpg") for thumbnail in shapes.wrong] == [True]
    inside = text[text.index("Test images, sketch") :].partition("</section>")[0]
    count = sum(len(task.right) + len(task.wrong) for task in samples.tasks)
    assert inside.count('src="data:image/jpeg;base64,') == count
    assert f'alt="{shapes.wrong[0].label} → {shapes.wrong[0].answer}"' in inside
    assert "4 of 5 answered right" in inside


def test_missing_images_are_reported_as_missing(made: Path, tmp_path: Path):
    folder = copied(made, tmp_path / "run")
    whole = json.loads((folder / "run.json").read_text())
    places = [str(tmp_path / "nowhere"), "", *(task["path"] for task in whole["settings"]["tasks"][2:])]
    for task, path in zip(whole["settings"]["tasks"], places, strict=True):
        task["path"] = path
    (folder / "run.json").write_text(json.dumps(whole))
    report = make_report([folder])
    (samples,) = report.sections[1].samples
    assert {task.task for task in samples.tasks if task.gone} == set(LEARNED[:2])
    text = write_report(report, tmp_path / "out").read_text()
    assert text.count("The images are no longer in the folder that the run used.") == 2
    missing = sum(task.missing for task in samples.tasks)
    assert f"{missing} images are missing: they are no longer in the folders that the run used." in text
    assert "shapes" in [row[0].text for row in table_of(report, "classes-sketch").rows]


def test_a_run_of_an_earlier_release_is_read_and_completed(made: Path, plan: Plan, tmp_path: Path):
    old = tmp_path / "old"
    shutil.copytree(made, old)
    (old / "answers.json").unlink()
    assert read_record(old).answers is None
    report = make_report([old])
    (note,) = [note for note in report.notes if "errors by class" in note]
    assert "for sketch: the run has no answers.json" in note
    page = write_report(report, tmp_path / "out").read_text()
    assert "No errors by class and no sample images for sketch" in page
    assert "Test images, sketch" not in page
    assert [row[-1].text for row in table_of(report, "your-tasks").rows] == ["–"] * 4

    learned = [path.read_bytes() for path in sorted((old / "modules").iterdir())]
    again = run(replace(plan, out=old))
    assert again.answers == read_record(made).answers
    assert [path.read_bytes() for path in sorted((old / "modules").iterdir())] == learned
    assert not any("errors by class" in note for note in make_report([old]).notes)
