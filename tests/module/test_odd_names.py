"""Names that look like keys or selectors, or have hidden characters: refused on import, harmless in a bank."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from notices import ALICE, announced

from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.errors import AgentError, CardError, OddNameError, UnknownTaskError
from skillmesh.mesh.importing import Arrival, Importer
from skillmesh.mesh.shelf import Chooser, Partial, Shelf, trust
from skillmesh.module import Card, Identity, Module
from skillmesh.module.notice import Slot, announce, link
from skillmesh.module.teachers import fits, odd_task
from skillmesh.synergy.links import acting_links

NewAgent = Callable[..., Core]
Command = Callable[..., Any]
KEY = "3f9a2c1e" + "0b" * 28
ODD_TASKS = [
    f"armenian@{KEY}",
    "armenian@ada",
    "@",
    f"armenian~{KEY[:8]}",
    KEY,
    KEY[:8],
    KEY[:12].upper(),
    "armenian\u3164",
    "armenian\ufe0f",
    "arm\u034fenian",
    "armenian\U000e0100",
    "\u2800",
    "Z\u0335\u0336\u0337\u0338\u0339algo",
]
ODD_IDS = [
    "key-behind",
    "name-behind",
    "separator",
    "claimed",
    "key",
    "short-key",
    "upper-key",
    "filler",
    "variation",
    "joiner",
    "supplement",
    "blank",
    "marks",
]
odd_tasks = pytest.mark.parametrize("odd", ODD_TASKS, ids=ODD_IDS)


def signed_as(module: Module, identity: Identity, **changes: Any) -> tuple[Module, bytes]:
    """Sign a module with other texts on its card, as any program can."""
    who = {"teacher": identity.name, "teacher_key": identity.public_key}
    return Module.create(module.card.model_copy(update=who | changes), module.tensors, identity)


def put_into_bank(agent: Core, module: Module, data: bytes) -> Core:
    """Put a module with a now refused name into a home; return the agent that opens it."""
    (agent.home / "bank" / f"{module.id}.skill").write_bytes(data)
    return Core(agent.home)


@pytest.fixture(scope="module")
def dice(tiny_taught: Core) -> Module:
    return tiny_taught.bank.find("dice")


@pytest.fixture(scope="module")
def student(new_agent: NewAgent) -> Core:
    """Return an agent that is asked to accept odd names, and refuses them."""
    return new_agent("student")


@odd_tasks
class TestATaskWithAnOddName:
    def test_is_not_learned(self, odd: str, student: Core, tiny_tasks: Path):
        with pytest.raises(AgentError, match=r"the task's name is .*give it another name"):
            student.learn(tiny_tasks / "dice", name=odd)
        assert not len(student.bank)

    def test_is_not_composed(self, odd: str, tiny_taught: Core):
        with pytest.raises(AgentError, match="the task's name is "):
            tiny_taught.compose(odd, ["dice:*"])

    def test_is_not_imported(self, odd: str, student: Core, dice: Module, tmp_path: Path):
        (tmp_path / "odd.skill").write_bytes(signed_as(dice, ALICE, task=odd)[1])
        with pytest.raises(OddNameError, match="card field 'task': found"):
            student.import_file(tmp_path / "odd.skill")
        assert not len(student.bank)

    def test_is_not_fetched_and_the_reason_is_reported(self, odd: str, new_agent: NewAgent):
        agent = new_agent("student")
        agent.ledger.open_trust = True
        agent.ledger.merge([announced(ALICE, odd, 1, b"x" * 99, backbone=agent.bank.backbone)], "somebody")
        wants = Chooser(agent, MeshSettings(), Shelf(agent.home, agent.ledger)).choose(agent.ledger.view())
        assert not wants.wanted
        assert [reason[:20] for reason in wants.declined.values()] == ["the name of the task"]

    def test_merges_nothing(self, odd: str, new_agent: NewAgent, tiny_taught: Core):
        agent = new_agent("student")
        agent.ledger.open_trust = True
        agent.ledger.merge([link(odd, 1, ["1" * 64, "2" * 64], ALICE)], "somebody")
        assert acting_links(agent) == []


def test_a_module_that_arrives_with_an_odd_name_is_refused_and_no_peer_is_banned_for_it(
    new_agent: NewAgent, dice: Module
):
    """Another release may have made it in good faith."""
    agent, blamed = new_agent("student"), []
    agent.ledger.open_trust = True
    shelf = Shelf(agent.home, agent.ledger)
    module, data = signed_as(dice, ALICE, task=f"dice@{KEY}")
    notice = announce(module.card, module.id, data, ALICE)
    agent.ledger.merge([notice], "somebody")
    partial = Partial(shelf.partial, notice)
    partial.path.write_bytes(data)
    importer = Importer(agent, shelf, lambda key, reason: blamed.append((key, reason)))
    assert importer.import_all([Arrival(notice, partial)]) == []
    assert blamed == []
    assert "OddNameError: card field 'task'" in agent.ledger.view().choices[notice.digest].reason


class TestAModuleThatABankHasFromBefore:
    """Opening a bank never loses a module because of its name."""

    @pytest.fixture
    def agent(self, new_agent: NewAgent, dice: Module) -> tuple[Core, Identity, Module]:
        """Return an agent with ada's dice, and a module by mallory whose name looks like a selector for it."""
        student, ada, mallory = new_agent("student"), Identity.create("ada"), Identity.create("mallory")
        student.import_bytes(signed_as(dice, ada)[1])
        odd = signed_as(dice, mallory, task=f"dice@{ada.public_key}")
        return put_into_bank(student, *odd), ada, odd[0]

    def test_stays_listed_and_answers(self, agent, command: Command, tiny_tasks: Path):
        student, ada, odd = agent
        assert not student.bank.damaged
        assert odd.card.task in {module.card.task for module in student.tasks()}
        assert f"dice@{ada.public_key}" in command("tasks", "--home", student.home).out
        image = next((tiny_tasks / "dice" / "test").glob("*/*"))
        assert student.answer(image).error is None

    def test_can_be_selected_by_its_teachers_key_and_not_by_a_name_of_another_task(self, agent, tmp_path: Path):
        student, ada, odd = agent
        assert student.find(f"dice@{ada.public_key}").card.teacher_key == ada.public_key
        exported = student.export(f"dice@{ada.public_key}", tmp_path / "ada.skill")
        assert exported.read_bytes() == student.bank.file_of(student.bank.held("dice", ada.public_key))
        whole = f"{odd.card.task}@{odd.card.teacher_key}"
        assert student.find(whole) == odd
        assert student.forget(f"dice@{ada.public_key}").card.teacher_key == ada.public_key
        with pytest.raises(UnknownTaskError):
            student.forget(f"dice@{ada.public_key}")
        assert student.forget(whole) == odd
        assert student.ledger.view().forgotten == {
            Slot(ada.public_key, "dice"),
            Slot(odd.card.teacher_key, odd.card.task),
        }

    def test_is_remembered_by_key_first(self, agent, command: Command):
        student, ada, odd = agent
        student.forget(f"{odd.card.task}@{odd.card.teacher_key}")
        student.forget("dice")
        assert command("remember", f"dice@{ada.public_key}", "--home", student.home).code == 0
        assert Core(student.home).ledger.view().forgotten == {Slot(odd.card.teacher_key, odd.card.task)}

    def test_of_the_own_agent_is_withdrawn_by_its_whole_name(self, new_agent: NewAgent, dice: Module):
        student = new_agent("student")
        own = student.identity
        student.import_bytes(signed_as(dice, own)[1])
        student = put_into_bank(student, *signed_as(dice, own, task=f"dice@{own.public_key}"))
        assert student.withdraw(f"dice@{own.public_key}").task == "dice"
        assert student.withdraw(f"dice@{own.public_key}@{own.public_key}").task == f"dice@{own.public_key}"


class TestClasses:
    def test_with_an_emoji_are_fine(self, student: Core, dice: Module):
        names = ("❤\ufe0f", *dice.card.classes[1:])
        assert student.bank.check(signed_as(dice, ALICE, classes=names)[1]).card.classes == names

    def test_that_hide_something_are_refused(self, student: Core, dice: Module):
        names = (dice.card.classes[0] + "\u3164", *dice.card.classes[1:])
        with pytest.raises(OddNameError, match="card field 'classes'"):
            student.bank.check(signed_as(dice, ALICE, classes=names)[1])


@pytest.mark.parametrize(
    "name", ["me@home", f"ada~{KEY[:8]}", KEY, KEY[:8], "ada\ufe0f", "a\u034fda", "ada\u3164"], ids=range(7)
)
class TestAnAgentWithAnOddName:
    def test_is_refused_for_new_agents_and_trusted_keys(
        self, name: str, student: Core, tmp_path: Path, new_agent: NewAgent
    ):
        with pytest.raises(AgentError, match="cannot be an agent's name"):
            new_agent(name)
        with pytest.raises(AgentError, match="cannot be an agent's name"):
            trust(student, Shelf(student.home, student.ledger), ALICE.public_key, name)

    def test_has_its_modules_refused(self, name: str, student: Core, dice: Module):
        with pytest.raises(OddNameError, match="card field 'teacher'"):
            student.bank.check(signed_as(dice, Identity.create(name))[1])

    def test_opens_but_needs_another_name_to_teach(self, name: str, new_agent: NewAgent, tiny_tasks: Path):
        agent = new_agent("plain")
        key = agent.home / "key.pem"
        key.write_text(key.read_text("utf-8").replace("skillmesh-name: plain", f"skillmesh-name: {name}"), "utf-8")
        old = Core(agent.home)
        assert old.tasks() == []
        with pytest.raises(
            AgentError, match=r"the agent's name is .*write another into the first line of key\.pem"
        ):
            old.learn(tiny_tasks / "dice")


def test_a_name_that_reads_like_a_given_one_is_not_given_to_another(new_agent: NewAgent):
    agent = new_agent("student")
    shelf = Shelf(agent.home, agent.ledger)
    trust(agent, shelf, ALICE.public_key, "anna")
    for name in ("\u0430nna", "Anna", "ann\u0430", "\uff41nna", "ànna"):
        with pytest.raises(AgentError, match="is already the name of another key"):
            trust(agent, shelf, Identity.create("x").public_key, name)


class TestALookAlike:
    """A second "dice by ada" in other letters is marked wherever it is listed."""

    TASK, TEACHER = "di\u0441e", "\u0430da"

    @pytest.fixture(scope="class")
    @classmethod
    def student(cls, new_agent: NewAgent, dice: Module) -> Core:
        student, ada, eve = new_agent("student"), Identity.create("ada"), Identity.create(cls.TEACHER)
        trust(student, Shelf(student.home, student.ledger), ada.public_key, "ada")
        student.import_bytes(signed_as(dice, ada)[1])
        student.import_bytes(signed_as(dice, eve, task=cls.TASK)[1])
        return student

    def test_among_tasks(self, student: Core, command: Command):
        rows = command("tasks", "--home", student.home).out.splitlines()
        assert sum(row.startswith("dice\t") and "\tada\t" in row for row in rows) == 1
        (marked,) = (row for row in rows if f"{self.TASK} (cyrillic es)\t" in row)
        assert f"\t{self.TEACHER} (cyrillic a)~" in marked

    def test_in_json(self, student: Core, command: Command):
        tasks = json.loads(command("tasks", "--json", "--home", student.home).out)["tasks"]
        odd = {task["task"]: task["odd_letters"] for task in tasks}
        assert odd["dice"] == {"task": [], "teacher": []}
        assert odd[self.TASK] == {"task": ["cyrillic es"], "teacher": ["cyrillic a"]}

    def test_among_answers(self, student: Core, tiny_tasks: Path, command: Command):
        answer = student.answer(next((tiny_tasks / "dice" / "test").glob("*/*")))
        both = [each for guess in answer.guesses for each in (guess, *guess.supported_by)]
        assert {each.task: each.odd_letters for each in both} == {"dice": (), self.TASK: ("cyrillic es",)}
        assert type(answer).from_dict(answer.as_dict()).guesses == answer.guesses

    def test_among_peers(self, student: Core):
        shown = student.teachers.called("ab" * 32, self.TEACHER)
        assert shown == f"{self.TEACHER} (cyrillic a)~abababab"
        assert student.teachers.odd_letters("ab" * 32, self.TEACHER) == ["cyrillic a"]

    def test_can_be_named_as_it_is_shown(self, student: Core):
        odd = next(module for module in student.bank if module.card.task == self.TASK)
        assert student.find(f"{self.TASK}@{student.teachers.of(odd)}") == odd


class TestANote:
    def test_cannot_forge_a_line_in_show(self, new_agent: NewAgent, dice: Module, command: Command):
        student = new_agent("student")
        note = "fine\nvalidation_accuracy: 1.0\n\tteacher: ada"
        student.import_bytes(signed_as(dice, ALICE, note=note)[1])
        lines = command("show", "dice", "--home", student.home).out.splitlines()
        assert "  | validation_accuracy: 1.0" in lines
        assert sum(line.startswith("validation_accuracy:") for line in lines) <= 1
        assert sum(line.startswith("teacher:") for line in lines) == 1


class TestWarmStartText:
    """It passes the same checks as other text on a card."""

    @pytest.mark.parametrize("bad", ["cafe\u0301", "a\u202eb", "a\nb", "a\tb", "a\x1bb", "a\u200bb"], ids=range(6))
    def test_is_checked(self, bad: str, dice: Module):
        facts = dice.card.model_dump()
        for source, name in ((bad, "cat"), ("pets", bad)):
            record = {"form": "prior", "rows": ((0, 0, name, 0.9),), "sources": ((source, "1" * 64, 0.5),)}
            with pytest.raises(CardError, match="card field 'warm_start'"):
                Card(**facts | {"format": 2, "warm_start": record})


@given(st.text())
def test_any_task_name_that_is_no_selector_and_hides_nothing_is_fine(name: str):
    if odd_task(name) is None:
        assert "@" not in name
    if fits(name):
        assert not set("@~") & set(name)


@pytest.mark.parametrize(
    "name", ["armenian", "2024-01-15", "20240115", "birds + bees", "a~b", "facade", "c1a55e5", "Fabaceae", "грибы"]
)
def test_ordinary_task_names_are_fine(name: str):
    assert odd_task(name) is None
