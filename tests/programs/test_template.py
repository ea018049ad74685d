"""Workers of one pool share one import, and keep every promise of a process of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from driftscope.programs.isolation.failures import Fate, WorkerDied, failure_of
from driftscope.programs.isolation.limits import Limits
from driftscope.programs.isolation.template import Template
from driftscope.programs.isolation.workers import WorkerPool
from programs import template_tasks as together
from programs import worker_tasks as tasks
from programs.test_workers import AMPLE, DEATHS, wait_until_gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every worker is a fresh interpreter")

SOON = 60.0  # seconds, beside whatever else the machine does
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@pytest.fixture
def preloaded(tmp_path, monkeypatch):
    """A module that writes down where it is imported, more lines for it, and the process ids it wrote."""
    monkeypatch.syspath_prepend(str(tmp_path))
    written = tmp_path / "imports"

    def write(*more: str) -> None:
        lines = ["import os", f"with open({str(written)!r}, 'a') as file: file.write(f'{{os.getpid()}}\\n')", *more]
        (tmp_path / "counted_import.py").write_text("\n".join(lines))

    write()
    return write, lambda: [int(line) for line in written.read_text().split()]


def a_pool(workers: int = 2, **options) -> WorkerPool:
    return WorkerPool(workers, **{"preload": ("counted_import",), "environment": ONE_THREAD, "limits": AMPLE} | options)


def two_at_once(pool: WorkerPool, folder: Path, function=os.getppid) -> list:
    """Call a function in two workers, neither of which is free before the other began."""
    meeting = folder / f"meeting-{time.monotonic_ns()}"
    meeting.mkdir()
    return [f.result() for f in [pool.submit(together.call_when_all_are_here, str(meeting), 2, function) for _ in "ab"]]


def test_two_workers_share_one_import(preloaded, tmp_path):
    with a_pool() as pool:
        parents = two_at_once(pool, tmp_path)
        workers = two_at_once(pool, tmp_path, os.getpid)
    assert len(set(workers)) == 2
    assert set(parents) == set(preloaded[1]())
    assert len(preloaded[1]()) == 1
    assert os.getpid() not in parents


@pytest.mark.parametrize(
    "options",
    [{"workers": 1}, {"preload": ()}, {"environment": {**ONE_THREAD, "OPENBLAS_NUM_THREADS": "2"}}],
    ids=["one worker", "nothing to share", "several threads"],
)
def test_where_nothing_can_be_shared_workers_are_fresh_interpreters(preloaded, options):
    with a_pool(**options) as pool:
        assert pool.submit(os.getppid).result() == os.getpid()


@pytest.mark.parametrize("found", ["thread", "driver"])
def test_a_template_that_may_not_be_forked_is_given_up(preloaded, tmp_path, found):
    if found == "thread":
        preloaded[0]("import threading, time", "threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()")
    else:  # any library will do: what counts is that one of this name is open
        import _ctypes

        shutil.copy(_ctypes.__file__, tmp_path / "libcuda.so.1")
        preloaded[0]("import ctypes", f"ctypes.CDLL({str(tmp_path / 'libcuda.so.1')!r})")
    with a_pool() as pool:
        assert two_at_once(pool, tmp_path) == [os.getpid()] * 2
        refused, *workers = preloaded[1]()
        assert len(workers) == 2
        assert not Path(f"/proc/{refused}").exists()


def test_a_thread_that_has_ended_is_no_reason_to_give_up(preloaded):
    preloaded[0]("import threading", "t = threading.Thread(target=print)", "t.start()", "t.join()")
    with a_pool() as pool:
        assert pool.submit(os.getppid).result() != os.getpid()


def test_every_death_of_a_forked_worker_has_its_name(preloaded):
    with a_pool() as pool, a_pool(limits=Limits(seconds=3.0)) as short:
        deaths = [(short if task is tasks.hang else pool).submit(task) for task, *_ in DEATHS]
        outcomes = [failure_of(future.exception()) for future in deaths]
        assert pool.submit(tasks.square, 3).result() == short.submit(tasks.square, 3).result() == 9
        assert short.submit(os.getppid).result() in preloaded[1]()
    expected = [(fate, code) for _, fate, code, _ in DEATHS]
    assert [(outcome.fate, outcome.code) for outcome in outcomes] == expected
    assert [words for (*_, words), outcome in zip(DEATHS, outcomes, strict=True) if words not in outcome.words] == []
    assert len(preloaded[1]()) == 2  # one in each pool: no worker that was started again imported again
    assert "in hang" in outcomes[[task for task, *_ in DEATHS].index(tasks.hang)].last_words


def test_a_forked_worker_that_is_killed_between_two_tasks_costs_no_task(preloaded):
    with a_pool() as pool:
        first = pool.submit(tasks.process_id).result()
        os.kill(first, signal.SIGKILL)
        assert pool.submit(tasks.process_id).result() != first
        assert len(preloaded[1]()) == 1


def test_what_a_forked_worker_prints_is_its_own(preloaded, tmp_path, capfd):
    with a_pool() as pool:
        meeting = tmp_path / "meeting"
        meeting.mkdir()
        said = [pool.submit(together.say_and_leave, str(meeting), 2, word) for word in ("apple", "melon")]
        words = [failure_of(future.exception()).last_words for future in said]
    assert [(word in said) for said in words for word in ("apple", "melon")] == [True, False, False, True]
    assert capfd.readouterr() == ("", "")


def test_a_template_that_was_killed_takes_its_workers_along_and_others_answer(preloaded, tmp_path):
    with a_pool() as pool:
        one, other = two_at_once(pool, tmp_path, together.process_ids)
        os.kill(one[1], signal.SIGKILL)
        wait_until_gone(one[0], SOON)
        wait_until_gone(other[0], SOON)
        answers = [pool.submit(tasks.square, x) for x in range(8)]
        assert [future.result(timeout=120) for future in answers] == [x * x for x in range(8)]


def test_a_task_that_runs_when_the_template_is_killed_is_named_killed(preloaded):
    with a_pool() as pool:
        running = pool.submit(together.kill_parent_unless, os.getpid())
        assert failure_of(running.exception(timeout=120)).fate is Fate.KILLED
        assert pool.submit(tasks.square, 3).result(timeout=120) == 9


def test_a_template_that_is_killed_while_it_imports_is_done_without(preloaded):
    preloaded[0]("import sys, signal", "if not os.path.exists(__file__ + '.once'):",
                 "    open(__file__ + '.once', 'w').close()", "    os.kill(os.getpid(), signal.SIGKILL)")  # fmt: skip
    with a_pool() as pool:
        assert pool.submit(os.getppid).result(timeout=120) == os.getpid()


@pytest.mark.parametrize(("raised", "seen"), [(BlockingIOError, False), (AttributeError, True)])
def test_a_full_machine_gives_fresh_interpreters_and_a_mistake_of_ours_is_seen(preloaded, monkeypatch, raised, seen):
    def forked(self, launch):
        raise raised("planted")

    monkeypatch.setattr(Template, "_forked", forked)
    with a_pool() as pool:
        future = pool.submit(os.getppid)
        if seen:
            assert isinstance(future.exception(timeout=120), AttributeError)
        else:
            assert future.result(timeout=120) == os.getpid()


def test_no_process_is_left_when_a_pool_is_shut_down_or_stopped(preloaded, tmp_path):
    for leave in (WorkerPool.shutdown, WorkerPool.stop):
        pool = a_pool()
        found = {pid for pids in two_at_once(pool, tmp_path, together.process_ids) for pid in pids}
        assert len(found) == 3
        leave(pool)
        assert [pid for pid in found if Path(f"/proc/{pid}").exists()] == []  # not even one that nobody waited for


def test_a_pool_that_is_not_waited_for_leaves_no_process_either(preloaded):
    pool = a_pool()
    found = pool.submit(together.process_ids).result()
    pool.shutdown(wait=False)
    for pid in found:
        wait_until_gone(pid, SOON)


def test_what_a_forked_worker_started_is_ended_with_it(preloaded, tmp_path):
    marker = tmp_path / "child"
    with pytest.raises(KeyboardInterrupt), a_pool() as pool:  # noqa: PT012
        future = pool.submit(tasks.start_a_hanging_child, str(marker))
        while not (marker.exists() and marker.read_text()):
            time.sleep(0.02)
        raise KeyboardInterrupt
    assert isinstance(future.exception(), WorkerDied)
    wait_until_gone(int(marker.read_text()), SOON)


def test_neither_workers_nor_their_template_outlive_a_killed_supervisor(preloaded, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        sys.path[:0] = [{str(tmp_path)!r}, {str(Path(__file__).parent.parent)!r}]
        from programs import template_tasks, worker_tasks
        from driftscope.programs.isolation.workers import WorkerPool
        pool = WorkerPool(2, preload=("counted_import",), environment={ONE_THREAD!r})
        print(*pool.submit(template_tasks.process_ids).result(), flush=True)
        pool.submit(worker_tasks.hang).result()
        """)
    )
    supervisor = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    worker, template = map(int, supervisor.stdout.readline().split())
    assert template != supervisor.pid
    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()
    wait_until_gone(worker, SOON)
    wait_until_gone(template, SOON)


def test_a_missing_module_is_named_as_by_a_worker_alone():
    for workers in (1, 2):
        with a_pool(workers, preload=("no_such_module",)) as pool:
            failure = failure_of(pool.submit(tasks.square, 3).exception())
        assert failure.words == "the process could not start: ModuleNotFoundError: No module named 'no_such_module'"


@pytest.mark.parametrize("library", ["numpy.random", "random", "tempfile", "torch"])
def test_forked_workers_draw_random_numbers_of_their_own(preloaded, tmp_path, library):
    pytest.importorskip(library)
    preloaded[0](f"import {library}")
    with a_pool(limits=Limits()) as pool:
        one, other = two_at_once(pool, tmp_path, together.DRAW[library])
    assert len(preloaded[1]()) == 1
    assert one != other


def test_what_was_written_but_not_flushed_is_written_once(preloaded, tmp_path):
    kept = tmp_path / "kept"
    preloaded[0](f"kept = open({str(kept)!r}, 'a')", "kept.write('begun\\n')", "print('imported')")
    with a_pool() as pool:
        two_at_once(pool, tmp_path, together.flush_what_was_kept)
        said = failure_of(pool.submit(tasks.leave).exception()).last_words
    assert kept.read_text() == "begun\n"
    assert "imported" not in said


def test_a_worker_that_starts_later_is_in_the_folder_and_has_the_variables_of_now(preloaded, tmp_path, monkeypatch):
    with a_pool() as pool:
        first = pool.submit(tasks.process_id).result()
        monkeypatch.setenv("DRIFTSCOPE_TEST_LATER", "now")
        monkeypatch.chdir(tmp_path)
        os.kill(first, signal.SIGKILL)
        assert pool.submit(tasks.variable, "DRIFTSCOPE_TEST_LATER").result() == "now"
        assert pool.submit(os.getcwd).result() == str(tmp_path)


def test_open_files_are_shared_under_their_numbers(preloaded):
    reads, writes = os.pipe()
    with a_pool(descriptors=(writes,)) as pool:
        assert pool.submit(os.write, writes, b"hello").result() == 5
        assert pool.submit(os.getppid).result() in preloaded[1]()
    os.close(writes)
    with os.fdopen(reads, "rb") as file:
        assert file.read() == b"hello"


def test_a_function_of_the_script_itself_works_in_forked_workers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import os
        from driftscope.programs.isolation.workers import WorkerPool
        def triple(x):
            return 3 * x, os.getppid()
        if __name__ == "__main__":
            with WorkerPool(2, preload=("fractions",), environment={ONE_THREAD!r}) as pool:
                found, parent = pool.submit(triple, 5).result()
                print(found, parent != os.getpid())
        """)
    )
    said = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert said.stdout == "15 True\n", said.stderr
