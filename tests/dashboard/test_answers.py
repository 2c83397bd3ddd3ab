"""Each question is asked once, by one thread at a time, and none after the end."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ral_trace.dashboard.answers import Answers, Closed
from ral_trace.tracer.reading import Trace, open_trace
from tests.synthetic import training


@pytest.fixture
def trace(tmp_path: Path) -> Iterator[Trace]:
    with open_trace(training(tmp_path / "t.duckdb", launches=50)) as opened:
        yield opened


def test_an_answer_is_kept(trace: Trace) -> None:
    asked = []

    def analysis(trace: Trace, *, device: str | None = None) -> list[dict[str, Any]]:
        asked.append(device)
        return [{"device": device}]

    answers = Answers(trace)
    for _ in range(3):
        assert answers.ask(analysis) == [{"device": None}]
        assert answers.ask(analysis, device="ral:1") == [{"device": "ral:1"}]
    assert asked == [None, "ral:1"]


def test_threads_ask_one_after_the_other_and_share_the_answer(trace: Trace) -> None:
    running, most, asked = 0, 0, 0

    def analysis(trace: Trace, *, number: int) -> list[dict[str, Any]]:
        nonlocal running, most, asked
        running += 1
        most, asked = max(most, running), asked + 1
        time.sleep(0.01)
        running -= 1
        return trace.rows("SELECT count(*) AS events FROM event")

    answers = Answers(trace)
    found: list[Any] = []
    ask = [threading.Thread(target=lambda n=n: found.append(answers.ask(analysis, number=n % 3))) for n in range(12)]
    for thread in ask:
        thread.start()
    for thread in ask:
        thread.join()
    assert (most, asked, len(found)) == (1, 3, 12)


def test_the_end_stops_the_analysis_that_runs(trace: Trace) -> None:
    started = threading.Event()
    ended: list[BaseException] = []

    def endless(trace: Trace) -> list[dict[str, Any]]:
        started.set()
        return trace.rows("SELECT count(*) AS n FROM range(1000000000) a, range(1000000000) b")

    answers = Answers(trace)

    def ask() -> None:
        try:
            answers.ask(endless)
        except Closed as error:
            ended.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    started.wait()
    time.sleep(0.2)
    answers.close()
    thread.join(10)
    assert len(ended) == 1
    with pytest.raises(Closed):
        answers.ask(endless)
