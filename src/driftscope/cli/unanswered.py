"""What a command says when its child process did not live to answer."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from driftscope.cli.answers import give
from driftscope.cli.isolating import arguments
from driftscope.records.files import SUFFIXES

if TYPE_CHECKING:
    from driftscope.programs.isolation.failures import WorkerDied


def unanswered(died: WorkerDied, options: dict[str, Any], *, fix: str = "") -> None:
    """Give the record of a command without an answer, wherever the answer was to go.

    Parameters
    ----------
    died : WorkerDied
    options : dict
        Of the command, with what the child ``told`` last.
    fix : str
        What to do, where the command knows better than the finding's code.
    """
    from driftscope.explain.refusals import death_finding
    from driftscope.programs.isolation.failures import CODES
    from driftscope.records.environment import capture
    from driftscope.records.kinds.unanswered import Unanswered

    found = death_finding(CODES[died.fate], died.words, options["told"])
    if fix:
        found = replace(found, fix=fix)
    record = Unanswered((found,), shlex.join(["driftscope", *arguments()]), capture())
    for output in options.get("outputs") or ():
        if output.lower().endswith(SUFFIXES):  # a picture or a table of nothing is not made
            record.save(output)
    give(record, as_json=bool(options.get("as_json")), outputs=(), quiet=options["quiet"])
