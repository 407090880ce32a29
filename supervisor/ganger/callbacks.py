"""The callbacks that an embedding application gives, called in a thread of their own.

Nobody waits for them while jobs run, and one that raises is an event, not the end of the supervisor. What a handler
does about its jobs is no callback of this kind: that is the user's code too, but runs in the children.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

from ganger.events import Events

LOOK_INTERVAL: Final = 0.1  # seconds between looks whether callbacks are given up


class Callbacks:
    """``call`` queues a function; each runs after the one before."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, name: str, function: Callable[..., Any], *arguments: Any, then: Callable[[Any], None]) -> None:
        """Call ``function`` and hand its result to ``then``, both in the callbacks' thread."""

        def act() -> None:
            try:
                result = function(*arguments)
            except Exception as error:
                self._tell(name, error)
            else:
                then(result)

        if self._thread is None:
            thread = threading.Thread(target=self._run, name="ganger-callbacks", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # a limit on processes or memory: jobs run on without it
                self._tell(name, error)
                return
            self._thread = thread
        self._queue.put(act)

    def _tell(self, name: str, error: Exception) -> None:
        self._events.emit("callback-error", callback=name, error={"type": type(error).__name__, "message": str(error)})

    def close(self, given_up: Callable[[], bool] = lambda: False) -> None:
        """Wait until every callback that was queued has returned, or until they are given up."""
        if self._thread is not None:
            self._queue.put(None)
            while self._thread.is_alive() and not given_up():
                self._thread.join(LOOK_INTERVAL)
            self._thread = None

    def _run(self) -> None:
        while (act := self._queue.get()) is not None:
            act()
