"""The rules of the house that a reader of one module cannot see: who may import whom, and what must stay pure."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import epochlake
import pytest

ROOT = Path(__file__).parents[2]
PUBLIC = "epochlake"
"""The folder of the public names, above the others."""
PACKAGES = ("placement", "metastore", "jobs")
ALL_CODE = (PUBLIC, *PACKAGES)
MAY_IMPORT = {
    "placement": {"placement"},
    "metastore": {"metastore", "placement"},
    "jobs": set(PACKAGES),
    PUBLIC: set(PACKAGES),
}
FOUND_BY_SPARK = "pyspark_epochlake"
"""A package beside ours, of nothing but the name by which Spark finds the data source (decision 063)."""
SHOWS_THE_API = ("jobs/demo", "jobs/airflow_provider/examples")
"""What in `jobs` takes public names from `epochlake`, as the notebooks do."""
HOMES = {name: f"epochlake.{home}" for name, home in epochlake._HOMES.items()}
PUBLIC_MODULES = {path.stem for path in (ROOT / PUBLIC).glob("[a-z]*.py")}
"""Modules of public names, beside the package itself."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BELOW_THE_API = {
    "epochlake.jobs.views.what_if": {"parse_keyspace", "with_keyspaces", "with_operations"},
    "epochlake.jobs.views.tablet_sizes": {"tablet_sizes"},
    "epochlake.jobs.upkeep.verification": {"verify_replicas"},
    "epochlake.metastore.following.quorums": {"quorums_of", "verify_quorums"},
    "epochlake.metastore.following.verification": {"verify"},
    "epochlake.metastore.log.in_memory": {"InMemoryLog"},
    "epochlake.placement.dataframes.balancing": {"balance"},
    "epochlake.placement.dataframes.ring": {"read_placements"},
    "epochlake.placement.what_if.nodetool": {"from_ring"},
    "epochlake.placement.what_if.simulate": {"simulate"},
    "epochlake.placement.ring.strategies": {"replication_of"},
}
"""What the notebooks look at and programs do not need: plans, what-if, proofs. Nothing may be added but for that."""
STARTS_SESSIONS = ROOT / "jobs" / "spark_session.py"
LOOKS_INTO_PLANS = ROOT / "jobs" / "few_rows.py"
"""Bounds the rows of a DataFrame by its plan, which no DataFrame tells by itself."""
SPARES_CALLS = ROOT / "jobs" / "jvm_calls.py"
"""Gives the JVM by a few calls what PySpark gives it by many."""
LONGEST = 700
FLOORS = (
    {"workers", "spark_session", "few_rows", "jvm_calls", "printing"},
    {"replicas"},
    {"gate", "coordinator"},
    {"upkeep", "exchange"},
    {"administration"},
    {"views"},
    {"cluster"},
    {"agent", "datasource", "pictures", "testing"},
    {"demo"},
    {"cli"},
)
"""The floors of `jobs`, from the ground up: each may use those below it, and nothing beside it. Jobs are on top."""


def modules(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=named(path))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


def dotted_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == PUBLIC else parts
    return ".".join(("epochlake", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names of imported modules; `from a import b` gives `a` and `a.b`, since b may be a module."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def all_imports(path: Path) -> set[str]:
    return set(imported(nodes_of(path)))


def run_at_all(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """All statements, those inside functions too; not what is only for type checkers."""
    for statement in body:
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            continue
        yield statement
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from run_at_all(getattr(statement, part, []))


def forbidden_imports(path: Path, forbidden: set[str]) -> set[str]:
    return {name for name in all_imports(path) if name.split(".")[0] in forbidden}


def folder_of(imported_name: str) -> str:
    """The folder that an imported name of Epochlake is in; a name right below `epochlake` is a public one."""
    _, _, below = imported_name.partition(".")
    return below.split(".")[0] if below.split(".")[0] in PACKAGES else PUBLIC


@pytest.mark.parametrize("package", ALL_CODE)
def test_imports_go_one_way_from_public_names_over_jobs_and_metastore_to_placement(package: str) -> None:
    wrong = [
        f"{named(path)} imports {name}"
        for path in modules(package)
        for name in sorted(all_imports(path))
        if name.split(".")[0] == "epochlake" and folder_of(name) not in MAY_IMPORT[package]
        if not (named(path).startswith(SHOWS_THE_API) and folder_of(name) == PUBLIC)
    ]
    assert not wrong


def test_what_shows_the_api_takes_public_names_from_it() -> None:
    wrong = [
        f"{named(path)}:{node.lineno} imports {alias.name} from {node.module}"
        for path in modules(*SHOWS_THE_API, "notebooks")
        for node in nodes_of(path)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if node.module in (HOMES.get(alias.name), "epochlake.jobs.administration")
    ]
    assert not wrong


def test_notebooks_import_nothing_below_the_api_but_what_only_they_look_at() -> None:
    below: dict[str, set[str]] = {}
    for path in modules("notebooks"):
        for node in nodes_of(path):
            if isinstance(node, ast.Import):
                assert not [alias.name for alias in node.names if alias.name.startswith("epochlake.")], named(path)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("epochlake."):
                below.setdefault(node.module or "", set()).update(alias.name for alias in node.names)
    assert below == BELOW_THE_API


def test_pages_use_public_names_only() -> None:
    wrong = [
        f"{named(page)}:{number} {line.strip()}"
        for page in PAGES
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1)
        for used in names_used(line)
        if used not in epochlake.__all__ and used.removeprefix("epochlake.") not in PUBLIC_MODULES
    ]
    assert not wrong
    assert names_used("    from epochlake.jobs import cluster") == ["epochlake.jobs"]
    assert names_used("    from epochlake import a, b") == ["a", "b"]
    assert names_used("    with epochlake.open(1) as a, epochlake.session(2) as b:") == ["open", "session"]


def names_used(line: str) -> list[str]:
    """The names of `epochlake` that a line of Python on a page imports or calls; a module is named as it stands."""
    if (found := re.match(r"    (?:from|import) +(epochlake\.[\w.]+)", line)) is not None:
        return [found[1]]
    if (found := re.match(r"    from epochlake import (.+)", line)) is not None:
        return [name.strip() for name in found[1].split(",")]
    return re.findall(r"\bepochlake\.(\w+)[(.]", line) if line.startswith("    ") else []


def test_the_three_folders_are_imported_by_the_package_name_only() -> None:
    wrong = [
        f"{named(path)} imports {name}"
        for path in modules(*PACKAGES, "tests", "benchmarks", "notebooks")
        for name in sorted(all_imports(path))
        if name.split(".")[0] in PACKAGES
    ]
    assert not wrong


def floor_of(name: str) -> int | None:
    """Where a module of `jobs` is; a job is above all floors. None for what is in another folder."""
    package, _, below = name.removeprefix("epochlake.").partition(".")
    if package != "jobs" or not below:
        return None
    return next((floor for floor, rooms in enumerate(FLOORS) if below.split(".")[0] in rooms), len(FLOORS))


def test_each_floor_of_jobs_uses_only_what_is_below_it() -> None:
    wrong = [
        f"{name} imports {other}"
        for name, others in edges_between_modules(modules("jobs")).items()
        if (floor := floor_of(name)) is not None
        for other in sorted(others)
        if (used := floor_of(other)) is not None
        if used > floor or (used == floor < len(FLOORS) and name.split(".")[2] != other.split(".")[2])
    ]
    assert not wrong
    assert {room for rooms in FLOORS for room in rooms} <= {path.stem for path in (ROOT / "jobs").iterdir()}


def test_opening_a_metastore_needs_no_job_and_no_spark() -> None:
    code = "import sys; import epochlake.metastore.metastore; print({'epochlake.jobs', 'pyspark'} & {*sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def edges_between_modules(paths: list[Path]) -> dict[str, set[str]]:
    """What each module imports of ours when it is run, also inside functions; not what is only for type checkers."""
    names = {dotted_name(path) for path in modules(*ALL_CODE)}
    public = {f"epochlake.{name}": home for name, home in HOMES.items()}
    return {
        dotted_name(path): {
            other
            for found in imported(run_at_all(tree_of(path).body))
            if (other := public.get(found, found)) in names and other != dotted_name(path)
        }
        for path in paths
    }


def test_no_module_imports_itself_over_others() -> None:
    edges = edges_between_modules(modules(*ALL_CODE))
    # Take away what imports nothing that is left; what remains is on a cycle or leads to one.
    while free := {name for name, others in edges.items() if not others & edges.keys()}:
        edges = {name: others for name, others in edges.items() if name not in free}
    assert not {name: sorted(others & edges.keys()) for name, others in edges.items()}


def test_only_who_starts_sessions_looks_into_plans_or_spares_calls_reaches_below_dataframes() -> None:
    below = {"_jvm", "_jreader", "_jsparkSession", "sparkContext", "rdd", "SparkContext"}
    wrong = [
        f"{named(path)}:{node.lineno} {name}"
        for path in modules(*ALL_CODE, "benchmarks", "notebooks")
        if path not in (STARTS_SESSIONS, LOOKS_INTO_PLANS, SPARES_CALLS)
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute | ast.Name)
        if (name := node.attr if isinstance(node, ast.Attribute) else node.id) in below
    ]
    assert not wrong


def test_no_module_is_longer_than_a_missed_seam() -> None:
    lengths = {
        named(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in modules(*ALL_CODE, "tests", "benchmarks", "notebooks")
    }
    assert not {name: length for name, length in lengths.items() if length > LONGEST}


def test_placement_does_no_input_or_output() -> None:
    forbidden = {"deltalake", "kazoo", "os", "pathlib", "socket", "subprocess", "tempfile", "time", "uuid"}
    assert not {named(path): wrong for path in modules("placement") if (wrong := forbidden_imports(path, forbidden))}


def test_the_metadata_touches_no_file_no_clock_no_chance_and_no_spark() -> None:
    forbidden = {"datetime", "deltalake", "kazoo", "os", "pathlib", "pyspark", "random", "secrets", "time", "uuid"}
    wrong = {
        named(path): found for path in modules("metastore/metadata") if (found := forbidden_imports(path, forbidden))
    }
    assert not wrong


KEEPS_STORAGE = ("metastore/storage", "metastore/delta_commits.py", "jobs/replicas")
STATE_OF_THE_PROCESS = {
    (
        "metastore/storage/deadlines.py",
        "_process",
    ): "threads that hang are counted for all storages, and forgotten in a fork",
    ("metastore/storage/deadlines.py", "_current"): "which access a thread is in",
    ("metastore/storage/local_disk.py", "_lost"): "what the kernel may call clean though its sync failed, whoever asks",
    ("jobs/replicas/files.py", "_window_in"): "the window that a path names, which is the same in every storage",
    ("metastore/storage/storage.py", "storage_of_process"): "in an executor what is kept lives on between tasks",
}
"""What no storage holds. Everything else belongs to the storage of one cluster."""

UNCHANGEABLE = {"compile", "frozenset", "getLogger", "schema", "TypeVar", "struct", "list_", "Encoder"}
"""What is called for a constant."""


def state_of_modules(path: Path) -> Iterator[str]:
    """The names of a module that hold what may change: containers and objects, caches, what is rebound by `global`."""
    for node in tree_of(path).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            annotated = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else ""
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if not (annotated.startswith(("Mapping", "Callable")) or is_constant(node.value, targets)):
                yield from (ast.unparse(target) for target in targets)
        elif isinstance(node, ast.FunctionDef):
            decorators = {ast.unparse(one).partition("(")[0].rpartition(".")[2] for one in node.decorator_list}
            if decorators & {"cache", "lru_cache"}:
                yield node.name
        elif isinstance(node, ast.Global):
            yield from node.names
    for node in nodes_of(path):
        if isinstance(node, ast.Global):
            yield from node.names


def is_constant(value: ast.expr, targets: Sequence[ast.expr]) -> bool:
    """Whether a value cannot change, or has the name of what nobody changes: all capitals."""
    if all(isinstance(target, ast.Name) and target.id.strip("_").isupper() for target in targets):
        return True
    if isinstance(value, ast.Call):
        return ast.unparse(value.func).rpartition(".")[2] in UNCHANGEABLE
    return not isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def test_storage_has_no_state_of_the_process_but_what_belongs_to_it() -> None:
    paths = [path for path in modules("metastore", "jobs") if named(path).startswith(KEEPS_STORAGE)]
    found = {(named(path), name) for path in paths for name in state_of_modules(path)}
    assert found == STATE_OF_THE_PROCESS.keys()


ASKS_THE_SYSTEM = {
    "metastore/storage/local_disk.py": "the disk of this machine",
    "metastore/coordination/embedded": "the room of the embedded ZooKeeper is of one machine and of no storage",
    "metastore/configuration.py": "it says what the storage is",
    "metastore/diagnostics.py": "the file that messages go to",
    "metastore/preflight.py": "Java",
    "metastore/metastore.py": "the room of the embedded ZooKeeper",
    "jobs/views/status.py": "the room of the embedded ZooKeeper",
    "jobs/cluster.py": "the path of a configuration",
    "jobs/spark_session.py": "jars and settings of Spark",
    "jobs/agent": "the home of an agent, and the volumes that it watches",
    "jobs/cli": "what a user names at the command line",
    "jobs/exchange": "a user's own files",
    "jobs/pictures": "pages that a user wants written",
    "jobs/demo": "files of the tour",
    "jobs/testing/folder_disk.py": "a disk of a world, in a folder",
    "jobs/testing/delta_rs.py": "what delta-rs does to that folder",
    "jobs/testing/local/cluster.py": "where a test's cluster is",
    "jobs/testing/local/faults.py": "directories that go away, are lost, or hang for other processes too",
    "jobs/campaign.py": "scenarios that are kept",
}
"""What may touch files by itself, and why."""
FILE_CALLS = {
    *("access", "chmod", "fsync", "ftruncate", "link", "listdir", "lstat", "makedirs", "mkdir", "open", "readlink"),
    *("remove", "removedirs", "rename", "renames", "replace", "rmdir", "scandir", "stat", "statvfs", "symlink", "sync"),
    *("truncate", "unlink", "utime", "walk", "write"),
}
PATH_CALLS = {
    "exists",
    "getmtime",
    "getsize",
    "isdir",
    "isfile",
    "islink",
    "ismount",
    "lexists",
    "realpath",
    "samefile",
}


def file_access(path: Path) -> Iterator[str]:
    """What a module does to files, past its storage."""
    forbidden = {"fcntl", "fileinput", "glob", "pathlib", "shutil", "tempfile"}
    yield from (f"imports {name}" for name in sorted(forbidden_imports(path, forbidden)) if "." not in name)
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute):
            holder = ast.unparse(node.value)
            if (holder == "os" and node.attr in FILE_CALLS) or (holder == "os.path" and node.attr in PATH_CALLS):
                yield f"line {node.lineno}: {holder}.{node.attr}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            yield f"line {node.lineno}: open"


def test_only_the_disk_asks_the_system_for_files() -> None:
    wrong = [
        f"{named(path)} {what}"
        for path in modules("metastore", "jobs")
        if not named(path).startswith(tuple(ASKS_THE_SYSTEM))
        for what in file_access(path)
    ]
    assert not wrong
    assert all(any(file_access(path)) for path in modules("metastore/storage") if path.stem == "local_disk")
    unused = [
        place
        for place in ASKS_THE_SYSTEM
        if not any(any(file_access(path)) for path in modules("metastore", "jobs") if named(path).startswith(place))
    ]
    assert not unused


def test_names_say_what_a_thing_is() -> None:
    vague_modules = [
        named(path) for path in modules(*PACKAGES) if path.stem in {"utils", "util", "helpers", "common", "misc"}
    ]
    vague_classes = [
        f"{named(path)}: {node.name}"
        for path in modules(*PACKAGES)
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef) and node.name.endswith(("Manager", "Helper", "Handler", "Utils"))
    ]
    assert not vague_modules + vague_classes


def test_every_module_says_what_it_is_for() -> None:
    assert not [named(path) for path in modules(*ALL_CODE) if not ast.get_docstring(tree_of(path))]


def test_every_folder_with_modules_is_in_the_package() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    listed = set(setup["options"]["packages"].split())
    assert listed == {dotted_name(path.parent / "__init__.py") for path in modules(*ALL_CODE)} | {FOUND_BY_SPARK}


def test_unit_tests_start_neither_a_jvm_nor_zookeeper() -> None:
    wrong = [
        f"{named(path)}: {node.name}"
        for path in modules("tests/unit")
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef) and "spark" in {argument.arg for argument in node.args.args}
    ]
    assert not wrong
