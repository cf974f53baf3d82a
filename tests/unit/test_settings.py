"""The table of settings: each field of a node has one, and every way to give a value means the same."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from shoal.node.base import settings
from shoal.node.base.options import NodeSettings, UsageError
from shoal.node.base.schedule import parse_schedule
from shoal.node.base.settings import BY_KEY, SETTINGS, Choice, find_setting
from shoal.node.base.step_options import TrainerOptions
from shoal.node.base.toml import inline
from tests.fake_service import ADDRESS, LINK, RUN

ROOT = Path(__file__).parents[2]
HOME = Path("/home/of/node")
UNUSUAL = NodeSettings(
    home=HOME,
    port=0,
    listen_host="127.0.0.1",
    admin_host="::1",
    admin_port=4280,
    bootstrap=(ADDRESS, ADDRESS),
    threads=3,
    device="cpu",
    data=(Path("/"), Path(__file__)),
    create=Path(__file__),
    join=(RUN, LINK, __file__),
    train=False,
    checkpoint_every=4,
    checkpoint_keep=2,
    mdns=False,
    port_mapping=False,
    data_limit=0.5,
    share_data=False,
    max_up=2_500_001,
    max_down=8_000,
    max_per_day=20 * 10**9,
    schedule=parse_schedule("22:00-07:00, Sat-Sun 09:00-12:30"),
    only_when_idle=15,
    only_on_mains=True,
    yield_gpu=True,
    trainer=TrainerOptions(4, True, True, ("/",)),
)


def test_each_field_of_a_node_has_one_setting() -> None:
    own = {("", each.name) for each in fields(NodeSettings)} - {("", "home"), ("", "trainer")}
    trainer = {("trainer", each.name) for each in fields(TrainerOptions)}
    places = [each.place for each in SETTINGS]
    assert set(places) == own | trainer
    assert len(places) == len(set(places)) == len(BY_KEY)


def test_the_sample_has_no_default() -> None:
    usual, unusual = settings.values_of(NodeSettings(HOME)), settings.values_of(UNUSUAL)
    assert [key for key in usual if usual[key] == unusual[key]] == []


@pytest.mark.parametrize("node", [UNUSUAL, NodeSettings(HOME)])
def test_values_texts_and_what_is_written_mean_the_same(node: NodeSettings) -> None:
    values = settings.values_of(node)
    assert settings.node_settings(HOME, values) == node
    written = settings.written(node)
    assert {key: BY_KEY[key].read(key, written[key], HOME) for key in BY_KEY} == values
    texts = {key: BY_KEY[key].texts(value) for key, value in values.items()}
    assert {key: BY_KEY[key].read_texts(key, texts[key], HOME) for key in BY_KEY} == values


def test_variables_say_it_too() -> None:
    values = settings.values_of(UNUSUAL)
    environ = {}
    for key, value in values.items():
        setting = BY_KEY[key]
        environ[setting.variable] = (setting.kind.between or " ").join(setting.texts(value))
    assert settings.of_environment(environ | {"SHOAL_HOME": "/elsewhere"}, HOME) == values
    assert settings.of_environment({"SHOAL_PORT": "", "SHOAL_UP_PEERS": "5"}, HOME) == {}


def test_of_several_layers_the_last_one_counts() -> None:
    chosen = settings.choose(HOME, (settings.FILE, {"port": 1, "threads": 2}), (settings.FLAG, {"port": 3}))
    assert chosen["port"] == Choice(3, settings.FLAG)
    assert chosen["threads"] == Choice(2, settings.FILE)
    assert chosen["admin-port"] == Choice(4180, settings.DEFAULT)
    assert set(chosen) == set(BY_KEY)


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("port", "x", "SHOAL_PORT x is not a whole number"),
        ("port", "70000", "SHOAL_PORT 70000 is not a port: use 1 to 65534"),
        ("no-mdns", "maybe", "SHOAL_NO_MDNS maybe is not true or false"),
        ("data-limit", "much", "SHOAL_DATA_LIMIT much is not a number"),
        ("max-up", "20", "SHOAL_MAX_UP 20 is no rate: write it in bits"),
        ("max-per-day", "1MB", "SHOAL_MAX_PER_DAY 1MB is too little"),
        ("device", "gpu", "SHOAL_DEVICE gpu is no device"),
        ("schedule", "22-7", "SHOAL_SCHEDULE: '22-7' is no hours: write 22:00-07:00"),
        ("schedule", "12:00-12:00", "SHOAL_SCHEDULE: '12:00-12:00' has no length"),
        ("schedule", "Moo 12:00-13:00", "SHOAL_SCHEDULE: 'Moo' is no day"),
        ("only-when-idle", "9999", "SHOAL_ONLY_WHEN_IDLE 9999: give a number of minutes"),
        ("data", "/nowhere/at/all", "SHOAL_DATA /nowhere/at/all does not exist"),
        ("join", "shoal2abc", "SHOAL_JOIN: the link is cut off"),
    ],
)
def test_a_wrong_variable_is_named(key: str, text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        settings.of_environment({BY_KEY[key].variable: text}, HOME)
    assert str(raised.value).startswith(said)
    with pytest.raises(UsageError) as raised:
        BY_KEY[key].read_texts(BY_KEY[key].flag, [text], HOME)
    assert str(raised.value).startswith(said.replace(BY_KEY[key].variable, BY_KEY[key].flag))


@pytest.mark.parametrize(
    ("key", "written", "expected"),
    [
        ("port", "4101", "a whole number"),
        ("port", True, "a whole number"),
        ("port", 1.5, "a whole number"),
        ("no-mdns", 1, "true or false"),
        ("max-up", 20, 'a rate in quotes, as "20Mbit"'),
        ("data", "/", "a list of paths"),
        ("data", [1], "a list of paths"),
        ("bootstrap", {}, "a list of texts"),
        ("create", False, "a path in quotes"),
    ],
)
def test_a_written_value_of_another_type_is_refused_with_what_is_expected(
    key: str, written: Any, expected: str
) -> None:
    with pytest.raises(UsageError) as raised:
        BY_KEY[key].read(key, written, HOME)
    assert f"is not {expected}" in str(raised.value)
    assert str(raised.value).startswith(f"{key} = ")


def test_paths_in_a_file_begin_at_its_folder_or_at_a_persons_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert BY_KEY["data"].read("data", ["notes", "~/notes"], tmp_path) == (tmp_path / "notes",) * 2
    monkeypatch.chdir(tmp_path)
    assert BY_KEY["weights"].of_texts("weights", ["notes"]) == [str(tmp_path / "notes")]


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("max_up", "max-up"), ("--port", "port"), ("prot", "port"), ("MAX-UPP", "max-up"), ("", None), ("é", None)],
)
def test_an_unknown_key_comes_with_the_nearest_one(wrong: str, meant: str | None) -> None:
    with pytest.raises(UsageError, match=r"unknown key .*; the nearest known key is '") as raised:
        find_setting(wrong)
    assert meant is None or str(raised.value).endswith(f"'{meant}'")


def test_the_page_about_settings_has_the_table() -> None:
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    rows = "\n".join(f"| `{each.key}` | {_usual(each.key)} | {each.help} |" for each in SETTINGS)
    assert rows in text, f"its table should be:\n{rows}"


def _usual(key: str) -> str:
    if BY_KEY[key].usually:
        return BY_KEY[key].usually
    return f"`{inline(settings.written(NodeSettings(HOME))[key])}`"
