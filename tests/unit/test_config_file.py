"""config.toml: read with clear errors, changed by one line, and never half written."""

from __future__ import annotations

import stat
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.base import config_file
from shoal.node.base.config_file import changes, check, load, template, with_value, without
from shoal.node.base.home import find_home
from shoal.node.base.options import UsageError
from shoal.node.base.settings import BY_KEY
from shoal.protocol.base.errors import LocalError

PATH = Path("/home/of/node/config.toml")
MINE = """\
# what I like
threads = 2   # two of four

"port" = 5001
join = [
    "abcdef01",  # "home", not # office
    'abcdef02',
]
max-up="20Mbit"
"""


def test_a_value_is_replaced_and_all_else_stays() -> None:
    assert with_value(MINE, "threads", 3) == MINE.replace("threads = 2   #", "threads = 3   #")
    assert with_value(MINE, "port", 0) == MINE.replace('"port" = 5001', '"port" = 0')
    assert with_value(MINE, "max-up", "none") == MINE.replace('max-up="20Mbit"', 'max-up="none"')
    assert with_value(MINE, "device", "cpu") == MINE + 'device = "cpu"\n'
    assert with_value("", "device", "cpu") == 'device = "cpu"\n'
    assert with_value("threads = 2", "device", "cpu") == 'threads = 2\ndevice = "cpu"\n'


def test_a_value_that_is_there_stays_as_it_is_written() -> None:
    assert with_value(MINE, "join", ["abcdef01", "abcdef02"]) == MINE
    assert with_value("threads = 0x2", "threads", 2) == "threads = 0x2"
    assert with_value("threads = true\n", "threads", 1) == "threads = 1\n"


def test_what_differs_between_two_texts_is_told_by_its_keys() -> None:
    assert changes(MINE, MINE.replace("\n", "\n# and more\n", 1)) == {}
    after = 'threads = 3\nport = 5001\njoin = ["abcdef01"]\nschedule = "22:00-07:00"\n'
    assert changes(MINE, after) == {
        **{"threads": 3, "join": ["abcdef01"], "schedule": "22:00-07:00"},
        "max-up": None,
    }
    assert changes("prot = 1\n", "port = 1\n") == {"port": 1}, "what was no setting is none that is taken away"
    for broken in ("port = \n", "port = "):
        assert changes(broken, "port = 1\n") == {"port": 1}, "of a text that is no TOML nothing is known"


def test_comments_within_a_value_stay() -> None:
    begin, end = MINE.split("join")[0], 'max-up="20Mbit"\n'
    assert with_value(MINE, "join", []) == f'{begin}# "home", not # office\njoin = []\n{end}'
    assert without(MINE, "join") == f'{begin}# "home", not # office\n{end}'
    assert without(MINE, "threads") == MINE.replace("threads = 2   # two", "# two")
    assert without(MINE, "device") == MINE


def test_windows_line_ends_stay() -> None:
    text = "# a\r\nthreads = 2 # b\r\nport = 1\r\n"
    assert with_value(text, "threads", 3) == "# a\r\nthreads = 3 # b\r\nport = 1\r\n"
    assert with_value(text, "device", "cpu") == text + 'device = "cpu"\r\n'
    assert without(text, "threads") == "# a\r\n# b\r\nport = 1\r\n"


def test_a_line_within_a_text_is_not_taken_for_the_setting() -> None:
    text = 'device = """\nport = 1\n"""\nport = 2\n'
    assert with_value(text, "port", 3) == 'device = """\nport = 1\n"""\nport = 3\n'
    assert without(text, "port") == 'device = """\nport = 1\n"""\n'


@pytest.mark.parametrize("text", ["[table]\na = 1\n", "[table]\nport = 1\n"])
def test_what_cannot_be_changed_by_a_line_is_left_to_the_editor(text: str) -> None:
    with pytest.raises(UsageError, match="shoal config edit"):
        with_value(text, "port", 3)


LINES = st.lists(
    st.sampled_from(
        [
            "# port = 7",
            "",
            "port = 1 # one",
            'device="#cpu"  # "',
            "data = [ # x\n '/' , # y\n]",
            "  'max-up' = \"20Mbit\"",
            'admin-host = """\nport = 9\n"""',
        ]
    ),
    unique=True,
)


@given(
    LINES, st.sampled_from(["port", "device", "data", "max-up", "threads"]), st.sampled_from([[], ["a # b"], 7, "#"])
)
def test_a_change_reads_as_it_should_and_keeps_each_comment(lines: list[str], key: str, value: object) -> None:
    text = "\n".join(lines)
    table = tomllib.loads(text)
    changed = with_value(text, key, value)  # type: ignore[arg-type]
    assert tomllib.loads(changed) == {**table, key: value}
    removed = without(changed, key)
    assert tomllib.loads(removed) == {name: each for name, each in table.items() if name != key}
    for comment in ("# port = 7", "# one", '# "', "# x", "# y"):
        assert (comment in text) <= (comment in changed), comment
        assert (comment in text) <= (comment in removed), comment


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n# x\nprot = 1\n", "config.toml, line 3: unknown key \"prot\"; the nearest known key is 'port'"),
        ("port = 70000", "config.toml, line 1: port 70000 is not a port: use 1 to 65534"),
        ("threads = 1\nport = 'x'", 'config.toml, line 2: port = "x" is not a whole number'),
        ("max-up = '20'", "config.toml, line 1: max-up 20 is no rate: write it in bits, as 20Mbit"),
        ("join = ['shoal2abc']", "config.toml, line 1: join: the link is cut off"),
        ("data = ['/nowhere/at/all']", "config.toml, line 1: data /nowhere/at/all does not exist"),
        ("[node]\nport = 1", 'config.toml, line 1: unknown key "node"'),
        ("port = 1979-05-27", "config.toml, line 1: port = 1979-05-27 is not a whole number"),
    ],
)
def test_a_wrong_file_is_refused_with_line_key_and_what_is_expected(text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        check(text, PATH)
    assert said in str(raised.value)


def test_a_forgotten_quote_is_named_with_the_line_and_what_belongs_there() -> None:
    with pytest.raises(UsageError) as raised:
        check("port = 1\nmax-up = 20Mbit\n", PATH)
    assert str(raised.value).startswith(f"{PATH} is not TOML: ")
    assert "at line 2" in str(raised.value)
    assert str(raised.value).endswith("""'max-up' takes a rate in quotes, as "20Mbit", "2.5MB/s" or "none\"""")


@pytest.mark.parametrize("content", [b"\xff\xfe\xff", b"port = 1 # \xe9", b"#" * (65 << 10), b"a = " + b"[" * 9000])
def test_what_is_no_text_or_too_large_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.toml").write_bytes(content)
    with pytest.raises(UsageError, match=r"config\.toml"):
        load(tmp_path / "config.toml")


def test_without_a_file_there_are_no_values(tmp_path: Path) -> None:
    assert load(tmp_path / "config.toml") == {}
    (tmp_path / "config.toml").write_text("port = 0\nno-mdns = true\n")
    assert load(tmp_path / "config.toml") == {"port": 0, "no-mdns": True}
    with pytest.raises(LocalError, match="cannot read"):
        load(tmp_path)


def test_the_template_says_all_settings_and_sets_none(tmp_path: Path) -> None:
    text = template(tmp_path)
    assert tomllib.loads(text) == {}
    bare = "".join(line.removeprefix("# ") + "\n" for line in text.splitlines() if line.removeprefix("# ").count(" = "))
    assert set(check(bare, PATH)) == set(BY_KEY)


def test_a_link_to_a_file_elsewhere_stays_one(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("port = 1\n")
    (tmp_path / "config.toml").symlink_to("mine.toml")
    config_file.replace(tmp_path / "config.toml", b"port = 2\n")
    assert (tmp_path / "config.toml").is_symlink()
    assert (tmp_path / "mine.toml").read_text() == "port = 2\n"


def test_a_file_keeps_its_mode_and_a_new_one_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    config_file.replace(path, b"port = 1\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for mode in (0o640, 0o666):
        path.chmod(mode)
        config_file.replace(path, b"port = 2\n")
        assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("name", ["config.new", ".config.toml.new"])
def test_a_write_touches_no_neighbour(tmp_path: Path, name: str) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / name).symlink_to("precious")
    config_file.replace(tmp_path / "config.toml", b"port = 1\n")
    assert (tmp_path / "precious").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["config.toml", name, "precious"])


KILLED = """
import os, signal, sys
step, seen = int(sys.argv[1]), []
def dies(real):
    def call(*given, **named):
        if len(seen) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        seen.append(real)
        return real(*given, **named)
    return call
from shoal.node.base.home import find_home
from shoal.node.base.config_file import change, with_value
home, real = find_home(), os.fdopen
class Half:  # a file whose process may be killed once half of what it is to write is on the disk
    def __init__(self, file):
        self.file = file
    def __getattr__(self, name):
        return getattr(self.file, name)
    def __enter__(self):
        return self
    def __exit__(self, *_):
        self.file.close()
    def writelines(self, pieces):
        whole = b"".join(pieces)
        half(self.file, whole[: len(whole) // 2])
        half(self.file, whole[len(whole) // 2 :])
def write(file, piece):
    file.write(piece)
    file.flush()
half = dies(write)
os.fdopen = lambda *given: Half(real(*given))
for name in ("open", "fchmod", "fsync", "replace"):
    setattr(os, name, dies(getattr(os, name)))
change(home, lambda text: with_value(text, "port", 5002))
"""


def test_a_kill_at_any_step_leaves_the_old_file_or_the_new() -> None:
    path = find_home().create().config
    old, new, found = "# mine\nport = 5001\n", "# mine\nport = 5002\n", []
    for step in range(20):
        path.write_text(old)
        ended = subprocess.run([sys.executable, "-c", KILLED, str(step)])
        found.append(path.read_text())
        if ended.returncode == 0:
            break
        assert ended.returncode == -9
    assert set(found) == {old, new}
    assert found[0] == old
    assert found[-1] == new
    assert len(found) >= 8, "too few steps were seen"
    left = [each.read_text() for each in path.parent.glob(".config.toml.*.new")]
    assert old[: len(old) // 2] in left, "no kill came in the middle of the text"


def test_a_write_that_fails_leaves_the_old_file(monkeypatch: pytest.MonkeyPatch) -> None:
    home = find_home().create()
    home.config.write_text("port = 5001\n")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(LocalError, match=r"cannot write .*No space left"):
        config_file.change(home, lambda text: with_value(text, "port", 5002))
    assert home.config.read_text() == "port = 5001\n"


def test_a_change_that_could_not_be_read_again_is_refused() -> None:
    home = find_home().create()
    home.config.write_text("port = 5001\n")
    folders = ["/" + "x" * 4000] * 20
    with pytest.raises(UsageError, match=r"config\.toml would be larger than 64 KiB; it is as it was"):
        config_file.change(home, lambda text: with_value(text, "data", folders))
    assert home.config.read_text() == "port = 5001\n"


def test_changes_at_once_are_all_kept() -> None:
    home, written = find_home(), {"port": 0, "threads": 2, "micro-batch": 4, "device": "cpu", "checkpoint-keep": 5}

    def change(key: str) -> None:
        config_file.change(home, lambda text: with_value(text, key, written[key]))  # type: ignore[arg-type]

    with ThreadPoolExecutor(len(written)) as pool:
        list(pool.map(change, written))
    assert tomllib.loads(home.config.read_text()) == written
