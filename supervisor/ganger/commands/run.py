"""``ganger run``: the settings are its options, each in one group of its help."""

from __future__ import annotations

import argparse
from typing import Final

from ganger.commands.common import (
    CODES,
    USAGE,
    Commands,
    Failure,
    add_command,
    add_config,
    add_settings,
    settings_of,
    tell_if_local,
)
from ganger.config import OPTIONS, Config

RUN_HELP: Final = """examples:
  ganger run myapp.jobs:handlers
  ganger run myapp.jobs:handlers -c 4 --timeout 10m --memory 2GiB
  ganger run myapp.jobs:handlers -q mail=2,render=6 --shutdown terminate

Every option is also read from GANGER_<OPTION> in the environment and from ganger.toml, or [tool.ganger] in
pyproject.toml, in the current folder; an option stands above the environment, the environment above the file.

signals: TERM, INT and HUP shut down as --shutdown says; a second INT terminates the jobs, a third kills them;
QUIT kills them at once. Interrupted jobs go back to their queues. TTIN and TTOU: one slot more, one less, once a job
has ended; USR2 loads the handlers anew; USR1 tells how everything stands."""

# The settings as the help of `run` shows them; each stands in one group.
GROUPS: Final = {
    "what to run": ("queues", "concurrency", "until_empty", "name"),
    "limits of a job that has none of its own": ("timeout", "grace", "memory", "max_crashes", "max_losses"),
    "shutdown": ("shutdown", "shutdown_timeout", "interrupt_after"),
    "handlers": (
        "handler_mode",
        "retry_strategy",
        "failed_attempt",
        "failed_job",
        "callback_timeout",
        "unknown_job_type",
        "max_payload",
        "max_result",
        "max_checkpoint",
    ),
    "processes": ("start_method", "recycle_after", "boot_timeout", "nice", "cpu_affinity", "keep_environ"),
    "database": ("database_url", "schema", "poll_interval", "lease", "database_wait", "store_timeout", "retention"),
    "monitoring": ("http", "stall_after"),
    "output": ("log_format", "log_level", "output_tail"),
}


def add(to: Commands) -> None:
    made = add_command(to, "run", run, "run jobs until stopped", RUN_HELP + "\n\n" + CODES)
    made.usage = "ganger run TARGET [options]"
    made.add_argument("target", nargs="?", metavar="TARGET", help="the handlers: myapp.jobs:handlers")
    for title, names in GROUPS.items():
        add_settings(made.add_argument_group(title), names)
    output = next(group for group in made._action_groups if group.title == "output")
    output.add_argument("-v", "--verbose", action="store_true", help="the same as --log-level debug")
    add_config(output)


def run(options: argparse.Namespace) -> int:
    """ganger run"""
    settings = settings_of(options, OPTIONS)
    if options.verbose:
        settings["log_level"] = "debug"
    if "target" not in settings:
        raise Failure(USAGE, "run needs a TARGET, as in: ganger run myapp.jobs:handlers (see ganger run --help)")
    made = Config(**settings)
    tell_if_local(settings)
    from ganger.supervisor import Supervisor

    return Supervisor(made).run(adopt=True)
