"""The name that this user gave to a key wins everywhere; no teacher is shown as another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skillmesh.core import Core
from skillmesh.errors import AgentError, UnknownTaskError
from skillmesh.mesh.shelf import Shelf
from skillmesh.module import Identity
from skillmesh.module.teachers import Teachers
from skillmesh.store.home import create_home, default_name

NewAgent = Callable[..., Core]
Command = Callable[..., Any]
ANNA, MALLORY = Identity.create("anna"), Identity.create("anna")


class Taught:
    """A card or notice that a key signed under a name."""

    def __init__(self, identity: Identity, teacher: str | None = None) -> None:
        self.teacher, self.teacher_key = teacher or identity.name, identity.public_key


class TestNames:
    def test_that_the_user_gave_are_shown_alone(self):
        names = Teachers({ANNA.public_key: "anna from work"})
        assert names.name(Taught(ANNA)) == "anna from work"

    def test_that_were_not_given_are_shown_with_the_beginning_of_the_key(self):
        names = Teachers({ANNA.public_key: "anna"})
        assert names.name(Taught(ANNA)) == "anna"
        assert names.name(Taught(MALLORY)) == f"anna~{MALLORY.public_key[:8]}"
        assert Teachers({ANNA.public_key: ""}).name(Taught(ANNA)) == f"anna~{ANNA.public_key[:8]}"

    def test_that_imitate_a_merged_tasks_teachers_are_changed_and_marked(self):
        assert Teachers({}).name(Taught(MALLORY, "anna + zed")) == f"anna zed~{MALLORY.public_key[:8]}"

    def test_that_imitate_the_mark_are_marked_again(self):
        claim = f"anna~{ANNA.public_key[:8]}"
        assert Teachers({}).name(Taught(MALLORY, claim)) == f"{claim}~{MALLORY.public_key[:8]}"

    def test_that_were_given_to_two_keys_before_are_distinguished(self):
        names = Teachers({ANNA.public_key: "anna", MALLORY.public_key: "anna"})
        assert names.name(Taught(ANNA)) == f"anna~{ANNA.public_key[:8]}"
        assert names.name(Taught(MALLORY)) == f"anna~{MALLORY.public_key[:8]}"

    def test_in_a_selector_mean_the_teacher_that_the_user_named(self):
        both = [Taught(ANNA), Taught(MALLORY)]
        assert Teachers({ANNA.public_key: "anna"}).meant("anna", both) == {ANNA.public_key}
        assert Teachers({MALLORY.public_key: "mallory"}).meant("anna", both) == {ANNA.public_key}
        assert Teachers({ANNA.public_key: "anna"}).meant("anna", [Taught(MALLORY)]) == set(), (
            "she has no such task"
        )
        assert Teachers({}).meant("anna", both) == {ANNA.public_key, MALLORY.public_key}
        for word in (ANNA.public_key, ANNA.public_key[:8], f"anna~{ANNA.public_key[:8]}"):
            assert Teachers({}).meant(word, both) == {ANNA.public_key}
        prefix = Taught(MALLORY, ANNA.public_key[:8])
        assert Teachers({}).meant(ANNA.public_key[:8], [Taught(ANNA), prefix]) == {ANNA.public_key}
        for claim in (ANNA.public_key, ANNA.public_key[:8], f"anna~{ANNA.public_key[:8]}"):
            assert Teachers({}).meant(claim, [Taught(MALLORY, claim)]) == set(), "it reads like a key"
        assert Teachers({}).meant("", both) == Teachers({}).meant("ann", both) == set()

    def test_that_equal_a_key_do_not_select_instead_of_it(self):
        imitator = Taught(MALLORY, ANNA.public_key)
        assert Teachers({}).meant(ANNA.public_key, [imitator, Taught(ANNA)]) == {ANNA.public_key}

    @pytest.mark.parametrize(
        "name", ["", "a@b", "a~b", "a + b", "\u3164", " a", "a\nb", "x" * 65, "0123abcd", "ab" * 32]
    )
    def test_that_could_be_mistaken_are_refused(self, name: str):
        with pytest.raises(AgentError, match="cannot be an agent's name; expected 1 to 64 visible characters"):
            Teachers({}).refuse_taken(name, ANNA.public_key)

    def test_of_another_key_are_refused(self):
        names = Teachers({ANNA.public_key: "anna"})
        names.refuse_taken("anna", ANNA.public_key)
        with pytest.raises(AgentError, match=f"'anna' is already the name of another key .{ANNA.public_key[:12]}"):
            names.refuse_taken("anna", MALLORY.public_key)
        with pytest.raises(AgentError, match="'Ａnna' is already the name of another key"):
            names.refuse_taken("Ａnna", MALLORY.public_key)


@pytest.fixture(scope="module")
def two_annas(new_agent: NewAgent, tiny_tasks: Path) -> tuple[Core, Core, Core]:
    """Return a student, anna as named by its user, and mallory who calls herself anna."""
    student, anna, mallory = new_agent("student"), new_agent("anna"), new_agent("anna")
    for teacher, task in ((anna, "dice"), (mallory, "shapes")):
        teacher.learn(tiny_tasks / task)
        student.import_bytes(teacher.bank.file_of(teacher.bank.find(task)))
    return student, anna, mallory


class TestImpersonation:
    @pytest.fixture(autouse=True)
    def known(self, two_annas: tuple[Core, Core, Core]) -> None:
        student, anna, mallory = two_annas
        student.ledger.trust(anna.identity.public_key, "anna")
        student.ledger.trust(mallory.identity.public_key, "mallory")

    def test_does_not_show_in_answers(self, two_annas, tiny_tasks: Path):
        student, _, mallory = two_annas
        paths = [next((tiny_tasks / task / "train").glob("*/*")) for task in ("dice", "shapes")]
        assert [answer.teacher for answer in student.answer(paths)] == ["anna", "mallory"]
        student.ledger.distrust(mallory.identity.public_key)
        claim = f"anna~{mallory.identity.public_key[:8]}"
        assert [answer.teacher for answer in student.answer(paths)] == ["anna", claim]
        assert student.answer(paths[1]).best.teacher_key == mallory.identity.public_key

    def test_does_not_show_in_commands(self, two_annas, command: Command, tiny_tasks: Path):
        student = two_annas[0]
        image = next((tiny_tasks / "shapes" / "train").glob("*/*"))
        home = ("--home", student.home)
        assert command("ask", image, *home).out.split("\t")[-1] == "mallory\n"
        rows = [line.split("\t") for line in command("tasks", *home).out.splitlines()[1:]]
        assert {(row[0], row[5]) for row in rows} == {("dice", "anna"), ("shapes", "mallory")}
        assert command("show", "shapes", *home, "--json").json["teacher"] == "mallory"
        assert "mallory" in command("trust", "list", *home).out

    def test_selects_nothing(self, two_annas):
        student, anna, mallory = two_annas
        assert student.bank.find("shapes@mallory").card.teacher_key == mallory.identity.public_key
        assert student.bank.find("dice@anna").card.teacher_key == anna.identity.public_key
        with pytest.raises(UnknownTaskError, match="no task 'shapes@anna'"):
            student.bank.find("shapes@anna")

    def test_does_not_show_in_quarantine_and_status(self, two_annas, command: Command):
        student, _, mallory = two_annas
        module = mallory.bank.find("shapes")
        Shelf(student.home, student.ledger).hold(module.id, mallory.bank.file_of(module), "a test holds it")
        try:
            for words in (("quarantine", "list"), ("status",)):
                out = command(*words, "--home", student.home).out
                assert "shapes by mallory" in out
                assert "anna" not in out.replace("anna from", "")
        finally:
            Shelf(student.home, student.ledger).let_go(module.id)

    def test_a_name_that_is_taken_is_refused_and_changes_nothing(self, two_annas, command: Command):
        student, _, mallory = two_annas
        before = dict(student.ledger.view().trusted)
        for name in ("anna", "student"):
            ran = command("trust", "add", mallory.identity.public_key, "--name", name, "--home", student.home)
            assert ran.code == 1
            assert f"{name!r} is already the name of another key" in ran.err
        assert dict(student.ledger.view().trusted) == before

    def test_trust_added_again_without_a_name_keeps_the_name(self, two_annas, command: Command):
        student, _, mallory = two_annas
        assert (
            "trusts mallory (" in command("trust", "add", mallory.identity.public_key, "--home", student.home).out
        )

    def test_the_own_key_needs_no_trust(self, two_annas, command: Command):
        student = two_annas[0]
        ran = command("trust", "add", student.identity.public_key, "--home", student.home)
        assert ran.code == 1
        assert "the agent's own key, which it always trusts" in ran.err


def test_an_agent_is_named_after_its_home_or_its_user_not_the_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("skillmesh.store.home._usual_home", lambda: tmp_path / "usual")
    monkeypatch.setattr("socket.gethostname", lambda: "laptop.example.org")
    monkeypatch.setattr("getpass.getuser", lambda: "anna")
    assert default_name(tmp_path / "usual") == "anna-laptop"
    assert default_name(tmp_path / "bob") == "bob"
    for name in (".hidden", "me@home", "anna~3f9a2c1e", "0123abcd"):
        assert default_name(tmp_path / name) == "anna-laptop"
    with pytest.raises(AgentError, match="cannot be an agent's name"):
        create_home(tmp_path / "x", name="me@home")
    monkeypatch.setattr("getpass.getuser", lambda: "root")
    assert default_name(tmp_path / "usual") == "laptop"
    for home in ("ada", "bo"):
        create_home(tmp_path / home)
    assert [Core(tmp_path / home).name for home in ("ada", "bo")] == ["ada", "bo"]
