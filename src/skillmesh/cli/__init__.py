"""The command `skillmesh`. Heavy imports happen inside the commands, so that `--help` is there at once."""

from __future__ import annotations


def main() -> None:
    """Run the command; what the user can mend ends in one line and exit status 1."""
    import sys

    from skillmesh.errors import SkillmeshError

    try:
        from skillmesh.cli import app, measure, mesh, trust  # noqa: F401  (each adds its commands)

        app.app()
    except SkillmeshError as error:
        print(f"skillmesh: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)


if __name__ == "__main__":
    main()
