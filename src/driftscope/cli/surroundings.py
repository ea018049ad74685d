"""What surrounds every command: options they share, progress on stderr, errors as one sentence, exit codes."""

from __future__ import annotations

import codecs
import contextlib
import functools
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import click

from driftscope.cli.isolating import asked_of, watch_options
from driftscope.cli.progress import StepBar
from driftscope.errors import DriftscopeError, Exit, ProgramError, ends_us
from driftscope.programs.isolation.breadcrumbs import tell
from driftscope.programs.isolation.choice import WATCHED

if TYPE_CHECKING:
    from driftscope.cli.watching import Ended
    from driftscope.programs.isolation.failures import WorkerDied

INTERRUPTED = 130  # what a shell expects after Ctrl-C: 128 + SIGINT


class Journey:
    """What happens on the way to an answer; everything goes to stderr.

    Parameters
    ----------
    quiet, verbose : bool
        Quiet says nothing. Otherwise a terminal shows the present step, after two seconds with a bar of its nodes
        and the time left, and erases it; where stderr is not a terminal nothing is said unless verbose, which writes
        every step on a line of its own.
    """

    def __init__(self, quiet: bool, verbose: bool):
        self.quiet = quiet
        self.verbose = verbose
        self._bar: StepBar | None = None

    def __call__(self, text: str) -> None:
        """Name the step that begins."""
        tell(stage="", step=text)
        if self.verbose:
            click.echo(f"{text} ...", err=True)
        elif self._bar is not None:
            self._bar.step(text)

    def count(self, done: int, total: int) -> None:
        """Say how many nodes of the present step are evaluated."""
        if self._bar is not None:
            self._bar.count(done, total)

    def move(self, text: str, done: int, total: int) -> None:
        """Say how far the present step has come, in words that count what it counts."""
        if self._bar is None:
            self(text)
        else:
            tell(stage="", step=text)
            self._bar.move(text, done, total)

    @contextlib.contextmanager
    def travelling(self) -> Iterator[Journey]:
        """Keep stdout clean and show progress while the work is done."""
        with contextlib.ExitStack() as stack:
            # A user's program, and the libraries it uses, may print; stdout is for the answer alone.
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            if not self.verbose:
                stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
            if not self.quiet and not self.verbose and sys.stderr.isatty():
                from rich.console import Console

                console = Console(stderr=True, highlight=False, markup=False)
                self._bar = stack.enter_context(StepBar(console, "Loading"))
            try:
                yield self
            except SystemExit as error:
                # From the user's own code: its exit code would be taken for a verdict.
                raise ProgramError(f"the program called sys.exit({error.code!r})") from error
            except BaseException as error:
                if isinstance(error, Exception) or ends_us(error):
                    raise
                raise ProgramError(f"the program raised {type(error).__name__}: {error}".rstrip(": ")) from error
            finally:
                self._bar = None


def _pass_on(ended: Ended) -> NoReturn:
    """Give the answer of a child as this process's own."""
    if ended.text:
        say(ended.text.removesuffix("\n"))
    raise SystemExit(ended.code)


def _interrupted(ended: Ended) -> NoReturn:
    """Give what a child knew when Ctrl-C came, or say where it was; the exit code is that of an interruption."""
    if ended.text:
        say(ended.text.removesuffix("\n"))
    step = str(ended.told.get("step") or ended.told.get("stage") or "")
    click.echo(f"interrupted: {step}" if step else "interrupted", err=True)
    raise SystemExit(INTERRUPTED)


_SHARED = (
    click.option("-q", "--quiet", is_flag=True, help="Print the verdict line only."),
    click.option("-v", "--verbose", is_flag=True, help="Tell every step and every warning on stderr."),
    click.option("--debug", is_flag=True, help="Show the traceback of an error."),
)

Unanswered = Callable[["WorkerDied", dict[str, Any]], None]


def command(
    name: str, *, examples: tuple[tuple[str, str], ...] = (), runs: Unanswered | None = None
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function: shared options added, errors turned into exit codes.

    The function receives ``journey`` instead of ``--quiet``, ``--verbose`` and ``--debug``.

    Parameters
    ----------
    name : str
    examples : tuple of (line, purpose)
    runs : callable or None
        For a command that runs programs: it works in a child process, which may crash, hang or fill the memory, and
        this gives the record of a child that did not live to answer.
    """
    from driftscope.cli.help_pages import ExamplesFirst

    def wrap(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def command_of(*args: Any, quiet: bool, verbose: bool, debug: bool, **kwargs: Any) -> None:
            asked = None if runs is None else asked_of(kwargs)

            def work() -> None:
                with guard(debug):
                    function(*args, journey=Journey(quiet, verbose), **kwargs)

            with guard(debug):
                ended = None if asked is None else asked.done(work)
                if ended is None:
                    work()
                elif ended.interrupted:
                    _interrupted(ended)
                elif ended.died is None or runs is None:
                    _pass_on(ended)
                else:
                    runs(ended.died, {**kwargs, "quiet": quiet, "told": ended.told})
                    raise SystemExit(int(Exit.FINDING))

        guarded: Callable[..., Any] = command_of
        for option in reversed(_SHARED):
            guarded = option(guarded)
        if runs is not None:
            guarded = watch_options(guarded, own_seconds=name == "reveal")
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        return click.command(name, cls=ExamplesFirst, examples=examples, context_settings=settings)(guarded)

    return wrap


@contextlib.contextmanager
def guard(debug: bool) -> Iterator[None]:
    """Turn whatever goes wrong inside into one sentence on stderr and an exit code."""
    try:
        yield
    except (click.ClickException, click.exceptions.Exit):
        raise
    except (KeyboardInterrupt, click.Abort):
        if WATCHED not in os.environ:  # else who watches says it
            click.echo("interrupted", err=True)
        raise SystemExit(INTERRUPTED) from None
    except DriftscopeError as error:
        _complain(str(error), debug)
        raise SystemExit(int(error.exit_code)) from None
    except Exception as error:
        sentence, code = _unforeseen(error)
        _complain(sentence if debug or code is Exit.USAGE else f"{sentence} (--debug shows where)", debug)
        raise SystemExit(int(code)) from None


def _unforeseen(error: Exception) -> tuple[str, Exit]:
    if isinstance(error, OSError) and error.filename is not None:
        # A file that the system refuses to open, write or even name is the user's to mend.
        return f"{error.filename}: {error.strerror or error}", Exit.USAGE
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"driftscope could not finish: {reason}", Exit.FAILED


def _complain(sentence: str, debug: bool) -> None:
    from driftscope.report.wording import one_line

    if debug:
        click.echo(traceback.format_exc(), err=True)
    click.echo(f"Error: {one_line(sentence)}", err=True)


_PLAINLY = "driftscope.plainly"
# What stands for signs on a terminal without Unicode: two signs of one table must not become one question mark.
_PLAIN = {"✓": "v", "✗": "x", "·": ".", "–": "-", "…": "...", "∞": "inf", "×": "x", "→": "->"}


def _plainly(error: UnicodeError) -> tuple[str, int]:
    """Give plain signs for those that an encoding lacks, and question marks rather than no answer."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(sign, "?") for sign in lacking), error.end


codecs.register_error(_PLAINLY, _plainly)


def say(text: str) -> None:
    """Write the answer to stdout.

    A reader that has gone away (``| head -1``) is not an error: the exit code still carries the verdict.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        click.echo(text.encode(encoding, _PLAINLY).decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes stdout once more when it ends; let it flush into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
