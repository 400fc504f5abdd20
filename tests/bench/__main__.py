"""`python -m tests.bench [NAME...]`: runs benchmarks and prints one table."""

from __future__ import annotations

import argparse
import cProfile
import importlib
import json
import pstats
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.bench import MODULES, Benchmark
from tests.bench.run import CACHE, Run, machine
from tests.bench.table import Row, markdown, plain

ROOT = Path(__file__).resolve().parents[2]
MEMORY_DISKS = ("tmpfs", "ramfs")


def benchmarks() -> dict[str, Benchmark]:
    """Every benchmark by name, in the order of the modules and of their tables."""
    found: dict[str, Benchmark] = {}
    for module in MODULES:
        found |= importlib.import_module(f"tests.bench.{module}").BENCHMARKS
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="benchmarks, or beginnings of several names; all by default"
    )
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--quick", action="store_true", help="so little that the figures mean nothing: does it run?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures there")
    parser.add_argument("--markdown", action="store_true", help="print the table as in docs/benchmarks.md")
    parser.add_argument(
        "--profile", action="store_true", help="print where our side's Python time goes, in the calling thread"
    )
    parser.add_argument(
        "--dir", type=Path, default=ROOT / "out" / "bench", help="where to write, on the disk that counts"
    )
    parser.add_argument(
        "--cache", type=Path, default=CACHE, help="where Kafka stays, which is fetched (default: %(default)s)"
    )
    options = parser.parse_args(arguments)

    known = benchmarks()
    whole = [given for given in options.names if given in known]
    beginnings = tuple(given for given in options.names if given not in known)
    chosen = {n: b for n, b in known.items() if not options.names or n in whole or n.startswith(beginnings)}
    missing = [given for given in options.names if not any(name.startswith(given) for name in known)]
    if missing:
        parser.error(f"no benchmark {missing[0]!r}; there are {', '.join(known)}")
    if options.list:
        print("\n".join(known))
        return 0

    options.dir.mkdir(parents=True, exist_ok=True)
    facts = machine(options.dir)
    if not options.quick and facts["system"].endswith(MEMORY_DISKS):
        parser.error(f"{options.dir} is in memory, where a sync costs nothing; choose a directory on a disk with --dir")
    print("; ".join(f"{key} {value}" for key, value in facts.items()), file=sys.stderr)
    rows: list[Row] = []
    for name, benchmark in chosen.items():
        profiler = cProfile.Profile() if options.profile else None
        started = time.perf_counter()
        rows += benchmark(Run(options.dir, quick=options.quick, profiler=profiler, cache=options.cache))
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
        if profiler is not None:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(30)
    print(markdown(rows) if options.markdown else plain(rows))
    if options.json:
        body = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": facts,
            "rows": [r.as_json() for r in rows],
        }
        options.json.write_text(json.dumps(body, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
