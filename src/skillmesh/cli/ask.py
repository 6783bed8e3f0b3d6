"""The command `ask`."""

from __future__ import annotations

from typing import Annotated

import typer

from skillmesh.cli import app, options
from skillmesh.errors import AgentError, SkillmeshError


@app.command()
def ask(
    context: typer.Context,
    images: Annotated[
        list[str], typer.Argument(help="Image files, folders, zips, quoted patterns, or - for standard input.")
    ],
    home: options.Home = None,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Classify images. The task of each image is found automatically.

    If the output is not a terminal, each line holds image, label, task, confidence and teacher, separated by tabs.
    Exit status: 0 if every image has an answer (maybe "unknown"), 1 if some could not be read, 2 for a bad option.
    """
    from skillmesh.answering.answer import Answer
    from skillmesh.cli import show
    from skillmesh.cli.answers import AnswerLines, Asking, JsonAnswers, Writer
    from skillmesh.data.gather import gather
    from skillmesh.data.inputs import Unreadable

    inputs = list(gather(images))
    writer: Writer = JsonAnswers() if json else AnswerLines([each.name for each in inputs])
    readable = [each for each in inputs if not isinstance(each, Unreadable)]
    asking = Asking(home or context.obj, device, writer)
    failed = 0
    error: SkillmeshError | None = None
    with show.progress_bar(quiet=show.console.is_terminal or len(readable) < 2) as bar:
        answers = asking.answers(readable, bar)
        try:
            for each in inputs:
                answer = Answer.failed(each.name, each.reason) if isinstance(each, Unreadable) else next(answers)
                writer.add(answer)
                failed += answer.error is not None
        except SkillmeshError as caught:
            error = caught
        except BaseException as caught:
            writer.end(AgentError(f"stopped: {type(caught).__name__}"))
            raise
    writer.end(error)
    if error is not None and not json:
        raise error
    if failed or error is not None:
        raise typer.Exit(1)
