"""The table of all commands: what `headway --help` shows, and where each command is.

`headway --help` is printed from this table alone. A command's module, with all its imports, is loaded only when that
command runs (entry.py), so `headway --version` does not wait for the gateway, the simulator or the trainer.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Panel = Literal["Serve", "Measure", "Plan", "Money", "Models"]


class CommandInfo(NamedTuple):
    panel: Panel  # the heading in `headway --help`
    name: str
    target: str  # "module:attribute": a function, or a typer app for a group of commands
    help: str
    example: str


COMMANDS = (
    CommandInfo(
        "Serve",
        "demo",
        "headway.cli.demo:demo",
        "Start two vLLM engines and a gateway, race fast against standard, and print calls to paste.",
        "headway demo",
    ),
    CommandInfo(
        "Serve",
        "serve",
        "headway.cli.serve:serve",
        "Serve the configured models until SIGTERM or Ctrl-C.",
        "headway serve --config headway.toml",
    ),
    CommandInfo(
        "Serve",
        "dispatch",
        "headway.cli.dispatch:dispatch",
        "Decide for relays on several machines, or stand by for the dispatcher that does.",
        "headway dispatch --listen tcp://10.0.0.1:7400 --secret-file cell.secret",
    ),
    CommandInfo(
        "Serve",
        "relay",
        "headway.cli.relay:relay",
        "Serve calls with seats from a dispatcher, whose configuration it takes.",
        "headway relay --dispatcher tcp://10.0.0.1:7400 --name relay-1 --secret-file cell.secret",
    ),
    CommandInfo(
        "Serve",
        "status",
        "headway.cli.status:status",
        "Show who leads a cell, its relays and its replicas; the exit code is 1 if it serves no calls.",
        "headway status --dispatcher tcp://10.0.0.1:7400 --secret-file cell.secret",
    ),
    CommandInfo(
        "Serve",
        "check",
        "headway.cli.check:check",
        "Check a configuration file: point to the line of each problem and suggest a fix; or compare it to what runs.",
        "headway check --config headway.toml --against http://127.0.0.1:8000",
    ),
    CommandInfo(
        "Serve",
        "drain",
        "headway.cli.drain:drain",
        "Let a replica take no more calls, such as before a restart, and wait until its streams have ended.",
        "headway drain http://127.0.0.1:8001 --gateway http://127.0.0.1:8000",
    ),
    CommandInfo(
        "Serve",
        "fleet",
        "headway.cli.fleet:fleet",
        "Place, watch and replace engines, relays and dispatchers on the nodes of a Ray cluster.",
        "headway fleet up fleet.toml",
    ),
    CommandInfo(
        "Serve",
        "engine",
        "headway.cli.engine:engine",
        "Print the command that starts each configured engine, with the vLLM flags that Headway needs.",
        "headway engine --config headway.toml",
    ),
    CommandInfo(
        "Serve",
        "replay",
        "headway.cli.replay:replay",
        "Replay a recording of `headway serve --record` and compare every decision.",
        "headway replay run.jsonl",
    ),
    CommandInfo(
        "Serve",
        "mock-engine",
        "headway.cli.mock_engine:mock_engine",
        "Run a scripted engine: vLLM's HTTP API with programmed speed and answers, for tests without a model.",
        "headway mock-engine --port 9100 --step-ms 1:10,64:40",
    ),
    CommandInfo(
        "Measure",
        "calibrate",
        "headway.cli.measure:calibrate",
        "Measure the speed curve and prompt speed of an idle engine, and print the lines for headway.toml.",
        "headway calibrate http://127.0.0.1:8001 --model my-model --seats 64",
    ),
    CommandInfo(
        "Measure",
        "bench",
        "headway.cli.measure:bench",
        "Measure a server from one stream to past saturation, and write its frontier, its curve and a report.",
        "headway bench http://127.0.0.1:8001 --model my-model --seats 64 --out bench",
    ),
    CommandInfo(
        "Measure",
        "eval",
        "headway.cli.evaluate:evaluate",
        "Count the mistakes of each speed on your own tasks, and recommend when to use which.",
        "headway eval tasks.jsonl --fix-minutes 5 --out eval",
    ),
    CommandInfo(
        "Plan",
        "plan",
        "headway.cli.plan:plan",
        "Predict speed, memory, cost and price multiples of a model on chips, each with its error band.",
        "headway plan --model llama-3.1-70b --chip h200 --chip b200 --floor 60 --floor 100",
    ),
    CommandInfo(
        "Plan",
        "simulate",
        "headway.cli.simulate:simulate",
        "Simulate the serving policy: floors kept, waits, refusals and cost by tier.",
        "headway simulate --calls-per-s 20 --share fast=0.2 --replicas 4 --out simulated",
    ),
    CommandInfo(
        "Money",
        "fares",
        "headway.cli.measure:fares",
        "Compute the price multiple of each floor from a measured frontier.",
        "headway fares bench.json --cost-per-hour 2.5 --fast 75 --write headway.toml --model my-model",
    ),
    CommandInfo(
        "Money",
        "keys",
        "headway.cli.keys:keys",
        "Create, list, rotate and revoke API keys.",
        "headway keys list",
    ),
    CommandInfo(
        "Money",
        "bill",
        "headway.cli.ledger:bill",
        "Show what was billed and what it cost in seat-time.",
        "headway bill --by key,tier --format csv",
    ),
    CommandInfo(
        "Money",
        "ledger",
        "headway.cli.ledger:ledger",
        "Verify and migrate the ledger.",
        "headway ledger verify --engines",
    ),
    CommandInfo(
        "Models",
        "distill",
        "headway.cli.distill:distill",
        "Distill a student from a model: several times faster, with more mistakes, and a card that counts them.",
        "headway distill collect prompts.jsonl --model my-model --out answers.jsonl",
    ),
    CommandInfo(
        "Models",
        "auto",
        "headway.cli.auto:auto",
        "Calibrate `-auto` models, which answer with a student first, within a budget of mistakes.",
        "headway auto calibrate tasks.jsonl --model my-model --out auto.json",
    ),
)
