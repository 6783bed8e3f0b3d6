"""Measure sharing between real processes on one machine: time, bytes and memory until all nodes hold all modules.

    sudo python benchmarks/mesh.py --nodes 8 32

Every node is `skillmesh serve` with its own home and two tasks that it has learned itself. They run in a new
network namespace, whose loopback counters give the bytes on the wire; without permission to create one, the
machine's own loopback is counted, including other traffic. The floor is the same bytes through one loopback TCP
connection.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from nodes import environment, fresh_copies, namespace, runs, start, status, taught_homes, until

from skillmesh.evaluation.provenance import provenance
from skillmesh.mesh.calling import call
from skillmesh.mesh.process import stop_all

HERE = Path(__file__).parent


def run(homes: list[Path], idle_seconds: float) -> dict[str, Any]:
    """Start a node per home and watch until every bank holds everything."""
    files = [path for home in homes for path in (home / "bank").glob("*.skill")]
    sizes = sum(path.stat().st_size for path in files)
    moved = sizes * (len(homes) - 1)
    with namespace() as net:
        began_bytes, began = net.bytes_sent(), time.monotonic()
        nodes = [start(home, net) for home in homes]
        try:
            until(lambda: all(runs(home) for home in homes))
            ready = time.monotonic() - began
            until(lambda: all(_count(home) == len(files) for home in homes))
            hold_all = time.monotonic() - began
            until(lambda: len({status(home)["root"] for home in homes}) == 1)
            until(lambda: all(status(home)["in_use"] == len(files) for home in homes))
            answering = time.monotonic() - began
            wire = net.bytes_sent() - began_bytes
            memory = [_memory(node.process.pid) for node in nodes]
            time.sleep(15)  # until the traffic that follows new modules has ended
            idle_from = net.bytes_sent()
            time.sleep(idle_seconds)
            idle = (net.bytes_sent() - idle_from) * 60 / idle_seconds
            fetched = sum(call(home, "status")["bytes_fetched"] for home in homes)
        finally:
            stop_all(nodes, grace=60)
    return {
        "nodes": len(homes),
        "modules": len(files),
        "module_bytes": round(sizes / len(files)),
        "ready_seconds": round(ready, 2),
        "hold_all_seconds": round(hold_all, 2),
        "answering_seconds": round(answering, 2),
        "moved_bytes": moved,
        "fetched_bytes": fetched,
        "wire_bytes": wire,
        "wire_ratio": round(wire / moved, 4),
        "idle_bytes_per_minute_and_node": round(idle / len(homes)),
        "node_rss_mb": round(fmean(rss for rss, _ in memory), 1),
        "node_peak_mb": round(max(peak for _, peak in memory), 1),
        "floor_seconds": round(_floor(moved), 3),
        "own_network": net.name is not None,
    }


def memory_of_answering(home: Path) -> dict[str, Any]:
    """Return the memory of a node, and of a plain process that has answered the same image, in MB."""
    image = next((home.parent.parent.parent / "tasks").rglob("*.jpg"))
    alone = (
        "import sys; from pathlib import Path; from skillmesh.core import Core; a = Core(Path(sys.argv[1]));"
        "a.answer([Path(sys.argv[2])]);"
        "print([int(l.split()[1]) for l in open('/proc/self/status') if l.startswith('VmRSS')][0] / 1000)"
    )
    command = [sys.executable, "-c", alone, str(home), str(image)]
    bare = float(subprocess.run(command, capture_output=True, check=True, text=True, env=environment()).stdout)
    with namespace() as net:
        node = start(home, net)
        try:
            until(lambda: runs(home))
            call(home, "ask", timeout=None, images=[str(image)])
            rss, _ = _memory(node.process.pid)
        finally:
            node.stop(grace=60)
    return {"process_mb": round(bare, 1), "node_mb": round(rss, 1), "beyond_mb": round(rss - bare, 1)}


def _count(home: Path) -> int:
    return sum(name.endswith(".skill") for name in map(str, (home / "bank").iterdir()))


def _memory(pid: int) -> tuple[float, float]:
    """Return current and peak resident memory, in MB."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) / 1000, int(lines["VmHWM"].split()[0]) / 1000


def _floor(count: int) -> float:
    """Return the seconds that `count` bytes take through one TCP connection on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def send() -> None:
            with socket.create_connection(server.getsockname()) as line:
                block, left = bytes(1 << 20), count
                while left > 0:
                    line.sendall(block[: min(left, len(block))])
                    left -= len(block)

        started = time.perf_counter()
        sender = threading.Thread(target=send)
        sender.start()
        line, _ = server.accept()
        buffer = bytearray(1 << 20)
        while line.recv_into(buffer):
            pass
        sender.join()
        line.close()
        return time.perf_counter() - started


def show(result: dict[str, Any]) -> None:
    for key, value in result.items():
        print(f"  {key:<34}{value:,}" if not isinstance(value, bool) else f"  {key:<34}{value}")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--idle", type=float, default=60.0, help="seconds of idle traffic to count")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "skillmesh-bench")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    homes = taught_homes(options.work, max(options.nodes))
    origin = provenance(f"python benchmarks/mesh.py --nodes {' '.join(map(str, options.nodes))}", [], 0)
    runs = []
    for count in options.nodes:
        print(f"{count} nodes")
        runs.append(run(fresh_copies(homes[:count], options.work / "run" / str(count)), options.idle))
        show(runs[-1])
    answering = memory_of_answering(options.work / "run" / str(options.nodes[0]) / homes[0].name)
    print("a node that answers")
    show(answering)
    if options.out:
        report = {"runs": runs, "answering": answering, "provenance": origin}
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
