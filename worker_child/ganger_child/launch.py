"""How an interpreter of ours is started: the template, and with start method "spawn" each child.

It must find this package where the one that starts it found it, and before that it must not import anything from the
user's folder, where a file may be called like a module of the standard library. This file only composes a command.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

_ROOT: Final = str(Path(__file__).resolve().parent.parent)
_CODE: Final = (
    "import sys; root = sys.argv.pop(1); root in sys.path or sys.path.append(root); "
    "from ganger_child.{module} import main; main()"
)


def command(module: str, **words: str | int | None) -> list[str]:
    """The command line that runs ``main`` of a module, with ``--name value`` for each word that is not None."""
    arguments = [part for name, word in words.items() if word is not None for part in (f"--{name}", str(word))]
    return [sys.executable, "-P", "-c", _CODE.format(module=module), _ROOT, *arguments]


def is_ours() -> bool:
    """Tell whether this process is a template or a child, or a fork of one: where the user's code is our guest."""
    return any(_CODE.format(module=module) in sys.orig_argv for module in ("template", "child"))
