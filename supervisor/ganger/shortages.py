"""What Python and the loader of libraries say where a limit of this process is reached, as a sentence.

It has no type of its own there: memory shows as four kinds of error. This file may not import anything of ours: it is
used where there is no room for more.
"""

from __future__ import annotations

from typing import Final

NO_MEMORY: Final = "there is not enough memory for it: raise the limit on it (ulimit -v, or that of the container)."
_NO_THREADS: Final = "no thread can be started: raise the limit on them (ulimit -u) or on memory (ulimit -v)."
_SHORTAGES: Final = (
    (MemoryError, "", NO_MEMORY),
    (SystemError, "without exception set", NO_MEMORY),  # the interpreter itself, where it cannot make a frame
    (ImportError, "failed to map segment", NO_MEMORY),
    (OSError, "Cannot allocate memory", NO_MEMORY),
    (RuntimeError, "can't start new thread", _NO_THREADS),
)


def shortage(error: BaseException) -> str | None:
    """The sentence for an error that comes of such a limit; None: it has another cause."""
    for kind, words, sentence in _SHORTAGES:
        if isinstance(error, kind) and words in str(error):
            return sentence
    return None
