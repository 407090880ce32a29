"""The tree seen through /proc. Each case runs in a process of its own, which is the subreaper that a warden is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from tests.processes import nothing_left

PREAMBLE = """
import json, os, signal, subprocess, sys, time
from ganger_child import guard, tree

guard.adopt_orphans()

def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False

def start(function, *arguments):
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            function(*arguments)
        finally:
            os._exit(0)
    return pid

def wait_until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
"""


def run(code: str) -> Any:
    """Run code after the preamble; returns what it prints, as JSON."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    program = PREAMBLE + textwrap.dedent(code)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, env=environment, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


CHAIN = """
def chain():
    '''Fork into a new session every 5 ms, for ever; each link ends when the next one lives.'''
    while True:
        time.sleep(0.005)
        if os.fork():
            os._exit(0)
        os.setsid()

def stubborn():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(60)

def family():
    for _ in range(3):
        start(chain)
    for _ in range(3):
        start(stubborn)
    time.sleep(60)
"""


@pytest.mark.parametrize("turn", range(20))
def test_a_tree_that_forks_into_new_sessions_is_ended_to_the_last(turn: int) -> None:
    left, survivors, killed = run(
        CHAIN
        + f"""
start(family)
wait_until(lambda: len(tree.descendants(os.getpid())) >= 7)
time.sleep({turn} / 1000)  # another moment of the chain's 5 ms each time
ended = tree.end_all(reap, 5.0)
time.sleep(0.03)  # time for six more links, if one was missed
print(json.dumps([tree.descendants(os.getpid()), ended.survivors, sorted(ended.killed)]))
"""
    )
    assert left == []
    assert survivors == []
    assert len(killed) >= 4  # the family, its three stubborn ones, and links of the chains
    nothing_left(killed)


def test_what_is_to_be_spared_is_spared_with_all_below_it() -> None:
    spared, killed, alive = run(
        """
        def parent():
            start(time.sleep, 60)
            time.sleep(60)

        keep, end = start(parent), start(parent)
        wait_until(lambda: len(tree.descendants(os.getpid())) == 4)
        below = tree.descendants(keep)
        ended = tree.end_all(lambda: reap() or set(tree.children(os.getpid())) <= {keep}, 5.0, spare={keep})
        alive = tree.descendants(os.getpid())
        tree.end_all(reap, 5.0)
        print(json.dumps([[keep, *below], sorted(ended.killed), alive]))
        """
    )
    assert sorted(alive) == sorted(spared)
    assert len(killed) == 2
    assert not set(killed) & set(spared)


def test_what_cannot_be_ended_is_told_after_the_bound() -> None:
    survivors, seconds = run(
        """
        pid = start(time.sleep, 60)
        began = time.monotonic()
        real, tree._signal = tree._signal, lambda pid, signum: False  # as with a setuid program
        ended = tree.end_all(reap, 0.3)
        seconds = time.monotonic() - began
        tree._signal = real
        tree.end_all(reap, 5.0)
        print(json.dumps([[pid == other for other in ended.survivors], seconds]))
        """
    )
    assert survivors == [True]
    assert 0.3 <= seconds < 3


def test_a_pid_that_is_not_below_us_is_never_signalled() -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        sent = run(f"print(json.dumps(tree._signal({stranger.pid}, signal.SIGKILL)))")
        assert sent is False
        assert stranger.poll() is None
    finally:
        stranger.communicate(b"\n")


WATCH = """
def verdict(function, windows=6):
    start(function)
    time.sleep(0.3)
    sampler = tree.Sampler()
    began = time.monotonic()
    said = []
    for _ in range(windows):
        time.sleep(tree.WINDOW)
        word = sampler.sample()
        if word is not None:
            said.append([word[0], word[1] - began])
    tree.end_all(reap, 5.0)
    print(json.dumps(said))
"""


@pytest.mark.parametrize(
    ("function", "computing"),
    [
        ("def work(): time.sleep(60)", False),
        ("def work():\n    import socket\n    socket.socketpair()[0].recv(1)", False),
        ("def work():\n    while True:\n        time.sleep(0.02)", False),
        ("def work():\n    while True:\n        pass", True),
        ("def work(): sum(range(10**11))", True),
        ("def work():\n    start(sum, range(10**11))\n    time.sleep(60)", True),
        (
            "def work():\n    import threading\n"
            "    threading.Thread(target=sum, args=(range(10**11),)).start()\n    time.sleep(60)",
            True,
        ),
        ("def work(): os.execvp('sh', ['sh', '-c', 'while true; do /bin/true; done'])", True),
    ],
    ids=["sleep", "recv", "poll", "loop", "C code", "grandchild", "thread", "short-lived processes"],
)
def test_blocked_and_computing_are_told_apart(function: str, computing: bool) -> None:
    said = run(function + "\n" + WATCH + "verdict(work)\n")
    assert said, "three windows have passed, and nothing was said"
    assert said[-1][0] is computing
    assert len(said) == 1


def test_nothing_is_said_before_three_windows_have_passed() -> None:
    assert run("def work(): time.sleep(60)\n" + WATCH + "verdict(work, windows=2)\n") == []


def test_since_is_the_beginning_of_the_stretch() -> None:
    said = run(
        "def work():\n    end = time.monotonic() + 2.4\n    while time.monotonic() < end:\n        pass\n"
        "    time.sleep(60)\n" + WATCH + "verdict(work, windows=11)\n"
    )
    assert [computing for computing, _ in said] == [True, False]
    assert abs(said[0][1]) < 0.3
    assert 1.4 < said[1][1] < 4.0  # it worked for 2.1 s after the first sample; on a busy machine longer


def test_a_stopped_tree_is_neither() -> None:
    said = run("def work(): os.kill(os.getpid(), signal.SIGSTOP)\n" + WATCH + "verdict(work, windows=5)\n")
    assert said == []


MEMORY = """
MIB = 1 << 20

def holder(size, forks=0):
    '''What is held once the process (and its forked sleepers) have settled.'''
    reading, writing = os.pipe()
    def hold():
        block = bytearray(os.urandom(4096) * (size // 4096)) if size else None
        for _ in range(forks):
            start(time.sleep, 60)
        os.write(writing, b"x")
        time.sleep(60)
    start(hold)
    os.read(reading, 1)
    held = tree.held(0)
    tree.end_all(reap, 5.0)
    return held
"""


def test_memory_that_is_shared_inside_the_tree_counts_once() -> None:
    """Correction 15: pages that a job shares with its own forks are nobody's private ones, and still the job's."""
    alone, shared = run(MEMORY + "print(json.dumps([holder(64 * MIB), holder(64 * MIB, forks=3)]))")
    mib = 1 << 20
    assert 56 * mib < alone < 80 * mib  # a little is taken off for what each member has from us
    assert 50 * mib < shared < 90 * mib  # and not 2, as the private pages alone, or 256


def test_memory_that_is_shared_with_us_does_not_count() -> None:
    """Correction 15: what every child has from its template is not taken for the job's."""
    small = run(MEMORY + "ballast = bytearray(os.urandom(4096) * (150 * MIB // 4096))\nprint(json.dumps(holder(0)))")
    assert small < 30 << 20


def test_a_small_tree_is_not_measured_closely() -> None:
    held = run(
        MEMORY
        + """
def refuse(pid):
    raise AssertionError("smaps_rollup was read")
tree._rollup = refuse
start(time.sleep, 60)
held = tree.held(1 << 40)
tree.end_all(reap, 5.0)
print(json.dumps(held))
"""
    )
    assert 0 < held < 1 << 30


def test_without_lists_of_children_in_proc_the_tree_is_seen_all_the_same() -> None:
    same = run(
        """
        def parent():
            start(time.sleep, 60)
            time.sleep(60)

        start(parent)
        wait_until(lambda: len(tree.descendants(os.getpid())) == 2)
        quick = tree.descendants(os.getpid())
        tree._HAS_CHILDREN = False
        slow = tree.descendants(os.getpid())
        tree.end_all(reap, 5.0)
        print(json.dumps(quick == slow))
        """
    )
    assert same is True
