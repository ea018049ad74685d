"""pytest: verdicts beside test results.

Loaded by pytest itself; it imports no tensor library until a test asks for the ``driftscope`` fixture.

* ``driftscope`` fixture: comparisons and inputs with the dtype and the seed of the run;
* every comparison of the fixture and of ``ds.testing.assert_same`` becomes JUnit properties of its test, a line of the
  summary, and with ``--driftscope-report=DIR`` a page;
* on GitHub Actions, annotations on the lines concerned and a job summary.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Checks"]

_DTYPES = ("float64", "float32", "float16", "bfloat16")
_MADE = pytest.StashKey[list[dict[str, Any]]]()  # of a test: what it compared
_TOLD = pytest.StashKey[int]()  # and how much of that is in its reports
_REPORT = pytest.StashKey[Path]()  # of a run: where its pages go, wherever a test may take the process meanwhile


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--driftscope-report``, ``--driftscope-dtype`` and ``--driftscope-seed``."""
    group = parser.getgroup("driftscope")
    group.addoption(
        "--driftscope-report", metavar="DIR", default=None,
        help="write a page for each comparison, an index, SARIF and the records as JSON into DIR",
    )  # fmt: skip
    group.addoption(
        "--driftscope-dtype", metavar="DTYPE[,DTYPE]", default="float32",
        help="dtypes of the driftscope fixture, one test for each (default: float32)",
    )  # fmt: skip
    group.addoption(
        "--driftscope-seed", metavar="N", type=int, default=0, help="seed of the driftscope fixture (default: 0)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and refuse options that cannot be used before any test runs."""
    config.addinivalue_line("markers", "driftscope(dtype=None, seed=None): dtype and seed of the fixture in this test")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Summary(config), "driftscope-summary")
    dtypes = _dtypes(config)
    unknown = [d for d in dtypes if d not in _DTYPES]
    if not dtypes:
        raise pytest.UsageError(f"--driftscope-dtype: no dtype is given; give some of {', '.join(_DTYPES)}")
    if unknown:
        raise pytest.UsageError(f"--driftscope-dtype: {unknown[0]!r} is not one of {', '.join(_DTYPES)}")
    folder = config.getoption("driftscope_report")
    if folder == "":
        raise pytest.UsageError("--driftscope-report: no folder is given")
    if folder is not None:
        config.stash[_REPORT] = Path(folder).absolute()
        try:
            config.stash[_REPORT].mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise pytest.UsageError(f"--driftscope-report: cannot write to {folder!r}: {error.strerror}") from error


def _dtypes(config: pytest.Config) -> list[str]:
    given = str(config.getoption("driftscope_dtype")).split(",")
    return list(dict.fromkeys(d.strip() for d in given if d.strip()))


def _marked(node: pytest.Item) -> dict[str, Any]:
    """What the marks of a test, its class and its module say; the closest mark that says something counts."""
    asked: dict[str, Any] = {}
    for marker in node.iter_markers("driftscope"):
        unknown = [name for name in marker.kwargs if name not in ("dtype", "seed")]
        if marker.args or unknown:
            # Silence would run the test in another dtype than the one that was meant.
            found = repr((marker.args or unknown)[0])
            pytest.fail(f"@pytest.mark.driftscope takes dtype=... and seed=..., not {found}", pytrace=False)
        asked = {**marker.kwargs, **asked}
    return asked


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses the fixture once for each dtype asked for."""
    dtypes = _dtypes(metafunc.config)
    if "driftscope" in metafunc.fixturenames and len(dtypes) > 1 and not _marked(metafunc.definition).get("dtype"):
        metafunc.parametrize("driftscope", dtypes, indirect=True)


class Checks:
    """What the ``driftscope`` fixture gives: comparisons and inputs with the dtype and the seed of the run.

    Attributes
    ----------
    dtype : str
        From ``--driftscope-dtype`` or ``@pytest.mark.driftscope(dtype=...)``.
    seed : int
        From ``--driftscope-seed`` or the marker.
    """

    def __init__(self, item: pytest.Item, dtype: str, seed: int):
        self._item = item
        self.dtype = dtype
        self.seed = seed

    @property
    def torch_dtype(self) -> Any:
        """The dtype as torch has it."""
        import torch

        return getattr(torch, self.dtype)

    def inputs(self, specification: Any) -> Any:
        """As ``ds.inputs``, with this seed; a shape without a dtype, as ``"4x64"``, gets this dtype."""
        from driftscope.programs.feeding.feeds import make_inputs

        if isinstance(specification, dict):
            bare = re.compile(r"[\dx ]+")
            specification = {
                name: f"{text}:{self.dtype}" if isinstance(text, str) and bare.fullmatch(text) else text
                for name, text in specification.items()
            }
        return make_inputs(specification, seed=self.seed)

    def compare(self, a: Any, b: Any, inputs: Any = None, **options: Any) -> Any:
        """As ``ds.compare``; the verdict is reported with the test."""
        from driftscope.inquiry import compare

        comparison = compare(a, b, inputs, **options)
        _note(self._item, comparison, None)
        return comparison

    def assert_same(self, a: Any, b: Any, inputs: Any = None, **options: Any) -> None:
        """As ``ds.testing.assert_same``."""
        __tracebackhide__ = True
        from driftscope.testing import assert_same

        assert_same(a, b, inputs, **options)

    def assert_invariant(self, model: Any, inputs: Any = None, **options: Any) -> None:
        """As ``ds.testing.assert_invariant``, with the seed of this run."""
        __tracebackhide__ = True
        from driftscope.testing import assert_invariant

        assert_invariant(model, inputs, **{"seed": self.seed, **options})

    def assert_close(self, actual: Any, expected: Any, **options: Any) -> None:
        """As ``ds.testing.assert_close``."""
        __tracebackhide__ = True
        from driftscope.testing import assert_close

        assert_close(actual, expected, **options)


@pytest.fixture
def driftscope(request: pytest.FixtureRequest) -> Iterator[Checks]:
    """Comparisons and inputs with the dtype and the seed of this run."""
    import torch

    asked = _marked(request.node)
    dtype = asked.get("dtype") or getattr(request, "param", None) or _dtypes(request.config)[0]
    seed = asked.get("seed")
    seed = request.config.getoption("driftscope_seed") if seed is None else seed
    if not isinstance(dtype, str) or not isinstance(getattr(torch, dtype, None), torch.dtype):
        pytest.fail(f"@pytest.mark.driftscope: dtype={dtype!r} is not the name of a dtype of torch", pytrace=False)
    if not isinstance(seed, int):
        pytest.fail(f"@pytest.mark.driftscope: seed={seed!r} is not a whole number", pytrace=False)
    checks = Checks(request.node, dtype, seed)
    # The generator is put back: a test that asks for the fixture must not change what the next one draws.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(checks.seed)
        yield checks


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Listen to the comparisons that fixtures of this test make."""
    with _listening(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Listen to the comparisons of this test."""
    with _listening(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Listen to the comparisons that its fixtures make behind it."""
    with _listening(item):
        return (yield)


@contextlib.contextmanager
def _listening(item: pytest.Item) -> Iterator[None]:
    from driftscope.records.listeners import listeners

    def listen(comparison: Any, failed: bool) -> None:
        _note(item, comparison, failed)

    listeners.append(listen)
    try:
        yield
    finally:
        listeners.remove(listen)


def _note(item: pytest.Item, comparison: Any, failed: bool | None) -> None:
    """Keep what a comparison said, as plain data: it travels to the process that reports."""
    from driftscope.records.plain import to_plain
    from driftscope.records.user_code import calling_line, written

    made = item.stash.setdefault(_MADE, [])
    root = item.config.rootpath
    file, line, _ = item.location
    call = calling_line(root) or (file, None if line is None else line + 1)
    entry = {
        "test": item.nodeid, "verdict": str(comparison.verdict), "reason": comparison.answer,
        "file": written(call[0], root), "line": call[1], "failed": failed,
        "page": _write_page(item, comparison, len(made)),
        "findings": [to_plain(f) for f in comparison.findings if not f.note],
    }  # fmt: skip
    made.append(entry)
    number = "" if len(made) == 1 else f".{len(made)}"
    item.user_properties.append((f"driftscope.verdict{number}", entry["verdict"]))
    item.user_properties.append((f"driftscope.reason{number}", entry["reason"]))
    if entry["page"]:
        item.user_properties.append((f"driftscope.page{number}", entry["page"]))


def _write_page(item: pytest.Item, comparison: Any, count: int) -> str:
    folder = item.config.stash.get(_REPORT, None)
    if folder is None:
        return ""
    import hashlib

    # Names of parameters may be long or hold any character; the digest keeps two tests apart.
    digest = hashlib.sha256(item.nodeid.encode()).hexdigest()[:8]
    stem = f"{re.sub(r'[^A-Za-z0-9]+', '-', item.nodeid).strip('-')[:80]}-{digest}-{count + 1}"
    comparison.save(folder / f"{stem}.json")
    comparison.save(folder / f"{stem}.html")
    return f"{stem}.html"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
    """Attach the comparisons to the report, which travels to the process that prints the summary."""
    from driftscope.records.verdict import FailOn, Verdict

    report = yield
    made = item.stash.get(_MADE, [])
    new = made[item.stash.get(_TOLD, 0) :]
    item.stash[_TOLD] = len(made)
    for one in new:
        # What a test expects to fail has not failed it; a comparison that asserted nothing itself has failed it if it
        # did fail, and the comparison looks like it.
        looks = FailOn.PRECISION.fails(Verdict(one["verdict"])) if one["failed"] is None else one["failed"]
        one["failed"] = bool(looks) and report.outcome == "failed"
    if new:
        report.driftscope = new
    return report


class _Summary:
    """What one run of pytest compared, gathered from all its processes and told at its end."""

    def __init__(self, config: pytest.Config):
        self._config = config
        self._made: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect what a test compared."""
        self._made.extend(getattr(report, "driftscope", ()))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say what was compared; write the index, SARIF and what GitHub Actions reads."""
        if not self._made:
            return
        from driftscope.records.kinds.session import SESSION_SCHEMA, Session
        from driftscope.report.sheets import session as session_sheet
        from driftscope.report.wording import one_line

        session = Session.from_dict({"schema": SESSION_SCHEMA, "entries": self._made})
        terminalreporter.section("driftscope")
        terminalreporter.write_line(session_sheet.tally(session))
        for entry in session.entries:
            if entry.failed:
                terminalreporter.write_line(one_line(f"{entry.verdict} {entry.test}: {entry.reason}"))
        if _REPORT in self._config.stash:
            _write_index(session, self._config.stash[_REPORT], self._config.rootpath)
            shown = Path(self._config.getoption("driftscope_report")) / "index.html"
            terminalreporter.write_line(one_line(f"pages: {shown}"))
        if os.environ.get("GITHUB_ACTIONS") == "true":
            _tell_github(session, terminalreporter, self._config.rootpath)


def _tell_github(session: Any, terminalreporter: Any, root: Path) -> None:
    from driftscope.report.exchange import github

    for line in github.commands(session, root):
        terminalreporter.write_line(line)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with open(summary, "a", encoding="utf-8") as target:
            target.write(github.summary(session))


def _write_index(session: Any, folder: Path, root: Path) -> None:
    import json

    from driftscope.report.exchange.sarif import sarif_of

    session.save(folder / "index.html")
    session.save(folder / "index.json")
    placed = [(f, (e.file, e.line) if e.file and e.line else None) for e in session.entries for f in e.findings]
    findings, calls = [f for f, _ in placed], [call for _, call in placed]
    (folder / "findings.sarif").write_text(
        json.dumps(sarif_of(findings, root, calls), indent=2) + "\n", encoding="utf-8"
    )
