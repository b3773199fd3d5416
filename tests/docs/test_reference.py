"""Every public name, key, option, event and error is described in the reference."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from dataclasses import fields
from pathlib import Path

from markdown_it import MarkdownIt

import nb_agents
from docs import reference_pages as reference
from nb_agents import errors
from nb_agents.events import KINDS
from tests.kit.cells import VERBS, AgentsMagics
from tests.kit.recipes import Recipe
from tests.kit.servers import document
from tests.kit.teams import Spec, TeamSpec, specs_in

SHOWN_AS_THEY_ARE = {"nb_agents.events"}
"""Public modules whose names have a page of their own."""


def public_modules() -> set[str]:
    infos = pkgutil.iter_modules(nb_agents.__path__, prefix="nb_agents.")
    found = {"nb_agents", *(info.name for info in infos)}
    return {name for name in found if hasattr(importlib.import_module(name), "__all__")}


def specs(spec: type[Spec], seen: set[type[Spec]]) -> set[type[Spec]]:
    if spec in seen:
        return seen
    seen.add(spec)
    for inner, _ in specs_in(spec).values():
        specs(inner, seen)
    return seen


def test_every_public_name_is_documented_on_the_python_api_page() -> None:
    page = reference.python_page() + reference.errors_page()
    missing, silent = [], []
    for module_name in reference.PUBLIC:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            missing += [f"{module_name}.{name}"] if f"## {name}\n" not in page else []
            said = reference.data_says(module_name, name) or inspect.getdoc(getattr(module, name))
            silent += [name] if not said else []
    assert (missing, silent) == ([], [])


def test_every_module_with_public_names_has_a_page() -> None:
    doors = {"nb_agents.cli", "nb_agents.jupyter", "nb_agents.server"}
    assert public_modules() - doors - SHOWN_AS_THEY_ARE <= set(reference.PUBLIC)


def test_every_key_of_team_files_and_recipes_has_a_description() -> None:
    silent = [
        f"{spec.__name__}.{key}"
        for top in (TeamSpec, Recipe)
        for spec in specs(top, set())
        for key, _, _, said in reference.spec_keys(spec)
        if not said
    ]
    assert silent == []


def test_every_section_of_team_files_and_recipes_is_documented() -> None:
    for top, page in ((TeamSpec, reference.team_page()), (Recipe, reference.recipe_page())):
        for spec in specs(top, set()):
            for key, *_ in reference.spec_keys(spec):
                assert f"| `{key}` |" in page, f"{spec.__name__}.{key}"


def test_every_option_of_cells_and_verbs_is_on_the_magics_page() -> None:
    page = reference.magics_page()
    for name, function in {"%agents": AgentsMagics.agents, **VERBS}.items():
        for option, _, said in reference.options_of(function):
            assert said, f"{name} {option}"
            shown = option.replace("|", "\\|")
            assert f"| `{shown}` |" in page, f"{name} {option}"


def test_every_command_and_option_of_the_command_line_is_on_its_page() -> None:
    page = reference.cli_page()
    for name, command in reference.commands().items():
        assert f"## nb-agents {name}\n\n{command.help.split()[0]}" in page
        for each in command.params:
            if each.param_type_name == "option":
                assert f"`{', '.join(each.opts)}`" in page, f"{name} {each.name}"


def test_every_route_is_on_the_rest_page_with_a_summary() -> None:
    page = reference.rest_page()
    for path, item in document("")["paths"].items():
        for method in item:
            assert re.search(rf"## {method.upper()} {re.escape(path)}\n\n\w", page), path


def test_every_event_and_event_field_has_a_description() -> None:
    page = reference.events_page()
    for kind, cls in KINDS.items():
        assert re.search(rf"^## {kind}\n\n\w", page, re.MULTILINE), kind
        for field in {each.name for each in fields(cls)} - {"seq", "at", "kind"}:
            assert reference.field_says(cls, field), f"{kind}.{field}"


def test_every_error_documents_its_cause() -> None:
    said = {name: cause for name, cause, _ in reference.sentences_of()}
    kinds = [getattr(errors, name) for name in errors.__all__]
    assert said.keys() == {kind.__name__ for kind in kinds if isinstance(kind, type)}
    assert all(said.values())


def test_only_pages_of_changed_code_are_written_again(tmp_path: Path) -> None:
    reference.write(tmp_path)
    page = tmp_path / "errors.md"
    before = page.stat().st_mtime_ns
    (tmp_path / "events.md").write_text("old")
    reference.write(tmp_path)
    assert page.stat().st_mtime_ns == before
    assert (tmp_path / "events.md").read_text() != "old"


def shown(page: str) -> str:
    """The text that a reader of a page sees, without its line breaks."""
    tokens = MarkdownIt().enable("table").parse(page)
    leaves = [leaf for token in tokens for leaf in (token.children or [token])]
    return " ".join(" ".join(leaf.content for leaf in leaves).split())


def test_help_is_shown_literally() -> None:
    magics = {"": AgentsMagics.agents, **VERBS}
    told = [reference.prose_of(magic) for magic in magics.values()]
    told += [help_ for magic in magics.values() for *_, help_ in reference.options_of(magic)]
    commands = reference.commands().values()
    typed = [command.help for command in commands]
    typed += [getattr(p, "help", "") or "" for command in commands for p in command.params]
    for page, texts in ((reference.magics_page(), told), (reference.cli_page(), typed)):
        seen = shown(page).replace(" ", "")
        assert [text for text in texts if "".join(text.split()) not in seen] == []
