"""The paper's arithmetic: its figures as printed, ours beside them, and why they differ."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from running import PLAIN, Ran

from skillmesh.cli import show
from skillmesh.errors import SkillmeshError
from skillmesh_challenge.paper import inputs, parallel, report, sharing
from skillmesh_challenge.paper.cells import Ours, PaperCell, Printed, printed, printed_ranges
from skillmesh_challenge.paper.datasets import Dataset, listed, skill102, sums
from skillmesh_challenge.paper.figures import PaperFigure, Range
from skillmesh_challenge.paper.replay import exact_time, tasks_until, total_time
from skillmesh_challenge.studies import STUDIES, StudySettings, run_study
from skillmesh_challenge.studies.maha import covariance_macs, inverse_macs

RESULTS = Path(__file__).parents[3] / "docs" / "results"
FOUND = report()
LLL = ("LLL, no BB, GMMC", "LLL, BB, GMMC", "LLL, no BB, MAHA", "LLL, BB, MAHA")


def cell(table: str, row: str, column: str) -> dict[str, str]:
    (found,) = (c for c in FOUND["tables"][table]["cells"] if (c["row"], c["column"]) == (row, column))
    return found


class TestFigures:
    @pytest.mark.parametrize(
        ("text", "low", "high"),
        [
            ("1.73E+16", 1.725e16, 1.735e16),
            ("~90.7x", 90.65, 90.75),
            ("404 KBytes", 403_500, 404_500),
            ("3.45 MBytes", 3.445e6, 3.455e6),
            ("17,472", 17_471.5, 17_472.5),
            ("22k", 21_500, 22_500),
            ("67.43%", 0.67425, 0.67435),
            ("1x (reference)", 1, 1),
            ("<2 MBytes", 0, 2e6),
            (">5,000x", 5000, float("inf")),
        ],
    )
    def test_a_figure_is_all_numbers_that_are_printed_like_it(self, text: str, low: float, high: float):
        assert PaperFigure(text).range.low == pytest.approx(low, rel=1e-12)
        assert PaperFigure(text).range.high == pytest.approx(high, rel=1e-12)

    def test_numbers_are_written_the_way_the_paper_has_them(self):
        assert PaperFigure("1.73E+16").like(Range.of(1.7254e16)) == "1.73E+16"
        assert PaperFigure("404 KBytes").like(Range.of(404_219.0)) == "404 KBytes"
        assert PaperFigure("~90.7x").like(Range(89.63, 90.72)) == "89.6 to 90.7x"
        assert PaperFigure("<2 MBytes").like(Range.of(1.815e6)) == "1.8 MBytes"

    def test_every_printed_figure_can_be_read_and_written_again(self):
        for table in FOUND["tables"]:
            for entry in printed(table):
                assert entry.figure.range.meets(entry.figure.range)
                digits = entry.figure.text.lstrip("~<>").removesuffix(" (reference)").replace(",", "")
                if entry.figure.text[0] not in "<>":
                    assert entry.figure.like(Range.of(entry.figure.range.middle)).replace(",", "") in (
                        digits,
                        digits.replace(" M", "M"),
                    )

    def test_a_verdict_follows_from_what_meets(self):
        def verdict(ours: Ours, column: str = "bytes") -> str:
            return PaperCell(Printed("row", column, PaperFigure("1.73E+16"), "table 1"), ours).verdict

        near, far = Range.of(1.7349e16), Range.of(1.7351e16)
        assert verdict(Ours(near)) == "agrees"
        assert verdict(Ours(far)) == "no explanation"
        assert verdict(Ours(far, reached=near)) == "explained"
        assert verdict(Ours(far, reached=far)) == "no explanation"
        assert verdict(Ours()) == "no formula"
        assert verdict(Ours(near), "average accuracy") == "measured"


class TestTables:
    def test_every_cell_of_both_tables_is_there(self):
        assert len(FOUND["tables"]["single"]["cells"]) == 12 * 3
        assert len(FOUND["tables"]["parallel"]["cells"]) == 5 * 7 + 1

    def test_each_cell_that_differs_says_why_or_that_nobody_knows(self):
        for table in FOUND["tables"].values():
            for c in table["cells"]:
                assert c["verdict"] != "explained" or c["assumption"]
                assert c["verdict"] not in ("no explanation", "no formula") or c["remark"], c
                assert c["ours"] is None or c["formula"], c

    def test_what_stays_without_an_explanation(self):
        open_ = [(c["row"], c["column"]) for t in FOUND["tables"].values() for c in t["cells"]]
        verdicts = [c["verdict"] for t in FOUND["tables"].values() for c in t["cells"]]
        assert [key for key, verdict in zip(open_, verdicts, strict=True) if verdict == "no explanation"] == [
            ("ER", "training MACs"),
            ("Parallel SUPSUP", "bytes"),
            ("images per task (S)", "number"),
            ("images per class", "number"),
            ("neurons of Xception", "number"),
            ("tasks before the slope changes", "number"),
            ("maha MACs per image", "MACs"),
        ]

    @pytest.mark.parametrize("row", LLL)
    def test_table_2_is_of_102_agents(self, row: str):
        for column in ("teacher MACs", "bytes"):
            assert cell("parallel", row, column)["verdict"] == "explained"

    def test_no_other_number_of_received_tasks_reaches_the_bytes(self):
        bytes_ = printed_ranges("parallel")["LLL, no BB, GMMC", "bytes"]
        each = parallel.WAYS["LLL, no BB, GMMC"].sent
        assert [n for n in range(1, 103) if Range.of(n * each).meets(bytes_)] == [101]

    def test_only_about_all_biases_reach_the_bytes_with_biases(self):
        """Two cells bound the number of biases from both sides; Xception's 50,312 lie between, 17,472 do not."""
        table = printed_ranges("parallel")

        def fits(channels: int) -> bool:
            extra = sharing.biases(channels)
            return all(
                Range.of(101 * (plain + extra)).meets(table[row, "bytes"])
                for row, plain in (("LLL, BB, GMMC", parallel.GMMC), ("LLL, BB, MAHA", parallel.MAHA))
            )

        assert fits(inputs.XCEPTION_CHANNELS)
        assert not fits(inputs.STATED_BIASES)
        fitting = [n for n in range(40_000, 60_000) if fits(n)]
        assert (min(fitting), max(fitting)) == (50_259, 52_018)

    def test_the_efficiency_of_one_row_follows_from_another_to_all_its_digits(self):
        """The single agent's cost is solved from maha's efficiency; gmmc's then comes out by itself."""
        for row in ("LLL, no BB, GMMC", "LLL, BB, GMMC"):
            found = cell("parallel", row, "efficiency")
            assert found["reached"] == found["printed"] != found["ours"]

    def test_the_solved_cost_of_a_single_agent_is_table_1s(self):
        table = printed_ranges("single")
        plain, biased = parallel.single_agent("LLL, no BB, MAHA"), parallel.single_agent("LLL, BB, MAHA")
        assert Range.of(plain).meets(table["LLL, no BB, MAHA", "training MACs"])
        assert Range.of(biased).meets(table["LLL, BB, MAHA", "training MACs"])
        assert Range.of(biased / plain).meets(table["LLL, BB, MAHA", "CPU usage"])

    def test_by_its_caption_no_efficiency_is_what_is_printed(self):
        ours = [float(cell("parallel", row, "efficiency")["ours"]) for row in LLL]
        assert ours == [0.99976015, 0.999997111, 0.98073403, 0.999781967]

    def test_a_student_that_is_sent_images_has_to_look_at_them(self):
        assert "0.61 (0.44 with 102 agents)" in cell("parallel", "LLL, no BB, MAHA", "efficiency")["remark"]

    def test_appendix_g_by_hand(self):
        assert pytest.approx(2048 * 5033 / 102 * 4) == sharing.HEAD
        assert sharing.CLUSTERS == 25 * 4096 * 4
        assert sharing.IMAGES_OF_TASK == 5 * 299 * 299 * 3
        assert {c["verdict"] for c in FOUND["tables"]["sharing"]["cells"][:10]} == {"agrees", "explained"}


class TestReplay:
    @pytest.mark.parametrize("share", [0.0, 0.04, 1.0])
    def test_the_closed_form_is_the_sum_that_it_stands_for(self, share: float):
        assert total_time(share) == pytest.approx(sum(1 + earlier * share for earlier in range(102)))

    def test_the_paper_sums_one_term_too_few(self):
        assert sum(range(102)) == 5151
        assert cell("replay", "sum of 1 to N-1 for N = 102", "number")["ours"] == "5,151"

    @pytest.mark.parametrize("kept", [0, 10, None])
    def test_time_by_the_list_is_that_of_a_learner_with_a_buffer(self, kept: int | None):
        buffer, seen = 0, 0
        for d in skill102():
            seen += d.train + buffer
            buffer += d.train if kept is None else min(kept * d.classes, d.train)
        assert exact_time(kept) == pytest.approx(seen / (sum(d.train for d in skill102()) / 102))

    def test_4000_images_are_there_after_nine_tasks(self):
        assert tasks_until(4000) == 9
        assert 5 * sum(d.classes for d in skill102()[:8]) < 4000 <= 5 * sum(d.classes for d in skill102()[:9])


class TestDatasets:
    def test_102_tasks_have_the_papers_classes_and_images(self):
        found = sums(skill102())
        assert (found["tasks"], found["classes"]) == (inputs.TASKS, inputs.CLASSES)
        assert found["images"] == inputs.TRAIN_IMAGES + inputs.VAL_IMAGES + inputs.TEST_IMAGES

    def test_six_images_stand_in_other_splits_than_in_the_paper(self):
        found = sums(skill102())
        assert found["train"] == inputs.TRAIN_IMAGES - 6
        assert found["val"] == found["test"] == inputs.VAL_IMAGES + 3

    def test_no_other_five_datasets_can_be_the_ones_left_out(self):
        """Plantae has more classes than may stay; of all ways to choose the other four, one gives both sums."""
        rows = [(500 if d.name == "iNaturalist_Insecta" else d.classes, d.images) for d in listed()]
        plantae = [d.name for d in listed()].index("iNaturalist_Plantae")
        extra = tuple(sum(column) for column in zip(*rows, strict=True))
        classes, images = extra[0] - inputs.CLASSES, extra[1] - sums(skill102())["images"]
        pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
        others = [i for i in range(107) if i != plantae]
        for i, j in combinations(others, 2):
            pairs.setdefault((rows[i][0] + rows[j][0], rows[i][1] + rows[j][1]), []).append((i, j))
        wanted = (classes - rows[plantae][0], images - rows[plantae][1])
        found = {
            tuple(sorted((*first, *second)))
            for (c, n), firsts in pairs.items()
            for first in firsts
            for second in pairs.get((wanted[0] - c, wanted[1] - n), [])
            if not set(first) & set(second)
        }
        assert found == {(102, 103, 104, 106)}

    def test_sizes_that_the_text_names_are_the_lists(self):
        rows = {d.name: d for d in listed()}
        assert rows["102_Category_Flower_Dataset"].images == 8185
        assert rows["MIT_Indoor_Scenes"].images == 15_524
        assert rows["dragon-ball-super-saiyan-dataset"].test == 18
        assert rows["Office-Home_Art"].test == 252
        assert rows["Malacca_Historical_Buildings"].test == 18

    def test_the_rule_holds_with_500_classes_of_insecta_and_not_with_all(self):
        assert all(d.keeps_the_rule for d in skill102())
        assert [d.name for d in listed()[:102] if not d.keeps_the_rule] == ["iNaturalist_Insecta"]

    def test_the_rule_is_appendix_as(self):
        assert Dataset(0, "", 101, 535 * 101, 59 * 101, 59 * 101).keeps_the_rule
        assert not Dataset(0, "", 101, 535 * 101 + 1, 0, 0).keeps_the_rule
        assert not Dataset(0, "", 101, 0, 59 * 101 + 1, 0).keeps_the_rule


class TestStudies:
    def test_ewc_gains_nothing_from_more_agents_and_sending_is_not_why(self):
        for row in run_study("ewc-shipping", StudySettings(agents=51)).rows[:3]:
            assert row["sending / training"] < 0.001
            assert row["speedup"] <= 1
        one_fisher = run_study("ewc-shipping", StudySettings()).rows[0]
        assert one_fisher["bytes"] == pytest.approx(101 * 2 * 91.6e6 + 91.6e6)

    def test_ewc_that_keeps_every_fisher_matrix_sends_as_many_as_there_are(self):
        sent = sum(2 * 91.6e6 * done for done in range(1, 10))
        assert run_study("ewc-shipping", StudySettings(tasks=10)).rows[1]["bytes"] == pytest.approx(sent + 91.6e6)

    def test_alone_ewc_sends_nothing(self):
        assert run_study("ewc-shipping", StudySettings(agents=1)).rows[0]["bytes"] == 0

    def test_what_a_byte_is_worth_is_a_setting(self):
        plain, dear = (run_study("ewc-shipping", StudySettings(alpha=a)).rows[3] for a in (1e3, 1e6))
        assert dear["sending, MACs"] == 1000 * plain["sending, MACs"]
        assert dear["efficiency"] < 0.9 < plain["efficiency"]

    def test_replay_reaches_its_limit_when_everything_is_kept(self):
        rows = run_study("replay", StudySettings()).rows
        assert [row["images kept per class"] for row in rows][-1] == "all"
        assert rows[-1]["time, closed form"] == 102 + 5151
        assert rows[0]["time, from the list"] == 102
        times = [row["time, from the list"] for row in rows]
        assert times == sorted(times)

    def test_a_wrong_name_is_answered_with_the_right_ones(self):
        with pytest.raises(SkillmeshError, match=f"no study 'ewc'; expected one of {', '.join(STUDIES)}"):
            run_study("ewc", StudySettings())

    @pytest.mark.parametrize("dim", [1, 2, 5, 8])
    def test_covariance_and_inverse_cost_what_loops_multiply(self, dim: int):
        import numpy as np

        x = np.random.default_rng(0).standard_normal((11, dim))
        products = 0
        matrix = np.zeros((dim, dim))
        for row in x:
            for i in range(dim):
                for j in range(dim):
                    matrix[i, j] += row[i] * row[j]
                    products += 1
        assert products == covariance_macs(11, dim)
        inverse, products = _inverse_by_loops(matrix)
        np.testing.assert_allclose(inverse, np.linalg.inv(matrix), rtol=1e-8)
        assert products == inverse_macs(dim)


def _inverse_by_loops(matrix):
    """The textbook's Cholesky root and solves; a division counts as a product, a root does not."""
    import numpy as np

    n, products = len(matrix), 0
    root = np.zeros((n, n))
    for j in range(n):
        for i in range(j, n):
            left = matrix[i, j]
            for k in range(j):
                left -= root[i, k] * root[j, k]
                products += 1
            root[i, j] = left**0.5 if i == j else left / root[j, j]
    inverse = np.zeros((n, n))
    for column in range(n):
        middle = [0.0] * n
        for i in range(n):
            left = float(i == column)
            for k in range(i):
                left -= root[i, k] * middle[k]
                products += 1
            middle[i] = left / root[i, i]
            products += 1
        for i in reversed(range(n)):
            left = middle[i]
            for k in range(i + 1, n):
                left -= root[k, i] * inverse[k, column]
                products += 1
            inverse[i, column] = left / root[i, i]
            products += 1
    return inverse, products


@pytest.mark.parametrize("name", ["ewc-shipping", "replay", "maha-macs"])
def test_the_docs_show_what_the_code_gives(name: str):
    kept = json.loads((RESULTS / "paper.json").read_text())
    assert {key: kept[key] for key in FOUND} == FOUND
    kept = json.loads((RESULTS / f"study-{name}.json").read_text())
    assert kept["rows"] == run_study(name, StudySettings()).rows


class TestCommands:
    @pytest.fixture(autouse=True)
    def _wide(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(show.console, "_width", 250)  # tables are cut to the terminal's width

    def test_paper_prints_every_table(self, command: Callable[..., Ran]):
        ran = command("challenge", "paper")
        assert ran.code == 0
        for word in (
            "Table 1",
            "Table 2",
            "Appendix D",
            "Appendix G",
            "Insecta with 500 classes",
            "no explanation",
        ):
            assert word in ran.out

    def test_paper_for_programs(self, command: Callable[..., Ran]):
        found = json.loads(command("challenge", "paper", "--json").out)
        assert found["verdicts"] == FOUND["verdicts"]
        assert found["provenance"]["command"] == "skillmesh challenge paper --json"

    @pytest.mark.parametrize("name", ["ewc-shipping", "replay", "maha-macs"])
    def test_studies_by_name(self, name: str, command: Callable[..., Ran]):
        assert STUDIES[name].run(StudySettings()).title in command("challenge", "study", name).out
        found = json.loads(command("challenge", "study", name, "--json").out)
        assert found["rows"] == STUDIES[name].run(StudySettings()).rows

    def test_studies_are_listed(self, command: Callable[..., Ran]):
        assert all(name in command("challenge", "study").out for name in STUDIES)

    def test_an_unknown_study_is_one_line(self, command: Callable[..., Ran]):
        ran = command("challenge", "study", "nothing")
        assert (ran.code, ran.err.count("\n")) == (1, 1)

    def test_paper_loads_no_torch(self):
        code = (
            "import sys; from skillmesh.cli import main; sys.argv = ['', 'challenge', 'paper', '--json']\n"
            "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
            "print('torch' in sys.modules, 'sklearn' in sys.modules, 'scipy' in sys.modules)"
        )
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=PLAIN, check=True)
        assert ran.stdout.splitlines()[-1] == "False False False"
