"""`make demo`: a first ingest on a real scheduler and triggerer, then three questions to the index."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from include.local.commands import AIRFLOW_PORT, DAG, EMULATOR_PORT, cli_process, run_cli, say
from include.local.errors import RunFailedError
from include.local.options import EmulatorOptions, StackOptions
from include.local.stack import Stack

CORPUS = "python_docs"
RUN_SECONDS = 900
#: Questions, and the topics of which one must be the first hit or the second.
QUESTIONS: Mapping[str, frozenset[str]] = {
    "How do I leave a loop early?": frozenset({"break", "for", "while"}),
    "How do I write a tiny function without giving it a name?": frozenset({"lambda", "function"}),
    "Which names do I get when I import everything from a module with a star?": frozenset({"import"}),
}
_HIT = re.compile(r"^\d+\. .*\[(.+?)\] score", re.MULTILINE)  # as `ask` prints a hit
#: The report's figures that the summary shows, and how.
SUMMARY = {
    "chunks indexed": ("chunks_indexed", "{:,}"),
    "requests sent": ("requests_sent", "{:,}"),
    "requests reused": ("requests_reused", "{:,}"),
    "dead letters": ("dead_letters", "{:,}"),
    "dollars spent": ("dollars_spent", "{:.6f}"),
    "dollars saved": ("dollars_saved", "{:.6f}"),
}


def demo(state: Path) -> int:
    """Run it; returns 0 where the run succeeded and every question found its topic.

    It always asks the emulator, whatever connections the caller's environment holds: it costs nothing.
    """
    began = time.monotonic()
    options = StackOptions(
        state=state,
        airflow_port=AIRFLOW_PORT,
        emulator_port=EMULATOR_PORT,
        emulator=EmulatorOptions(embeddings="minilm"),
        wait_for_dags=(DAG,),
    )
    with Stack(options, say) as stack:
        say(f"Airflow is at {stack.airflow_url}, the emulator at {stack.emulator_url}")
        run_cli(stack.env, ["sample-documents"])
        run_id = f"manual__{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}"
        stack.api.unpause(DAG)
        stack.api.trigger(DAG, run_id=run_id)
        say(f"triggered {DAG}, run {run_id}")
        stack.api.wait(DAG, run_id, RUN_SECONDS, progress=say)
        folder = stack.state.storage / "runs" / "initial_ingest" / CORPUS / run_id
        print(f"\n{(folder / 'report.md').read_text(encoding='utf-8')}", flush=True)
        answered = [_ask(stack, question, topics) for question, topics in QUESTIONS.items()]
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    print()
    for name, (field, form) in SUMMARY.items():
        print(f"{name}: {form.format(report[field])}")
    print(f"questions answered: {sum(answered)} of {len(answered)}")
    print(f"seconds: {time.monotonic() - began:.0f}", flush=True)
    return 0 if all(answered) else 1


def _ask(stack: Stack, question: str, topics: frozenset[str]) -> bool:
    """Ask the index and show what it found; whether a topic looked for is the first hit or the second."""
    asked = cli_process(stack.env, ["ask", question], stdout=subprocess.PIPE)
    if asked.returncode:
        raise RunFailedError(f"the question {question!r} failed with exit code {asked.returncode}")
    answer = asked.stdout.decode()
    found = any(document in topics for document in _HIT.findall(answer)[:2])
    print(f"Q: {question}\n{answer}", flush=True)
    if not found:
        print(f"   none of {', '.join(sorted(topics))} is among the first two", flush=True)
    return found
