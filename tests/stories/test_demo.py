"""The demo, as a newcomer runs it."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from pathlib import Path

from ganger.local_postgres import LocalPostgres
from tests.stories.stage import ROOT


def test_the_demo_shows_what_it_promises_and_leaves_nothing(folder: Path) -> None:
    data = folder / "data"
    environ = {name: value for name, value in os.environ.items() if name != "GANGER_DATA_DIR"}
    picture = ROOT / "render.png"
    picture.unlink(missing_ok=True)
    done = subprocess.run(
        [ROOT / "scripts/demo"], env={**environ, "GANGER_DATA_DIR": str(data)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    shown, events = done.stdout, done.stderr
    assert re.search(r"ganger: supervisor \S+ [23]/3 running default=3", shown)
    assert re.search(r"ganger: warden default/\d stuck-in-c \w{8} attempt 1 \ds/2s", shown)
    assert re.search(r"ganger: child default/\d killed-from-outside \w{8} attempt 1 since", shown)
    assert re.search(r"job-crashed +killed-from-outside \w{8} attempt 1 signal 9 \(SIGKILL\)", events)
    assert re.search(r"job-timed-out +stuck-in-c", events)
    assert re.search(r"job-interrupted +long-wait", events)
    assert re.search(r"job-finished +last-computation", events)
    assert events.count("job-finished         render-tile") == 30
    assert re.search(r"render-tile +success +30 +1", shown)
    assert re.search(r"killed-from-outside +success +1 +2", shown)
    assert re.search(r"stuck-in-c +failure +timeout +1", shown)
    assert str(picture) in shown
    content = picture.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">2I", content[16:24]) == (420, 280)
    assert len(content) > 20_000
    assert not LocalPostgres(data).running()
