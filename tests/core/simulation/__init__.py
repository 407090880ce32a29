"""The core in a world of its own: fake clocks, processes and network, a model of the queue, and an observer.

``World(seed).run()`` is one schedule. ``world`` makes things happen, ``supervisor`` drives the core as the loop does,
``gang`` and ``link`` stand for its processes and for its database threads, ``observer`` knows what may never be seen.
"""

from tests.core.simulation.observer import Violation
from tests.core.simulation.world import World

__all__ = ["Violation", "World"]
