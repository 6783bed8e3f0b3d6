"""An agent does not change the process that uses it: threads, allocator, logging, random numbers."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

from running import PLAIN

from skillmesh.numerics.process import quiet

PROGRAM = """
import ctypes, json, logging, random, sys, threading
from pathlib import Path
import numpy as np
import torch

FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS.split()]

def in_a_new_thread(ask):
    results = []
    thread = threading.Thread(target=lambda: results.append(ask()))
    thread.start()
    thread.join()
    return results[0]

def large_blocks_are_mapped():
    "glibc maps each block of 64 MB from the system and returns it when freed, unless it was tuned."
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype, libc.malloc.restype, libc.free.argtypes = Memory, ctypes.c_void_p, [ctypes.c_void_p]
    before = libc.mallinfo2().hblks
    block = libc.malloc(2**26)
    mapped = libc.mallinfo2().hblks - before
    libc.free(block)
    return mapped

def state():
    root = logging.getLogger()
    return {
        "torch's threads": torch.get_num_threads(),
        "torch's threads in a new thread": in_a_new_thread(torch.get_num_threads),
        "large blocks are mapped": sys.platform != "linux" or large_blocks_are_mapped(),
        "logging": [root.manager.disable, root.level, len(root.handlers), len(root.filters)],
        "level of timm's logger": logging.getLogger("timm").level,
        "random numbers": [hash(random.getstate()), torch.get_rng_state().sum().item(), torch.initial_seed()],
        "NumPy's random numbers": np.random.get_state()[1].sum().item(),
    }

home, task, *images, threads = sys.argv[1:]
if int(threads):
    torch.set_num_threads(int(threads))
torch.manual_seed(11)
before = state()

from skillmesh import Adaptation, Agent

agent = Agent(home, device="cpu")
agent.learn(task, adaptation=Adaptation("always", "head2toe", epochs=1))
assert all(answer.error is None for answer in agent.predict(images))
print(json.dumps([before, state()]))
"""


@pytest.mark.long
@pytest.mark.parametrize("threads", [0, 3], ids=["the default", "three threads"])
def test_a_program_keeps_its_threads_allocator_logging_and_random_numbers(
    tiny_tasks: Path, tmp_path: Path, threads: int
):
    images = sorted((tiny_tasks / "dice" / "test").glob("*/*"))
    words = [tmp_path / "home", tiny_tasks / "dice", *images, threads]
    environment = PLAIN | {"OMP_NUM_THREADS": "2", "SKILLMESH_CACHE": str(tmp_path / "cache")}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, words)], capture_output=True, text=True, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    before, after = json.loads(ran.stdout)
    assert before["torch's threads"] == (threads or 2)
    assert after == before


COMMAND = """
import sys
from skillmesh.numerics import process as allocator
if sys.argv.pop(1) == "ours":
    allocator.process_is_ours()
print(allocator.keep_freed_memory())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc's allocator is tuned")
@pytest.mark.parametrize(("whose", "tuned"), [("ours", "True"), ("theirs", "False")])
def test_the_allocator_is_tuned_only_in_skillmesh_processes(whose: str, tuned: str):
    environment = {name: value for name, value in os.environ.items() if name != "SKILLMESH_MALLOC"}
    ran = subprocess.run([sys.executable, "-c", COMMAND, whose], capture_output=True, text=True, env=environment)
    assert ran.stdout.strip() == tuned, ran.stderr


LOADS = """
import logging, sys, threading
from skillmesh.numerics.process import quiet

with quiet("noisy"):
    logging.getLogger("noisy.part").error("of the library")
    logging.error("of the library, by no logger of its own")
    other = threading.Thread(target=logging.warning, args=["of the program's other thread"])
    other.start()
    other.join()
    logging.getLogger("program").warning("of the program")
logging.getLogger("noisy.part").warning("later")
assert not logging.getLogger().handlers
"""


def test_the_program_can_log_while_a_noisy_library_loads():
    ran = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, env=PLAIN)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.splitlines() == ["of the program's other thread", "of the program", "later"]


def test_levels_of_noisy_loggers_are_restored_after_an_error():
    noisy = logging.getLogger("noisy.of.a.test")
    noisy.setLevel(logging.DEBUG)
    filters = list(logging.getLogger().filters)
    with pytest.raises(ZeroDivisionError), quiet("noisy.of.a.test"):
        noisy.level / (noisy.level - logging.CRITICAL)
    assert noisy.level == logging.DEBUG
    assert logging.getLogger().filters == filters
