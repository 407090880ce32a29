"""examples/deploy: what the files name exists, and the numbers that belong together agree."""

from __future__ import annotations

import configparser
import contextlib
import json
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from ganger import cli, enqueue, metrics
from ganger import database as db
from ganger.commands.common import settings_of
from ganger.config import OPTIONS, Config, host_and_port
from ganger.core.ladder import Step
from ganger.core.messages import Claim, Lane, Now
from ganger.core.slot import State
from ganger.events import EVENTS
from ganger.health import LIVE, TURN, Health
from ganger.metrics import FAMILIES, Figures
from ganger.signals import RELOAD, TELLS

DEPLOY = Path(__file__).parent.parent / "examples" / "deploy"
BOARD = json.loads((DEPLOY / "grafana.json").read_text())
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus-rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [
    *((rule.get("alert") or rule["record"], rule["expr"]) for rule in RULES),
    *((f"{panel['title']} {target['refId']}", target["expr"]) for panel in PANELS for target in panel["targets"]),
]
ADDED = {"instance", "le"}  # labels that Prometheus adds, and those of a histogram's buckets
WORDS = {  # what a label may say
    ("ganger_slots", "state"): {state.value for state in State},
    ("ganger_queue_jobs", "state"): {"ready", "scheduled", "running"},
    ("ganger_jobs_total", "outcome"): {"success", "failure", "cancelled", "retried", "released"},
    ("ganger_kills_total", "rung"): {step.value for step in Step},
    ("ganger_events_total", "event"): {name for name, wording in EVENTS.items() if wording.level != "debug"},
}


def exposed() -> set[str]:
    """The names that a scrape declares, of histograms those of their samples."""
    _, page = metrics.page(lambda: metrics.families(Figures(), Health(), None, "web1:812", Now(0, 0)), "")
    kinds = re.findall(r"(?m)^# TYPE (\S+) (\S+)$", page.decode())
    plain = {name for name, kind in kinds if kind != "histogram"}
    return plain | {
        f"{name}_{part}" for name, kind in kinds if kind == "histogram" for part in ("bucket", "sum", "count")
    }


def family_of(name: str) -> str:
    return re.sub(r"_(bucket|sum|count)$", "", name)


def selectors(expression: str) -> Iterator[tuple[str, str]]:
    """The metrics of an expression, each with what stands in its braces."""
    yield from re.findall(r"\b((?:ganger|process)[_:][a-z_:0-9]+)(?:\{([^}]*)\})?", expression)


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
def test_every_metric_and_label_that_is_named_exists(where: str, expression: str) -> None:
    found = list(selectors(expression))
    assert found
    names = exposed() | RECORDED
    known = set(ADDED)
    for name, braces in found:
        assert name in names
        family = family_of(name)
        labels = set(FAMILIES[family].labels) if family in FAMILIES else {"queue", "job_type"}
        known |= labels
        for label, value in re.findall(r'(\w+)\s*[=!]~?\s*"([^"]*)"', braces):
            assert label in labels | ADDED
            words = WORDS.get((family, label))
            assert words is None or value.startswith("$") or set(filter(None, value.split("|"))) <= words
    for grouped in re.findall(r"\b(?:by|on|without)\s*\(([^)]*)\)", expression):
        assert {label.strip() for label in grouped.split(",")} - {""} <= known


def test_every_alert_says_how_bad_it_is_and_what_is_the_matter() -> None:
    alerts = [rule for rule in RULES if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) > 5
    for rule in alerts:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"].endswith(".")


def test_the_board_is_one_that_grafana_takes() -> None:
    """Panels have ids of their own and places that do not overlap; each asks the chosen data source, and every variable
    that is used is one of the board's."""
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    cells: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & own
        cells |= own
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in PANELS:
        assert panel["type"] in ("timeseries", "stat", "heatmap")
        assert panel["datasource"] == source
        assert all(target["datasource"] == source for target in panel["targets"])
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    variables = {variable["name"] for variable in BOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD))) - {"__rate_interval", "__all"}
    assert used == variables
    assert BOARD["schemaVersion"] >= 39
    assert BOARD["uid"] == "ganger"


@pytest.mark.slow
def test_prometheus_itself_takes_the_rules_and_the_questions_of_the_board(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool, a part of Prometheus, is not on this machine")
    asked = {"$__rate_interval": "5m", "$instance": ".*", "$queue": ".*"}
    questions = []
    for number, (_, expression) in enumerate(EXPRESSIONS):
        for variable, value in asked.items():
            expression = expression.replace(variable, value)
        questions.append({"record": f"asked:{number}", "expr": expression})
    board = tmp_path / "board.yaml"
    board.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": questions}]}))
    for path in (DEPLOY / "prometheus-rules.yaml", board):
        checked = subprocess.run([promtool, "check", "rules", str(path)], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr


# ---------------------------------------------------------------------------------------------------------------------
# Numbers that belong together


def settings(words: list[str]) -> Config:
    """What ``ganger run`` makes of a command line."""
    return Config(**settings_of(cli.parser().parse_args(words), OPTIONS))


def time_to_end(config: Config) -> float:
    """The longest that a shutdown may take, in seconds, before what is below the supervisor is gone and stored."""
    assert config.shutdown_timeout is not None
    return config.shutdown_timeout + config.grace + config.store_timeout


def seconds(text: str) -> float:
    """A time as systemd writes it."""
    units = {"s": 1, "min": 60, "h": 3600}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)(min|h|s)", text))


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder without a configuration file."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("alone")
def test_the_systemd_unit_leaves_a_shutdown_its_time() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "ganger.service")
    service = unit["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert program.endswith("/ganger")
    config = settings(words)
    assert seconds(service["TimeoutStopSec"]) >= time_to_end(config)
    assert seconds(service["WatchdogSec"]) >= max(LIVE, 4 * TURN)
    assert seconds(service["TimeoutStartSec"]) > config.database_wait
    said = {
        "Type": "notify", "NotifyAccess": "main", "KillMode": "mixed", "Delegate": "yes",
        "DelegateSubgroup": "supervisor", "OOMPolicy": "continue",
    }  # fmt: skip
    assert {name: service[name] for name in said} == said
    assert set(service["RestartPreventExitStatus"].split()) == {"2", "78"}
    assert shlex.split(service["ExecReload"])[1:] == ["-USR2", "$MAINPID"]
    assert TELLS[signal.SIGUSR2] == RELOAD
    assert service["RuntimeDirectoryMode"] == "0700"  # a lock file in another would not be trusted


@pytest.fixture
def deployment() -> Any:
    (only,) = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return only


@pytest.fixture
def scaled() -> Any:
    (only,) = yaml.safe_load_all((DEPLOY / "keda.yaml").read_text())
    return only


@pytest.mark.usefixtures("alone")
def test_the_deployment_leaves_a_shutdown_its_time_and_jobs_their_memory(deployment: Any) -> None:
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    config = settings(container["args"])
    assert pod["spec"]["terminationGracePeriodSeconds"] >= time_to_end(config)
    units = {"Mi": 1 << 20, "Gi": 1 << 30}
    limit = container["resources"]["limits"]["memory"]
    assert config.memory is not None
    assert config.concurrency is not None
    assert config.memory * 1.1 * config.concurrency < int(limit[:-2]) * units[limit[-2:]]
    assert int(container["resources"]["requests"]["cpu"]) == config.concurrency
    assert deployment["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    options = {f"GANGER_{name.upper()}" for name in OPTIONS} | {"DATABASE_URL"}
    assert {variable["name"] for variable in container["env"]} <= options


@pytest.mark.usefixtures("alone")
def test_the_probes_ask_where_the_supervisor_answers(deployment: Any) -> None:
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    config = settings(container["args"])
    assert config.http is not None
    host, port = host_and_port(config.http)
    assert host == "0.0.0.0"  # a probe comes from outside the pod
    (named,) = container["ports"]
    assert named["containerPort"] == port
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(port)
    paths = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("liveness", "readiness")}
    assert {kind: path["path"] for kind, path in paths.items()} == {"liveness": "/livez", "readiness": "/readyz"}
    assert {path["port"] for path in paths.values()} == {named["name"]}
    liveness = container["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > LIVE


@pytest.mark.usefixtures("alone")
def test_keda_scales_that_deployment_by_its_concurrency(deployment: Any, scaled: Any) -> None:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    target = scaled["spec"]["scaleTargetRef"]
    assert target == {"name": deployment["metadata"]["name"], "envSourceContainerName": container["name"]}
    (trigger,) = scaled["spec"]["triggers"]
    asked = trigger["metadata"]
    config = settings(container["args"])
    assert int(asked["targetQueryValue"]) == config.concurrency
    assert asked["connectionFromEnv"] in {variable["name"] for variable in container["env"]}
    assert all(f"'{queue}'" in asked["query"] for lane in config.lanes for queue in lane.queues)


def test_what_keda_asks_is_how_many_jobs_there_are_to_run(scaled: Any, database: str) -> None:
    """Ready, due and running ones of the queue; neither those of a later time nor those of other queues."""
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    with contextlib.closing(db.connect(database)) as conn:
        for _ in range(3):
            enqueue(conn, "fit", {})
        facts = db.SupervisorFacts(uuid4(), "one", "here", 4711, 120.0)
        supervisor_id, _ = db.register(conn, db.SCHEMA, facts, None)
        db.claim(conn, db.SCHEMA, Claim(uuid4(), supervisor_id, (Lane(("default",), 1),)))
        conn.execute(
            "INSERT INTO proletarian.job (job_id, queue, job_type, payload, process_at) "
            "VALUES (gen_random_uuid(), 'default', 'fit', '{}', now())"
        )
        enqueue(conn, "fit", {}, process_in=3600)
        enqueue(conn, "fit", {}, queue="another")
        assert conn.execute(query.encode()).fetchone() == (4,)
        assert conn.execute("SELECT count(*) FROM proletarian.job WHERE state = 2").fetchone() == (1,)
