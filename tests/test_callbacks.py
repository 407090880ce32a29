"""Callbacks of an application: nothing that becomes of them ends the supervisor."""

from __future__ import annotations

import io
import threading

import pytest

from ganger.callbacks import Callbacks
from ganger.events import Events


def test_where_no_thread_can_be_started_it_is_an_event_and_later_ones_are_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = io.StringIO()
    events = Events(err=said, out=io.StringIO())
    callbacks = Callbacks(events)
    got: list[int] = []

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        callbacks.call("on_polling_error", lambda: 1, then=got.append)
    callbacks.call("on_polling_error", lambda: 2, then=got.append)
    callbacks.close()
    assert events.close()
    assert got == [2]
    assert "on_polling_error raised RuntimeError: can't start new thread" in said.getvalue()
