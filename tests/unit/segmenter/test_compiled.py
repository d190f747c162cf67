"""The segmenter as the image has it: compiled, it passes the tests that its sources pass."""

import importlib.util
import os
import runpy
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.segmenter import shifts
from tests.nasty_texts import RUNS, run
from tools import compiled
from tools.release import ReleaseError, build_wheel

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
ORIGINS = """
import sys
from importlib.util import find_spec
for name in sys.argv[1:]:
    print(find_spec(f"afterword.streams.segmenter.{name}").origin)
"""

TESTS = """
import sys
import pytest
from afterword.streams.segmenter import rules  # before pytest puts this checkout first
assert rules.__spec__.origin.endswith(".so"), rules.__spec__.origin
sys.exit(pytest.main(sys.argv[1:]))
"""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def variables() -> Mapping[str, str]:
    """The environment in which Python imports what is compiled."""
    found = compiled.environment()
    if not found:
        pytest.skip("no C compiler for this Python")
    return os.environ | found


def built(variables: Mapping[str, str]) -> Path:
    return Path(variables["PYTHONPATH"].split(os.pathsep)[0])


def chosen() -> list[str]:
    """Names of the modules that are compiled, as setup.py has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setuptools.setup", lambda **_: None)
        found: list[str] = runpy.run_path(str(ROOT / "setup.py"))["COMPILED"]
    return found


@pytest.mark.slow
def test_it_passes_the_tests_of_its_sources(variables: Mapping[str, str]) -> None:
    options = ["-q", "-x", "-p", "no:cacheprovider", "--ignore", __file__]
    command = [sys.executable, "-c", TESTS, str(HERE), *options]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


def test_every_module_of_its_path_is_compiled(variables: Mapping[str, str]) -> None:
    files = subprocess.check_output([sys.executable, "-c", ORIGINS, *chosen()], env=variables, text=True).split()
    assert [Path(file).suffix for file in files] == [".so"] * len(chosen())
    assert {Path(file).parent for file in files} == {built(variables) / "afterword" / "streams" / "segmenter"}


def test_all_modules_are_chosen_but_those_that_run_once_for_many_messages() -> None:
    modules = {path.stem for path in (ROOT / "streams" / "segmenter").glob("*.py")}
    assert modules - set(chosen()) == {"__init__", "agent", "partitions"}


def test_its_wheel_has_the_sources_too_and_nothing_beside_the_package(variables: Mapping[str, str]) -> None:
    segmenter = built(variables) / "afterword" / "streams" / "segmenter"
    sources = {path.name for path in (ROOT / "streams" / "segmenter").glob("*.*")}
    assert {path.name for path in segmenter.glob("*.*") if path.suffix != ".so"} == sources
    assert {path.name for path in built(variables).iterdir() if path.suffix != ".dist-info"} == {"afterword"}


@pytest.fixture(scope="module")
def in_c(variables: Mapping[str, str]) -> ModuleType:
    """The words of a message in C, prepared as shifts.py does."""
    [file] = (built(variables) / "afterword" / "streams" / "segmenter").glob("_words.*.so")
    spec = importlib.util.spec_from_file_location("_words", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    prepare(module, shifts._KNOWN)
    return module


def prepare(module: ModuleType, known: Mapping[bytes, int]) -> None:
    numbers = shifts.REFERS, shifts.REFERS_WITHIN, shifts.STEM_BYTES, shifts.MAX_CONTENT
    module.prepare(known, shifts._ENGLISH_BIT, *numbers)


WORDS = st.sampled_from([word.decode() for word in shifts._KNOWN]) | st.text("aBz09'", max_size=12)


@given(st.lists(WORDS | st.text(max_size=5)).map(" ".join) | st.text(max_size=700))
def test_words_in_c_are_those_of_python(in_c: ModuleType, text: str) -> None:
    plain = text[: shifts.MAX_CHARACTERS].encode("ascii", "ignore")
    assert in_c.words_in(plain) == shifts.words_in(plain)


@pytest.mark.parametrize("text", [*(run(unit, 600) for unit in RUNS), "a " * 300, "a" * 600, "'" * 600, "\0" * 600, ""])
def test_words_of_texts_at_the_limits(in_c: ModuleType, text: str) -> None:
    plain = text[: shifts.MAX_CHARACTERS].encode("ascii", "ignore")
    assert in_c.words_in(plain) == shifts.words_in(plain)


def test_all_different_words_that_a_message_can_have(in_c: ModuleType) -> None:
    plain = b" ".join(map(bytes, product(b"abcdefghijklmnopq", repeat=2)))[: shifts.MAX_CHARACTERS]
    assert in_c.words_in(plain) == shifts.words_in(plain)


@pytest.mark.parametrize("wrong", [b"x" * 601, bytearray(b"x"), "x", None])
def test_what_is_no_text_of_a_message_is_refused(in_c: ModuleType, wrong: object) -> None:
    with pytest.raises(ValueError, match="no bytes, or more than 600"):
        in_c.words_in(wrong)


@pytest.mark.parametrize(
    ("known", "error"),
    [
        ({b"%d" % n: 1 for n in range(257)}, ValueError),
        ({b"x" * 17: 1}, ValueError),
        ({b"": 1}, ValueError),
        ({"x": 1}, ValueError),
        ({b"x": "1"}, TypeError),
        ({b"x": 1 << 80}, OverflowError),
        ([], TypeError),
    ],
)
def test_known_words_that_do_not_fit_are_refused(in_c: ModuleType, known: object, error: type[Exception]) -> None:
    try:
        with pytest.raises(error):
            prepare(in_c, known)  # type: ignore[arg-type]
    finally:
        prepare(in_c, shifts._KNOWN)


WATCHED = """
import random, sys
from itertools import product
sys.path.insert(0, sys.argv[1])
import _words
from afterword.streams.segmenter import shifts
from tests.unit.segmenter.test_compiled import prepare
prepare(_words, shifts._KNOWN)
pick, bytes_of = random.Random(1), b"abcITst's?!\\n\\0 \\x7f09"
crowded = b" ".join(map(bytes, product(b"abcdefghijklmnopq", repeat=2)))[:600]  # of all different words
for plain in (crowded, *(bytes(pick.choices(bytes_of, k=size)) for size in (*range(601), *[600] * 5000))):
    assert _words.words_in(plain) == shifts.words_in(plain), plain
"""


def test_words_in_c_stay_within_their_arrays(variables: Mapping[str, str], tmp_path: Path) -> None:
    compiler = sysconfig.get_config_var("CC").split()[0]
    libraries = [
        subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    if not all(Path(library).is_absolute() for library in libraries):
        pytest.skip("the compiler has no AddressSanitizer")
    source, include = ROOT / "streams" / "segmenter" / "_words.c", sysconfig.get_path("include")
    options = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    command = [compiler, *options, "-fPIC", "-shared", f"-I{include}", str(source), "-o", str(tmp_path / "_words.so")]
    subprocess.run(command, check=True)
    watching = {"LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    command = [sys.executable, "-c", WATCHED, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | watching, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def test_it_says_so(variables: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "afterword", "--version"]
    assert subprocess.check_output(command, env=variables, text=True).endswith(", compiled)\n")


def test_the_checkout_has_nothing_compiled_which_would_hide_a_change() -> None:
    assert list((ROOT / "streams").rglob("*.so")) == []


def test_without_mypy_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "mypyc").mkdir()
    (tmp_path / "mypyc" / "__init__.py").write_text("raise ImportError\n")
    tree = compiled.copied(tmp_path / "tree")
    with pytest.raises(ReleaseError, match="pip install mypy"):
        build_wheel(tree, tmp_path, {"AFTERWORD_COMPILE": "1", "PYTHONPATH": str(tmp_path)})


def test_the_same_files_are_built_once(variables: Mapping[str, str]) -> None:
    before = built(variables).stat().st_mtime_ns
    assert compiled.environment()["PYTHONPATH"] == variables["PYTHONPATH"]
    assert built(variables).stat().st_mtime_ns == before


def test_any_other_file_has_it_built_anew(tmp_path: Path) -> None:
    tree = compiled.copied(tmp_path / "tree")
    before = compiled.digest_of(tree)
    rules = tree / "streams" / "segmenter" / "rules.py"
    rules.write_text(rules.read_text() + "\n")
    assert compiled.digest_of(tree) != before
