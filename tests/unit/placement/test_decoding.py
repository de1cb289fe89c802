"""Threads that are the first to decode a struct, all at once: the process survives, and everybody gets the value."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

FIRST_DECODED_AT_ONCE = """
import sys, threading, types
sys.setswitchinterval(1e-6)
import msgspec
from epochlake.placement.decoding import decodable

def struct(number):
    kinds = [f"A{number - 1}" if number and field == 3 else "int" for field in range(8)]
    fields = "".join(f"    f{field}: {kind} | None = None\\n" for field, kind in enumerate(kinds))
    return f"class A{number}(msgspec.Struct, frozen=True):\\n{fields}"

SOURCE = "from __future__ import annotations\\nimport msgspec\\n" + "".join(map(struct, range(12)))
for number in range(60):
    module = sys.modules[f"m{number}"] = types.ModuleType(f"m{number}")
    exec(SOURCE, module.__dict__)
    found, together = [], threading.Barrier(16)
    def decode():
        together.wait()
        kind = decodable(module.A11) if sys.argv[1] == "decodable" else module.A11
        found.append(msgspec.json.decode(b'{"f0": 1, "f3": {"f7": 2, "f3": {"f6": 1}}}', type=kind))
    threads = [threading.Thread(target=decode) for _ in range(16)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert [one.f3.f3.f6 for one in found] == [1] * 16, found
"""


def test_many_threads_may_be_the_first_to_decode_a_struct() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FIRST_DECODED_AT_ONCE, "decodable"], capture_output=True, text=True, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("package", ["metastore", "jobs", "placement"])
def test_whoever_decodes_to_a_struct_passes_its_type_through_decodable(package: str) -> None:
    plain = {"dict", "tuple", "list", "str", "int", "Any", "bytes", "msgspec", "Raw"}
    astray = []
    for path in sorted((ROOT / package).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source if "msgspec." in source else "")
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = ast.unparse(call.func)
            if not name.startswith("msgspec.") or name.rpartition(".")[2] not in ("decode", "convert", "Decoder"):
                continue
            typed = [word.value for word in call.keywords if word.arg == "type"]
            typed += call.args[1:2] if name == "msgspec.convert" else call.args[:1] if name.endswith("Decoder") else []
            for kind in typed:
                names = {node.id for node in ast.walk(kind) if isinstance(node, ast.Name)}
                if not names <= plain and "decodable" not in names and path.name != "decoding.py":
                    astray.append(f"{path.relative_to(ROOT)}:{call.lineno}: {ast.unparse(kind)}")
    assert astray == []
