"""docs/operations.md is of the code that stands beside it."""

import importlib.util
import re
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "docs" / "operations.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("operations_table", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_has_every_operation_and_says_what_becomes_of_it(script):
    rows = re.findall(r"^\| `([^`]+)` \| (.*) \| (.*) \|$", script.TABLE.read_text(), re.MULTILINE)
    written = {name: text.replace("\\|", "|") for name, text, _ in rows}
    assert written == script.operations(), "run `make docs`"


def test_every_operation_has_a_test_and_the_tests_exist(script):
    rows = re.findall(r"^\| `[^`]+` \| .* \| (.*) \|$", script.TABLE.read_text(), re.MULTILINE)
    named = {test for tests in rows for test in tests.split(", ")}
    files = {path.stem.removeprefix("test_") for path in Path(__file__).parent.rglob("test_*.py")}
    assert rows
    assert named <= files  # "-", which stands for none, is no file
