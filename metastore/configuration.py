"""What can be configured, with what type, meaning and default; and where a value is taken from.

The structs below are the only list of keys there is: defaults, checks, the file in `conf/` and the reference in
`docs/configuration.md` all follow from them. A value comes from, weakest first: the default here, the file, the
environment (`EPOCHLAKE__LOG__COMPACT_EVERY=64`). Whatever cannot be understood is an error, never ignored.
"""

from __future__ import annotations

import difflib
import enum
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from epochlake.metastore.errors import ConfigurationError
from epochlake.metastore.hours import parse_hours
from epochlake.metastore.storage.deadlines import DEADLINE_SECONDS
from epochlake.metastore.texts import is_unicode
from epochlake.metastore.waiting import MOST_SECONDS
from epochlake.placement.consistency import BarrierLevel, ConsistencyLevel, spelt_alike
from epochlake.placement.decoding import decodable
from msgspec import Meta

DEFAULT_FILE = Path("conf") / "epochlake.toml"
FILE_VARIABLE = "EPOCHLAKE_CONF"
PREFIX = "EPOCHLAKE__"
EMBEDDED = "embedded"
AUTO = "auto"


class ClusterSettings(msgspec.Struct, frozen=True):
    """Who the cluster is."""

    name: Annotated[
        str,
        Meta(
            description="Name that `init` gives a new cluster; a root that holds a cluster of another name is refused. "
            "Empty: `epochlake` for a new one, and any for one that is there."
        ),
    ] = ""


class ZooKeeperSettings(msgspec.Struct, frozen=True):
    """The ensemble that serialises commits, announces them and elects the coordinator."""

    connect: Annotated[
        str,
        Meta(
            min_length=1,
            description="`embedded` (a server from PySpark's jars, shared by the processes that use the same root), "
            "or the connect string of an ensemble, `host:port,host:port`: where to begin as long as the cluster has "
            "published no other addresses below its root; or `auto`: what is published there, or else "
            "what the agents of `[agents] ask` have seen of it.",
        ),
    ] = EMBEDDED
    path: Annotated[
        str, Meta(pattern="^/", description="The znode under which everything is kept; one for each cluster.")
    ] = "/epochlake"
    session_timeout_seconds: Annotated[
        float,
        # ZooKeeper is told milliseconds in 32 bits.
        Meta(gt=0, le=2_000_000, description="After so long without a sign of life ZooKeeper frees a process's locks."),
    ] = 10.0
    embedded_linger_seconds: Annotated[
        float,
        Meta(ge=0, le=MOST_SECONDS, description="How long the embedded server outlives the last process that used it."),
    ] = 5.0
    operator: Annotated[
        str,
        Meta(
            description="Who may change the servers of the ensemble (`metadata reconfigure --coordination`), as "
            "`super:password` of its digest scheme: best given by the environment, to that command alone, and with "
            '`members = "auto"` to the coordinator.'
        ),
    ] = ""
    members: Annotated[
        Literal["by-hand", "auto"],
        Meta(
            description="Who chooses the servers of the ensemble: `by-hand`: `metadata reconfigure --coordination`; "
            "`auto`: the coordinator as well, among those that agents run (`[agents] ask`)."
        ),
    ] = "by-hand"
    replace_after_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=MOST_SECONDS,
            description="With `auto`, how long a server has to be silent until another one takes its place.",
        ),
    ] = 3600.0


class LogSettings(msgspec.Struct, frozen=True):
    """The epoch log and committing to it."""

    compact_every: Annotated[
        int, Meta(ge=2, description="The log is compacted when this many files have come since the last time.")
    ] = 32
    snapshot_every: Annotated[
        int, Meta(ge=0, description="Epochs between two snapshots of the metadata: what catching up replays; 0: none.")
    ] = 500
    commit_timeout_seconds: Annotated[
        float,
        Meta(gt=0, le=MOST_SECONDS, description="How long a commit may wait, unless its caller says otherwise."),
    ] = 120.0
    poll_seconds: Annotated[
        float,
        Meta(gt=0, le=MOST_SECONDS, description="How often a follower looks at the log in case a watch was lost."),
    ] = 5.0
    table: Annotated[
        str,
        Meta(
            description="A Delta table that Spark reads and writes, as `main.lake.epochs`, in place of the one below "
            "the root: for catalogs that let nobody else write. A commit takes seconds then."
        ),
    ] = ""
    acknowledge: Annotated[
        Literal["root", "majority"],
        Meta(
            description="When a commit counts: `root`: when the log at the root has it; `majority`: when a majority of "
            "the log members has it as well, so that the loss of the root loses nothing. The same for every process."
        ),
    ] = "root"
    members: Annotated[
        Literal["by-hand", "auto"],
        Meta(
            description="Who chooses the log members: `by-hand`: `metadata reconfigure`; `auto`: the coordinator as "
            "well, when nodes have joined or left for good. Nodes that only do not answer change nothing."
        ),
    ] = "by-hand"


class RingSettings(msgspec.Struct, frozen=True):
    """Keyspaces that are placed on the ring."""

    tokens_per_node: Annotated[
        int, Meta(ge=1, le=1024, description="Tokens that are allocated to a node that joins without naming its own.")
    ] = 4


class PipelineSettings(msgspec.Struct, frozen=True):
    """Reading and writing through the gate."""

    consistency: Annotated[
        ConsistencyLevel, Meta(description="Level of a read or write that does not name its own.")
    ] = ConsistencyLevel.QUORUM
    attempts: Annotated[
        int, Meta(ge=1, description="How often a pipeline plans again before it fails with `ConsistencyNotReached`.")
    ] = 5
    target_file_bytes: Annotated[
        int, Meta(ge=1024 * 1024, description="Size in bytes that a tablet's data files are cut at.")
    ] = 128 * 1024 * 1024
    shared_file_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Neighbouring tablets on the same volumes share a file of up to so many bytes, and a split "
            "leaves such a file as it is. 0: each has its own.",
        ),
    ] = 1024 * 1024


class CoordinatorSettings(msgspec.Struct, frozen=True):
    """Moving operations and tablets forward."""

    barrier_timeout_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=MOST_SECONDS,
            description="After so long a progress barrier relaxes to the majorities, never below them.",
        ),
    ] = 3600.0
    barrier_level: Annotated[
        BarrierLevel,
        Meta(
            description="Replicas that a progress barrier waits for; `QUORUM` is what it never goes below. "
            "Pipelines at `LOCAL_QUORUM` need `EACH_QUORUM`."
        ),
    ] = BarrierLevel.EACH_QUORUM
    backoff_seconds: Annotated[
        float, Meta(ge=0, le=MOST_SECONDS, description="Pause before a step that could not be made is tried again.")
    ] = 1.0
    streams_per_volume: Annotated[
        int, Meta(ge=1, description="Streams from or to one volume at the same time, each of a tablet.")
    ] = 2
    shared_stream_bytes: Annotated[
        int,
        Meta(ge=0, description="Tablets of the same way share a stream of up to so many bytes. 0: each has its own."),
    ] = 64 * 1024**2
    bytes_per_second: Annotated[
        int, Meta(ge=0, description="Bytes that one coordinator streams in a second at most; 0: no limit.")
    ] = 0
    streaming: Annotated[
        Literal["threads", "spark", "agents"],
        Meta(
            description="Who copies files: threads of the coordinator, executors in a Spark job, or the agents of the "
            "nodes, each from the others; threads do what no agent does."
        ),
    ] = "threads"
    compaction: Annotated[
        Literal["on", "off"],
        Meta(
            description="Whether the coordinator, as a service, compacts tables where their readers pay for it; "
            "`epochlake table alter` for one table."
        ),
    ] = "on"
    compaction_bytes_per_second: Annotated[
        int, Meta(ge=0, description="Bytes that it reads in a second to put files together, on average; 0: no limit.")
    ] = 32 * 1024**2
    compaction_hours: Annotated[
        str,
        Meta(
            description="When it begins to compact, in local time: `22:00-06:00`. Empty, or the same time twice: "
            "always. What it has begun it ends."
        ),
    ] = ""

    def __post_init__(self) -> None:
        try:
            parse_hours(self.compaction_hours)
        except ValueError as error:
            raise ValueError(f"compaction_{error}") from None


class AgentsSettings(msgspec.Struct, frozen=True):
    """Agents that do tasks near their disks, where `streaming` says so; how this process asks them."""

    ask: Annotated[
        str, Meta(description="Some agents of the cluster, as `host:port,host:port`; the first that answers is asked.")
    ] = ""
    token_file: Annotated[str, Meta(description="The file with the token that all agents share; empty: none.")] = ""
    tls_certificate: Annotated[str, Meta(description="A certificate for this process, in PEM; empty: no TLS.")] = ""
    tls_key: Annotated[str, Meta(description="The key of the certificate.")] = ""
    tls_authority: Annotated[str, Meta(description="Who signs the certificates of all agents.")] = ""


class TabletSettings(msgspec.Struct, frozen=True):
    """Tables that are placed by tablets."""

    initial_count: Annotated[
        int, Meta(ge=1, description="Tablets of a new table that does not name its own number; a power of two.")
    ] = 16
    target_bytes: Annotated[
        int, Meta(ge=1, description="Size in bytes of one replica of a tablet that splitting and merging aim at.")
    ] = 5 * 1024**3
    per_volume: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Replicas of tablets that a volume should have at least: tables are split for it; 0: no.",
        ),
    ] = 0

    def __post_init__(self) -> None:
        if self.initial_count & (self.initial_count - 1):
            raise ValueError(f"initial_count is {self.initial_count}, expected a power of two (1, 2, 4, 8, …)")


class StorageSettings(msgspec.Struct, frozen=True):
    """Access to roots and volumes."""

    options: Annotated[
        dict[str, str],
        Meta(description="Storage options by delta-rs's names (`aws_region`, …), for every root and volume."),
    ] = msgspec.field(default_factory=dict)
    deadline_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=MOST_SECONDS,
            description="An access to a volume that makes no progress for so long is given up, and the volume counts "
            "as unreachable for a while.",
        ),
    ] = DEADLINE_SECONDS
    durability: Annotated[
        Literal["fsync", "replicas"],
        Meta(
            description="What an acknowledgement on a file system promises. `fsync`: what was acknowledged is on the "
            "disks of the replicas that did, and survives a power cut of all of them. `replicas`: the rows of a "
            "replica may be lost when its machine loses power, and survive on the others; the log, fences and "
            "markers are on the disk all the same."
        ),
    ] = "fsync"


class LoggingSettings(msgspec.Struct, frozen=True):
    """What is said on stderr."""

    level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"], Meta(description="Least level of Epochlake's own messages.")
    ] = "WARNING"
    file: Annotated[
        str,
        Meta(description="A file like `conf/logging.toml`, for `logging.config.dictConfig`, in place of `level`."),
    ] = ""


class Configuration(msgspec.Struct, frozen=True):
    """All settings of a process."""

    root: Annotated[
        str,
        Meta(
            min_length=1,
            description="Directory or URI of the log and snapshots; a relative one counts from the working directory.",
        ),
    ] = ".epochlake"
    cluster: ClusterSettings = ClusterSettings()
    zookeeper: ZooKeeperSettings = ZooKeeperSettings()
    log: LogSettings = LogSettings()
    pipeline: PipelineSettings = PipelineSettings()
    coordinator: CoordinatorSettings = CoordinatorSettings()
    agents: AgentsSettings = AgentsSettings()
    tablets: TabletSettings = TabletSettings()
    ring: RingSettings = RingSettings()
    storage: StorageSettings = StorageSettings()
    logging: LoggingSettings = LoggingSettings()


SECTIONS: dict[str, type[msgspec.Struct]] = {
    name: kind
    for name, kind in get_type_hints(Configuration).items()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
}
# Keys by section; the keys that stand before the first section are under "".
KEYS: dict[str, dict[str, Any]] = {
    "": {k: t for k, t in get_type_hints(Configuration, include_extras=True).items() if k not in SECTIONS},
    **{name: get_type_hints(kind, include_extras=True) for name, kind in SECTIONS.items()},
}


NOT_SHOWN = {("zookeeper", "operator")}
"""(section, key) of what holds a secret, beside the tables of texts."""


def given(conf: str | Path | Configuration | None) -> Configuration:
    """A configuration as it is given, or the one in a file; None: as `load` finds it. Raises ConfigurationError."""
    return conf if isinstance(conf, Configuration) else load(conf)


def load(
    path: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
    *,
    root: str | None = None,
) -> Configuration:
    """The configuration of this process.

    `path` or else `EPOCHLAKE_CONF` names the file; without either, `conf/epochlake.toml` is taken where there is one.
    Then every `EPOCHLAKE__KEY` and `EPOCHLAKE__SECTION__KEY` of `environ` counts. `directory` is the working directory
    that relative paths count from. `root` goes before all other roots. Raises `ConfigurationError` for a file that
    cannot be read, an unknown key, and a value of the wrong type.
    """
    environ = os.environ if environ is None else environ
    directory = Path.cwd() if directory is None else directory
    file = locate(path, environ, directory)
    values: dict[str, dict[str, Any]] = {section: {} for section in KEYS}
    origin = "the defaults"
    if file is not None:
        origin = str(file)
        for section, key, value in _in_file(file):
            values[section][key] = _converted(origin, section, key, value, strict=True)
    for variable in sorted(environ):
        if variable.startswith(PREFIX):
            _override(values, variable, environ[variable])
    if root is not None:
        if not root.strip():
            raise ConfigurationError(
                "--root is empty", hint="Name the directory or URI of the cluster, or leave it out"
            )
        values[""]["root"] = root
    _refuse_single_underscores(values, environ)
    sections: dict[str, Any] = {name: _built(origin, name, SECTIONS[name], values[name]) for name in SECTIONS}
    configuration = Configuration(**values[""], **sections)
    whole = resolved(configuration.root, directory)
    if not is_unicode(whole):
        raise ConfigurationError(
            f"no cluster can be at {whole!a}, which is no text in UTF-8",
            hint="Choose a directory whose name, and whose parents' names, are UTF-8",
        )
    return msgspec.structs.replace(configuration, root=whole)


def locate(path: str | Path | None, environ: Mapping[str, str], directory: Path) -> Path | None:
    """The file that `load` reads, None when there is none and the defaults count."""
    named = path or environ.get(FILE_VARIABLE)
    if named:
        return directory / at_home(str(named))
    default = directory / DEFAULT_FILE
    return default if default.is_file() else None


def resolved(root: str, directory: Path) -> str:
    """`root` as an absolute path, unless it is a URI, which stays as it is."""
    if "://" in root:
        return root
    return os.path.normpath(directory / at_home(root))


def at_home(path: str) -> str:
    """A path with `~` and `~user` filled in, as a shell does it. Raises `ConfigurationError` for an unknown user."""
    filled = os.path.expanduser(path)
    if filled.startswith("~"):
        raise ConfigurationError(
            f"{path} names a home directory that is not known here",
            hint=f"Write the whole path, or ./{path} for a directory of that name",
        )
    return filled


def reference() -> str:
    """All keys as Markdown, the text of `docs/configuration.md`."""
    lines = [
        "# Configuration",
        "",
        "Every key that can be configured, what it takes, its default and its meaning. `epochlake config show` shows",
        "the values that count. (Written by `python -m epochlake.metastore.configuration`.)",
        "",
        "A value is taken from, strongest first: the environment (`EPOCHLAKE__SECTION__KEY`), the file (the one",
        "that `--conf` or else `EPOCHLAKE_CONF` names, or else `conf/epochlake.toml`), the default.",
        "An unknown key is an error.",
    ]
    for section, keys in KEYS.items():
        title = f"[{section}]" if section else "Before the first section"
        purpose = SECTIONS[section].__doc__ if section else "Where the cluster lives."
        lines += [
            "",
            f"## {title}",
            "",
            str(purpose),
            "",
            "| key | expected | default | meaning |",
            "|---|---|---|---|",
        ]
        defaults = _default_values(section)
        for key, kind in keys.items():
            lines.append(f"| `{key}` | {expected(kind)} | `{_as_toml(defaults[key])}` | {_meta(kind).description} |")
    return "\n".join(lines) + "\n"


def expected(kind: Any) -> str:
    """A key's type in words."""
    base, meta = get_args(kind)[0], _meta(kind)
    if get_origin(base) is dict:
        return "a table of texts"
    if get_origin(base) is Literal:
        return _one_of(get_args(base))
    if issubclass(base, enum.Enum):
        return _one_of([choice.value for choice in base])
    words = {int: "a whole number", float: "a number", str: "a text"}[base]
    if meta.ge is not None:
        words += f", at least {meta.ge}"
    if meta.gt is not None:
        words += f", above {meta.gt}"
    if meta.le is not None:
        words += f", at most {meta.le:,.0f}"
    if meta.min_length:
        words += ", not empty"
    if meta.pattern:
        words += f' that starts with "{meta.pattern.removeprefix("^")}"'
    return words


def _in_file(file: Path) -> Iterator[tuple[str, str, Any]]:
    """(section, key, value) of everything in `file`; section is "" before the first one."""
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"the configuration {file} cannot be read: {error.strerror}",
            hint=f"Name another with --conf or {FILE_VARIABLE}",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} is not valid TOML: {error}.") from error
    for name, value in document.items():
        if name in SECTIONS:
            if not isinstance(value, dict):
                raise ConfigurationError(f"{file}: {name} is {_as_toml(value)}, expected a section [{name}].")
            for key, inner in value.items():
                if key not in KEYS[name]:
                    raise ConfigurationError(f"{file}: unknown key {key} in [{name}]{_suggestion(name, key)}.")
                yield name, key, inner
        elif name in KEYS[""]:
            yield "", name, value
        elif isinstance(value, dict):
            raise ConfigurationError(f"{file}: unknown section [{name}]{_suggested_section(name)}.")
        else:
            raise ConfigurationError(f"{file}: unknown key {name}{_suggestion('', name)}.")


def _override(values: dict[str, dict[str, Any]], variable: str, text: str) -> None:
    """Put one environment variable over what `values` has so far."""
    head, *rest = variable.removeprefix(PREFIX).split("__")
    name = head.lower()
    if name in KEYS[""] and not rest:
        values[""][name] = _converted(f"the environment ({variable})", "", name, text, strict=False)
        return
    if name not in SECTIONS or not rest:
        raise ConfigurationError(
            f"environment: {variable} names no section or key{_suggested_section(name)}; "
            f"expected {PREFIX}ROOT or {PREFIX}SECTION__KEY."
        )
    key, entry = rest[0].lower(), "__".join(rest[1:])
    if key not in KEYS[name]:
        raise ConfigurationError(f"environment: {variable}: unknown key {key} in [{name}]{_suggestion(name, key)}.")
    is_table = get_origin(get_args(KEYS[name][key])[0]) is dict
    if is_table != bool(entry):
        form = f"{PREFIX}{name}__{key}".upper() + ("__<name>" if is_table else "")
        raise ConfigurationError(f"environment: {variable} does not name a single value; expected {form}.")
    if is_table:
        # delta-rs takes its options in either case: the environment's spelling must replace the file's, not join it.
        others = {k: v for k, v in values[name].get(key, {}).items() if k.lower() != entry.lower()}
        values[name][key] = {**others, entry: text}
    else:
        values[name][key] = _converted(f"the environment ({variable})", name, key, text, strict=False)


def _refuse_single_underscores(values: Mapping[str, Mapping[str, Any]], environ: Mapping[str, str]) -> None:
    """A variable that would be ignored for one missing underscore is refused, unless its key has another value."""
    for section, keys in KEYS.items():
        for key in keys:
            right = PREFIX + (f"{section}__{key}" if section else key).upper()
            wrong = {right.replace("__", "_"), right.replace("__", "_", 1), f"{PREFIX}{section}_{key}".upper()}
            for variable in sorted(wrong - {right, FILE_VARIABLE}):
                if variable in environ and key not in values[section]:
                    raise ConfigurationError(
                        f"environment: {variable} is not read, for want of an underscore: did you mean {right}?"
                    )


def _converted(origin: str, section: str, key: str, value: Any, *, strict: bool) -> Any:
    kind = KEYS[section][key]
    if isinstance(value, str) and not is_unicode(value):
        raise ConfigurationError(f"{origin}: {_label(section, key)} is {value!a}, which is no text in UTF-8.")
    try:
        return msgspec.convert(_spelt(value, kind), decodable(kind), strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigurationError(
            f"{origin}: {_label(section, key)} is {_as_toml(value)}, expected {expected(kind)}."
        ) from error


def _spelt(value: Any, kind: Any) -> Any:
    """A choice as it is declared, from any case: `local_quorum`, `Local-Quorum` and `LOCAL_QUORUM` are the same."""
    base = get_args(kind)[0]
    if not isinstance(value, str):
        return value
    choices: Iterable[str] = ()
    if get_origin(base) is Literal:
        choices = get_args(base)
    elif isinstance(base, type) and issubclass(base, enum.Enum):
        choices = [choice.value for choice in base]
    return next((choice for choice in choices if spelt_alike(choice) == spelt_alike(value)), value)


def _built(origin: str, name: str, kind: type[msgspec.Struct], values: dict[str, Any]) -> msgspec.Struct:
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigurationError(f"{origin} or the environment: [{name}] {error}.") from error


def _suggestion(section: str, key: str) -> str:
    """`; did you mean …?` for the nearest valid key: of the same section first, of another one next."""
    if near := difflib.get_close_matches(key, KEYS[section], n=1):
        return f"; did you mean {near[0]}"
    for other, keys in KEYS.items():
        if near := difflib.get_close_matches(key, keys, n=1, cutoff=0.8):
            return f"; did you mean {_label(other, near[0])}"
    return f"; it has {', '.join(KEYS[section])}"


def _suggested_section(name: str) -> str:
    if near := difflib.get_close_matches(name, [*SECTIONS, *KEYS[""]], n=1):
        return f"; did you mean {near[0] if near[0] in KEYS[''] else f'[{near[0]}]'}"
    return f"; there are {', '.join(SECTIONS)}"


def _label(section: str, key: str) -> str:
    return f"[{section}] {key}" if section else key


def _meta(kind: Any) -> Meta:
    return next(part for part in get_args(kind)[1:] if isinstance(part, Meta))


def _default_values(section: str) -> dict[str, Any]:
    return msgspec.structs.asdict(SECTIONS[section]() if section else Configuration())


def _one_of(choices: Iterable[str]) -> str:
    return "one of " + ", ".join(f'"{choice}"' for choice in choices)


def _as_toml(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        # Storage options hold keys of object stores: names may be shown, values never.
        return "{" + ", ".join(f"{name} = …" for name in value) + "}"
    return str(value)


if __name__ == "__main__":
    print(reference(), end="")
