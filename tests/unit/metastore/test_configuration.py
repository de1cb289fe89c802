"""Where settings come from, and what is said about those that cannot be meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from epochlake.metastore.configuration import load, locate, reference
from epochlake.metastore.errors import ConfigurationError
from epochlake.placement.consistency import ConsistencyLevel

REPOSITORY = Path(__file__).parents[3]


def write(directory: Path, text: str, name: str = "own.toml") -> Path:
    file = directory / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def test_without_a_file_the_defaults_count(tmp_path: Path) -> None:
    configuration = load(None, {}, tmp_path)
    assert configuration.zookeeper.connect == "embedded"
    assert configuration.pipeline.consistency is ConsistencyLevel.QUORUM
    assert configuration.root == str(tmp_path / ".epochlake")


def test_the_shipped_file_says_what_the_defaults_say() -> None:
    directory = REPOSITORY / "conf"  # it has no conf/epochlake.toml below it: the defaults count
    assert load(REPOSITORY / "conf" / "epochlake.toml", {}, directory) == load(None, {}, directory)


def test_every_shipped_file_is_valid() -> None:
    files = list((REPOSITORY / "conf").glob("e*.toml"))
    assert len(files) == 2
    for file in files:
        load(file, {}, REPOSITORY)


def test_the_argument_goes_before_the_variable_and_the_variable_before_the_working_directory(tmp_path: Path) -> None:
    argument, variable = write(tmp_path, "", "a.toml"), write(tmp_path, "", "b.toml")
    default = write(tmp_path, "", "conf/epochlake.toml")
    environ = {"EPOCHLAKE_CONF": str(variable)}
    assert locate(argument, environ, tmp_path) == argument
    assert locate(None, environ, tmp_path) == variable
    assert locate(None, {}, tmp_path) == default


def test_the_environment_goes_before_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "[log]\ncompact_every = 8\npoll_seconds = 2\n")
    configuration = load(file, {"EPOCHLAKE__LOG__COMPACT_EVERY": "64"}, tmp_path)
    assert (configuration.log.compact_every, configuration.log.poll_seconds) == (64, 2.0)


def test_a_storage_option_of_the_environment_replaces_the_file_s_in_either_case(tmp_path: Path) -> None:
    file = write(tmp_path, '[storage.options]\naws_region = "here"\naws_endpoint = "there"\n')
    configuration = load(file, {"EPOCHLAKE__STORAGE__OPTIONS__AWS_REGION": "elsewhere"}, tmp_path)
    assert configuration.storage.options == {"AWS_REGION": "elsewhere", "aws_endpoint": "there"}


@pytest.mark.parametrize("uri", ["s3://bucket/cluster", "file:///srv/cluster", "/srv/cluster"])
def test_a_root_that_is_absolute_stays_as_it_is(uri: str, tmp_path: Path) -> None:
    assert load(None, {"EPOCHLAKE__ROOT": uri}, tmp_path).root == uri


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[log]\ncompact_evry = 8", "unknown key compact_evry in [log]; did you mean compact_every."),
        ("[logg]\ncompact_every = 8", "unknown section [logg]; did you mean [log"),
        ("compact_every = 8", "unknown key compact_every; did you mean [log] compact_every."),
        ("[log]\nconsistency = 'ONE'", "unknown key consistency in [log]; did you mean [pipeline] consistency."),
        ("rot = 'x'", "unknown key rot; did you mean root."),
        ("log = 3", "log is 3, expected a section [log]."),
        ("[log]\ncompact_every = 'many'", '[log] compact_every is "many", expected a whole number, at least 2.'),
        ("[log]\ncompact_every = true", "[log] compact_every is true, expected a whole number, at least 2."),
        ("[log]\ncompact_every = 1.5", "[log] compact_every is 1.5, expected a whole number, at least 2."),
        ("[log]\ncompact_every = 0", "[log] compact_every is 0, expected a whole number, at least 2."),
        ("[log]\npoll_seconds = 0", "[log] poll_seconds is 0, expected a number, above 0, at most 1,000,000,000."),
        ("[log]\npoll_seconds = inf", "is inf, expected a number, above 0, at most 1,000,000,000."),
        ("[storage]\ndeadline_seconds = inf", "is inf, expected a number, above 0, at most 1,000,000,000."),
        ("[coordinator]\nbackoff_seconds = inf", "is inf, expected a number, at least 0, at most 1,000,000,000."),
        ("[coordinator]\nbarrier_timeout_seconds = inf", "at least 0, at most 1,000,000,000."),
        ("[zookeeper]\nreplace_after_seconds = inf", "expected a number, above 0, at most 1,000,000,000."),
        ("[zookeeper]\nembedded_linger_seconds = inf", "at least 0, at most 1,000,000,000."),
        ("[tablets]\nper_volume = 99999999999999999999", "expected a whole number, at least 0, at most 1,000,000."),
        ("[log]\ncommit_timeout_seconds = inf", "is inf, expected a number, above 0, at most 1,000,000,000."),
        ("[zookeeper]\nsession_timeout_seconds = 3e6", "is 3000000.0, expected a number, above 0, at most 2,000,000."),
        ("[pipeline]\nconsistency = 'QUORM'", '[pipeline] consistency is "QUORM", expected one of "ONE", "TWO"'),
        ("[coordinator]\nstreaming = 'fork'", 'is "fork", expected one of "threads", "spark", "agents".'),
        ("[zookeeper]\npath = 'x'", '[zookeeper] path is "x", expected a text that starts with "/".'),
        ("[tablets]\ninitial_count = 6", "[tablets] initial_count is 6, expected a power of two"),
        ("[coordinator]\ncompaction_hours = '22:00'", '[coordinator] compaction_hours are "22:00", expected two times'),
        ("root = ''", 'root is "", expected a text, not empty.'),
        ("[log", "is not valid TOML"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_file_and_the_key(text: str, said: str, tmp_path: Path) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigurationError) as caught:
        load(file, {}, tmp_path)
    assert said in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("EPOCHLAKE__LOG__COMPACT_EVRY", "8", "unknown key compact_evry in [log]; did you mean compact_every."),
        ("EPOCHLAKE__LOGG__COMPACT_EVERY", "8", "names no section or key; did you mean [log"),
        ("EPOCHLAKE__LOG", "8", "names no section or key"),
        (
            "EPOCHLAKE__LOG__COMPACT_EVERY",
            "many",
            '[log] compact_every is "many", expected a whole number, at least 2.',
        ),
        ("EPOCHLAKE__LOG__COMPACT_EVERY__MORE", "8", "expected EPOCHLAKE__LOG__COMPACT_EVERY."),
        ("EPOCHLAKE__STORAGE__OPTIONS", "x", "expected EPOCHLAKE__STORAGE__OPTIONS__<name>."),
    ],
)
def test_a_variable_that_cannot_be_meant_is_refused_by_name(
    variable: str, value: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(None, {variable: value}, tmp_path)
    assert said in str(caught.value)
    assert variable in str(caught.value)


def test_a_named_file_that_is_not_there_is_an_error_and_not_the_defaults(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml cannot be read: No such file"):
        load(tmp_path / "none.toml", {}, tmp_path)


def test_values_of_storage_options_are_not_repeated_in_messages(tmp_path: Path) -> None:
    file = write(tmp_path, '[storage.options]\naws_secret_access_key = "hush"\naws_port = 1\n')
    with pytest.raises(ConfigurationError, match="expected a table of texts") as caught:
        load(file, {}, tmp_path)
    assert "hush" not in str(caught.value)


def test_the_reference_in_the_documentation_is_the_one_the_code_gives() -> None:
    written = (REPOSITORY / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert written == reference(), "run: python -m epochlake.metastore.configuration > docs/configuration.md"
