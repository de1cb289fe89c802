"""`python -m benchmarks [name …] [--write]`: run all benchmarks, or those of a module, or single ones."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Callable

import benchmarks
from benchmarks import report
from benchmarks.harness import Result, machine


def known() -> dict[str, Callable[[], list[Result]]]:
    """Every benchmark as `module.name`."""
    found: dict[str, Callable[[], list[Result]]] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(benchmarks.__path__)):
        if module != "__main__":
            part = importlib.import_module(f"benchmarks.{module}")
            found |= {f"{module}.{name}": run for name, run in getattr(part, "BENCHMARKS", {}).items()}
    return found


def main(argv: list[str]) -> int:
    """Exit code 1 when a target is missed, 2 for a name that there is not."""
    everything = known()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help="a module or module.name; all when left out")
    parser.add_argument("--write", action="store_true", help="also write the results into benchmarks/README.md")
    parser.add_argument("--list", action="store_true", help="only show what there is")
    arguments = parser.parse_args(argv)
    for name in arguments.names:
        if not any(_matches(benchmark, name) for benchmark in everything):
            parser.error(f"there is no benchmark {name!r}; there are {', '.join(everything)}")
    chosen = [
        benchmark
        for benchmark in everything
        if not arguments.names or any(_matches(benchmark, name) for name in arguments.names)
    ]
    if arguments.list:
        print("\n".join(chosen))
        return 0
    results = {}
    for benchmark in chosen:
        print(f"{benchmark} …", file=sys.stderr, flush=True)
        results[benchmark] = everything[benchmark]()
    print(machine())
    report.show(results)
    if arguments.write:
        report.write(results, machine(), list(everything))
    missed = [result for found in results.values() for result in found if result.holds is False]
    return 1 if missed else 0


def _matches(benchmark: str, name: str) -> bool:
    return benchmark == name or benchmark.startswith(f"{name}.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
