"""``ganger jobs``: list jobs, show the whole life of one, follow it, ask where it is; cancel, kill or retry them, one
by one or many at once.

Orders for ids are carried out as they are; those for a filter first say how many jobs that is and ask. What is then
done is done to exactly those jobs.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ganger import config
from ganger.commands.common import (
    CODES,
    FAILED,
    OK,
    USAGE,
    Commands,
    Failure,
    Parser,
    add_command,
    add_database,
    add_yes,
    confirm,
    database_of,
    tell,
)
from ganger.config import ConfigError
from ganger.formats import age, clock, harmless, lasting, since, size, table

if TYPE_CHECKING:
    from ganger.database import Connection
    from ganger.jobs import Filter, Found, RunBy

PAGE: Final = 50  # jobs that `list` shows unless told otherwise
LONGEST_PAGE: Final = 10_000
LONGEST_TEXT: Final = 2000  # characters of a payload, a result or a checkpoint that `show` prints

HELP: Final = """An ID is a job id, or its last 8 hex digits as process titles show them.

examples:
  ganger jobs list --state failure --since 1d
  ganger jobs show 9d3f01c2
  ganger jobs tail 9d3f01c2
  ganger jobs cancel --queue render --state ready,scheduled
  ganger jobs retry --type fit --reason timeout --since 12h"""


def add(commands: Commands) -> None:
    help = "list and show jobs; cancel, kill and retry them"
    to = add_command(commands, "jobs", lambda options: options.act(options), help, HELP + "\n\n" + CODES)
    acts = to.add_subparsers(metavar="COMMAND", required=True, title="commands")

    def act(name: str, function: Callable[[argparse.Namespace], int], help: str) -> Parser:
        made: Parser = acts.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".", epilog=HELP)
        made.set_defaults(act=function)
        return made

    listing = act("list", list_, "list jobs, the newest first")
    _add_filters(listing)
    listing.add_argument("--limit", metavar="N", default=str(PAGE), help=f"so many at most [{PAGE}]")
    listing.add_argument("--before", metavar="ID", help="the page below this id, as the last line of a page says")
    showing = act("show", show, "show the whole life of a job: every attempt, what it cost and how it ended")
    showing.add_argument("ids", nargs="+", metavar="ID", help="the job")
    following = act("tail", tail, "follow what a job on this host prints, to its end")
    following.add_argument("ids", nargs=1, metavar="ID", help="the job")
    asking = act("stacks", stacks, "show where jobs on this host are: the Python stacks of their threads")
    asking.add_argument("ids", nargs="+", metavar="ID", help="the job")
    for name, help in _ORDERS.items():
        ordering = act(name, order, help)
        ordering.add_argument("ids", nargs="*", metavar="ID", help="the jobs; or filters, or --all")
        _add_filters(ordering)
        everything = "every job that has failed" if name == "retry" else "every job that has not ended"
        ordering.add_argument("--all", action="store_true", help=everything)
        add_yes(ordering)
        ordering.set_defaults(order=name)
    for made in acts.choices.values():
        made.add_argument("--json", action="store_true", help="as JSON")
        add_database(made)


_ORDERS: Final = {
    "cancel": "cancel jobs: those that run are interrupted, and after their grace killed",
    "kill": "cancel jobs, and kill those that run at once",
    "retry": "give ended jobs another life: the same id and history, and a new budget of attempts",
}
_FILTERS: Final = ("queue", "job_type", "state", "reason", "since", "host")


def _add_filters(to: Parser) -> None:
    group = to.add_argument_group("which jobs")
    group.add_argument("-q", "--queue", metavar="NAME", help="of this queue")
    group.add_argument("--type", dest="job_type", metavar="TYPE", help="of this job type")
    group.add_argument(
        "--state", metavar="WORDS", help="in these states: scheduled, ready, running, success, failure, cancelled"
    )
    group.add_argument("--reason", metavar="WORD", help="that ended for this reason, as in timeout, memory, crash")
    group.add_argument("--since", metavar="TIME", help="enqueued, started or ended in this time, as in 90s, 1h, 7d")
    group.add_argument("--host", metavar="NAME", help="that run or last ran on this host")


def _filter(options: argparse.Namespace, allowed: Sequence[str], default: Sequence[str] | None = None) -> Filter:
    """The filter of a command line. Raises Failure for a state that is none, or that ``allowed`` does not have."""
    from ganger.jobs import Filter

    states = None if default is None else tuple(default)
    if options.state is not None:
        states = tuple(word.strip() for word in options.state.split(","))
        for word in states:
            if word not in allowed:
                raise Failure(USAGE, f"--state is {options.state[:100]!r}: give some of {', '.join(allowed)}.")
    try:
        seconds = None if options.since is None else config.seconds(options.since, "--since")
    except ConfigError as error:
        raise Failure(USAGE, str(error)) from None
    return Filter(options.queue, options.job_type, states, options.reason, seconds, options.host)


def _resolve(conn: Connection, schema: str, ids: Iterable[str]) -> list[UUID]:
    from ganger import jobs

    try:
        return [jobs.resolve(conn, schema, words) for words in ids]
    except jobs.NotOneJob as error:
        raise Failure(FAILED, str(error)) from None


# ---------------------------------------------------------------------------------------------------------------------
# list


def list_(options: argparse.Namespace) -> int:
    """ganger jobs list"""
    from dataclasses import asdict

    from ganger import jobs

    which = _filter(options, jobs.STATES)
    try:
        most = config.whole(options.limit, "--limit", low=1, high=LONGEST_PAGE)
    except ConfigError as error:
        raise Failure(USAGE, str(error)) from None
    with database_of(options) as (conn, schema):
        before = None if options.before is None else _resolve(conn, schema, [options.before])[0]
        page, after = jobs.find(conn, schema, which, most, before)
    if options.json:
        print(json.dumps({"jobs": [asdict(found) for found in page], "before": after}, indent=2, default=str))
        return OK
    print(table(_HEAD, [_line(found) for found in page], "no such job"))
    if after is not None:
        print(f"\nmore: --before {after}")
    return OK


_HEAD: Final = ("JOB", "TYPE", "QUEUE", "STATE", "REASON", "ATTEMPT", "HOST", "SINCE", "WALL", "MEMORY")


def _line(found: Found) -> tuple[object, ...]:
    latest = found.finished_at or found.started_at or found.enqueued_at
    return (
        found.job_id, found.job_type, found.queue, found.status, found.reason or "", found.attempts, found.host or "",
        since(latest), lasting(found.wall_s), size(found.max_rss),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# show


def show(options: argparse.Namespace) -> int:
    """ganger jobs show"""
    from ganger import jobs

    told = []
    with database_of(options) as (conn, schema):
        for job_id in _resolve(conn, schema, options.ids):
            job = jobs.show(conn, schema, job_id)
            if job is None:
                raise Failure(FAILED, f"There is no job {job_id}.")
            told.append(job)
    if options.json:
        print(json.dumps(told if len(told) > 1 else told[0], indent=2))
    else:
        print("\n\n".join(_life(job) for job in told))
    return OK


_LIMITS: Final = (("timeout", "timeout_s", age), ("grace", "grace_s", age), ("memory", "memory_bytes", size))
_COUNTED: Final = ("crashes", "losses", "interrupts")


def _life(job: Mapping[str, Any]) -> str:
    """A job for people: what it is, how it stands, then its attempts in their order."""
    lines = [f"job {job['job_id']}"]

    def say(what: str, *words: object) -> None:
        text = " ".join(str(word) for word in words if word not in (None, ""))
        if text:
            lines.append(f"  {what:<12}{text}")

    say("type", job["job_type"])
    say("queue", job["queue"], "(paused)" if job.get("paused") else "")
    say("state", _standing(job))
    say("enqueued", clock(job["enqueued_at"]), f"by {job['enqueued_by']}" if job.get("enqueued_by") else "")
    say("due", clock(job["process_at"]), f"priority {job['priority']}" if job.get("priority") else "")
    if job.get("finished_at"):
        say("ended", clock(job["finished_at"]))
    say("attempts", job["attempts"], *(f"{word}: {job[word]}" for word in _COUNTED if job.get(word)))
    say("progress", _progress(job.get("progress")))
    limits = [f"{name} {show(job[column])}" for name, column, show in _LIMITS if job.get(column) is not None]
    say("limits", ", ".join([*limits, *([f"shutdown {job['shutdown']}"] if job.get("shutdown") else [])]))
    say("unique key", job.get("unique_key"))
    for what in ("payload", "checkpoint", "result"):
        if job.get(what) is not None:
            say(what, _short(json.dumps(job[what], ensure_ascii=False)))
    for number, run in enumerate(job["runs"], 1):
        lines += ["", *_attempt(number, run, last=number == len(job["runs"]), live="finished_at" not in job)]
    return harmless("\n".join(lines))


def _progress(told: Mapping[str, Any] | None) -> str:
    """How far a run says it is, as its supervisor has passed it on."""
    if told is None:
        return ""
    done, left = told.get("done"), told.get("left")
    words = ["" if done is None else f"{done:.0%}", "" if left is None else f"ends in {age(left)}", told.get("note")]
    return ", ".join(word for word in words if word)


def _standing(job: Mapping[str, Any]) -> str:
    words = [job["status"]]
    if job.get("cancel_at"):
        words.append(f"({job.get('cancel_reason') or 'cancelled'} by an operator at {clock(job['cancel_at'])})")
    elif job.get("reason"):
        words.append(f"({job['reason']})")
    if job["status"] == "running":
        words.append(f"on {job.get('host') or 'an unknown host'} for {since(job['started_at'])}")
    return " ".join(words)


def _attempt(number: int, run: Mapping[str, Any], *, last: bool, live: bool) -> list[str]:
    """One attempt: when and where, what it cost, how it ended, and what it said."""
    running = last and live and "ended_at" not in run and "reason" not in run
    lines = [f"  run {number}, attempt {run.get('attempt', '?')}: {'running' if running else how(run)}"]

    def say(what: str, text: str) -> None:
        if text:
            lines.append(f"    {what:<10}{text}")

    where = [f"host {run['host']}" if run.get("host") else "", f"pid {run['pid']}" if run.get("pid") else ""]
    say("where", ", ".join(word for word in [*where, run.get("supervisor", "")] if word))
    times = [clock(run[name]) for name in ("started_at", "ended_at") if run.get(name)]
    say("when", " to ".join(times))
    cost = (
        ("wall", lasting(run.get("wall_s"))),
        ("CPU", lasting(run.get("cpu_s"))),
        ("peak", size(run.get("max_rss"))),
    )
    say("cost", ", ".join(f"{what} {text}" for what, text in cost if text))
    error = run.get("error")
    if isinstance(error, dict):
        say("error", f"{error.get('type') or ''}: {error.get('message') or ''}".strip(": "))
        traced = str(error.get("traceback") or "").splitlines()
        lines += [f"      {line}" for line in traced if len(traced) > 1]
    for what in ("stack", "output"):
        if run.get(what):
            lines += [f"    {what}", *(f"      {line}" for line in str(run[what]).splitlines())]
    if run.get("retried_at"):
        lines += ["", f"  given another life at {clock(run['retried_at'])} by {run.get('retried_by', 'somebody')}"]
    return lines


# How an attempt ended, in words, by its reason; what has no words of its own is told as it stands.
_REASONS: Final = {
    "timeout": "past its time limit",
    "memory": "over its memory limit",
    "crash": "its process died",
    "lost": "lost with its supervisor or host",
    "shutdown": "interrupted by a shutdown, uncounted",
    "blame": "its process died; the job before it in that process may be to blame, so uncounted",
    "cancelled": "cancelled",
    "killed": "killed",
    "exception": "an exception",
    "bad-result": "a result that cannot be stored",
    "unknown-job-type": "no handler for this job type",
}
_RUNGS: Final = {"interrupt": "the interrupt", "terminate": "SIGTERM", "kill": "SIGKILL to its whole tree"}
_BY: Final = {
    "limit": "its limit",
    "operator": "an operator",
    "shutdown": "the shutdown",
    "kernel": "the kernel, as memory ran out",
}


def how(run: Mapping[str, Any]) -> str:
    """How an attempt ended and who ended it."""
    if run.get("status") == "success":
        return "success"
    reason = run.get("reason")
    words = _REASONS.get(str(reason), str(reason or run.get("status") or "ended"))
    by, rung = run.get("ended_by"), run.get("rung")
    if by or rung:
        step = f": {_RUNGS.get(str(rung), rung)}" if rung else ""
        return f"{words} (ended by {_BY.get(str(by), by or 'ganger')}{step})"
    if run.get("term_signal") is not None:
        return f"{words}: {_signal(run['term_signal'])}"
    return words if run.get("exit_code") is None else f"{words}: exit code {run['exit_code']}"


def _signal(number: int) -> str:
    """A signal that did not come from ganger."""
    import signal

    try:
        name = f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        name = f"signal {number}"
    if number == signal.SIGKILL:
        return f"{name} from outside: the kernel, where memory ran out, or somebody's kill"
    return f"{name} from the kernel or somebody outside"


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} … ({len(text)} characters; --json has all)"


# ---------------------------------------------------------------------------------------------------------------------
# tail, stacks: asked of the supervisor itself

OUTCOME_PATIENCE: Final = 30.0  # seconds that the outcome of a run that is over may take to be stored


def tail(options: argparse.Namespace) -> int:
    """ganger jobs tail: exit code 0 if the run it followed ended well."""
    from ganger import jobs

    with database_of(options) as (conn, schema):
        job_id = _resolve(conn, schema, options.ids)[0]
        run = jobs.run_by(conn, schema, job_id)
        if run is None:
            return _tell_ended(_job(conn, schema, job_id), None, options)
    for word in _asked(run, "tail", job_id, patience=None):
        if word.get("so_far"):
            _print_output(word["so_far"], options)
        if word.get("missed"):
            tell(f"{word['missed']} lines were not read in time and are left out")
        if "line" in word:
            _print_output(word["line"], options)
    deadline = monotonic() + OUTCOME_PATIENCE
    with database_of(options) as (conn, schema):
        while (now := jobs.run_by(conn, schema, job_id)) is not None and now.run_id == run.run_id:
            if monotonic() > deadline:
                raise Failure(FAILED, f"the outcome of job {job_id} is not stored yet.")
            sleep(0.1)
        return _tell_ended(_job(conn, schema, job_id), run.attempt, options)


def _job(conn: Connection, schema: str, job_id: UUID) -> dict[str, Any]:
    from ganger import jobs

    job = jobs.show(conn, schema, job_id)
    if job is None:
        raise Failure(FAILED, f"There is no job {job_id}.")
    return job


def _tell_ended(job: Mapping[str, Any], followed: int | None, options: argparse.Namespace) -> int:
    """Tell how a job's last run ended; its output too, where that was not followed."""
    ended = [run for run in job["runs"] if "ended_at" in run]
    if not ended or (followed is None and "finished_at" not in job):
        raise Failure(FAILED, f"job {job['job_id']} does not run: it is {job['status']}.")
    run = ended[-1]
    if followed is None and run.get("output"):
        _print_output(run["output"], options)
    tell(f"job {job['job_id']} attempt {run.get('attempt', '?')}: {how(run)} after {lasting(run.get('wall_s')) or '?'}")
    return OK if run.get("status") == "success" else FAILED


def _print_output(text: str, options: argparse.Namespace) -> None:
    """Print what a job printed; a terminal obeys nothing in it. As JSON: one string for each line."""
    for line in text.removesuffix("\n").split("\n"):
        print(json.dumps(line) if options.json else harmless(line), flush=True)


def stacks(options: argparse.Namespace) -> int:
    """ganger jobs stacks"""
    from ganger import jobs

    told = []
    with database_of(options) as (conn, schema):
        for job_id in _resolve(conn, schema, options.ids):
            run = jobs.run_by(conn, schema, job_id)
            if run is None:
                raise Failure(FAILED, f"job {job_id} does not run: it is {_job(conn, schema, job_id)['status']}.")
            for word in _asked(run, "stacks", job_id):
                told.append({"job_id": str(job_id), **word})
    if options.json:
        print(json.dumps(told, indent=2))
    else:
        print("\n\n".join(_stack(word) for word in told))
    return OK if all(word.get("stack") for word in told) else FAILED


def _stack(word: Mapping[str, Any]) -> str:
    text = word.get("stack") or "It does not tell: it has just ended, or its code has taken the means away."
    lines = harmless(text).splitlines()
    return "\n".join([f"job {word['job_id']} in {word.get('slot')}, pid {word.get('pid')}", *(f"  {x}" for x in lines)])


def _asked(run: RunBy, question: str, job_id: UUID, **bounds: float | None) -> Iterator[Mapping[str, Any]]:
    from ganger import knock

    try:
        yield from knock.ask(run.incarnation, question, job_id, **bounds)
    except knock.NotHere as error:
        where = f"job {job_id} runs on host {run.host} under supervisor {run.supervisor}"
        raise Failure(FAILED, f"{where}, which cannot be asked: {error}.") from None


# ---------------------------------------------------------------------------------------------------------------------
# cancel, kill, retry

_SAID: Final = {
    "cancelled": "it did not run, and is archived as cancelled",
    "ordered": "it runs; its supervisor has the order",
    "retried": "it is back in its queue",
    "finished": "it had ended already",
    "queued": "it is in its queue already",
    "duplicate": "another live job has its unique key",
    "unknown": "there is no such job",
}
_DONE: Final = ("cancelled", "ordered", "retried")


def order(options: argparse.Namespace) -> int:
    """ganger jobs cancel, kill and retry: exit code 0 if something was done for every job that was named."""
    from ganger import jobs

    name: str = options.order
    filtered = any(getattr(options, word) is not None for word in _FILTERS)
    if bool(options.ids) + (filtered or options.all) != 1:
        raise Failure(USAGE, f"{name} needs ids, or filters (--queue, --type, …), or --all; not ids and filters both.")
    states, default = (jobs.ENDED, ("failure",)) if name == "retry" else (jobs.LIVE, jobs.LIVE)
    which = _filter(options, states, default)
    with database_of(options) as (conn, schema):
        if options.ids:
            job_ids = _resolve(conn, schema, options.ids)
        else:
            job_ids = jobs.find_ids(conn, schema, which)
            if job_ids:
                confirm(f"{name} {_counted(len(job_ids))}?", options)
        if name == "retry":
            answers = jobs.retry(conn, schema, job_ids)
        else:
            answers = jobs.cancel(conn, schema, job_ids, "killed" if name == "kill" else "cancelled")
    if options.json:
        told = [{"job_id": str(job_id), "answer": answer} for job_id, answer in answers.items()]
        print(json.dumps(told, indent=2))
    elif options.ids:
        print("\n".join(f"{job_id} {answer}: {_SAID[answer]}" for job_id, answer in answers.items()))
    else:
        counted = Counter(answers.values())
        print("\n".join(f"{_counted(n)} {answer}" for answer, n in sorted(counted.items())) or "no such job")
    return OK if not options.ids or all(answer in _DONE for answer in answers.values()) else FAILED


def _counted(jobs: int) -> str:
    return f"{jobs} job" if jobs == 1 else f"{jobs} jobs"
