"""A task that dies is named and fails alone."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from driftscope.errors import InputError
from driftscope.explain.refusals import death_finding
from driftscope.programs.isolation.failures import Fate, WorkerDied, death_of, failure_of
from driftscope.programs.isolation.limits import Limits
from driftscope.programs.isolation.memory import held_bytes, resident_bytes
from driftscope.programs.isolation.workers import WorkerPool
from programs import worker_tasks as tasks

LIMITS = Limits(seconds=3.0, memory=300 << 20)
AMPLE = Limits(seconds=120.0, memory=300 << 20)  # on a busy machine filling the memory takes a while

DEATHS = [
    (tasks.abort, Fate.ABORTED, "R006", "SIGABRT in abort (worker_tasks.py:"),
    (tasks.read_address_zero, Fate.ABORTED, "R006", "SIGSEGV"),
    (tasks.leave, Fate.ABORTED, "R006", "exit status 3"),
    (tasks.kill_itself, Fate.KILLED, "R007", "SIGKILL"),
    (tasks.fill_memory, Fate.OUT_OF_MEMORY, "R008", "more than its memory limit of 0.29 GiB"),
    (tasks.refuse_memory, Fate.OUT_OF_MEMORY, "R008", "can't allocate memory"),
    (tasks.hang, Fate.TIMED_OUT, "R009", "time limit of 3 s"),
    (tasks.complain, Fate.RAISED, "", "ValueError: a wrong value"),
    (tasks.exit_politely, Fate.RAISED, "", "SystemExit: 4"),
    (tasks.raise_unreadable, Fate.RAISED, "", "Unreadable: 1 and 2"),
    (tasks.return_a_function, Fate.RAISED, "", "lambda"),
]


@pytest.fixture(scope="module")
def outcomes():
    """Every death and twenty honest tasks in one pool of two processes; the hang, whose time is short, in another."""
    with WorkerPool(2, limits=AMPLE) as pool, WorkerPool(1, limits=LIMITS) as short:
        deaths = [(short if task is tasks.hang else pool).submit(task) for task, *_ in DEATHS]
        honest = [pool.submit(tasks.square, x) for x in range(20)]
        return [future.exception() for future in deaths], [future.result() for future in honest]


@pytest.mark.parametrize("index", range(len(DEATHS)), ids=[task.__name__ for task, *_ in DEATHS])
@pytest.mark.sampled(2)
def test_every_death_has_a_name(outcomes, index):
    _, fate, code, words = DEATHS[index]
    failure = failure_of(outcomes[0][index])
    assert (failure.fate, failure.code) == (fate, code)
    assert words in failure.words


def test_other_tasks_are_not_disturbed(outcomes):
    assert outcomes[1] == [x * x for x in range(20)]


def test_an_exception_keeps_its_type_and_its_remote_traceback(outcomes):
    error = outcomes[0][[task for task, *_ in DEATHS].index(tasks.complain)]
    assert type(error) is ValueError
    assert "in complain" in failure_of(error).last_words


def test_a_hang_says_which_line_it_hangs_in(outcomes):
    assert "in hang" in failure_of(outcomes[0][[task for task, *_ in DEATHS].index(tasks.hang)]).last_words


def test_what_stays_within_its_limits_is_not_stopped():
    with WorkerPool(1, limits=AMPLE) as pool:
        assert pool.submit(tasks.hold, 100).result() == 100 << 20
        assert pool.submit(time.sleep, 0.5).result() is None


def test_a_worker_that_cannot_start_says_why_and_no_program_is_blamed():
    with WorkerPool(1, preload=("no_such_module",)) as pool:
        failure = failure_of(pool.submit(tasks.square, 3).exception())
    assert failure.words == "the process could not start: ModuleNotFoundError: No module named 'no_such_module'"
    assert "import driftscope" in death_finding(failure.code, failure.words, {}).fix
    ended = failure_of(death_of(3, out_of_memory=False, last_words=""))
    assert "os._exit" in death_finding(ended.code, ended.words, {}).fix


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process is counted by itself")
def test_memory_is_counted_with_what_a_process_started_and_shared_memory_once():
    with WorkerPool(1, limits=AMPLE) as pool:
        pool.submit(tasks.square, 3).result()
        before = held_bytes(os.getpid()) - resident_bytes(os.getpid())
        pool.submit(tasks.keep, 60).result()
        kept = held_bytes(os.getpid()) - resident_bytes(os.getpid())
        pool.submit(tasks.keep_shared, 60).result()
        shared = held_bytes(os.getpid()) - resident_bytes(os.getpid())
    assert kept - before > 50 << 20
    assert shared - kept < 10 << 20


def test_a_worker_killed_between_two_tasks_costs_no_task():
    with WorkerPool(1) as pool:
        os.kill(pool.submit(tasks.process_id).result(), signal.SIGKILL)
        assert pool.submit(tasks.square, 3).result() == 9


def test_one_process_serves_many_tasks_and_prints_nothing_here(capfd):
    with WorkerPool(1) as pool:
        assert pool.submit(tasks.chatter).result() == "done"
        assert len({pool.submit(tasks.process_id).result() for _ in range(5)}) == 1
    assert capfd.readouterr() == ("", "")


def test_workers_import_only_what_is_asked_for():
    with WorkerPool(1, preload=("fractions",), environment={"OMP_NUM_THREADS": "7"}) as pool:
        assert pool.submit(tasks.loaded, "fractions").result()
        assert not pool.submit(tasks.loaded, "torch").result()
        assert pool.submit(tasks.variable, "OMP_NUM_THREADS").result() == "7"


@pytest.mark.parametrize(("set_here", "found"), [(None, "3000"), ("GOMP_SPINCOUNT", "7"), ("OMP_WAIT_POLICY", "")])
def test_threads_of_workers_do_not_wait_busily_for_long_unless_told_otherwise(monkeypatch, set_here, found):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    if set_here:
        monkeypatch.setenv(set_here, "7")
    with WorkerPool(1) as pool:
        assert pool.submit(tasks.variable, "GOMP_SPINCOUNT").result() == found


def test_a_missing_module_to_preload_is_named():
    with WorkerPool(1, preload=("no_such_module_here",)) as pool:
        assert "no_such_module_here" in failure_of(pool.submit(tasks.square, 1).exception()).last_words


def test_what_cannot_be_sent_is_refused_with_a_way_out():
    with WorkerPool(1) as pool, pytest.raises(InputError, match="top level of a module"):
        pool.submit(lambda: 1)


def test_a_pool_that_was_shut_down_takes_no_task_and_cancels_what_waited():
    pool = WorkerPool(1)
    running, waiting = pool.submit(time.sleep, 0.3), pool.submit(tasks.square, 2)
    time.sleep(0.1)
    pool.shutdown(wait=True, cancel_futures=True)
    assert running.result() is None
    with pytest.raises(CancelledError):
        waiting.result()
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(tasks.square, 1)


def test_leaving_by_an_error_ends_what_runs_and_its_children(tmp_path):
    marker = tmp_path / "child"
    with pytest.raises(KeyboardInterrupt), WorkerPool(1) as pool:  # noqa: PT012
        future = pool.submit(tasks.start_a_hanging_child, str(marker))
        while not (marker.exists() and marker.read_text()):
            time.sleep(0.02)
        raise KeyboardInterrupt
    assert isinstance(future.exception(), WorkerDied)
    wait_until_gone(int(marker.read_text()))


def test_limits_must_be_positive():
    with pytest.raises(InputError, match="positive"):
        Limits(seconds=0)
    with pytest.raises(InputError, match="positive"):
        Limits(memory=-1)


@pytest.mark.parametrize(
    ("status", "oom", "said", "fate"),
    [
        (-9, True, "", Fate.OUT_OF_MEMORY),
        (-9, False, "", Fate.KILLED),
        (-15, True, "", Fate.KILLED),
        (-6, False, "terminate called: what():  std::bad_alloc", Fate.OUT_OF_MEMORY),
        (-6, False, "Assertion `x' failed", Fate.ABORTED),
        (-63, False, "", Fate.KILLED),
        (1, False, "", Fate.ABORTED),
    ],
)
def test_deaths_by_exit_status(status, oom, said, fate):
    died = death_of(status, out_of_memory=oom, last_words=said)
    assert died.fate is fate
    assert pickle.loads(pickle.dumps(died)).words == died.words


def _script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False)


def test_a_plain_script_needs_no_guard_for_functions_of_modules(tmp_path):
    said = _script(
        tmp_path,
        """
        import math
        from driftscope.programs.isolation.workers import WorkerPool
        with WorkerPool(1) as pool:
            print(pool.submit(math.factorial, 5).result())
        """,
    )
    assert said.stdout == "120\n"


def test_a_function_of_the_script_itself_works_behind_a_guard_and_is_explained_without(tmp_path):
    text = """
        from driftscope.programs.isolation.workers import WorkerPool
        def triple(x):
            return 3 * x
        {guard}
            with WorkerPool(1) as pool:
                print(pool.submit(triple, 5).result())
        """
    assert _script(tmp_path, text.format(guard='if __name__ == "__main__":')).stdout == "15\n"
    assert "under `if __name__" in _script(tmp_path, text.format(guard="if True:")).stderr


def test_a_word_in_the_data_is_no_function_of_a_prompt(tmp_path):
    """Without a main file, as in a notebook: bytes that hold ``__main__`` are sent, a function of it is refused."""
    code = """
        def typed(): pass
        from driftscope.errors import InputError
        from driftscope.programs.isolation.workers import WorkerPool
        with WorkerPool(1) as pool:
            print(pool.submit(len, b"class __main__.Net").result())
            try:
                pool.submit(typed)
            except InputError as error:
                print("typed into a prompt" in str(error))
        """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["18", "True"]


def test_workers_do_not_outlive_a_killed_supervisor(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
        from programs import worker_tasks as tasks
        from driftscope.programs.isolation.workers import WorkerPool
        pool = WorkerPool(1)
        print(pool.submit(tasks.process_id).result(), flush=True)
        pool.submit(tasks.hang).result()
        """)
    )
    supervisor = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    worker = int(supervisor.stdout.readline())
    time.sleep(0.2)
    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()
    wait_until_gone(worker)


def wait_until_gone(pid: int, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while _alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        # A zombie whose parent has not collected it is dead.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends between opening and reading
        return False
