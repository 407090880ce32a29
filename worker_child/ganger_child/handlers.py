"""The handlers of an application: how they are declared, and how they are loaded.

``Handlers`` is what a module of jobs makes and decorates its functions with. ``load`` imports the target, once, in
the template (or in the child, where children are exec'd anew), and refuses what cannot work before a job is claimed.

This file may not call a handler.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

from ganger_child import units
from ganger_child.errors import UnknownJobType
from ganger_child.job import Job
from ganger_child.options import Options
from ganger_child.retry import Retry
from ganger_child.words import message, shown

SHUTDOWNS: Final = ("wait", "finish", "interrupt", "terminate")

F = TypeVar("F", bound=Callable[..., Any])
RetryStrategy = Callable[[Job, BaseException], Any]
Callback = Callable[[Job, BaseException], Any]


class LoadError(Exception):
    """The handlers cannot be loaded; the message says what is wrong, the cause is what was raised."""


@dataclass(frozen=True)
class Reactions:
    """What follows a failure: whom to ask about retries, whom to call after an attempt, and at the end."""

    retry_strategy: RetryStrategy | None = None
    failed_attempt: Callback | None = None
    failed_job: Callback | None = None

    def over(self, other: Reactions) -> Reactions:
        """These, and where nothing is said, the other's."""
        return Reactions(
            self.retry_strategy or other.retry_strategy,
            self.failed_attempt or other.failed_attempt,
            self.failed_job or other.failed_job,
        )


_LONG_NUMBER: Final = re.compile(r"[0-9]{309}")


def loads(text: str) -> Any:
    """The default for ``loads``: JSON, in which a number that no float can hold is an error. (PostgreSQL keeps 1e400
    and writes it with all its digits; whoever computes with it would meet infinity or an OverflowError later.)"""
    if _LONG_NUMBER.search(text):
        return json.loads(text, parse_int=_finite(int), parse_float=_finite(float))
    return json.loads(text)


def _finite(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def number(digits: str) -> Any:
        if math.isinf(float(digits)):
            raise ValueError(f"the payload holds a number of {len(digits)} digits, {digits[:20]}…, which is too large")
        return read(digits)

    return number


@dataclass(frozen=True)
class JobType:
    """How jobs of one type are run."""

    call: Callable[[Job], Any]
    loads: Callable[[str], Any] = loads
    reactions: Reactions = Reactions()
    limits: Mapping[str, Any] = field(default_factory=dict)  # timeout, grace, memory, shutdown


class Handlers:
    """The job types of an application, each with the function that runs it.

    ``retry_strategy(job, exception)`` returns a Retry or None; ``failed_attempt(job, exception)`` is called after
    every failed attempt, ``failed_job(job, exception)`` when the job has failed for good. ``loads`` turns the JSON
    text of a payload into what ``job.payload`` gives. All of them can be given per job type too, and every function
    may be ``async def``.
    """

    def __init__(
        self,
        *,
        retry_strategy: RetryStrategy | None = None,
        failed_attempt: Callback | None = None,
        failed_job: Callback | None = None,
        loads: Callable[[str], Any] = loads,
    ) -> None:
        self.reactions = _reactions(retry_strategy, failed_attempt, failed_job)
        self.loads = _callable(loads, "loads")
        self.job_types: dict[str, JobType] = {}
        self.start_hooks: list[Callable[[], Any]] = []

    def job(
        self,
        job_type: str,
        *,
        timeout: float | str | None = None,
        grace: float | str | None = None,
        memory: int | str | None = None,
        shutdown: str | None = None,
        retry: Retry | None = None,
        retry_strategy: RetryStrategy | None = None,
        failed_attempt: Callback | None = None,
        failed_job: Callback | None = None,
        loads: Callable[[str], Any] | None = None,
    ) -> Callable[[F], F]:
        """Declare the function that follows as the handler of a job type; it is called with the Job.

        ``timeout`` and ``grace`` are seconds or text such as "10m"; ``memory`` is bytes or text such as "2GiB";
        ``shutdown`` is one of "wait", "finish", "interrupt", "terminate". What is not given is the supervisor's.
        ``retry`` is a fixed Retry in place of a strategy. Raises ValueError for a type that is declared already, and
        for values that are no such thing.
        """
        label = f"of job type {shown(job_type)}"
        if not isinstance(job_type, str) or not job_type.strip():
            raise ValueError(f"the job type is {shown(job_type)}: give a name.")
        if job_type in self.job_types:
            raise ValueError(f"the job type {shown(job_type)} is declared twice: give each handler a type of its own.")
        if retry is not None and retry_strategy is not None:
            raise ValueError(f"retry and retry_strategy {label} exclude each other: leave one out.")
        if shutdown is not None and shutdown not in SHUTDOWNS:
            raise ValueError(f"shutdown {label} is {shown(shutdown)}: give one of {', '.join(SHUTDOWNS)}.")
        limits = {
            "timeout": _limit(units.seconds, timeout, f"timeout {label}", least=0.001),
            "grace": _limit(units.seconds, grace, f"grace {label}"),
            "memory": _limit(units.size, memory, f"memory {label}", least=1),
            "shutdown": shutdown,
        }
        if retry is not None:
            retry_strategy = _constant(retry, label)
        reactions = _reactions(retry_strategy, failed_attempt, failed_job).over(self.reactions)

        def declare(function: F) -> F:
            self.job_types[job_type] = JobType(
                _callable(function, f"the handler {label}"),
                _callable(loads or self.loads, f"loads {label}"),
                reactions,
                limits,
            )
            return function

        return declare

    def child_start(self, function: F) -> F:
        """Declare a function to be called in each new child before its first job, to open what the jobs need.

        If it raises, the child is replaced, and no job has lost an attempt.
        """
        self.start_hooks.append(_callable(function, "child_start"))
        return function


@dataclass(frozen=True)
class Loaded:
    """What ``load`` found. ``job_types`` is None where a plain function takes every type."""

    types: Mapping[str, JobType]
    other: JobType
    start_hooks: tuple[Callable[[], Any], ...] = ()
    job_types: dict[str, dict[str, Any]] | None = None
    has_coroutines: bool = False  # something of it is ``async def``

    def find(self, job_type: str) -> JobType:
        """Return how to run a type; for an unknown one, something whose call raises UnknownJobType."""
        return self.types.get(job_type, self.other)


def load(options: Options) -> Loaded:
    """Import the target and what else the options name. Raises LoadError with a sentence and the cause."""
    for folder in (os.getcwd(), options.search_path):
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)
    target = _named(options.target, "the target")
    reactions = Reactions(
        _function(options.retry_strategy, "retry_strategy"),
        _function(options.failed_attempt, "failed_attempt"),
        _function(options.failed_job, "failed_job"),
    )
    if isinstance(target, Handlers):
        return _load_handlers(target, reactions, options.target)
    if not callable(target):
        raise LoadError(
            f"the target {options.target} is {type(target).__name__!r}: give a Handlers object or a function."
        )
    coroutines = _has_coroutines([target], [reactions])
    return Loaded({}, JobType(_plain(target, options), reactions=reactions), has_coroutines=coroutines)


def _load_handlers(handlers: Handlers, reactions: Reactions, name: str) -> Loaded:
    if not handlers.job_types:
        raise LoadError(f'{name} declares no job type: decorate a function with @handlers.job("…").')
    for job_type, declared in handlers.job_types.items():
        _takes(declared.call, 1, f"the handler of job type {job_type!r}", "(job)")
        _check_reactions(declared.reactions, f" of job type {job_type!r}")
    for hook in handlers.start_hooks:
        _takes(hook, 0, "child_start", "()")
    types = {
        job_type: JobType(declared.call, declared.loads, declared.reactions.over(reactions), declared.limits)
        for job_type, declared in handlers.job_types.items()
    }
    known = ", ".join(sorted(types))

    def unknown(job: Job) -> Any:
        raise UnknownJobType(f"there is no handler for the job type {shown(job.type)} in {name} (it has {known:.1000})")

    other = JobType(unknown, handlers.loads, handlers.reactions.over(reactions))
    facts = {job_type: dict(declared.limits) for job_type, declared in types.items()}
    functions: list[Callable[..., Any]] = [*handlers.start_hooks, *(declared.call for declared in types.values())]
    coroutines = _has_coroutines(functions, [other.reactions, *(declared.reactions for declared in types.values())])
    return Loaded(types, other, tuple(handlers.start_hooks), facts, coroutines)


def _has_coroutines(functions: Iterable[Callable[..., Any]], reactions: Iterable[Reactions]) -> bool:
    """Whether anything is ``async def``; then asyncio is imported here already, once for all children."""
    more = (getattr(said, field.name) for said in reactions for field in fields(said))
    found = any(inspect.iscoroutinefunction(function) for function in (*functions, *more))
    if found:
        importlib.import_module("asyncio")
    return found


def _plain(function: Callable[..., Any], options: Options) -> Callable[[Job], Any]:
    """Turn a plain function into one that takes the job."""
    if options.handler_mode == "advanced":
        _takes(function, 1, f"the handler {options.target}, in handler mode advanced,", "(job)")
        return function
    _takes(function, 2, f"the handler {options.target}, in handler mode default,", "(job_type, payload)")
    return lambda job: function(job.type, job.payload)


def _function(name: str | None, what: str) -> Callable[..., Any] | None:
    if name is None:
        return None
    found = _named(name, what)
    if not callable(found):
        raise LoadError(f"{what} {name} is {type(found).__name__!r}: give the name of a function.")
    _takes(found, 2, f"{what} {name}", "(job, exception)")
    return found  # type: ignore[no-any-return]


def _named(name: str, what: str) -> Any:
    """Import what ``module:name`` names."""
    module_name, colon, path = name.partition(":")
    if not module_name or not colon or not path:
        raise LoadError(f"{what} is {name!r}: give a module and a name in it, as in myapp.jobs:handlers.")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise LoadError(
                f"{what} is {name}, but there is no module {error.name!r}: "
                "start in the folder that holds it, or install it."
            ) from error
        raise LoadError(f"{what} is {name}, and importing it needs a module that is missing: {error}") from error
    except BaseException as error:
        told = f"{type(error).__name__}: {message(error)}"
        raise LoadError(f"{what} is {name}, and importing it raised {told}") from error
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise LoadError(f"{what} is {name}, but {module_name} has no {path!r}.") from error
    return found


def _takes(function: Callable[..., Any], count: int, what: str, call: str) -> None:
    """Check that a function can be called with so many arguments, as far as that can be known."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*(None,) * count)
    except TypeError as error:
        raise LoadError(f"{what} is called with {call}, which its signature {signature} does not allow.") from error


def _check_reactions(reactions: Reactions, label: str) -> None:
    for name in ("retry_strategy", "failed_attempt", "failed_job"):
        function = getattr(reactions, name)
        if function is not None:
            _takes(function, 2, f"{name}{label}", "(job, exception)")


def _reactions(
    retry_strategy: RetryStrategy | None, failed_attempt: Callback | None, failed_job: Callback | None
) -> Reactions:
    given = {"retry_strategy": retry_strategy, "failed_attempt": failed_attempt, "failed_job": failed_job}
    return Reactions(**{name: _callable(value, name) for name, value in given.items() if value is not None})


def _constant(retry: Retry, label: str) -> RetryStrategy:
    if not isinstance(retry, Retry):
        raise TypeError(f"retry {label} is {shown(retry)}: give a Retry, or a function as retry_strategy.")
    return lambda job, exception: retry


def _callable(value: Any, name: str) -> Any:
    if not callable(value):
        raise TypeError(f"{name} is {shown(value)}: give a function.")
    return value


def _limit(read: Callable[[object, str], float], value: object, name: str, least: float = 0) -> float | None:
    if value is None:
        return None
    number = read(value, name)
    if number < least:
        raise ValueError(f"{name} is {shown(value)}: give at least {least:g}, or leave it out.")
    return number
