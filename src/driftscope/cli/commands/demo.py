"""``driftscope demo``."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.cli.answers import answer_options, give
from driftscope.cli.surroundings import Journey
from driftscope.cli.surroundings import command as make_command
from driftscope.cli.unanswered import unanswered
from driftscope.records.kinds.collection import Collection, Entry

TITLE = "A digit classifier, run four ways"


@make_command(
    "demo",
    runs=unanswered,
    examples=(
        ("driftscope demo", "about half a minute"),
        ("driftscope demo -o demo.html", "and look at the page"),
    ),
)
@answer_options
def command(*, journey: Journey, as_json: bool, outputs: Sequence[str]) -> None:
    """Run the main job on real digits, without network.

    A small transformer that reads handwritten digits is exported to ONNX and run in onnxruntime: as it is, with two
    mistakes that change no digit's class, and in float16. The exit code is 0: the mistakes are meant to be found.
    """
    with journey.travelling():
        journey("Loading the tensor libraries")
        from driftscope.demo.scenes import run_demo

        scenes = run_demo(journey)
    entries = tuple(Entry(scene.title, scene.comment, scene.comparison) for scene in scenes)
    give(Collection(TITLE, entries), as_json=as_json, outputs=outputs, quiet=journey.quiet, details=journey.verbose)
