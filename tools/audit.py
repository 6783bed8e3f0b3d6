"""Compare the locked packages with published advisories.

    python tools/audit.py requirements-dev.lock             # asks pip-audit's advisory service
    python tools/audit.py requirements-dev.lock --offline   # uses the advisories in the package safety-db

A package that could not be compared counts as a failure.
"""

import argparse
import json
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name


def locked(lock: Path) -> dict[str, str]:
    """Return the version of every package in a lock file, by the package's normalised name."""
    pins = [Requirement(line.split(" \\")[0]) for line in lock.read_text().splitlines() if line[:1].isalnum()]
    return {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins}


def known_advisories(versions: dict[str, str]) -> list[str]:
    """Return one line for each advisory in safety-db that applies to a locked version."""
    file = Path(str(distribution("safety-db").locate_file("safety_db/insecure_full.json")))
    database: dict[str, list[dict[str, Any]]] = json.loads(file.read_text())
    entries = {canonicalize_name(name): listed for name, listed in database.items()}
    return [
        f"{name} {version}: {entry['cve'] or entry['id']}: {entry['advisory'][:200]}"
        for name, version in versions.items()
        for entry in entries.get(name, [])
        if any(SpecifierSet(spec).contains(version, prereleases=True) for spec in entry["specs"])
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lock", type=Path)
    parser.add_argument("--offline", action="store_true", help="use the advisories in the package safety-db")
    options = parser.parse_args()
    if not options.offline:
        audit = [
            sys.executable,
            "-m",
            "pip_audit",
            "--strict",
            "--disable-pip",
            "--require-hashes",
            "-r",
            options.lock,
        ]
        return subprocess.run(audit, check=False).returncode
    versions = locked(options.lock)
    lines = known_advisories(versions)
    date = distribution("safety-db").version
    print(*lines, f"{len(versions)} packages compared with the advisories of {date}: {len(lines)} apply", sep="\n")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
