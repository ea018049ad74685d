"""Whatever a user hands over: one clear sentence and exit 2, or an honest answer; never a traceback, never executed.

Beside every table of what is refused stands the neighbour that is taken.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result

from cli import hostile_files

HERE = Path(__file__).parent
SPEC = ("--input", "x=4x8:float32")
ODD = "odd_programs.py:"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of hostile files; beside it ``marker`` appears when something was executed."""
    home = tmp_path_factory.mktemp("home")
    folder = home / "files"
    folder.mkdir()
    hostile_files.write_models(folder)
    hostile_files.write_archives(folder, home / "marker")
    (folder / "syntax.py").write_text("def x(:\n")
    (folder / "fails.py").write_text("1 / 0\n")
    (folder / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    (folder / "odd_programs.py").write_text((HERE / "odd_programs.py").read_text())
    return folder


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def refused(result: Result, folder: Path) -> str:
    """Check how a command refuses, and return its sentence."""
    assert result.exit_code == 2, result.stdout + result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert not (folder.parent / "marker").exists(), "something was executed"
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    return line


def listing(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if "__pycache__" not in p.parts)


# --- models ----------------------------------------------------------------------------------------------------------

MODELS = [
    ("nonexistent", "nonexistent.onnx: no such file"),
    ("folder", "is a folder"),
    ("empty", "no graph"),
    ("cut", "truncated or damaged"),
    ("text", "not an ONNX model"),
    ("noise", "not an ONNX model"),
    ("cyclic", "not acyclic"),
    ("unknown_operator", "Frobnicate"),
    ("unknown_domain", "my.domain:Frob"),
    ("recursive", "must not be recursive"),
    ("opset_99", "opset 99"),
    ("ir_99", "IR version: 99"),
    ("no_opset", "names no operator set"),
    ("no_outputs", "has no outputs"),
    ("unconnected", "nowhere"),
    ("duplicate_names", "mul"),
    ("shape_lies", "product"),
    ("bad_attribute", "frob"),
    ("bad_tensor", "raw_data size (10 bytes)"),
    ("odd_dtype", "element type 77"),
    ("absolute", "an absolute path"),
    ("drive", "an absolute path"),
    ("upwards", "outside the model's folder"),
    ("windows", "outside the model's folder"),
    ("linked", "outside the model's folder"),
    ("absent", "absent.bin is not a file"),
    ("too_long", "short.bin has 4"),
    ("negative", "short.bin"),
]


@pytest.mark.parametrize(("name", "words"), MODELS, ids=[name for name, _ in MODELS])
@pytest.mark.parametrize("side", ["a", "b"])
def test_a_bad_model_is_refused_in_a_sentence(run, here: Path, name: str, words: str, side: str) -> None:
    pair = (f"{name}.onnx", "good.onnx") if side == "a" else ("good.onnx", f"{name}.onnx")
    before = listing(here)
    sentence = refused(run("compare", *pair, *SPEC, "-o", "page.html"), here)
    assert words in sentence
    assert listing(here) == before


def test_the_good_neighbours_are_taken(run, here: Path) -> None:
    assert run("compare", "good.onnx", "good.onnx", *SPEC).exit_code == 0
    deep = run("compare", "deep.onnx", "deep.onnx", *SPEC, "--input", "c=():bool")
    assert (deep.exit_code, deep.stderr) == (0, "")


def test_a_file_whose_name_holds_a_colon_is_a_file_and_a_module_that_is_none_is_named(run, here: Path) -> None:
    (here / "a:b.onnx").write_bytes((here / "good.onnx").read_bytes())
    assert run("compare", "good.onnx", "a:b.onnx", *SPEC).exit_code == 0
    assert "module 'a' cannot be imported" in refused(run("compare", "good.onnx", "a:c.onnx", *SPEC), here)


@pytest.mark.parametrize("name", [name for name in hostile_files.ODD_MODELS if name not in ("bfloat16", "two_inputs")])
def test_odd_but_healthy_models_are_compared(run, here: Path, tmp_path: Path, name: str) -> None:
    page = tmp_path / "page.html"
    result = run("compare", f"{name}.onnx", f"{name}.onnx", *SPEC, "-o", page)
    assert result.exit_code == 0, result.stdout + result.stderr
    assert result.stdout.startswith("IDENTICAL: ")
    assert "\x1b" not in result.stdout
    assert "<img src=x" not in page.read_text(encoding="utf-8")


def test_a_kernel_the_runtime_lacks_is_a_finding_in_its_words(run, here: Path) -> None:
    result = run("compare", "bfloat16.onnx", "bfloat16.onnx", "--input", "x=4x8:bfloat16")
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout.startswith("INCONCLUSIVE: onnxruntime refused to load A: Could not find an implementation")
    assert "R001" in result.stdout


def test_programs_with_different_numbers_of_inputs(run, here: Path) -> None:
    """B cannot need what A does not have; what A has and B ignores is a finding."""
    assert "cannot be matched" in refused(run("compare", "good.onnx", "two_inputs.onnx", *SPEC), here)
    assert "needs 'other' too" in refused(run("compare", "two_inputs.onnx", "good.onnx", *SPEC), here)
    both = run("compare", "two_inputs.onnx", "good.onnx", *SPEC, "--input", "other=4x8:float32")
    assert both.exit_code == 1
    assert "has no input 'other'" in both.stdout


# --- pickles and archives --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("payload.pt", "pickled Python objects"),
        ("payload.pth", "pickled Python objects"),
        ("raw_pickle.pt", "pickled Python objects"),
        ("renamed.pt2", "not one that torch.export.save wrote"),
        ("saved.pt2", "not one that torch.export.save wrote"),
        ("text.pt2", "not a .pt2 archive"),
        ("objects.npz", "holds Python objects"),
        ("pickled.npz", "not an .npz archive"),
        ("model.txt", "is not a program"),
    ],
)
def test_a_pickle_as_a_program_is_not_executed(run, here: Path, name: str, words: str) -> None:
    assert words in refused(run("compare", "good.onnx", name, *SPEC), here)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("payload.pt", "pickled Python objects"),
        ("payload.pth", "pickled Python objects"),
        ("raw_pickle.pt", "pickled Python objects"),
        ("objects.npz", "'x' holds Python objects"),
        ("objects.npy", "holds Python objects"),
        ("pickled.npy", "holds Python objects"),
        ("pickled.npz", "not an .npz archive"),
        ("pickled.safetensors", "not a whole safetensors file"),
        ("cut.npz", "truncated"),
        ("empty.npz", "truncated"),
        ("nothing.npz", "0 were given"),
        ("bad.json", "cannot be decoded"),
        ("cut.json", "truncated"),
        ("list.json", "not a file of Polygraphy inputs"),
        ("cut.safetensors", "not a whole safetensors file"),
        ("absent.npz", "no such file"),
        ("good.onnx", "neither a file"),
    ],
)
def test_a_bad_file_of_inputs_is_refused_in_a_sentence(run, here: Path, name: str, words: str) -> None:
    assert words in refused(run("compare", "good.onnx", "good.onnx", "--input", name), here)


def test_a_good_file_of_inputs_is_taken(run, here: Path) -> None:
    assert run("compare", "good.onnx", "good.onnx", "--input", "good.npz").exit_code == 0


def test_the_payload_would_have_been_seen(tmp_path: Path) -> None:
    import pickle

    pickle.loads(pickle.dumps(hostile_files.Payload(tmp_path / "marker")))
    assert (tmp_path / "marker").exists()


# --- specs and options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("x=4x9:float32", "fixed size 8 in dimension 1"),
        ("x=4x8x1:float32", "2 dimensions"),
        ("x=0x8:float32", "fixed size 4 in dimension 0"),
        ("x=():float32", "2 dimensions"),
        ("x=4x8:float64", "is float32, but float64 was given"),
        ("x=4x8:int64", "is float32, but int64 was given"),
        ("x=4x8:float8_e4m3fn", "float8_e4m3fn was given"),
        ("y=4x8:float32", "has no input 'y'"),
        ("x=4x8:floaty", "unknown dtype 'floaty'"),
        ("x=4x8:string", "unknown dtype 'string'"),
        ("x", "nor a spec"),
        ("=4x8:float32", "nor a spec"),
        ("x=", "()"),
        ("x=4x-8:float32", "-8"),
        ("x=fourxeight:float32", "cannot be read"),
        ("x=4x8:float32:nolaw(1)", "unknown law"),
        ("x=4x8:float32:uniform(1", "unknown law"),
        ("x=4x8:float32:pareto(-1)", "must be positive"),
        ("x=4x8:float32:uniform(nan,inf)", "cannot be read"),
        ("x=4x8:float32:full(__import__('os').getpid())", "cannot be read"),
        ("x=4x8:int64:randint(5,1)", "is empty"),
        ("x=1000000x1000000:float32", "cannot be made on this machine"),
        ("x=99999999999999x99999999:float32", "cannot be made on this machine"),
    ],
)
def test_a_bad_spec_is_refused_in_a_sentence(run, here: Path, spec: str, words: str) -> None:
    assert words in refused(run("compare", "good.onnx", "good.onnx", "--input", spec), here)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((*SPEC, "--input", "z=3:float32"), "has no input 'z'"),
        ((*SPEC, *SPEC), "given twice"),
        ((*SPEC, "--seed", "abc"), "not a valid integer"),
        ((*SPEC, "--fail-on", "diferent"), "diferent"),
        ((*SPEC, "--threads", "100000"), "1024 at most"),
        ((*SPEC, "--threads", "-1"), "at least 1"),
        ((*SPEC, "--provider", "cpuu"), "did you mean 'cpu'?"),
        ((*SPEC, "--level", "max"), "--level knows"),
        ((*SPEC, "-o", "missing/page.html"), "no folder 'missing'"),
        ((*SPEC, "-o", "page.pdf"), ".html"),
        ((*SPEC, "-o", "page"), ".html"),
        ((*SPEC, "-o", "folder.html"), "it is a folder"),
        ((*SPEC, "-o", "/proc/page.html"), "/proc/page.html"),
    ],
)
def test_a_bad_option_is_refused_in_a_sentence(run, here: Path, options: tuple[str, ...], words: str) -> None:
    (here / "folder.html").mkdir(exist_ok=True)
    before = listing(here)
    assert words in refused(run("compare", "good.onnx", "good.onnx", *options), here)
    assert listing(here) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write and read everything")
def test_what_may_not_be_read_or_written_is_refused(run, here: Path) -> None:
    (here / "locked").mkdir(mode=0o500, exist_ok=True)
    assert "not writable" in refused(run("compare", "good.onnx", "good.onnx", *SPEC, "-o", "locked/page.html"), here)
    (here / "secret.onnx").write_bytes((here / "good.onnx").read_bytes())
    (here / "secret.onnx").chmod(0)
    assert "Permission denied" in refused(run("compare", "good.onnx", "secret.onnx", *SPEC), here)


def test_a_name_too_long_for_the_system_is_the_users(run, here: Path) -> None:
    assert "too long" in refused(run("compare", "a" * 5000 + ".onnx", "good.onnx", *SPEC), here)


# --- programs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (ODD + "nosuch", "has no 'nosuch'"),
        (ODD + "Returns", "is a class"),
        ("odd_programs.py", "needs the name"),
        ("nosuch.py:x", "no such file"),
        ("nosuch:x", "cannot be imported"),
        ("nosuch.sub:x", "cannot be imported"),
        ("os:nosuch", "has no 'nosuch'"),
        ("os:path", "class module is not a program"),
        ("math:pi", "class float is not a program"),
        ("torch.nn:Linear", "is a class"),
        ("syntax.py:x", "SyntaxError"),
        ("fails.py:x", "ZeroDivisionError"),
        ("leaves.py:x", "called sys.exit(0)"),
        ("http://example.org/x.onnx", "no such file"),
        ("", "is not a program"),
        (ODD + "fails", "ZeroDivisionError: in the factory"),
        (ODD + "leaves", "called sys.exit(0)"),
        (ODD + "returns_number", "class int is not a program"),
        (ODD + "returns_nothing", "class NoneType is not a program"),
        (ODD + "returns_three", "class tuple is not a program"),
        (ODD + "returns_class", "is a class"),
        (ODD + "returns_path", "nowhere.onnx: no such file"),
        (ODD + "bad_spec", "cannot be read"),
        (ODD + "on_meta", "device meta"),
        (ODD + "meta_input", "meta device"),
        (ODD + "cyclic_output", "contains itself"),
        (ODD + "two_inputs", "missing a required argument: 'y'"),
    ],
)
def test_a_bad_program_is_refused_in_a_sentence(run, here: Path, reference: str, words: str) -> None:
    assert words in refused(run("compare", ODD + "healthy", reference), here)


def test_the_reference_decides_whether_inputs_fit(run, here: Path) -> None:
    sentence = refused(run("compare", ODD + "wrong_columns", ODD + "healthy"), here)
    assert "shapes cannot be multiplied (4x9 and 8x3)" in sentence
    assert "must have the same dtype" in refused(run("compare", ODD + "wrong_dtype", ODD + "healthy"), here)
    assert "must be Tensor, not object" in refused(run("compare", ODD + "bad_inputs", ODD + "healthy"), here)
    news = run("compare", ODD + "nine_columns", ODD + "healthy")
    assert news.exit_code == 1
    assert "R002" in news.stdout


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("healthy", 0, "IDENTICAL"),
        ("breaks", 1, "IndexError: list index out of range"),
        ("recurses", 1, "recursion"),
        ("objects", 1, "INCONCLUSIVE: out['odd']: objects of class object are equal"),
        ("function_output", 0, "IDENTICAL"),
        ("nan_input", 1, "every element is NaN on both sides"),
        ("some_nan", 0, "IDENTICAL"),
        ("empty", 0, "IDENTICAL"),
        ("scalar", 0, "IDENTICAL"),
        ("strided", 0, "IDENTICAL"),
        ("text", 0, "IDENTICAL"),
        ("text_and_tensor", 0, "out['text']"),
        ("nothing", 1, "nothing was compared"),
        ("no_outputs", 1, "nothing was compared"),
        ("nested", 0, "out['b'].logits"),
        ("numbers", 0, "IDENTICAL"),
        ("sparse_output", 0, "IDENTICAL"),
        ("complex_output", 0, "IDENTICAL"),
        ("float8_output", 0, "IDENTICAL"),
        ("quantised_output", 0, "IDENTICAL"),
        ("nested_tensor_output", 0, "IDENTICAL"),
        ("strange_keys", 0, "IDENTICAL"),
        ("random_output", 1, "does not repeat itself"),
        ("leaves_later", 1, "the program called sys.exit(0)"),
    ],
)
def test_odd_but_usable_programs_get_an_answer(run, here: Path, name: str, code: int, words: str) -> None:
    result = run("compare", ODD + name, ODD + name)
    assert result.exit_code == code, result.stdout + result.stderr
    assert words in result.stdout
    assert "Error" not in result.stderr
    assert "Traceback" not in result.stderr + result.stdout


def test_what_is_undecided_suggests_no_tolerance(run, here: Path) -> None:
    assert "tolerance" not in run("compare", ODD + "random_output", ODD + "random_output").stdout
    assert "tolerance" in run("compare", ODD + "healthy", ODD + "healthy").stdout


# --- as a user sees it -----------------------------------------------------------------------------------------------


def shell(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "driftscope", *args]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    "model", ["saved.pt2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cyclic.onnx", "linked.onnx"))]
)
def test_a_real_process_says_one_line(folder: Path, model: str) -> None:
    done = shell(folder, "compare", "good.onnx", model, *SPEC)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("Error: ")
    assert not (folder.parent / "marker").exists()


def test_debug_shows_the_traceback(run, here: Path) -> None:
    result = run("compare", "good.onnx", "cut.onnx", *SPEC, "--debug")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: ")


def test_a_callable_of_the_library_that_exits_is_a_finding_of_its_side(run, here: Path) -> None:
    result = run("compare", ODD + "healthy", "sys:exit")
    assert result.exit_code == 1
    assert "R002" in result.stdout
    assert "the program called sys.exit(" in " ".join(result.stdout.split())
