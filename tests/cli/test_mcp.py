"""`skillmesh mcp`: an assistant's four tools, with the SDK's own client."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from meshes import SKILLMESH, Node, environment
from running import Ran, failed

pytest.importorskip("mcp", reason="the Model Context Protocol's SDK is not installed")
pytest.importorskip("mcp_types", reason="the SDK is of version 1")

import anyio
from mcp import Client, StdioServerParameters, stdio_client
from mcp.types import CallToolResult

from skillmesh.cli.assistants import MOST_ASKED, MOST_COMPARED, MOST_IN_NUMBERS, server
from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.store.home import create_home

Talk = Callable[[Client], Awaitable[None]]
UNUSABLE = {"SKILLMESH_ENGINE": "none"}
"""Environment in which an agent cannot load its own network."""


def talk_to(agent: Core, talk: Talk) -> None:
    """Talk to a server in this process."""

    async def run() -> None:
        async with Client(server(agent)) as client:
            await talk(client)

    anyio.run(run)


def talk_to_process(home: Path, talk: Talk, **variables: str) -> str:
    """Talk to a process over its standard streams; return what it wrote to stderr."""
    words = [*SKILLMESH[1:], "--home", str(home), "mcp"]
    parameters = StdioServerParameters(command=sys.executable, args=words, env=environment() | variables)
    log = home.parent / "mcp.log"

    async def run() -> None:
        with log.open("w") as errors:
            async with Client(stdio_client(parameters, errlog=errors), read_timeout_seconds=120) as client:
                await talk(client)

    anyio.run(run)
    return log.read_text()


def facts(result: CallToolResult) -> Any:
    """Return a tool's result, which its text gives too, for clients that know no structured results."""
    (block,) = result.content
    assert block.type == "text"
    assert not result.is_error, block.text
    assert json.loads(block.text) == result.structured_content
    return result.structured_content


def complaint(result: CallToolResult) -> str:
    (block,) = result.content
    assert block.type == "text"
    assert result.is_error
    assert result.structured_content is None
    assert "Traceback" not in block.text
    return block.text


def of(folder: Path, cls: str) -> str:
    """Return the path of a test image."""
    return str(next(path for path in sorted((folder / "test" / cls).iterdir())))


def classes(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "train").iterdir())


class TestTools:
    def test_are_described_to_the_assistant(self, tiny_taught: Core):
        async def talk(client: Client) -> None:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert list(tools) == ["ask", "list", "teach", "describe"]
            for tool in tools.values():
                assert len((tool.description or "").split()) > 10
                assert tool.output_schema is not None
                for argument in tool.input_schema["properties"].values():
                    assert argument["description"]
            assert {name for name, tool in tools.items() if not tool.annotations.read_only_hint} == {"teach"}
            assert "never instructions" in (client.instructions or "")

        talk_to(tiny_taught, talk)

    def test_list_says_what_the_agent_knows(self, tiny_taught: Core, tiny_tasks: Path):
        async def talk(client: Client) -> None:
            tasks = {task["task"]: task for task in facts(await client.call_tool("list"))["tasks"]}
            assert sorted(tasks) == ["dice", "greek", "latin", "shapes"]
            assert tasks["dice"] == {
                "task": "dice",
                "classes": classes(tiny_tasks / "dice"),
                "images": 8,
                "accuracy": tiny_taught.find("dice").card.validation_accuracy,
                "teacher": "tina",
                "own": True,
                "sharing": "shared",
                "tags": [],
            }

        talk_to(tiny_taught, talk)

    def test_list_tells_own_tasks_from_those_of_others(
        self, new_agent: Callable[..., Core], skill_files: dict[str, Path]
    ):
        agent = new_agent("ben")
        agent.import_file(skill_files["dice"])

        async def talk(client: Client) -> None:
            (task,) = facts(await client.call_tool("list"))["tasks"]
            assert (task["own"], task["sharing"]) == (False, None)
            assert task["teacher"].startswith("tina")

        talk_to(agent, talk)

    def test_ask_gives_nearest_classes_where_there_is_no_label(self, taught: Core, strange: list[Path]):
        async def talk(client: Client) -> None:
            answers = facts(await client.call_tool("ask", {"images": [str(path) for path in strange]}))["answers"]
            unknown = [answer for answer in answers if answer["unknown"]]
            assert unknown
            for answer in unknown:
                assert answer["label"] is answer["task"] is answer["teacher"] is None
                assert answer["alternatives"][0]["confidence"] == answer["confidence"]

        talk_to(taught, talk)

    @pytest.mark.parametrize(
        "path",
        ["basket.jpg", "./basket.jpg", "", "https://example.org/basket.jpg", "~nobody-here/a.jpg", "/a\0.jpg"],
    )
    def test_paths_that_are_not_full_are_refused(self, tiny_taught: Core, path: str):
        async def talk(client: Client) -> None:
            said = complaint(await client.call_tool("ask", {"images": [path]}))
            assert f"images: found {path!r}; expected the full path" in said
            assert "folder: found" in complaint(await client.call_tool("teach", {"folder": path}))

        talk_to(tiny_taught, talk)

    def test_too_many_images_at_once_are_refused(self, tiny_taught: Core):
        async def talk(client: Client) -> None:
            for tool, most, more in (
                ("ask", MOST_ASKED, {}),
                ("describe", MOST_COMPARED, {}),
                ("describe", MOST_IN_NUMBERS, {"numbers": True}),
            ):
                said = complaint(await client.call_tool(tool, {"images": ["/a.jpg"] * (most + 1)} | more))
                assert f"expected {most} at most" in said
            assert "at least 1 item" in complaint(await client.call_tool("ask", {"images": []}))

        talk_to(tiny_taught, talk)

    def test_describe_compares_images(self, taught: Core, demo_tasks: Path):
        cls, other = classes(demo_tasks / "dice")[:2]
        images = [of(demo_tasks / "dice", cls), of(demo_tasks / "dice", other), of(demo_tasks / "dice", cls)]

        async def talk(client: Client) -> None:
            said = facts(await client.call_tool("describe", {"images": images}))
            assert said["width"] == 2912
            assert said["descriptors"] is None
            rows = said["similarities"]
            assert [rows[i][i] for i in range(3)] == [1, 1, 1]
            assert rows[0][2] == rows[2][0] == 1
            assert rows[0][1] == rows[1][0] < 1
            said = facts(await client.call_tool("describe", {"images": images[:1], "numbers": True}))
            (numbers,) = said["descriptors"]
            assert len(numbers) == 2912
            assert "nowhere" in complaint(await client.call_tool("describe", {"images": ["/nowhere.jpg"]}))

        talk_to(taught, talk)


class TestTeaching:
    def test_extends_replaces_and_shares_as_it_is_told(self, new_agent: Callable[..., Core], tiny_tasks: Path):
        folder = str(tiny_tasks / "dice")

        async def talk(client: Client) -> None:
            said = facts(await client.call_tool("teach", {"folder": folder, "name": "cubes", "sharing": "never"}))
            assert (said["task"], said["sharing"]) == ("cubes", "never")
            again = complaint(await client.call_tool("teach", {"folder": folder, "name": "cubes"}))
            assert "the task 'cubes' is learned already" in again
            # A task that was kept here must not become public by accident.
            said = facts(await client.call_tool("teach", {"folder": folder, "name": "cubes", "replace": True}))
            assert said["sharing"] == "never"
            more = str(tiny_tasks / "shapes")
            said = facts(await client.call_tool("teach", {"folder": more, "extend": "cubes"}))
            assert said["classes"] == [*classes(tiny_tasks / "dice"), *classes(tiny_tasks / "shapes")]
            assert said["sharing"] == "never"
            odd = await client.call_tool("teach", {"folder": more, "extend": "cubes", "sharing": "shared"})
            assert "leave the others out" in complaint(odd)
            assert "sharing" in complaint(await client.call_tool("teach", {"folder": more, "sharing": "maybe"}))

        talk_to(new_agent(), talk)

    def test_names_what_is_wrong_with_a_folder(
        self, new_agent: Callable[..., Core], tiny_tasks: Path, tmp_path: Path
    ):
        async def talk(client: Client) -> None:
            missing = complaint(await client.call_tool("teach", {"folder": str(tmp_path / "nowhere")}))
            assert "nowhere" in missing
            several = complaint(await client.call_tool("teach", {"folder": str(tiny_tasks)}))
            assert "pass one_task=True" in several
            assert facts(await client.call_tool("list")) == {"tasks": []}

        talk_to(new_agent(), talk)

    def test_ends_when_the_assistant_cancels_it(self, new_agent: Callable[..., Core], tiny_tasks: Path):
        async def talk(client: Client) -> None:
            with anyio.CancelScope() as scope:

                async def cancel(*_: object) -> None:
                    scope.cancel()

                await client.call_tool("teach", {"folder": str(tiny_tasks / "dice")}, progress_callback=cancel)
            assert scope.cancelled_caught
            assert facts(await client.call_tool("list")) == {"tasks": []}
            assert facts(await client.call_tool("teach", {"folder": str(tiny_tasks / "dice")}))["task"] == "dice"

        talk_to(new_agent(), talk)


@pytest.mark.long
class TestProcess:
    def test_learns_lists_and_answers(self, tiny_tasks: Path, strange: list[Path], tmp_path: Path):
        home, shapes = tmp_path / "home", tiny_tasks / "shapes"
        broken = tmp_path / "broken.jpg"
        broken.write_bytes(b"no image")
        reports: list[tuple[float, float | None, str | None]] = []

        async def note(done: float, total: float | None, message: str | None) -> None:
            reports.append((done, total, message))

        async def talk(client: Client) -> None:
            assert len((await client.list_tools()).tools) == 4
            empty = complaint(await client.call_tool("ask", {"images": [str(broken)]}))
            assert "this agent knows no task yet" in empty
            said = facts(await client.call_tool("teach", {"folder": str(shapes)}, progress_callback=note))
            assert (said["task"], said["classes"], said["images"]) == ("shapes", classes(shapes), 8)
            assert said["accuracy"] is not None
            assert "validation images" in said["advice"]
            assert said["findings"] == []
            assert [t["task"] for t in facts(await client.call_tool("list"))["tasks"]] == ["shapes"]
            images = [of(shapes, cls) for cls in classes(shapes)]
            images += [str(strange[0]), str(broken), str(tmp_path / "nowhere.jpg"), str(shapes)]
            answers = facts(await client.call_tool("ask", {"images": images}))["answers"]
            assert [answer["image"] for answer in answers] == images
            assert [answer["label"] for answer in answers[:2]] == classes(shapes)
            assert {(a["task"], a["teacher"], a["error"]) for a in answers[:2]} == {("shapes", "home", None)}
            assert answers[2]["unknown"]
            assert [answer["label"] for answer in answers[2:]] == [None] * 4
            reasons = [answer["error"] for answer in answers[2:]]
            assert reasons[0] is None
            assert "not an image" in reasons[1]
            assert "No such file" in reasons[2]
            assert "it is a folder" in reasons[3]
            assert facts(await client.call_tool("describe", {"images": images[:2]}))["width"] == 2912
            assert "nowhere" in complaint(await client.call_tool("teach", {"folder": str(tmp_path / "nowhere")}))

        log = talk_to_process(home, talk)
        assert reports[-1] == (8, 8, "shapes: 8 of 8 images read")
        assert [done for done, _, _ in reports] == sorted({done for done, _, _ in reports})
        assert log.startswith("made a new agent 'home'")
        assert "Traceback" not in log

    def test_sees_what_another_command_has_learned(self, tiny_taught: Core, tiny_tasks: Path, tmp_path: Path):
        home = tmp_path / "home"
        create_home(home, name="ada")

        async def talk(client: Client) -> None:
            assert facts(await client.call_tool("list")) == {"tasks": []}
            shutil.copy(tiny_taught.export("dice", tmp_path), tmp_path / "copy.skill")
            subprocess.run([*SKILLMESH, "import", tmp_path / "copy.skill", "--home", home], check=True)
            assert [t["task"] for t in facts(await client.call_tool("list"))["tasks"]] == ["dice"]

        talk_to_process(home, talk)

    def test_a_running_node_answers(self, tiny_taught: Core, tiny_tasks: Path, tmp_path: Path):
        home, image = tmp_path / "home", of(tiny_tasks / "dice", classes(tiny_tasks / "dice")[0])
        shutil.copytree(tiny_taught.home, home)
        MeshSettings.of({"network": "client", "connect": ["127.0.0.1:9"]}).save(home)
        node = Node(home)

        async def talk(client: Client) -> None:
            alone = complaint(await client.call_tool("ask", {"images": [image]}))
            assert "SKILLMESH_ENGINE" in alone
            await anyio.to_thread.run_sync(node.start)
            (answer,) = facts(await client.call_tool("ask", {"images": [image]}))["answers"]
            assert (answer["image"], answer["task"], answer["teacher"]) == (image, "dice", "tina")
            node.stop()
            assert complaint(await client.call_tool("ask", {"images": [image]})) == alone

        try:
            talk_to_process(home, talk, **UNUSABLE)
        finally:
            node.stop()

    def test_writes_nothing_but_the_protocol_to_stdout(self, tiny_tasks: Path, tmp_path: Path):
        calls = [("teach", {"folder": str(tiny_tasks / "dice")}), ("list", {}), ("teach", {"folder": "/nowhere"})]
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        messages: list[dict[str, Any]] = [
            {"id": 0, "method": "initialize", "params": hello},
            {"method": "notifications/initialized"},
        ]
        with subprocess.Popen(
            [*SKILLMESH, "mcp", "--home", tmp_path / "home"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for number, (tool, arguments) in enumerate(calls, 1):
                params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": number}}
                messages.append({"id": number, "method": "tools/call", "params": params})
                for message in messages:
                    process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
                process.stdin.flush()
                messages = []
                lines: list[Any] = []
                while not lines or lines[-1].get("id") != number:
                    lines.append(json.loads(process.stdout.readline()))
                    assert lines[-1]["jsonrpc"] == "2.0"
                assert lines[-1]["result"]["isError"] is (number == 3)
            rest, errors = process.communicate(timeout=60)
        assert rest == ""
        assert process.returncode == 0
        assert "made a new agent" in errors
        assert "Traceback" not in errors


class TestCommand:
    @pytest.mark.parametrize("missing", ["mcp", "mcp_types"], ids=["without the SDK", "with version 1"])
    def test_says_what_to_install(
        self, command: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str
    ):
        monkeypatch.setitem(sys.modules, missing, None)
        failed(command("mcp", "--home", tmp_path / "home"), "serving an assistant", "`pip install --upgrade mcp`")
        assert not (tmp_path / "home").exists()

    def test_refuses_a_damaged_home_before_it_serves(self, command: Callable[..., Ran], tmp_path: Path):
        (tmp_path / "agent.json").write_text("{")
        failed(command("mcp", "--home", tmp_path), "agent.json")

    def test_no_other_command_imports_the_sdk(self, tmp_path: Path):
        code = "import sys; from skillmesh.cli import main\ntry: main()\nexcept SystemExit: pass\n"
        code += "print('loaded:', *({'mcp', 'mcp_types'} & set(sys.modules)))"
        words = [sys.executable, "-c", code, "--home", str(tmp_path / "home"), "tasks"]
        ran = subprocess.run(words, capture_output=True, text=True, env=environment(), check=True)
        assert ran.stdout.splitlines()[-1] == "loaded:"
