"""Functions in processes of their own: every way to end gives an answer, and nothing stays behind."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dphpo_bench.sweep.processes import MAX_LOG_BYTES, NotStartedError, Processes
from dphpo_bench.sweep.resources import Resources


def echo(text: str) -> str:
    return text.upper()


def talk(text: str) -> str:
    os.write(1, b"\xff one ")
    sys.stdout.write(f"two {text}\n")
    sys.stderr.write("three")
    return ""


def flood(text: str) -> str:
    sys.stdout.write(f"start {text * 10**6} end\n")
    return ""


def die(text: str) -> str:
    os.kill(os.getpid(), int(text))
    return ""


def leave(text: str) -> str:
    os._exit(int(text))


def fail(text: str) -> str:
    raise ValueError(text)


def long_answer(text: str) -> str:
    return "x" * int(text)


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


MEMORY: list[str] = []


def remember(text: str) -> str:
    MEMORY.append(text)
    return "".join(MEMORY)


def half_an_answer(text: str) -> str:
    """Dies while it sends its answer."""
    os.write(sys._getframe(1).f_locals["sender"].fileno(), b"\0\0\1\0abc")
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def answer_and_stay(text: str) -> str:
    """Leaves a child that holds everything open, in a group of its own."""
    if os.fork() == 0:
        os.setsid()
        time.sleep(40)
        os._exit(0)
    return text


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


def test_processes_share_no_state(processes) -> None:
    assert [processes.call(remember, word, Resources()).text for word in "ab"] == ["a", "b"]


def test_the_server_that_is_forked_has_no_computing_threads(processes) -> None:
    """A fork would lose them. One more thread is there, that of Arrow's allocator, which minds forks."""
    leads, threads, _, _ = processes.call(surroundings, "", Resources()).text.split(maxsplit=3)
    assert leads == "True"
    assert int(threads) <= 2


def test_a_process_sees_the_gpu_it_is_given(processes) -> None:
    assert processes.call(surroundings, "", Resources(), gpu="3").text.split()[2] == "3"


def test_output_is_kept_in_order_and_never_reaches_the_terminal(processes, capfd) -> None:
    answer = processes.call(talk, "more", Resources())
    assert answer.log == "\ufffd one two more\nthree"
    assert capfd.readouterr() == ("", "")


def test_of_much_output_the_end_is_kept(processes) -> None:
    log = processes.call(flood, "x", Resources()).log
    assert len(log) == MAX_LOG_BYTES
    assert log.endswith("x end\n")


@pytest.mark.parametrize(
    ("function", "argument", "failure", "again"),
    [
        (die, "9", "killed by SIGKILL, as the system does when memory runs out", True),
        (half_an_answer, "", "killed by SIGKILL", True),
        (leave, "0", "ended without an answer, exit code 0", True),
        (leave, "3", "ended without an answer, exit code 3", True),
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


def test_a_long_answer_arrives(processes) -> None:
    assert len(processes.call(long_answer, str(10**6), Resources()).text) == 10**6


def test_the_time_limit_ends_a_process_and_what_it_started(processes, tmp_path) -> None:
    processes.call(echo, "", Resources())  # starts the server, which is not to be timed
    path = tmp_path / "pids"
    answer = processes.call(sleep_with_child, str(path), Resources(time_limit_s=3))
    assert answer.failure == "Stopped after the time limit of 3 s."
    assert not answer.again
    assert answer.seconds < 200
    assert wait_for(lambda: all(gone(int(pid)) for pid in path.read_text().split()))


def test_an_answer_does_not_wait_for_what_escaped(processes) -> None:
    processes.call(echo, "", Resources())  # starts the server, which is not to be timed
    start = time.monotonic()
    assert processes.call(answer_and_stay, "done", Resources()).text == "done"
    assert time.monotonic() - start < 35


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


@pytest.mark.slow
def test_many_at_a_time_from_many_threads(processes) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda index: processes.call(echo, f"a{index}", Resources()).text, range(40)))
    assert answers == [f"A{index}" for index in range(40)]
    assert threading.active_count() < 20


@pytest.mark.slow
def test_no_file_descriptors_leak(processes) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    processes.call(echo, "", Resources())
    before = count()
    for _ in range(5):
        processes.call(die, "9", Resources())
        processes.call(echo, "", Resources())
    assert count() <= before + 1


def test_no_process_without_file_descriptors_is_not_the_functions_fault(processes) -> None:
    processes.call(echo, "", Resources())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
    try:
        with pytest.raises(NotStartedError, match="No process could be started"):
            processes.call(echo, "", Resources())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert processes.call(echo, "a", Resources()).text == "A"


DRIVER = """
import sys
from dphpo_bench.sweep.processes import Processes
from dphpo_bench.sweep.resources import Resources
from tests.sweep.test_processes import sleep_with_child
if __name__ == "__main__":
    Processes().call(sleep_with_child, sys.argv[1], Resources())
"""


def test_processes_die_with_whoever_started_them(tmp_path) -> None:
    script, path = tmp_path / "driver.py", tmp_path / "pids"
    script.write_text(DRIVER)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    driver = subprocess.Popen([sys.executable, str(script), str(path)], env=environment)
    assert wait_for(lambda: path.exists() and len(path.read_text().split()) == 2, 60)
    driver.kill()
    driver.wait()
    assert wait_for(lambda: all(gone(int(pid)) for pid in path.read_text().split()))


SCRIPT = """
from dphpo_bench.sweep.processes import Processes
from dphpo_bench.sweep.resources import Resources
from tests.sweep.test_processes import echo
print(Processes().call(echo, "without a guard", Resources()).text)
print(__name__, __file__, __spec__)
"""


def test_the_callers_script_is_not_run_again(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["WITHOUT A GUARD", f"__main__ {script} None"]
    assert done.stderr == ""


def test_a_time_limit_may_be_long(processes) -> None:
    assert processes.call(echo, "a", Resources(time_limit_s=1e12)).text == "A"
    assert processes.call(echo, "a", Resources(time_limit_s=float("inf"))).text == "A"


def test_an_interrupt_while_the_server_starts_is_its_own_affair(tmp_path: Path) -> None:
    """The terminal sends it to the server, too, which is importing modules."""
    code = (
        "import os, signal, time, multiprocessing.forkserver as server\n"
        "from dphpo_bench.sweep import processes\n"
        "processes._context()\n"
        "with processes._uninterrupted():\n"
        "    server.ensure_running()\n"
        "os.kill(server._forkserver._forkserver_pid, signal.SIGINT)\n"
        "time.sleep(1)\n"
        "assert os.waitpid(server._forkserver._forkserver_pid, os.WNOHANG) == (0, 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240
    )
    assert (done.returncode, done.stderr) == (0, "")
