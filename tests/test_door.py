"""The door by itself: no visitor and no shortage keeps the loop from its work. What is answered: test_asking.py."""

from __future__ import annotations

import json
import os
import resource
import socket
from selectors import DefaultSelector
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

from ganger.door import Door
from ganger.gang import Gang
from ganger.knock import address


def test_who_knocks_while_descriptors_have_run_out_waits_and_does_not_wake_the_loop_without_end() -> None:
    """Served as soon as there is one and the door is opened again, which the loop does each second."""
    incarnation, gang = uuid4(), cast(Gang, SimpleNamespace(over=None, printed=lambda job_id: None))
    with DefaultSelector() as selector, socket.socket(socket.AF_UNIX) as visitor:
        door = Door(incarnation, selector, gang)

        def turn() -> int:
            """As the loop does it; how many descriptors were ready."""
            ready = selector.select(0)
            for key, _ in ready:
                key.data()
            return len(ready)

        visitor.connect(address(incarnation))
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(visitor.fileno())
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            assert [turn(), turn(), turn()] == [1, 0, 0]
            door.open()
            assert [turn(), turn()] == [1, 0]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        door.open()
        door.open()
        assert turn() == 1
        visitor.sendall(json.dumps({"ask": "tail", "job_id": str(uuid4())}).encode() + b"\n")
        turn()
        visitor.settimeout(5)
        answer: dict[str, Any] = json.loads(visitor.recv(1000))
        assert "does not run there" in answer["refused"]
        door.close()
        assert not selector.get_map()
