"""The event loop of a child, in which everything that is ``async def`` runs: handlers, hooks, strategies, callbacks.

One loop for the child's life, so that what a ``child_start`` hook opened (a pool of connections) serves its jobs. The
tasks that a job leaves behind are cancelled at its end, as ``asyncio.run`` does.

This file may not import asyncio before the first coroutine appears: most applications have none.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from inspect import CORO_CLOSED, getcoroutinestate
from typing import TYPE_CHECKING, Any, Final

from ganger_child.errors import JobInterrupted
from ganger_child.interrupt import Interrupt

if TYPE_CHECKING:
    import asyncio

_PATIENCE: Final = 1.0  # seconds for tasks that are cancelled because one of them has ended the job


class Coroutines:
    """Runs coroutines, one at a time, in the main thread."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def call(self, function: Callable[..., Any], *arguments: Any, keep_tasks: bool = False) -> Any:
        """Call a function, and run what it returns to its end if that is a coroutine.

        It runs in a copy of the context, so that a context variable set by one job is not seen by the next.
        """
        return self.call_interruptibly(None, function, *arguments, keep_tasks=keep_tasks)

    def call_interruptibly(
        self, interrupt: Interrupt | None, function: Callable[..., Any], *arguments: Any, keep_tasks: bool = False
    ) -> Any:
        """The same; an interrupt cancels the coroutine first, and leaves it as the interrupt's exception."""
        context = copy_context()
        value = context.run(function, *arguments)
        if not isinstance(value, Coroutine):
            return value
        import asyncio

        main = _main(value, interrupt, keep_tasks)
        try:
            return self.open().run(main, context=context)
        except asyncio.CancelledError as cancelled:
            if interrupt is not None and interrupt.raised is not None:
                raise interrupt.raised from cancelled
            raise
        except JobInterrupted:  # raised hard, in the middle of the loop: let the tasks clean up, and begin anew
            self.close()
            raise
        except (KeyboardInterrupt, SystemExit):
            if getcoroutinestate(main) != CORO_CLOSED:
                self._abandon(
                    main
                )  # raised in another task or a callback, which stops the loop in the middle of the job
            raise
        finally:
            if interrupt is not None:
                interrupt.cancel = None

    def open(self) -> asyncio.Runner:
        """Make the loop, if there is none: at a child's start, so that its descriptors do not look like a job's."""
        import asyncio

        if self._runner is None:
            self._runner = asyncio.Runner()
            self._runner.get_loop()
        return self._runner

    def close(self) -> None:
        """Cancel what is left in the loop and close it."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    def _abandon(self, main: Coroutine[Any, Any, Any]) -> None:
        """Cancel what is left in the loop, let it clean up for a while, and never run this loop again."""
        import asyncio

        runner, self._runner = self._runner, None
        if runner is None:
            return
        loop = runner.get_loop()
        for task in asyncio.all_tasks(loop):
            task.cancel()
            if task.get_coro() is main:  # which waits for the others that the job has started
                task.add_done_callback(lambda _: loop.stop())
        loop.call_later(_PATIENCE, loop.stop)
        with suppress(SystemExit):  # a second one
            loop.run_forever()


async def _main(coroutine: Coroutine[Any, Any, Any], interrupt: Interrupt | None, keep_tasks: bool) -> Any:
    import asyncio

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    before = asyncio.all_tasks()

    def cancel() -> None:
        if task is not None:
            task.cancel()
        loop.call_soon_threadsafe(lambda: None)  # the loop may be waiting: a signal alone does not wake it

    if interrupt is not None:
        interrupt.cancel = cancel
    try:
        return await coroutine
    finally:
        left = () if keep_tasks else asyncio.all_tasks() - before
        for other in left:
            other.cancel()
        await asyncio.gather(*left, return_exceptions=True)
