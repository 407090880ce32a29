"""Everything that goes into the core and comes out of it, as records that nobody changes.

*Events* tell what happened (in the gang of processes, in the database, to the supervisor itself); *commands* say what
is to be done. Nothing else crosses the border, so this file is the whole interface of the core, and the fake gang and
fake database of the tests need to know no other.

Times: ``Now`` has two clocks, in seconds. Limits run on ``mono`` (it stands still while the host is suspended), leases
on ``boot`` (it does not). Durations are seconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, dataclass_transform
from uuid import UUID

K = TypeVar("K")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def message(kind: type[K]) -> type[K]:
    """Make a record that nobody changes: mypy sees to it. Frozen at run time, one would cost three times as much."""
    return dataclass(slots=True, unsafe_hash=True)(kind)


class Now(NamedTuple):
    """One moment on the two clocks."""

    mono: float
    boot: float


# ---------------------------------------------------------------------------------------------------------------------
# Things that several messages speak of


@message
class Job:
    """A claimed job, as the database gave it. ``attempts`` already counts this run."""

    job_id: UUID
    run_id: UUID
    claim_id: UUID
    queue: str
    job_type: str
    payload: bytes  # JSON text, never decoded here
    attempts: int
    crashes: int = 0
    losses: int = 0
    enqueued_at: str = ""  # ISO 8601, passed on to the handler
    process_at: str = ""
    timeout: float | None = None  # None: what the job type or the supervisor says
    grace: float | None = None
    memory: int | None = None
    shutdown: str | None = None
    fresh: bool = False  # a crash in a reused child sent it back: only a child that ran nothing may run it
    cancel: bool = False  # a cancel order was there when it was claimed
    checkpoint: bytes | None = None  # JSON text that an earlier run has saved, never decoded here
    trace: str | None = None  # that it was enqueued in, passed on to the child


@message
class Limits:
    """The limits in force for one run: those of the job, else of its type, else of the supervisor."""

    timeout: float | None
    grace: float
    memory: int | None
    shutdown: str


@message
class Strategy:
    """What a retry strategy said: how many retries, and the delays between them in seconds (the last one repeats)."""

    retries: int
    delays: tuple[float, ...] = ()


@message
class TypeFacts:
    """What a handler module declared for one job type, as far as the supervisor needs it."""

    timeout: float | None = None
    grace: float | None = None
    memory: int | None = None
    shutdown: str | None = None


@message
class Exit:
    """How a child ended, as its warden's wait4 saw it, after everything it had started was gone too."""

    exit_code: int | None = None
    term_signal: int | None = None
    cpu_s: float = 0.0  # the child and everything of it that was waited for
    max_rss: int = 0  # bytes
    leftovers: int = 0  # processes of the job that the warden had to kill
    survivors: tuple[int, ...] = ()  # pids that SIGKILL did not end
    by_kernel: bool = False  # a SIGKILL came while the kernel was killing for memory; it may still have been ours


# ---------------------------------------------------------------------------------------------------------------------
# Events from the gang (a child is named by its slot and a number that is never used again)


@message
class TemplateReady:
    """The template has loaded the handler module. ``job_types`` is None where a plain function takes every type."""

    generation: int
    job_types: Mapping[str, TypeFacts] | None = None
    threads: tuple[str, ...] = ()  # names of threads that the import left running: a fork does not copy them


@message
class TemplateFailed:
    """The handler module did not load; ``error`` is the traceback or a sentence."""

    generation: int
    error: str


@message
class TemplateExited:
    generation: int
    how: str  # "exit code 1", "signal 9"


@message
class WardenStarted:
    slot: str
    pid: int


@message
class WardenExited:
    """The warden is gone, and the template has killed whatever it adopted from it."""

    slot: str
    how: str


@message
class ChildStarted:
    """It was forked; ready comes when its start hooks are done."""

    slot: str
    child: int
    pid: int


@message
class ChildReady:
    slot: str
    child: int
    job_types: Mapping[str, TypeFacts] | None = None  # told where the template imports nothing (start_method spawn)


@message
class ChildBootFailed:
    """It could not be forked, or a start hook or (spawn) the import raised. ChildExited follows if it was forked."""

    slot: str
    child: int
    error: str
    forked: bool = True


@message
class JobStarted:
    slot: str
    child: int
    nonce: int


@message
class ProgressTold:
    """The run has got on: ``done`` from 0 to 1, and a note that any terminal can show."""

    slot: str
    child: int
    nonce: int
    done: float | None
    note: str


@message
class CheckpointGiven:
    """The handler gives something to keep. A later one has a greater ``number``. ``wait``: it waits for the answer."""

    slot: str
    child: int
    nonce: int
    number: int
    data: bytes  # JSON text
    wait: bool


@message
class JobReturned:
    """The handler returned and its result can be stored. ``clean``: the child found itself as it was at its start."""

    slot: str
    child: int
    nonce: int
    result: bytes | None  # JSON text
    wall_s: float
    cpu_s: float
    max_rss: int
    clean: bool
    worked_s: float  # seconds of all jobs that this child has run


@message
class StrategyAsked:
    """The handler failed, and its retry strategy is being asked; JobRaised comes next, if the strategy lets it.
    ``leftovers``: processes or threads that the handler has started go on, as long as the child lives."""

    slot: str
    child: int
    nonce: int
    reason: str
    error: Mapping[str, Any]
    wall_s: float
    cpu_s: float
    max_rss: int
    leftovers: bool = False


@message
class JobRaised:
    """The handler raised, or what it returned cannot be stored (``reason`` says which), and the strategy was asked,
    unless the run was past its limit and has ``leftovers`` (see StrategyAsked).

    Also the answer to a post-mortem, where ``error`` tells of the death of another child.
    """

    slot: str
    child: int
    nonce: int
    reason: str  # "exception", "bad-result", "unknown-job-type"
    error: Mapping[str, Any]  # type, message, traceback
    interrupted: bool  # an order of ours reached it, whatever it then raised
    clean_interrupt: bool  # what came out of the handler was the interrupt itself
    strategy: Strategy | None
    strategy_error: Mapping[str, Any] | None
    wall_s: float
    cpu_s: float
    max_rss: int
    clean: bool
    worked_s: float
    leftovers: bool = False


@message
class CallbackBegun:
    """The child begins to call failed_attempt or failed_job."""

    slot: str
    child: int
    nonce: int
    name: str


@message
class CallbacksDone:
    """failed_attempt and failed_job were called as asked; ``errors`` holds those that raised."""

    slot: str
    child: int
    nonce: int
    errors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@message
class ChildExited:
    """The child and everything it left is gone; the warden has buried it."""

    slot: str
    child: int
    exit: Exit


@message
class ChildUnkillable:
    """The warden killed for its whole bound and something is still there."""

    slot: str
    child: int
    survivors: tuple[int, ...]


@message
class KillAcknowledged:
    """The warden has begun to kill. Without this word soon, the warden itself is stopped or gone."""

    slot: str
    child: int


@message
class RunRevoked:
    """The child will not start this run, which was sent ahead: the warden or the child itself says so."""

    slot: str
    child: int
    nonce: int


@message
class RunSpared:
    """An order to replace the child if it is idle found it in a run."""

    slot: str
    child: int
    nonce: int


@message
class Verdict:
    """Seen from outside, the run's tree computes or waits, since ``since`` (mono). Sent on each change."""

    slot: str
    child: int
    nonce: int
    computing: bool
    since: float


@message
class MemoryHeld:
    """The run's tree holds more than its limit."""

    slot: str
    child: int
    nonce: int
    held: int


@message
class Stalled:
    """The run has neither computed nor got on for so many seconds. Sent once, until it does something again."""

    slot: str
    child: int
    nonce: int
    seconds: float


@message
class OutputKept:
    """The last of what the run has printed so far. Comes before the event that tells of its end."""

    slot: str
    child: int
    nonce: int
    text: str


@message
class StackTaken:
    """Where the run is: the Python stacks of its child. Comes before the event that tells of its end."""

    slot: str
    child: int
    nonce: int
    text: str


@message
class Garbage:
    """The child sent so much nonsense that nothing it says can be trusted."""

    slot: str
    child: int


# ---------------------------------------------------------------------------------------------------------------------
# Events from the database


@message
class Registered:
    """A supervisor row is ours. ``sent`` is when the statement was sent (boot): trust counts from there."""

    supervisor_id: int
    sent: float
    released: int = 0  # rows of our former registration that went back, uncounted


@message
class Claimed:
    """The answer to one Claim. ``more``: a lane got all it asked for, so there may be more."""

    claim_id: UUID
    jobs: tuple[Job, ...]
    lanes: tuple[int, ...]  # for each job, the index of the lane it was claimed for
    more: tuple[bool, ...]  # for each lane
    next_due: float | None  # seconds until the next scheduled row of our queues is due
    horizon: int | None = None  # pg_snapshot_xmin before the claim, for the idle protocol
    left: bool = True  # our queues still hold a row that is ready, running or waiting for a retry


@message
class ClaimLost:
    """No answer came: the rows may have been claimed or not. The next beat tells."""

    claim_id: UUID


@message
class Stored:
    """An outcome is in the database ("stored"), its row was not ours any more ("refused"), or a cancel order turned a
    retry or release into an archived cancellation ("cancelled"). ``late``: it was stored after an outage."""

    run_id: UUID
    how: str
    late: bool = False


@message
class CheckpointStored:
    """A run's checkpoints up to this number need not be stored any more: the newest of them is, or else ``error`` says
    why it is not (the row is not this run's any more, say)."""

    run_id: UUID
    number: int
    error: str | None = None


@message
class HeldRow:
    """A row that the database thinks we are running."""

    job_id: UUID
    run_id: UUID
    claim_id: UUID | None
    cancel: str | None = None  # the reason of a cancel order: "cancelled" or "killed"


@message
class Beaten:
    """The lease was renewed; ``rows`` is what the database thinks we run. ``rows`` None: our row is gone."""

    supervisor_id: int  # the registration it was sent for, which may have been lost since
    sent: float  # boot
    rows: tuple[HeldRow, ...] | None


@message
class OtherSupervisor:
    """What is seen of another registration. ``vacant``: its lock was found on this host, and nobody holds it."""

    supervisor_id: int
    beat: int
    lease_s: float
    vacant: bool = False


@message
class Looked:
    """The look of each second: cancel orders on our runs, and the beats of the others."""

    cancels: tuple[HeldRow, ...]
    others: tuple[OtherSupervisor, ...]


@message
class Swept:
    """A dead supervisor's rows went back to the queue; ``jobs`` were running, each now counts a loss."""

    supervisor_id: int
    jobs: tuple[UUID, ...]


@message
class IdleSaid:
    """The queues are flagged idle. Transactions below ``horizon`` may not have seen it."""

    horizon: int


@message
class Notified:
    """Somebody enqueued while we were idle."""


@message
class NotificationsOff:
    """A pooler stands before the database: no notification will come, polling is all there is."""


@message
class Pruned:
    """Jobs whose retention is over were deleted from the archive."""

    jobs: int


@message
class DatabaseLost:
    error: str


@message
class DatabaseBack:
    seconds: float  # how long it was away


@message
class PollFailed:
    """A statement failed for another reason than a lost database."""

    error: str


@message
class Deregistered:
    pass


# ---------------------------------------------------------------------------------------------------------------------
# Events of the supervisor itself


@message
class Stop:
    """Somebody asked to stop: "graceful" (as configured), "terminate" or "kill"."""

    how: str = "graceful"


@message
class StopNow:
    """Give up: something of ours broke. Exit with 1 after everything is killed."""

    error: str


@message
class Reload:
    """Somebody asks for the handler module to be loaded anew, for what begins from then on."""


@message
class Resize:
    """Somebody asks for so many slots."""

    slots: int


@message
class MoreSlots:
    """Somebody asks for so many slots more than there are to be; below zero: for fewer."""

    count: int


@message
class Tick:
    """Time passed; the core's deadline has come."""


# ---------------------------------------------------------------------------------------------------------------------
# Commands to the gang


@message
class StartTemplate:
    generation: int


@message
class StopTemplate:
    generation: int


@message
class ShareCores:
    """These are the slots from now on: the machine's cores are theirs."""

    slots: tuple[str, ...]


@message
class StartWarden:
    slot: str
    generation: int


@message
class StopWarden:
    slot: str


@message
class StartChild:
    slot: str
    child: int


@message
class SendJob:
    """``after``: the run that the child is at; it begins this one only if it stays after that. 0: it is idle."""

    slot: str
    child: int
    nonce: int
    job: Job
    limits: Limits
    after: int = 0


@message
class SendPostmortem:
    """Ask strategy and callbacks about a job whose own child cannot be asked any more."""

    slot: str
    child: int
    nonce: int
    job: Job
    limits: Limits
    death: Mapping[str, Any]  # reason ("timeout", "memory", "crash", "lost", …) and its facts; ask: the strategy too?


@message
class SendCallbacks:
    """Answer to JobRaised: which callbacks to run."""

    slot: str
    child: int
    nonce: int
    names: tuple[str, ...]  # of "failed_attempt", "failed_job"


@message
class SendAnswer:
    """What became of the run's checkpoints up to this number: stored, or (``error``) not."""

    slot: str
    child: int
    nonce: int
    number: int
    error: str | None


@message
class Watch:
    """The run has lasted long enough to be worth watching: title, memory, computing or blocked."""

    slot: str
    child: int
    nonce: int
    job: Job
    limits: Limits
    started: float  # mono


@message
class TakeStack:
    """Have the child tell where the run is (StackTaken, or nothing where it cannot), before what is ordered next."""

    slot: str
    child: int
    nonce: int


@message
class Interrupt:
    """First step: raise the exception of ``reason`` in the run, if the child is still in it. Without ``signal`` it is
    only written down, for a handler that looks (``job.interrupted``, ``job.check()``)."""

    slot: str
    child: int
    nonce: int
    reason: str  # one of ganger_child.page.ORDERS
    signal: bool = True


@message
class Terminate:
    """Second step: SIGTERM, then SIGCONT, to the child's group, if the child is still in the run."""

    slot: str
    child: int
    nonce: int


@message
class Kill:
    """Third step: the whole tree to a fixpoint. With a nonce only if the child is still in that run (RunSpared else,
    with the nonce it is in, 0 for none)."""

    slot: str
    child: int
    nonce: int | None = None


@message
class ReplaceIdle:
    """Kill the child unless it is in the run ``nonce`` (RunSpared then): it was sent a job and did not start it."""

    slot: str
    child: int
    nonce: int


@message
class Revoke:
    """Take back runs that were sent ahead. The answer for each is RunRevoked, or JobStarted: the child has begun it."""

    slot: str
    child: int
    nonces: tuple[int, ...]  # ascending


@message
class ContinueWarden:
    """It did not acknowledge a kill: perhaps it is stopped. SIGCONT."""

    slot: str


@message
class KillDirectly:
    """Its warden is no help: SIGKILL child and warden through their pidfds; the template buries the rest."""

    slot: str
    child: int


@message
class Retire:
    """The child has nothing to do any more: it flushes and exits."""

    slot: str
    child: int


@message
class Trust:
    """Tell the wardens until when (boot) the lease can be trusted. Past it they kill by themselves."""

    until: float


# ---------------------------------------------------------------------------------------------------------------------
# Commands to the database


@message
class Register:
    former: int | None  # the registration we lost: its rows go back uncounted if nobody took them


@message
class Lane:
    """So many jobs, from these queues in this order."""

    queues: tuple[str, ...]
    free: int


@message
class Claim:
    claim_id: UUID
    supervisor_id: int
    lanes: tuple[Lane, ...]
    job_types: tuple[str, ...] | None = None  # claim only these (unknown_job_type = leave)
    ask_left: bool = False  # answer Claimed.left too (until_empty)


@message
class SaveCheckpoint:
    """Keep this with the run's row, if that is still its own: soon, or (``wait``) at once; in any case before an
    outcome of the run that is commanded later. A newer one of the same run stands for it."""

    job_id: UUID
    run_id: UUID
    number: int
    data: bytes
    wait: bool


@message
class Archive:
    """The job is over."""

    job_id: UUID
    run_id: UUID
    status: str  # success, failure, cancelled
    reason: str | None
    facts: Mapping[str, Any]  # the columns of archived_job that tell of this run
    result: bytes | None = None
    crash: int = 0


@message
class Retry:
    """Back to the queue, due in ``delay`` seconds; the attempt counts."""

    job_id: UUID
    run_id: UUID
    delay: float
    crash: int
    entry: Mapping[str, Any]  # for the history


@message
class Release:
    """Back to the queue at once with its due time, the attempt uncounted (or, with ``loss``, counted as lost)."""

    job_id: UUID
    run_id: UUID
    reason: str  # shutdown, never-started, boot-failed, claim-lost, blame, lost
    fresh: bool = False
    interrupted: bool = False  # counts an interruption
    loss: bool = False
    entry: Mapping[str, Any] | None = None


@message
class Beat:
    supervisor_id: int
    phase: str
    info: Mapping[str, Any]


@message
class Look:
    supervisor_id: int


@message
class Sweep:
    supervisor_id: int
    beat: int


@message
class SayIdle:
    queues: tuple[str, ...]
    seconds: float  # how long the flag holds; 0 clears it


@message
class Deregister:
    supervisor_id: int


# ---------------------------------------------------------------------------------------------------------------------
# Commands to the loop itself


@message
class Emit:
    """An event for people and machines; names and wording in ``ganger.events``."""

    name: str
    data: Mapping[str, Any]


@message
class TitleChanged:
    """What the supervisor's title shows: phase, running and all slots, and the slots of each lane."""

    phase: str
    running: int
    slots: int
    lanes: tuple[tuple[str, int], ...]


@message
class PollingError:
    """Ask on_polling_error whether to go on (once per outage)."""

    error: str


@message
class Finish:
    """Everything is settled and gone: leave with this exit code."""

    exit_code: int


GangEvent = (
    TemplateReady
    | TemplateFailed
    | TemplateExited
    | WardenStarted
    | WardenExited
    | ChildStarted
    | ChildReady
    | ChildBootFailed
    | JobStarted
    | JobReturned
    | StrategyAsked
    | JobRaised
    | CallbackBegun
    | CallbacksDone
    | ChildExited
    | ChildUnkillable
    | KillAcknowledged
    | RunSpared
    | RunRevoked
    | ProgressTold
    | CheckpointGiven
    | Verdict
    | MemoryHeld
    | Stalled
    | OutputKept
    | StackTaken
    | Garbage
)
DatabaseEvent = (
    Registered
    | Claimed
    | ClaimLost
    | CheckpointStored
    | Stored
    | Beaten
    | Looked
    | Swept
    | IdleSaid
    | Notified
    | NotificationsOff
    | Pruned
    | DatabaseLost
    | DatabaseBack
    | PollFailed
    | Deregistered
)
Event = GangEvent | DatabaseEvent | Stop | StopNow | Reload | Resize | MoreSlots | Tick

GangCommand = (
    StartTemplate
    | StopTemplate
    | ShareCores
    | StartWarden
    | StopWarden
    | StartChild
    | SendJob
    | SendPostmortem
    | SendCallbacks
    | SendAnswer
    | Watch
    | TakeStack
    | Interrupt
    | Terminate
    | Kill
    | ReplaceIdle
    | Revoke
    | ContinueWarden
    | KillDirectly
    | Retire
    | Trust
)
Outcome = Archive | Retry | Release
DatabaseCommand = (
    Register | Claim | SaveCheckpoint | Archive | Retry | Release | Beat | Look | Sweep | SayIdle | Deregister
)
Command = GangCommand | DatabaseCommand | Emit | TitleChanged | PollingError | Finish
