"""`headway demo`: install and start a real vLLM, start a gateway in front of it, and print three calls to paste.

Knows: the order of the steps and how to show them. Does not know: how the engine is installed or run, or how the
gateway serves. The caller passes that as `serve`, which takes the path of the configuration and a callback for when
calls are accepted, blocks until Ctrl-C, and returns an exit code.

Invariant: the engine is stopped, however the demo ends.
"""

from __future__ import annotations

import json
import shlex
import shutil
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from headway.errors import SetupError
from headway.local.engine_env import MODEL_NAME, ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import (
    EngineProcess,
    LocalEngine,
    cache_dir,
    cpu_vllm,
    free_port,
    installed_vllm,
    require_free_port,
)

Serve = Callable[[Path, Callable[[], None]], int]

CPU_START_TIMEOUT_S = 300.0
# A model that the user names may be large and may have to be downloaded first.
NAMED_START_TIMEOUT_S = 3600.0
INTERRUPTED_EXIT_CODE = 130  # what a shell reports for Ctrl-C

QUESTION = "Why is the sky blue? Answer in one sentence."
MAX_TOKENS = 60


def run_demo(
    *, model: str | None, port: int, engine_port: int | None, seats: int, console: Console, serve: Serve
) -> int:
    """Serve `model` with the installed vLLM, or SmolLM2 with a CPU engine that is installed on first use."""
    steps = _Steps(console, total=4 if model is None else 2)
    try:
        require_free_port(port, "--port")  # fail now, not after minutes of installing
        engine_port = free_port() if engine_port is None else engine_port
        if model is None:
            engine, timeout_s = _cpu_engine(steps, engine_port, seats), CPU_START_TIMEOUT_S
            how_long = "about 40 s"
        else:
            engine, timeout_s = _named_engine(model, engine_port, seats), NAMED_START_TIMEOUT_S
            how_long = "longer if the model must be downloaded"
        process = EngineProcess(engine)
        try:
            with steps.step("Start vLLM", how_long) as say:
                process.start()
                process.wait_ready(timeout_s, say)
            steps.announce("Start the gateway")
            config_path = write_config(cache_dir() / "demo" / "headway.toml", engine, port, process.url)
            return serve(config_path, lambda: _show_calls(console, engine.served_name, port, config_path))
        finally:
            process.stop()
    except KeyboardInterrupt:
        console.print("Stopped. Nothing is left running. Finished steps are kept for the next run.")
        return INTERRUPTED_EXIT_CODE


def prepare_demo(console: Console) -> None:
    """Install the engine and the model without starting anything, for container images and CI."""
    _cpu_engine(_Steps(console, total=2), port=0, seats=1)


def write_config(path: Path, engine: LocalEngine, port: int, engine_url: str) -> Path:
    # A JSON string is also a TOML string.
    text = f"""\
        [gateway]
        host = "127.0.0.1"
        port = {port}

        [[models]]
        name = {json.dumps(engine.served_name)}

        [[models.replicas]]
        url = {json.dumps(engine_url)}
        seats = {engine.seats}
        """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def calls_to_paste(model: str, port: int) -> dict[str, str]:
    """Return the same streamed question as three bash commands."""
    url = f"http://127.0.0.1:{port}"
    messages = [{"role": "user", "content": QUESTION}]
    body = json.dumps({"model": model, "max_tokens": MAX_TOKENS, "stream": True, "messages": messages})
    arguments = f"model={json.dumps(model)}, max_tokens={MAX_TOKENS}, messages={json.dumps(messages)}"
    # Some chunks carry usage and no choice, hence the inner loop.
    openai = f"""
        from openai import OpenAI
        client = OpenAI(base_url="{url}/v1", api_key="headway")
        for chunk in client.chat.completions.create(stream=True, {arguments}):
            for choice in chunk.choices:
                print(choice.delta.content or "", end="", flush=True)
        print()
        """
    anthropic = f"""
        from anthropic import Anthropic
        client = Anthropic(base_url="{url}", api_key="headway")
        with client.messages.stream({arguments}) as stream:
            for text in stream.text_stream:
                print(text, end="", flush=True)
        print()
        """
    return {
        "curl": f"curl -sN {url}/v1/chat/completions -H 'content-type: application/json' -d {shlex.quote(body)}",
        "openai": f"python -c {shlex.quote(textwrap.dedent(openai))}",
        "anthropic": f"python -c {shlex.quote(textwrap.dedent(anthropic))}",
    }


def _cpu_engine(steps: _Steps, port: int, seats: int) -> LocalEngine:
    with steps.step("Engine environment", "first time: 3.6 GB, about 3 minutes") as say:
        python = ensure_cpu_engine(say)
    with steps.step(f"Model {MODEL_NAME}", "first time: 269 MB, half a minute") as say:
        directory = ensure_smollm2(python, say)
    return LocalEngine(cpu_vllm(python), str(directory), MODEL_NAME, port, seats, on_cpu=True)


def _named_engine(model: str, port: int, seats: int) -> LocalEngine:
    executable = shutil.which("vllm")
    if executable is None:
        raise SetupError(
            f"Serving {model} needs vLLM in Headway's environment, and there is no `vllm` command. "
            "Run `pip install vllm` on a machine with a GPU, or run `headway demo` without a model: "
            "it installs a small engine for the CPU."
        )
    path = Path(model)
    served_name = path.resolve().name if path.is_dir() else model
    return LocalEngine(installed_vllm(executable), model, served_name, port, seats)


def _show_calls(console: Console, model: str, port: int, config_path: Path) -> None:
    console.print(f"\nHeadway listens on http://127.0.0.1:{port}. Paste one of these into another terminal:")
    for title, command in calls_to_paste(model, port).items():
        console.print(f"\n[bold]{title}[/bold]")
        # Not wrapped: a line broken at the width of the terminal would not run.
        console.print(command, markup=False, highlight=False, soft_wrap=True)
    console.print(f"\nThe configuration is {config_path}. Ctrl-C stops the gateway and the engine.", soft_wrap=True)


class _Steps:
    """Numbered steps on the console. The current step shows its progress and elapsed time."""

    def __init__(self, console: Console, total: int) -> None:
        self.console = console
        self.total = total
        self.number = 0

    def announce(self, title: str, how_long: str = "") -> None:
        self.number += 1
        hint = f" [dim]({how_long})[/dim]" if how_long else ""
        self.console.print(f"[bold]{self.number}/{self.total}[/bold] {title}{hint}", highlight=False)

    @contextmanager
    def step(self, title: str, how_long: str) -> Iterator[Callable[[str], None]]:
        self.announce(title, how_long)
        began = time.monotonic()
        columns = (
            TextColumn("   "),
            SpinnerColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[doing]}", markup=False),
        )
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as progress:
            task = progress.add_task("", total=None, doing="")

            def say(doing: str) -> None:
                # Always one line: a display that changes its height flickers.
                progress.update(task, doing=textwrap.shorten(doing, max(20, self.console.width - 20)))

            yield say
        self.console.print(f"    ready after {time.monotonic() - began:.1f} s", highlight=False)
