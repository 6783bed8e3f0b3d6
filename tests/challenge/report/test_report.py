"""The report: runs beside the paper, complete and correct figures, and a self-contained page."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from reports import column, copied, lengthened, table_of
from running import LEARNED, Ran

from skillmesh.errors import SkillmeshError
from skillmesh_challenge import metrics
from skillmesh_challenge.entries import DIVERGED
from skillmesh_challenge.errors import RunError
from skillmesh_challenge.methods import METHODS
from skillmesh_challenge.metrics import results_of
from skillmesh_challenge.paper.parallel import parallel_cells
from skillmesh_challenge.paper.single import single_cells
from skillmesh_challenge.record import read_record
from skillmesh_challenge.report import Report, bars, curves, make_report, write_report
from skillmesh_challenge.report.collect import Comparison, collect
from skillmesh_challenge.report.figure import Figure
from skillmesh_challenge.report.task_map import project
from skillmesh_challenge.run import Plan, run, sweep

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def runs(one_network: None, tiny_tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a sweep of sketch over 1, 2 and 4 agents with all bounds, and a run of maha without. Read-only."""
    folder = tmp_path_factory.mktemp("runs")
    paths = [tiny_tasks / name for name in LEARNED]
    plan = Plan(paths, METHODS["sketch"], folder / "sketch", agents=1, workers=1, threads=2)
    sweep(plan, agents=[1, 2, 4], seeds=[0])
    run(replace(plan, method=METHODS["maha"], out=folder / "maha", agents=4, bound=False))
    return folder


@pytest.fixture(scope="module")
def made(runs: Path) -> Report:
    return make_report([runs / "sketch", runs / "maha"])


@pytest.fixture(scope="module")
def page(made: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(made, tmp_path_factory.mktemp("report"))


def worse(step: dict[str, Any]) -> None:
    for task in step["tasks"]:
        task["final"] = 0.5


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# What is compared.


def test_numbers_of_agents_are_one_method_and_accuracy_is_drawn_once(made: Report):
    families = made.comparison.families
    assert [family.label for family in families] == ["sketch", "maha"]
    assert [group.agents for group in families[0].groups] == [1, 2, 4]
    assert [group.label for group in made.comparison.shown] == ["sketch", "maha"]
    names = [figure.name for figure in made.figures]
    assert len(set(names)) == len(names)
    assert {"task-1", "first-ten", "mapper", "per-task", "average-accuracy", "bytes", "speedup"} <= set(names)
    assert "learned-and-forgotten" in names
    for method in ("sketch", "maha"):
        assert {f"confusion-{method}", f"task-map-{method}", f"accuracy-matrix-{method}"} <= set(names)


def test_runs_that_differ_in_their_seed_give_a_mean_and_its_interval(runs: Path, tmp_path: Path):
    first = runs / "maha"
    second = copied(first, tmp_path / "other", worse, seed=1)
    report = make_report([first, second])
    (group,) = report.comparison.groups
    best = read_record(first).results
    assert best is not None
    table = table_of(report, "accuracy")
    cell = table.rows[0][table.columns.index("final")]
    values = best["final_accuracy"], 0.5
    assert cell.value == pytest.approx(sum(values) / 2)
    assert cell.spread == pytest.approx(
        12.7062 * abs(values[0] - values[1]) / 2, rel=1e-4
    )  # Student's t, 1 degree
    assert group.average_curve("final")[0] is not None
    table.write(tmp_path)
    (row,) = read_csv(tmp_path / "accuracy.csv")
    assert float(row["final, ±"]) == pytest.approx(cell.spread)


def test_bars_have_a_legend_even_if_the_first_method_is_given_the_task(runs: Path, tmp_path: Path):
    def without_task_found(step: dict[str, Any]) -> None:
        for task in step["tasks"]:
            task["found"] = None

    method = METHODS["gmmc"].settings() | {"label": "given"}
    with_label = copied(runs / "maha", tmp_path / "with-label", without_task_found, method=method)
    for path in ("confusions.json", "sharing.json"):
        (with_label / path).unlink(missing_ok=True)
    drawn = bars.per_task(collect([with_label, runs / "maha"])).draw()
    legend = drawn.axes[0].get_legend()
    assert [label.get_text() for label in legend.get_texts()] == ["task given", "task found", "final"]


def test_tasks_with_zero_accuracy_after_learning_are_counted_as_left_out(runs: Path, tmp_path: Path):
    def unknown_at_first(step: dict[str, Any]) -> None:
        if step["known"] == 2:
            step["tasks"][1]["final"] = 0.0

    copy = copied(runs / "maha", tmp_path / "copy", unknown_at_first)
    report = make_report([copy])
    sentence = "their accuracy just after learning was 0 (all seeds): 1 of maha."
    assert sentence in curves.first_ten(report.comparison).caption
    assert sentence in table_of(report, "lifelong").about
    assert "just after learning was 0" not in curves.first_ten(collect([runs / "maha"])).caption


def test_a_report_is_not_written_into_a_file(command: Callable[..., Ran], runs: Path, tmp_path: Path):
    (tmp_path / "mine.txt").write_text("precious")
    ran = command("challenge", "report", runs, "--out", tmp_path / "mine.txt")
    assert ran.code == 1
    assert "mine.txt is a file" in ran.err
    assert (tmp_path / "mine.txt").read_text() == "precious"


@pytest.mark.parametrize("figure", [curves.task_1, curves.average])
def test_a_band_is_drawn_where_seeds_learned_in_one_order(
    runs: Path, tmp_path: Path, figure: Callable[[Comparison], Figure]
):
    comparison = collect([runs / "maha", copied(runs / "maha", tmp_path / "other", worse, seed=1)])
    steady = figure(comparison)
    assert len(steady.draw().axes[0].collections) == 1
    assert "Bands are" in steady.caption

    (group,) = comparison.groups
    first, second = group.records
    turned = replace(second, settings=replace(second.settings, tasks=second.settings.tasks[::-1]))
    family = replace(comparison.families[0], groups=(replace(group, records=(first, turned)),))
    drawn = figure(replace(comparison, families=(family,)))
    assert not drawn.draw().axes[0].collections
    assert "Bands are" not in drawn.caption
    assert "seeds drew the order" in drawn.caption


def test_no_mean_is_shown_if_one_seed_lacks_the_figure(runs: Path, tmp_path: Path):
    bounded = runs / "sketch" / "agents-004"
    other = copied(bounded, tmp_path / "other", seed=1)
    assert column(table_of(make_report([bounded, other]), "accuracy"), "all data together") != [None]
    (other / "bounds.json").unlink()
    (other / "results.json").write_text(json.dumps(results_of(read_record(other))))
    assert column(table_of(make_report([bounded, other]), "accuracy"), "all data together") == [None]


def test_a_sweep_is_of_runs_that_differ_in_the_number_of_agents_alone(runs: Path, tmp_path: Path):
    copied(runs / "sketch" / "agents-004", tmp_path / "mesh", sharing="mesh")
    report = make_report([runs / "sketch", tmp_path / "mesh"])
    table = table_of(report, "speedup")
    assert column(table, "agents N") == [1, 2, 4]
    assert {row[0].text for row in table.rows} == {"sketch, memory, order"}
    assert "sketch, 4 agents, over a mesh" in [group.label for group in report.comparison.groups]


def test_an_unfinished_run_is_left_out_and_named(runs: Path, tmp_path: Path):
    copied(runs / "maha", tmp_path / "half")
    (tmp_path / "half" / "results.json").unlink()
    report = make_report([runs / "maha", tmp_path / "half"])
    assert len(report.comparison.records) == 1
    assert any("half is not complete" in note for note in report.notes)
    with pytest.raises(RunError, match="none of the 1 runs found is complete"):
        make_report([tmp_path / "half"])
    with pytest.raises(RunError, match="there is no run in"):
        make_report([tmp_path / "half" / "modules"])


def test_runs_of_sweeps_are_named_by_the_shortest_distinct_path_ends(runs: Path, tmp_path: Path):
    for method in ("gmmc", "sketch"):
        copied(runs / "maha", tmp_path / method / "seed-0", method=METHODS[method].settings())
    (tmp_path / "gmmc" / "seed-0" / "results.json").unlink()
    report = make_report([tmp_path / "gmmc", tmp_path / "sketch", runs / "maha"])
    (note,) = [note for note in report.notes if "not complete" in note]
    assert "The run in gmmc/seed-0 is not complete" in note
    assert "repeat the command that started it to resume" in note
    assert [row[0].text for row in table_of(report, "runs").rows] == ["seed-0", "maha"]


def test_two_methods_of_one_name_get_distinct_labels(runs: Path, tmp_path: Path):
    method = read_record(runs / "maha").settings.method | {"images_per_class": 7}
    copied(runs / "maha", tmp_path / "seven", method=method)
    report = make_report([runs / "maha", tmp_path / "seven"])
    assert [family.label for family in report.comparison.families] == ["maha (maha)", "maha (seven)"]


# Tables.


@pytest.mark.parametrize(("name", "cells"), [("table-1", single_cells()), ("table-2", parallel_cells())])
def test_every_printed_figure_is_shown_and_only_contradicted_ones_are_marked(made: Report, name, cells):
    table = table_of(made, name)
    theirs = {row[1].text: row for row in table.rows if row[0].text == "paper"}
    for cell in cells:
        if not cell.printed.place.startswith("table"):
            continue
        shown = theirs[cell.printed.row][table.columns.index(cell.printed.column)]
        assert shown.text == cell.printed.figure.text
        contradicted = cell.ours.value is not None and not cell.ours.value.meets(cell.printed.figure.range)
        measured = cell.printed.column == "average accuracy"
        assert bool(shown.mark) == (contradicted and not measured), cell
        assert not shown.mark or dict(table.notes)[shown.mark]


def test_our_rows_stand_below_the_papers_and_hold_the_results(made: Report, runs: Path):
    table = table_of(made, "table-2")
    who = [(row[0].text, row[1].text) for row in table.rows]
    assert who[:2] == [("ours", "sketch, 2 agents"), ("ours", "sketch, 4 agents")]  # one agent shares nothing
    assert who[who.index(("ours", "maha")) - 1] == ("paper", "LLL, no BB, MAHA")
    results = read_record(runs / "sketch" / "agents-004").results
    assert results is not None
    row = dict(zip(table.columns, table.rows[1], strict=True))
    costs = results["costs"]
    assert row["bytes"].value == costs["received_bytes"]
    assert row["total MACs"].value == pytest.approx(
        costs["teacher"] + 1000 * costs["received_bytes"] + costs["student"]
    )
    assert row["efficiency"].value == costs["efficiency"]
    assert row["average accuracy"].value == results["final_accuracy"]
    assert row["all data together"].value == results["bounds"]["all_data_together"]["final_accuracy"]


def test_tables_are_written_as_csv_with_figures_in_full(page: Path, made: Report):
    for section in made.sections:
        for table in section.all_tables:
            rows = read_csv(page.parent / "tables" / f"{table.name}.csv")
            assert len(rows) == len(table.rows), table.name
    first = read_csv(page.parent / "tables" / "table-1.csv")
    assert float(first[0]["average accuracy"]) == made.comparison.shown[0].first.results["final_accuracy"]
    marked = next(row for row in first if row["method"] == "ER")
    assert marked["marks"].startswith("training MACs: formula 4.61E+18 (note ")


def test_the_mappers_line_is_evaluated_at_the_requested_levels(runs: Path, tmp_path: Path):
    folder = lengthened(runs / "maha", tmp_path / "falling", 20, lambda known: 1 - 0.01 * known)
    table = table_of(make_report([folder], [0.75, 0]), "mapper")
    assert column(table, "meets 75 % at T =")[0] == pytest.approx(25)
    assert column(table, "meets 0 % at T =") == pytest.approx([100, 800, 978])  # ours, and the paper's two


def test_methods_with_very_different_bytes_have_separate_axes(runs: Path, tmp_path: Path):
    def many_times(factor: int) -> Figure:
        target = copied(runs / "maha", tmp_path / str(factor), method=METHODS["gmmc"].settings())
        for path in (target / "learned").glob("*.json"):
            learned = json.loads(path.read_text())
            learned["module_bytes"] *= factor
            learned["parts"] = {part: factor * size for part, size in learned["parts"].items()}
            path.write_text(json.dumps(learned))
        return bars.module_bytes(collect([runs / "maha", target]))

    def widths(figure: Figure) -> list[float]:
        return [axes.get_xlim()[1] for axes in figure.draw().axes]

    near, far = many_times(2), many_times(100)
    assert widths(near)[0] == widths(near)[1]
    assert "the same axis" in near.caption
    assert widths(far)[1] == pytest.approx(100 * widths(far)[0])
    assert "axis of its own" in far.caption


def test_the_bytes_of_a_task_are_all_accounted_for(made: Report, runs: Path):
    table = table_of(made, "bytes")
    sizes = [learned.module_bytes for learned in read_record(runs / "sketch" / "agents-004").learned]
    assert column(table, "all")[:4] == sizes
    assert {"head", "anchor", "probes", "card"} <= set(table.columns)


# Figures.


def test_figures_are_drawn_as_svg_and_png_and_the_same_again(made: Report, page: Path, tmp_path: Path):
    for figure in made.figures:
        svg = page.parent / "figures" / f"{figure.name}.svg"
        assert ElementTree.parse(svg).getroot().tag.endswith("svg")
        with Image.open(svg.with_suffix(".png")) as image:
            assert min(image.size) > 300
            colours = image.convert("RGB").getcolors(1 << 24)
        assert colours is not None
        assert len(colours) > 20, f"{figure.name} is blank"
        assert figure.caption
        assert figure.alt
    made.figures[0].write(tmp_path)
    again = tmp_path / f"{made.figures[0].name}.svg"
    assert again.read_bytes() == (page.parent / "figures" / again.name).read_bytes()


def test_a_map_keeps_distances_that_lie_in_a_plane():
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(9, 2))
    turned = flat @ np.linalg.qr(rng.normal(size=(10, 10)))[0][:2] + 3
    placed, kept = project(turned)

    def distances(points: Any) -> Any:
        return np.linalg.norm(points[:, None] - points[None], axis=2)

    assert distances(placed) == pytest.approx(distances(flat))
    assert kept == pytest.approx(1)


def test_learned_forgotten_and_remaining_accuracy_is_shown_best_first(runs: Path, tmp_path: Path):
    """Four tasks: one method loses a tenth with every later task, the other learns less and keeps it."""

    def falling(step: dict[str, Any]) -> None:
        for at, task in enumerate(step["tasks"]):
            task["final"] = 0.9 - 0.1 * (len(step["tasks"]) - 1 - at)
            task["given"] = 0.95

    def given_and_lower(step: dict[str, Any]) -> None:
        for task in step["tasks"]:
            task["given"] = task["final"] = 0.8

    ours = copied(runs / "maha", tmp_path / "ours", falling)
    others = [
        copied(
            runs / "maha",
            tmp_path / f"other-{seed}",
            lambda step, seed=seed: given_and_lower(step) or _lift(step, 0.02 * seed),
            method={"name": "SI", "kind": "si", "label": "given"},
            seed=seed,
        )
        for seed in range(2)
    ]
    report = make_report([ours, *others])
    table = table_of(report, "learned-and-forgotten")
    assert [row[0].text for row in table.rows] == ["SI, with task label", "maha"]
    assert [row[1].text for row in table.rows] == ["given", "none"]
    assert column(table, "just after learning") == pytest.approx([0.81, 0.95])
    assert column(table, "forgotten") == pytest.approx([0, (0.3 + 0.2 + 0.1) / 3])
    assert column(table, "at the end") == pytest.approx([0.81, 0.75])
    wide = metrics.interval([0.8, 0.82]).half_width
    assert [row[4].spread for row in table.rows] == [pytest.approx(wide), None]
    figure = next(figure for figure in report.figures if figure.name == "learned-and-forgotten")
    assert "Whiskers" in figure.caption
    assert "SI, with task label: 81.0 % just after learning, 0.0 points forgotten, 81.0 % at the end" in figure.alt
    drawn = figure.draw()
    left, middle, right = drawn.axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["SI, with task label", "maha"]
    assert left.get_ylim()[0] > left.get_ylim()[1], "the first row is the topmost"
    dots = [[line for line in axes.lines if line.get_marker() == "o"] for axes in (left, middle, right)]
    places = [[line.get_xdata()[0] for line in some] for some in dots]
    assert places == [pytest.approx([81, 95]), pytest.approx([0, 20]), pytest.approx([81, 75])]
    assert [line.get_markerfacecolor() == "white" for line in dots[0]] == [True, False]
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["task label given", "no task label"]
    ((low, high),) = [segment[:, 0] for whiskers in right.collections for segment in whiskers.get_segments()]
    assert (high - low) / 2 == pytest.approx(100 * wide)
    assert "Whiskers" not in dots_of([ours]).caption


def _lift(step: dict[str, Any], more: float) -> None:
    for task in step["tasks"]:
        task["given"] = task["final"] = task["final"] + more


def dots_of(folders: list[Path]) -> Figure:
    return next(f for f in make_report(folders).figures if f.name == "learned-and-forgotten")


def test_diverged_training_and_trials_of_tuning_are_noted(runs: Path, tmp_path: Path):
    folder = copied(runs / "maha", tmp_path / "diverged")
    assert not any("chance" in note or "tuning" in note for note in make_report([folder]).notes)
    path = sorted((folder / "learned").glob("*.json"))[2]
    learned = json.loads(path.read_text())
    path.write_text(json.dumps(learned | {"notes": [DIVERGED]}))
    whole = json.loads((folder / "run.json").read_text())
    whole["circumstances"]["provenance"]["command"] = "skillmesh challenge tune tasks --method maha --out tuned"
    (folder / "run.json").write_text(json.dumps(whole))
    notes = make_report([folder]).notes
    assert f"maha, seed 0: from {learned['task']} on its {DIVERGED}." in notes
    assert "Measured on validation images, since these are trials of tuning: maha." in notes


def test_a_method_without_modules_or_a_mapper_has_the_figures_that_apply(runs: Path, tmp_path: Path):
    def blind(step: dict[str, Any]) -> None:
        for task in step["tasks"]:
            task["found"] = task["given"] = None

    folder = copied(runs / "maha", tmp_path / "plain", blind, method={"name": "SI", "kind": "other"})
    shutil.rmtree(folder / "modules")
    (folder / "confusions.json").unlink()
    report = make_report([folder])
    write_report(report, tmp_path / "out")
    names = {figure.name for figure in report.figures}
    assert names == {"task-1", "first-ten", "per-task", "average-accuracy", "bytes", "accuracy-matrix-si"}
    assert "No map of tasks for SI: there are no modules." in report.notes
    assert any("learned and forgotten" in note for note in report.notes)
    assert any("task recognition" in note for note in report.notes)
    table = table_of(report, "table-1")
    rows = [(row[0].text, row[1].text) for row in table.rows]
    assert rows[rows.index(("ours", "SI")) - 1] == ("paper", "SI")


def test_missing_matplotlib_names_the_packages(made: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(SkillmeshError, match="pip install matplotlib jinja2"):
        write_report(made, tmp_path)


# The page.


class Read(HTMLParser):
    """Collects the links of a page, and its images without a description."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.mute: list[str] = []
        self.figures: list[str] = []
        self.captions = 0
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag != "a":
            self.addresses += [str(found[key]) for key in ("src", "href", "data", "action") if key in found]
        if tag == "img" and not found.get("alt"):
            self.mute.append(str(found.get("src"))[:80])
        if tag == "figure":
            self.figures.append(str(found["id"]))
        self.captions += tag == "figcaption"


def test_the_page_is_self_contained_and_images_have_descriptions(page: Path, made: Report):
    read = Read(page)
    assert read.figures == [figure.name for figure in made.figures]
    assert read.captions == len(read.figures)
    assert all(address.startswith("data:") for address in read.addresses)
    assert not read.mute
    text = page.read_text()
    assert "@import" not in text
    assert "url(" not in text


def test_names_of_tasks_are_text_and_not_markup(runs: Path, tmp_path: Path):
    folder = copied(
        runs / "maha", tmp_path / "odd", method={"name": "<b>bold\u202e</b>", "mapper": "maha", "biases": "never"}
    )
    text = write_report(make_report([folder]), tmp_path / "out").read_text()
    assert "<b>bold" not in text
    assert "\u202e" not in text, "what turns a line around is shown as an escape"
    assert r"&lt;b&gt;bold\u202e&lt;/b&gt;" in text


def test_images_of_confused_tasks_are_embedded_or_reported_as_missing(runs: Path, tmp_path: Path):
    record = read_record(runs / "maha")
    assert record.confusions is not None
    facts = record.settings.tasks[1]
    image = next(p for p in sorted((Path(facts.path) / "test").rglob("*")) if p.is_file())
    sample = {"task": facts.name, "label": "one", "image": image.relative_to(facts.path).as_posix()}
    sample |= {"taken_for": record.settings.names[0], "answer": "two"}
    gone = sample | {"image": "test/one/gone.png", "label": "other"}

    folder = copied(runs / "maha", tmp_path / "confused")
    counts = [[2, 0, 0, 0], [2, 2, 0, 0], [0, 0, 4, 0], [0, 0, 0, 4]]
    confusions = {"tasks": record.settings.names, "counts": counts, "samples": [sample, gone]}
    (folder / "confusions.json").write_text(json.dumps(confusions))
    (folder / "answers.json").unlink()
    text = write_report(make_report([folder]), tmp_path / "out").read_text()
    assert text.count("data:image/jpeg;base64,") == 1
    assert "one → two" in text
    assert "50.0 % (2 images)" in text
    assert text.count("image missing") == 1
    assert "1 image is missing" in text


PROBE = """
<script>
const box = (e) => { const r = e.getBoundingClientRect(); return [r.x, r.y + scrollY, r.width, r.height]; };
addEventListener("load", () => {
  const figures = [...document.querySelectorAll("figure")].map((figure) => {
    const image = figure.querySelector("img");
    const caption = figure.querySelector("figcaption");
    return { name: figure.id, width: image.naturalWidth, box: box(image), caption: box(caption) };
  });
  const head = document.querySelector("#table-1 th:nth-child(8) button");
  head.click();
  const sorted = [...document.querySelectorAll("#table-1 tbody tr")].map((row) => row.cells[7].textContent);
  const probe = document.createElement("pre");
  probe.id = "probe";
  probe.textContent = JSON.stringify({ figures, sorted });
  document.body.append(probe);
});
</script>
"""


def browse(*words: object) -> str:
    """Open a page in Debian's chromium, without network."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed; on Debian: apt-get install chromium")
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=20000"]
    offline = ["--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1300,16000"]
    call = [browser, *quiet, *offline, *map(str, words)]
    return subprocess.run(call, capture_output=True, text=True, timeout=300, check=True).stdout


def test_a_real_browser_shows_every_figure(page: Path, made: Report, tmp_path: Path):
    unfolded = page.read_text().replace('<details class="part">', '<details class="part" open>')
    opened, probed = tmp_path / "opened.html", tmp_path / "probed.html"
    opened.write_text(unfolded)
    probed.write_text(unfolded.replace("</body>", PROBE + "</body>"))
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    seen = browse(profile, "--dump-dom", probed.as_uri())
    found = json.loads(seen.partition('<pre id="probe">')[2].partition("</pre>")[0])
    assert [figure["name"] for figure in found["figures"]] == [figure.name for figure in made.figures]

    browse(profile, f"--screenshot={tmp_path / 'page.png'}", opened.as_uri())
    with Image.open(tmp_path / "page.png") as image:
        screen = np.asarray(image.convert("L"))
    for figure in found["figures"]:
        assert figure["width"] > 300, f"{figure['name']} was not decoded"
        for x, y, width, height in (figure["box"], figure["caption"]):
            area = screen[round(y) : round(y + height), round(x) : round(x + width)]
            assert area.size > 1000, f"{figure['name']} lies outside the page"
            assert area.min() < 120 < 200 < area.max(), f"{figure['name']} is blank"
            assert (area < 200).mean() > 0.003, f"{figure['name']} is blank"
    shares = [float(text.replace("%", "")) for text in found["sorted"]]
    assert shares == sorted(shares, reverse=True)  # a click on a column sorts by it


def test_a_link_to_the_folded_part_opens_it(page: Path, tmp_path: Path):
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    assert '<details class="part">' in browse(profile, "--dump-dom", page.as_uri())
    assert '<details class="part" open="">' in browse(profile, "--dump-dom", f"{page.as_uri()}#beside-the-paper")


# The command.


def test_the_command_writes_the_report_and_says_where(command: Callable[..., Ran], runs: Path, tmp_path: Path):
    ran = command("challenge", "report", runs / "maha", "--out", tmp_path / "r", "--levels", "95")
    assert ran.code == 0, ran.err
    assert "report.html" in ran.out
    assert (tmp_path / "r" / "report.html").stat().st_size > 50_000
    report = command("challenge", "report", runs / "maha", "--out", tmp_path / "r", "--json").json
    assert report["page"].endswith("report.html")
    assert report["tables"]["accuracy"]["rows"][0][0] == "maha"
    assert "speedup" not in report["figures"]
    assert report["provenance"][0]["data_hash"]


def test_the_command_refuses_invalid_levels(command: Callable[..., Ran], runs: Path, tmp_path: Path):
    ran = command("challenge", "report", runs / "maha", "--out", tmp_path, "--levels", "190")
    assert ran.code == 1
    assert "expected percentages from 0 to 100" in ran.err
