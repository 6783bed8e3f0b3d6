"""Which known modules an agent fetches: missing, fitting, of interest, and within its limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from notices import ALICE, BOB, announced

from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.mesh import shelf as wants_module
from skillmesh.mesh.shelf import AN_HOUR, Chooser, Shelf, Wants
from skillmesh.module import Identity, Module
from skillmesh.module.notice import Announcement, withdraw

Announce = Callable[..., Announcement]


@pytest.fixture
def agent(new_agent: Callable[..., Core]) -> Core:
    made = new_agent("student")
    made.ledger.open_trust = True
    return made


@pytest.fixture
def announce(agent: Core) -> Announce:
    """Announce a suitable module to this agent; each task is another module of 1,000 bytes."""

    def make(task: str = "dice", identity: Identity = ALICE, version: int = 1, size: int = 1000, **changed: Any):
        data = f"{task} {identity.name} {version}".encode().ljust(size)
        notice = announced(identity, task, version, data, **({"backbone": agent.bank.backbone} | changed))
        agent.ledger.merge([notice], "somebody")
        return notice

    return make


def chooser(agent: Core, **settings: Any) -> Chooser:
    return Chooser(agent, MeshSettings.of(settings), Shelf(agent.home, agent.ledger))


def choose(agent: Core, **settings: Any) -> Wants:
    return chooser(agent, **settings).choose(agent.ledger.view())


def wanted(wants: Wants) -> list[str]:
    return sorted(announcement.task for announcement in wants.wanted)


class TestEverything:
    def test_is_wanted_by_default(self, agent: Core, announce: Announce):
        notices = [announce("dice"), announce("latin"), announce("dice", BOB)]
        assert {a.id for a in choose(agent).wanted} == {a.id for a in notices}
        assert choose(agent).declined == {}

    def test_is_not_wanted_if_untrusted_or_withdrawn(self, agent: Core, announce: Announce):
        announce("dice")
        agent.ledger.merge([withdraw("latin", 1, BOB)], "somebody")
        agent.ledger.open_trust = False
        assert choose(agent) == Wants([], {})
        agent.ledger.open_trust = True
        assert wanted(choose(agent)) == ["dice"]


class TestInterests:
    @pytest.mark.parametrize(
        ("interests", "expected"),
        [
            (["birds*"], ["birds of prey", "birds-eu"]),
            (["tag:farm"], ["cows"]),
            (["dice", "tag:farm"], ["cows", "dice"]),
            (["tag:far"], []),
            (["DICE"], []),
            (["*"], ["birds of prey", "birds-eu", "cows", "dice"]),
        ],
    )
    def test_are_patterns_of_names_or_tags(
        self, agent: Core, announce: Announce, interests: list[str], expected: list[str]
    ):
        for task in ("birds-eu", "birds of prey", "dice"):
            announce(task, tags=("other",))
        announce("cows", tags=("animals", "farm"))
        found = choose(agent, interests=interests)
        assert wanted(found) == expected
        assert set(found.declined.values()) <= {"not among this agent's interests"}
        assert len(found.declined) + len(expected) == 4


class TestLimits:
    def test_a_module_has_a_size_limit(self, agent: Core, announce: Announce):
        large = announce(size=1001)
        announce("latin", size=1000)
        found = choose(agent, max_module_bytes=1000)
        assert wanted(found) == ["latin"]
        assert found.declined == {large.digest: "1,001 bytes, more than max_module_bytes = 1,000"}

    def test_all_modules_together_have_a_size_limit(self, agent: Core, announce: Announce):
        for number in range(5):
            announce(f"task {number}")
        found = choose(agent, quota_bytes=3500)
        assert len(found.wanted) == 3
        assert set(found.declined.values()) == {"the quota of 3,500 bytes is used up; raise quota_bytes"}

    def test_modules_in_bank_and_quarantine_count(self, agent: Core, announce: Announce, skill_files):
        module = agent.import_file(skill_files["dice"])
        (agent.home / "quarantine").mkdir()
        (agent.home / "quarantine" / "x.skill").write_bytes(bytes(500))
        announce("latin")
        assert wanted(choose(agent, quota_bytes=module.size + 1500)) == ["latin"]
        assert wanted(choose(agent, quota_bytes=module.size + 1499)) == []

    def test_the_fetched_part_of_a_module_does_not_count_against_itself(self, agent: Core, announce: Announce):
        notice, other = announce("dice"), announce("latin", size=200)
        (agent.home / "partial").mkdir()
        (agent.home / "partial" / notice.digest).write_bytes(bytes(900))
        assert wanted(choose(agent, quota_bytes=1000)) == ["dice"]
        assert wanted(choose(agent, quota_bytes=1200)) == ["dice", "latin"]
        assert other.digest in choose(agent, quota_bytes=1000).declined

    def test_a_teacher_has_a_limit_per_hour(self, agent: Core, announce: Announce, monkeypatch):
        clock = [1000.0]
        monkeypatch.setattr(wants_module.time, "monotonic", lambda: clock[0])
        for number in range(3):
            announce(f"task {number}")
        announce("other", BOB)
        chooses = chooser(agent, modules_per_hour=2)
        first = chooses.choose(agent.ledger.view())
        assert [a.teacher for a in first.wanted].count("alice") == 2
        for announcement in first.wanted:
            chooses.fetching(announcement)
            refused(agent, announcement)  # however it ended
        later = chooses.choose(agent.ledger.view())
        assert later.wanted == []
        reason = f"alice~{ALICE.public_key[:8]} has reached its 2 modules per hour; fetched later"
        assert reason in later.declined.values()
        clock[0] += AN_HOUR + 1
        assert len(chooses.choose(agent.ledger.view()).wanted) == 1

    def test_repeated_attempts_do_not_count_against_the_hourly_limit(self, agent: Core, announce: Announce):
        """A module that no peer has now is requested every second."""
        notice = announce("dice")
        chooses = chooser(agent, modules_per_hour=2)
        for _ in range(10):
            chooses.fetching(notice)
        announce("latin")
        announce("greek")
        assert notice in chooses.choose(agent.ledger.view()).wanted
        assert len(chooses.choose(agent.ledger.view()).wanted) == 2
        chooses.fetching(announce("latin"))
        assert wanted(chooses.choose(agent.ledger.view())) == ["dice", "latin"]  # both may be tried again


class TestFit:
    def test_a_module_of_another_backbone_is_declined(self, agent: Core, announce: Announce):
        notice = announce(backbone="e" * 64)
        assert (
            choose(agent)
            .declined[notice.digest]
            .startswith("made for backbone eeeeeeeeeeeeeeee…, this agent's is ")
        )

    @pytest.mark.parametrize(
        "change",
        [{"representation": "features"}, {"compact": True}, {"anchors": ("gmmc",)}],
        ids=str,
    )
    def test_a_module_of_other_settings_is_declined(
        self, agent: Core, announce: Announce, change: dict[str, object]
    ):
        notice = announce(**change)
        assert choose(agent).declined == {
            notice.digest: "made with other settings (representation, compact or anchor) than this agent's"
        }

    def test_a_module_with_more_anchors_than_needed_fits(self, agent: Core, announce: Announce):
        announce(anchors=("maha", "sketch"))
        assert wanted(choose(agent)) == ["dice"]


class TestDecisions:
    def test_a_forgotten_task_is_not_fetched_again_in_any_version(self, agent: Core, announce: Announce):
        agent.ledger.forget(announce().slot)
        newer = announce(version=2)
        announce("dice", BOB)  # another teacher's is another task
        found = choose(agent)
        assert [a.teacher for a in found.wanted] == ["bob"]
        assert found.declined == {newer.digest: "forgotten; to fetch it again: `skillmesh remember dice`"}
        agent.ledger.remember(newer.slot)
        assert newer in choose(agent).wanted

    @pytest.mark.parametrize("choice", ["refused", "held"])
    def test_a_refused_or_held_module_is_not_fetched_again_but_a_newer_version_is(
        self, agent: Core, announce: Announce, choice: Any
    ):
        notice = announce()
        agent.ledger.choose(notice.id, choice, "it lies")
        assert choose(agent) == Wants([], {notice.digest: f"{choice}: it lies"})
        assert choose(agent).declined
        newer = announce(version=2)
        assert choose(agent) == Wants([newer], {})

    def test_a_module_that_the_user_released_is_fetched(self, agent: Core, announce: Announce):
        notice = announce()
        agent.ledger.choose(notice.id, "held", "it lies")
        agent.ledger.choose(notice.id, "released", "by the user")
        assert choose(agent).wanted == [notice]


class TestVersions:
    @pytest.fixture
    def tina(self, tiny_taught: Core) -> Identity:
        return tiny_taught.identity

    def test_a_newer_one_is_wanted(self, agent: Core, announce: Announce, skill_files, tina: Identity):
        agent.import_file(skill_files["dice"])
        newer = announce("dice", tina, version=2)
        assert choose(agent) == Wants([newer], {})

    def test_an_older_one_is_not(self, agent: Core, announce: Announce, skill_files, tina: Identity):
        module = agent.bank.check(skill_files["dice"].read_bytes())
        _, data = Module.create(module.card.model_copy(update={"version": 2}), module.tensors, tina)
        agent.import_bytes(data)
        announce("dice", tina, version=1)
        assert choose(agent) == Wants([], {})

    @pytest.mark.parametrize(("other", "count"), [(None, 0), ("0" * 64, 0), ("f" * 64, 1)])
    def test_of_two_modules_with_one_version_the_one_that_every_bank_keeps_is_wanted(
        self, agent: Core, announce: Announce, skill_files, tina: Identity, other: str | None, count: int
    ):
        module = agent.import_file(skill_files["dice"])
        announce("dice", tina, id=other or module.id)
        assert len(choose(agent).wanted) == count


def refused(agent: Core, announcement: Announcement) -> None:
    agent.ledger.choose(announcement.id, "refused", "bad")
