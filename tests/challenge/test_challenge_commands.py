"""`skillmesh challenge` joins the command line without a cost to other commands."""

import subprocess
import sys

UNTOUCHED = """
import sys
from skillmesh.cli import main
try:
    main()
except SystemExit:
    print(sorted(name for name in sys.modules if name.startswith("skillmesh_challenge")), file=sys.stderr)
"""


def test_commands_of_another_package_are_imported_only_when_used():
    ours = subprocess.run([sys.executable, "-c", UNTOUCHED, "--version"], capture_output=True, text=True)
    assert ours.stderr == "[]\n"
    theirs = subprocess.run(
        [sys.executable, "-c", UNTOUCHED, "challenge", "--help"], capture_output=True, text=True
    )
    assert "'skillmesh_challenge.cli.run'" in theirs.stderr
