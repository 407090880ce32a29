"""The handler of example A. It runs in child processes of the supervisor."""

from __future__ import annotations

import os
from pprint import pprint
from typing import Any

from ganger_child import Handlers, Job

handlers = Handlers()


@handlers.job("example_a.echo")
def echo(job: Job) -> Any:
    """Run in a child process of the supervisor. What it returns is the job's result, kept in the archive."""
    print(f"Running job {job.type} in process {os.getpid()}. Payload:")
    pprint(job.payload, sort_dicts=False)
    return job.payload
