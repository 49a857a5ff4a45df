"""The tables in docs/ are complete and true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import opdispatch_wire.addresses
import opdispatch_wire.errors  # noqa: F401  both define error classes
from opdispatch import ArrayBackend
from opdispatch.errors import OpdispatchError
from opdispatch_client.cli.app import build_app
from opdispatch_wire.status import STATUS_OF_CODE
from tests.waits import LONGEST_WAIT

ROOT = Path(__file__).resolve().parents[2]


def error_rows() -> dict[str, tuple[str, str, str]]:
    pattern = re.compile(r"^\| `(\w+)` \| `(\w+)` \| `(\w+)` \| (\w+) \|", re.MULTILINE)
    text = (ROOT / "docs" / "errors.md").read_text()
    return {name: (base, reason, status) for name, base, reason, status in pattern.findall(text)}


def test_the_table_of_errors_has_every_class_with_its_base_reason_and_status() -> None:
    rows = error_rows()
    classes = {c.__name__: c for code, c in OpdispatchError.by_code.items() if code != "opdispatch"}
    assert rows.keys() == classes.keys()
    for name, (base, reason, status) in rows.items():
        cls = classes[name]
        assert base in {ancestor.__name__ for ancestor in cls.__mro__}, name
        assert reason == cls.code.upper(), name
        assert status == STATUS_OF_CODE[cls.code].name, name


PAGES = [page for glob in ("*.md", "docs/**/*.md", "examples/**/*.md") for page in ROOT.glob(glob)]


def headings(page: Path) -> set[str]:
    """The names that links into the page have, as GitHub makes them of its headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in found}


def test_every_link_to_a_heading_leads_to_one() -> None:
    tried = 0
    for page in PAGES:
        for target, heading in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
            assert heading in headings(page.parent / target if target else page), (
                f"{page.name} links to {target}#{heading}"
            )
            tried += 1
    assert tried > 30


def test_the_table_of_commands_has_every_command() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    cells = " ".join(re.findall(r"^\| (`.*?) \| ", text, re.MULTILINE))
    app = build_app()
    for command in app.list_commands(None):
        assert re.search(rf"`{command}[ `]", cells), command


def test_every_link_to_a_file_leads_to_one() -> None:
    assert PAGES
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_difference_from_pytorch_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "fidelity.md").read_text()
    differences = text.partition("## Deliberate differences")[2].split("\n- ")[1:]
    assert len(differences) > 15
    sources = {path.name: "" for path in ROOT.glob("tests/*/test_*.py")}
    for path in ROOT.glob("tests/*/test_*.py"):
        sources[path.name] += path.read_text()
    for difference in differences:
        files = re.findall(r"`(test_\w+\.py)", difference)
        assert files, difference
        assert set(files) <= sources.keys(), difference
        named = "".join(sources[name] for name in files)
        for test in re.findall(r"::(test_\w+)`", difference):
            assert f"def {test}(" in named, test


def test_the_held_handle_of_the_docs_prints_what_they_say() -> None:
    text = (ROOT / "docs" / "fidelity.md").read_text()
    _, ours = re.findall(r"\$ cat held\.py\n(.*?)\$ python held\.py\n(.*?)```", text, re.DOTALL)
    program, printed = ours
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LONGEST_WAIT
    )
    assert (done.stdout, done.stderr, done.returncode) == (printed, "", 0)


def test_backend_page_names_every_abstract_method():
    page = (ROOT / "docs" / "array-backends.md").read_text()
    [sentence] = re.findall(r"It must have [^.]*", page)
    named = set(re.findall("`([a-z_]+)`", sentence))
    assert named == {"device_type", "component", *ArrayBackend.__abstractmethods__}
