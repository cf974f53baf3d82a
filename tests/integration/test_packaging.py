"""What is built from a checkout runs without it, and an editor finds what is imported.

Shoal itself comes from the wheel alone. What it depends on is lent by this test's own environment, by a line in a .pth
file: a path that is added so has no .pth file of its own read, and an installation for development is one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.parse
import urllib.request
import venv
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from shoal.node.base.home import Home
from shoal.node.client.up.processes import Children
from shoal.node.training.checkpoint.scan import find
from tests.integration.nodes import until
from tests.integration.test_node import MANIFEST

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "dht", "node")
BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, f"build_{sys.argv[1]}")(sys.argv[2]))
"""
PATIENCE = 300.0  # seconds

pytestmark = pytest.mark.slow


def run(*argv: object, cwd: Path, **environ: str) -> str:
    """Run a command, which must succeed, without variables of ours that name modules; its output."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "PYTHON"))}
    done = subprocess.run(
        [*map(str, argv)], cwd=cwd, env=given | environ, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of what is committed, in another folder."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("DOES NOT RUN: this is no checkout, or git is not installed")
    folder = tmp_path_factory.mktemp("packaging") / "clone"
    run("git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", folder, cwd=ROOT)
    return folder


def build(kind: str, source: Path, into: Path) -> Path:
    into.mkdir(exist_ok=True)
    return into / run(sys.executable, "-c", BUILD, kind, into, cwd=source).splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(clone: Path) -> Path:
    """Built from a source distribution, as an installer does that finds no wheel."""
    sdist = build("sdist", clone, clone.with_name("dist"))
    with tarfile.open(sdist) as packed:
        packed.extractall(clone.with_name("unpacked"), filter="data")
    (source,) = clone.with_name("unpacked").iterdir()
    return build("wheel", source, clone.with_name("dist"))


def environment(folder: Path, package: Path) -> Path:
    """The interpreter of an environment that has this package, and is lent what it depends on."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", package, cwd=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    lent = [each for each in sys.path if each.endswith("site-packages")]
    (packages / "lent.pth").write_text("".join(f"{each}\n" for each in lent))
    return python


def test_a_wheel_has_every_file_of_the_packages(clone: Path, wheel: Path) -> None:
    listed = run("git", "ls-files", "-z", *PACKAGES, cwd=clone).split("\0")
    committed = {f"shoal/{name}" for name in listed if name and not name.endswith(".md")}
    with zipfile.ZipFile(wheel) as packed:
        packaged = {name for name in packed.namelist() if name.startswith("shoal/")}
    assert packaged == committed
    assert len({name for name in committed if name.endswith((".js", ".css", ".html"))}) > 10


def test_a_wheel_in_an_empty_environment_plays_shows_its_page_and_serves(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "environment", wheel)
    shoal = python.with_name("shoal")
    places = run(python, "-c", f"import shoal.{', shoal.'.join(PACKAGES)}; print(*shoal.__path__)", cwd=tmp_path)
    assert Path(places.strip()).is_relative_to(python.parents[1])

    (tmp_path / "run.toml").write_text(f"{MANIFEST}[goal]\nloss_ratio = 1.5\n")
    calm = ("--kill-at", "none", "--join-at", "none", "--device", "cpu", "--checkpoint-every", "2")
    out = tmp_path / "out"
    given = ("--manifest", tmp_path / "run.toml", "--out", out, "--json")
    played = run(shoal, "up", "--peers", "2", "--rounds", "3", *calm, *given, cwd=tmp_path)
    answer: dict[str, Any] = json.loads(played.splitlines()[-1])
    assert [each["round"] for each in answer["committed"]] == [1, 2, 3]
    assert len({each["digest"] for each in answer["peers"]}) == 1
    assert "<html" in (out / "report.html").read_text()

    with Children() as children:
        home = Home(tmp_path / "home").create()
        loopback = ("--port", "0", "--admin-port", "0", "--listen-host", "127.0.0.1")
        children.start([str(shoal), "node", "start", "--foreground", *loopback], tmp_path / "node.log", at(home))
        until(home.read_daemon, "the node", (tmp_path / "node.log").read_text)
        check_page(run(shoal, "status", cwd=tmp_path, **at(home)))

        checkpoint = next(each.path for each in find(out) if each.about is not None)
        children.start([str(shoal), "serve", str(checkpoint), "--port", "0"], tmp_path / "serve.log")
        said = (tmp_path / "serve.log").read_text
        until(lambda: "http://" in said(), "the server", said)
        served = json.loads(fetched(links(said())[0] + "/models"))
        assert len(served["data"]) == 1


def at(home: Home) -> Mapping[str, str]:
    return {"SHOAL_HOME": str(home.root)}


def links(text: str) -> list[str]:
    return re.findall(r"http://[^\s\"')]+", text)


def fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


def check_page(status: str) -> None:
    """Every file that the page names is there, and those that these name."""
    (page,) = links(status)
    seen, todo = set[str](), [page.rstrip("/") + "/"]
    while todo:
        url = todo.pop()
        if url in seen:
            continue
        seen.add(url)
        todo += parts_of(url, fetched(url).decode())
    kinds = {url.rsplit(".", 1)[-1] for url in seen}
    assert {"js", "css", "svg"} <= kinds, seen
    assert len(seen) > 10, seen


def parts_of(url: str, text: str) -> Iterator[str]:
    """The addresses of what a page, a style sheet or a script brings in."""
    for name in re.findall(r"""(?:src=|href=|from |import |url\()["']?([\w./-]+\.(?:js|css|svg))["')]""", text):
        yield urllib.parse.urljoin(url, name)


def test_an_editor_finds_what_is_imported(clone: Path, tmp_path: Path) -> None:
    """pyright has no configuration of ours, only an interpreter that has the checkout as developers install it."""
    if shutil.which("npm") is None:
        pytest.skip("DOES NOT RUN: npm is not installed, which brings pyright")
    npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(tmp_path), "pyright"]
    if subprocess.run(npm, capture_output=True, timeout=PATIENCE, check=False).returncode != 0:
        pytest.skip("DOES NOT RUN: npm gets no pyright")
    python = environment(tmp_path / "environment", build("editable", clone, clone.with_name("dist")))
    pyright = [str(tmp_path / "node_modules/.bin/pyright"), "--outputjson", "--pythonpath", str(python)]
    done = subprocess.run(pyright, cwd=clone, capture_output=True, text=True, timeout=900, check=False)
    report = json.loads(done.stdout)
    missing = [each for each in report["generalDiagnostics"] if each.get("rule") == "reportMissingImports"]
    print(f"\n{report['summary']}, {len(missing)} imports are not found, of other packages")
    assert report["summary"]["filesAnalyzed"] > 500
    assert not [each for each in missing if "shoal" in each["message"]]
