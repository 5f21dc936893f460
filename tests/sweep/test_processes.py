"""Functions in processes of their own: every way to end gives an answer, and nothing stays behind."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dphpo_bench.sweep.executors import NotStartedError, Processes, Resources


def echo(text: str) -> str:
    return text.upper()


def talk(text: str) -> str:
    os.write(1, b"\xff one ")
    sys.stdout.write(f"two {text}\n")
    sys.stderr.write("three")
    return ""


def die(text: str) -> str:
    os.kill(os.getpid(), int(text))
    return ""


def leave(text: str) -> str:
    os._exit(int(text))


def fail(text: str) -> str:
    raise ValueError(text)


def not_text(text: str) -> str:
    return 5  # type: ignore[return-value]


def sleep_with_child(path: str) -> str:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    Path(path).write_text(f"{os.getpid()} {child.pid}")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)
    return ""


def leave_a_child(path: str) -> str:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    Path(path).write_text(str(child.pid))
    return "done"


def allocate(text: str) -> str:
    try:
        return str(len(bytearray(int(float(text)))))
    except MemoryError:
        return "refused"


def surroundings(text: str) -> str:
    threads = Path(f"/proc/{os.getppid()}/status").read_text().split("Threads:")[1].split()[0]
    ignored = signal.getsignal(signal.SIGINT)
    return f"{os.getpid() == os.getpgrp()} {threads} {os.environ.get('CUDA_VISIBLE_DEVICES')} {ignored}"


def gone(pid: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def wait_for(condition, seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def processes():
    made = Processes()
    yield made
    made.close()


def test_an_answer_is_what_the_function_returns(processes) -> None:
    answer = processes.call(echo, "ε = 1", Resources())
    assert (answer.text, answer.failure, answer.again, answer.log) == ("Ε = 1", "", False, "")


def test_a_process_sees_the_gpu_it_is_given(processes) -> None:
    assert processes.call(surroundings, "", Resources(), gpu="3").text.split()[2] == "3"


def test_output_is_kept_in_order_and_never_reaches_the_terminal(processes, capfd) -> None:
    answer = processes.call(talk, "more", Resources())
    assert answer.log == "\ufffd one two more\nthree"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("function", "argument", "failure", "again"),
    [
        (die, "9", "killed by SIGKILL, as the system does when memory runs out", True),
        (leave, "0", "ended without an answer, exit code 0", True),
        (fail, "oh", "ended without an answer, exit code 1", True),
        (not_text, "", "ended without an answer, exit code 1", True),
    ],
)
def test_every_end_has_a_reason(processes, function, argument: str, failure: str, again: bool) -> None:
    answer = processes.call(function, argument, Resources())
    assert answer.text is None
    assert failure in answer.failure
    assert answer.again is again
    assert ("ValueError: oh" in answer.log) == (function is fail)


def test_the_time_limit_ends_a_process_and_what_it_started(processes, tmp_path) -> None:
    processes.call(echo, "", Resources())  # starts the server, which is not to be timed
    path = tmp_path / "pids"
    answer = processes.call(sleep_with_child, str(path), Resources(time_limit_s=3))
    assert answer.failure == "Stopped after the time limit of 3 s."
    assert not answer.again
    assert answer.seconds < 200
    assert wait_for(lambda: all(gone(int(pid)) for pid in path.read_text().split()))


def test_children_that_are_left_behind_are_killed(processes, tmp_path) -> None:
    path = tmp_path / "pid"
    assert processes.call(leave_a_child, str(path), Resources()).text == "done"
    assert wait_for(lambda: gone(int(path.read_text())))


def test_the_memory_limit_is_an_error_inside(processes) -> None:
    assert processes.call(allocate, "1e8", Resources(memory_gb=3)).text == "100000000"
    assert processes.call(allocate, "4e9", Resources(memory_gb=3)).text == "refused"


def test_closing_ends_what_runs_and_starts_nothing_more(tmp_path) -> None:
    processes = Processes()
    path = tmp_path / "pids"
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(processes.call, sleep_with_child, str(path), Resources())
        assert wait_for(path.exists)
        processes.close()
        assert "killed by SIGKILL" in future.result(timeout=240).failure
    assert wait_for(lambda: all(gone(int(pid)) for pid in path.read_text().split()))
    with pytest.raises(NotStartedError, match="closed"):
        processes.call(echo, "", Resources())


SCRIPT = """
import sys
from dphpo_bench.sweep.executors import Processes
from dphpo_bench.sweep.executors import Resources
from tests.sweep.test_processes import echo, sleep_with_child
print(Processes().call(echo, "without a guard", Resources()).text)
print(__name__, __file__, __spec__, flush=True)
Processes().call(sleep_with_child, sys.argv[1], Resources())
"""


def test_the_callers_script_is_not_run_again_and_processes_die_with_it(tmp_path) -> None:
    script, path = tmp_path / "script.py", tmp_path / "pids"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    caller = subprocess.Popen(
        [sys.executable, str(script), str(path)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert wait_for(lambda: path.exists() and len(path.read_text().split()) == 2, 200)
    caller.kill()
    out, err = caller.communicate()
    assert out.splitlines() == ["WITHOUT A GUARD", f"__main__ {script} None"]
    assert err == ""
    assert wait_for(lambda: all(gone(int(pid)) for pid in path.read_text().split()))
