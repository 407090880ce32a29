"""How handlers are declared and loaded, and what a Retry is."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ganger_child import Handlers, Job, Retry, UnknownJobType
from ganger_child.handlers import LoadError, load
from ganger_child.job import Job as JobClass
from ganger_child.options import Options
from ganger_child.retry import checked

FACTS = {"job_id": str(uuid4()), "run_id": str(uuid4()), "queue": "q", "job_type": "t", "attempts": 1}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules that is the current one; what is imported from it is forgotten afterwards."""
    before, path = set(sys.modules), list(sys.path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]
    sys.path[:] = path


def module(folder: Path, text: str) -> str:
    """Write a module of its own name and return the name."""
    name = f"m{uuid4().hex}"
    (folder / f"{name}.py").write_text(text)
    return name


# ---------------------------------------------------------------------------------------------------------------------
# Declaring


def test_a_decorated_function_stays_what_it_is_and_its_limits_are_read() -> None:
    handlers = Handlers()

    def function(job: Job) -> int:
        return 1

    declared = handlers.job("t", timeout="10m", grace=0, memory="2GiB", shutdown="finish")(function)
    assert declared is function
    assert handlers.job_types["t"].limits == {"timeout": 600.0, "grace": 0.0, "memory": 2 << 30, "shutdown": "finish"}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"timeout": 0}, "timeout of job type 't' is 0"),
        ({"timeout": -1}, "timeout of job type 't' is -1"),
        ({"timeout": math.nan}, "timeout of job type 't' is nan"),
        ({"timeout": "soon"}, "timeout of job type 't' is 'soon'"),
        ({"timeout": True}, "timeout of job type 't' is True"),
        ({"grace": "-1s"}, "grace of job type 't'"),
        ({"memory": "0"}, "memory of job type 't'"),
        ({"memory": 1.5}, "memory of job type 't'"),
        ({"shutdown": "later"}, "shutdown of job type 't' is 'later': give one of wait, finish"),
        ({"retry": Retry(1), "retry_strategy": lambda job, exception: None}, "exclude each other"),
    ],
)
def test_settings_that_are_none_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match="^" + told if told.startswith("t") else told):
        Handlers().job("t", **settings)


@pytest.mark.parametrize(
    "settings", [{"retry": 3}, {"retry_strategy": Retry(1)}, {"failed_job": "f"}, {"failed_attempt": 1}, {"loads": 1}]
)
def test_functions_that_are_none_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Handlers().job("t", **settings)(lambda job: None)


def test_a_type_is_declared_once_and_has_a_name() -> None:
    handlers = Handlers()
    handlers.job("t")(lambda job: None)
    with pytest.raises(ValueError, match="declared twice"):
        handlers.job("t")(lambda job: None)
    for nothing in ("", "  ", None, 3):
        with pytest.raises(ValueError, match="give a name"):
            handlers.job(nothing)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the handler of job type 'u'"):
        handlers.job("u")(7)  # type: ignore[type-var]


def test_what_a_type_does_not_say_the_handlers_say_and_then_the_options(folder: Path) -> None:
    name = module(
        folder,
        "from ganger_child import Handlers, Retry\n"
        "def a(job, exception): pass\n"
        "def b(job, exception): pass\n"
        "def c(job, exception): pass\n"
        "handlers = Handlers(retry_strategy=a, failed_attempt=a)\n"
        "handlers.job('own', retry_strategy=b, failed_attempt=b, failed_job=b)(lambda job: 1)\n"
        "handlers.job('none')(lambda job: 1)\n",
    )
    c = f"{name}:c"
    loaded = load(Options(f"{name}:handlers", retry_strategy=c, failed_attempt=c, failed_job=c))
    said = {
        job_type: [
            getattr(reaction, "__name__", None)
            for reaction in (found.retry_strategy, found.failed_attempt, found.failed_job)
        ]
        for job_type in ("own", "none", "unknown")
        for found in (loaded.find(job_type).reactions,)
    }
    assert said == {"own": ["b", "b", "b"], "none": ["a", "a", "c"], "unknown": ["a", "a", "c"]}


# ---------------------------------------------------------------------------------------------------------------------
# Loading


def test_the_current_folder_is_importable_and_the_types_are_told(folder: Path) -> None:
    name = module(
        folder,
        "from ganger_child import Handlers\n"
        "class app:\n"
        "    handlers = Handlers()\n"
        "@app.handlers.job('t', timeout=1.5)\n"
        "def t(job): return 1\n",
    )
    loaded = load(Options(f"{name}:app.handlers"))
    assert loaded.job_types == {"t": {"timeout": 1.5, "grace": None, "memory": None, "shutdown": None}}
    job = JobClass.from_wire({**FACTS, "job_type": "u"}, {}, None, None)
    with pytest.raises(UnknownJobType, match=rf"job type 'u' in {name}:app.handlers \(it has t\)"):
        loaded.find("u").call(job)


def test_a_search_path_comes_before_the_current_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    name = module(other, "def handle(job_type, payload): return payload\n")
    assert load(Options(f"{name}:handle", search_path=str(other))).job_types is None


@pytest.mark.parametrize("mode", ["default", "advanced"])
def test_a_plain_function_is_called_as_its_mode_says(folder: Path, mode: str) -> None:
    name = module(folder, "def default(job_type, payload): return job_type, payload\ndef advanced(job): return job\n")
    call = load(Options(f"{name}:{mode}", handler_mode=mode)).find("any").call
    job = JobClass.from_wire(FACTS, {}, {"n": 1}, None)
    assert call(job) == (("t", {"n": 1}) if mode == "default" else job)


@pytest.mark.parametrize(
    ("text", "options", "told"),
    [
        ("", {"target": "M"}, "the target is 'M': give a module and a name in it"),
        ("", {"target": "M:"}, "give a module and a name in it"),
        ("", {"target": "no_such_module:x"}, "there is no module 'no_such_module'"),
        ("", {"target": "M.sub:x"}, "there is no module 'M.sub'|needs a module that is missing"),
        ("import no_such_thing", {"target": "M:x"}, "needs a module that is missing: No module named 'no_such_thing'"),
        ("1 / 0", {"target": "M:x"}, "importing it raised ZeroDivisionError: division by zero"),
        ("import sys; sys.exit('early')", {"target": "M:x"}, "importing it raised SystemExit: early"),
        ("this is no Python", {"target": "M:x"}, "importing it raised SyntaxError"),
        ("", {"target": "M:x.y"}, "but M has no 'x.y'"),
        ("x = 7", {"target": "M:x"}, "is 'int': give a Handlers object or a function"),
        ("from ganger_child import Handlers as H\nx = H()", {"target": "M:x"}, "declares no job type"),
        ("def x(job): pass", {"target": "M:x"}, r"is called with \(job_type, payload\)"),
        ("def x(a, b): pass", {"target": "M:x", "handler_mode": "advanced"}, r"is called with \(job\)"),
        ("def x(a, b): pass", {"target": "M:x", "failed_job": "M:y"}, "failed_job is M:y, but M has no 'y'"),
        ("def x(a, b): pass\ny = 1", {"target": "M:x", "failed_job": "M:y"}, "give the name of a function"),
        ("def x(a, b): pass\ndef y(): pass", {"target": "M:x", "retry_strategy": "M:y"}, r"\(job, exception\)"),
        (
            "from ganger_child import Handlers as H\nx = H()\nx.job('t')(lambda: 1)",
            {"target": "M:x"},
            "handler of job type 't'",
        ),
        (
            "from ganger_child import Handlers as H\nx = H(failed_job=lambda j: 1)\nx.job('t')(lambda j: 1)",
            {"target": "M:x"},
            "failed_job of job type 't' is called with",
        ),
        (
            "from ganger_child import Handlers as H\nx = H()\nx.job('t')(lambda j: 1)\nx.child_start(lambda a: 1)",
            {"target": "M:x"},
            "child_start is called with",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(
    folder: Path, text: str, options: dict[str, Any], told: str
) -> None:
    name = module(folder, text)
    with pytest.raises(LoadError, match=told.replace("M", name) if "M" in told else told):
        load(Options(**{key: value.replace("M", name) for key, value in options.items()}))


def test_the_cause_of_a_failing_import_is_kept(folder: Path) -> None:
    nested = module(folder, "raise OSError('deep down')")
    name = module(folder, f"import {nested}")
    with pytest.raises(LoadError) as caught:
        load(Options(f"{name}:x"))
    assert isinstance(caught.value.__cause__, OSError)


# ---------------------------------------------------------------------------------------------------------------------
# Retry


def test_delays_are_numbers_of_seconds() -> None:
    assert Retry(2, [1, 0.5, None]).to_wire() == {"retries": 2, "delays": [1.0, 0.5, 0.0]}
    assert Retry(0).to_wire() == {"retries": 0, "delays": []}
    assert Retry(1, iter([1])).to_wire() == {"retries": 1, "delays": [1.0]}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((-1,), ValueError),
        ((1.0,), TypeError),
        (("1",), TypeError),
        ((True,), TypeError),
        ((None,), TypeError),
        ((2**31,), ValueError),
        ((1, [-1]), ValueError),
        ((1, [math.nan]), ValueError),
        ((1, [math.inf]), ValueError),
        ((1, ["1"]), TypeError),
        ((1, [True]), TypeError),
        ((1, "12"), TypeError),
        ((1, 5), TypeError),
        ((1, {"a": 1}), TypeError),
        ((1, [1] * 1001), ValueError),
        ((1, [], 1.5), ValueError),
        ((1, [], math.nan), ValueError),
    ],
)
def test_a_retry_that_is_none_is_refused(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        Retry(*arguments)


def test_exponential_delays_grow_to_their_limit_and_do_not_overflow() -> None:
    plain = Retry.exponential(100_000, base=1, factor=2, limit=3600, jitter=0).to_wire()
    assert plain["delays"] == [float(1 << n) for n in range(12)] + [3600.0]
    assert Retry.exponential(3, base=2, factor=10, jitter=0).to_wire()["delays"] == [2.0, 20.0, 200.0]
    assert Retry.exponential(60, base=1e9, factor=1e9, limit=1e9, jitter=0).to_wire()["delays"] == [1e9]
    assert len(Retry.exponential(100_000, factor=1, jitter=0).to_wire()["delays"]) == 1000
    assert Retry.exponential(5, base=0).to_wire()["delays"] == [0.0]


def test_jitter_spreads_downwards_and_anew_each_time() -> None:
    retry = Retry.exponential(20, base=8, factor=2, limit=64, jitter=0.25)
    drawn = [retry.to_wire()["delays"] for _ in range(200)]
    for n, full in enumerate([8, 16, 32, 64]):
        values = [delays[n] for delays in drawn]
        assert all(0.75 * full <= value <= full for value in values)
        assert len(set(values)) > 150
        assert max(values) - min(values) > 0.15 * full


@pytest.mark.parametrize("settings", [{"base": -1}, {"factor": math.nan}, {"limit": math.inf}, {"jitter": 2}])
def test_exponential_refuses_what_is_no_number(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Retry.exponential(3, **settings)


def test_an_answer_is_a_retry_none_or_a_mapping() -> None:
    assert checked(None) is None
    assert checked(Retry(1)) == Retry(1)
    assert checked({"retries": 2, "delays": [None], "more": 1}) == Retry(2, [0])
    for wrong in (False, 0, [], {}, "2", {"delays": [1]}, {"retries": None}, Retry, object()):
        with pytest.raises((TypeError, ValueError)):
            checked(wrong)
