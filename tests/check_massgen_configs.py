"""Load all team files of a directory, and count the results and their keys.

Meant for the 276 files of MassGen's wheel, which are not ours to keep in this repository:

    pip download --no-deps massgen==0.1.97 && unzip -q massgen-0.1.97-*.whl -d massgen
    python tests/check_massgen_configs.py massgen/massgen/configs

Exits with 1 if a file did not load.
"""

import sys
from collections import Counter
from pathlib import Path

from nb_agents import TeamSpec
from nb_agents.errors import ConfigError
from tests.config.massgen_page import SPECS
from tests.kit.teams import SECTIONS, SectionKeys, status_of_key


def main(folder: Path) -> int:
    """Load all YAML and JSON files below `folder`, print figures and return the exit status."""
    counts: Counter[str] = Counter()
    ignored: Counter[str] = Counter()
    types: Counter[str] = Counter()
    files = sorted(p for p in folder.rglob("*") if p.suffix in (".yaml", ".yml", ".json"))
    for file in files:
        try:
            team = TeamSpec.from_file(file)
        except ConfigError as exc:
            counts["not loaded"] += 1
            print(exc)
            continue
        counts[_kind(team)] += 1
        ignored.update(team.ignored)
        types.update(each.backend.type for each in team.unsupported)
    print(f"{len(files)} files: " + ", ".join(f"{n} {kind}" for kind, n in counts.most_common()))
    _print_most("agents that can't run", types)
    _print_most("ignored keys", ignored)
    _print_sorts()
    return 1 if counts["not loaded"] or not files else 0


def _print_sorts() -> None:
    """Print how many keys the table has of each sort, and name those that restrict."""
    sorts: dict[str, list[str]] = {}
    for section in dict.fromkeys([*SPECS, *SECTIONS]):
        path = tuple(map(str, section))
        if path[:1] == ("callable_agents",):
            continue
        table, fields = SECTIONS.get(path, SectionKeys()), frozenset[str]()
        if section in SPECS:
            fields = frozenset(SPECS[section].model_fields)
        listed = (*table.harmless, *table.enforced, *table.withheld, *table.refused)
        for key in sorted({*fields, *listed}):
            sorts.setdefault(status_of_key(path, key, fields), []).append(".".join((*path, key)))
    print("keys: " + ", ".join(f"{len(keys)} {sort}" for sort, keys in sorts.items()))
    for sort in ("enforced", "withheld", "refused"):
        print(f"{sort}: " + ", ".join(sorts[sort]))


def _print_most(what: str, counts: Counter[str]) -> None:
    often = ", ".join(f"{name} {number}" for name, number in counts.most_common(10))
    print(f"{what}, {len(counts)} kinds: {often}")


def _kind(team: TeamSpec) -> str:
    if not team.agents:
        return "without agents"
    count = len(team.unsupported)
    if not count:
        return "run completely"
    return "run partly" if count < len(team.agents) else "can't run"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
