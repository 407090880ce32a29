"""What a job tells while it runs: how far it is.

That goes into the page which the child shares with its warden, who looks at it when it renews its title: so it costs
its job no system call, and may be told in the tightest loop. Only what a run tells of itself counts: not what a copy of
its handler says later, when the child is at another job.

This file may not end, interrupt or fail a run.
"""

from __future__ import annotations

from typing import Any

from ganger_child.page import NOTE_MOST, NOTE_SERIAL, PROGRESS, RUN, Page
from ganger_child.words import shown


class Reports:
    """The reports of one run."""

    def __init__(self, page: Page, nonce: int) -> None:
        self._page = page
        self._nonce = nonce
        page[PROGRESS] = 0
        if page[NOTE_SERIAL]:
            page.write_note(b"")
        self._note = ""

    def progress(self, fraction: Any, note: Any) -> None:
        """See ``Job.progress``."""
        page = self._page
        if page[RUN] != self._nonce:
            return
        if fraction is not None:
            try:
                done = int(fraction * 1000.0 + 1e-6)
            except (TypeError, ValueError, OverflowError):
                raise ValueError(f"fraction is {shown(fraction)}: give a number from 0 to 1.") from None
            page[PROGRESS] = min(max(done, 0), 1000) + 1
        if note is not None and note != self._note:
            if not isinstance(note, str):
                raise ValueError(f"note is {shown(note)}: give a text.")
            page.write_note(note[:NOTE_MOST].encode("utf-8", "replace"))
            self._note = note
