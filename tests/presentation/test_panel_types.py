"""The types of the panel's state, in Python and in TypeScript."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "js/panel_types.py"


def test_the_page_reads_what_python_writes() -> None:
    spec = importlib.util.spec_from_file_location("panel_types_script", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    made = script.type_script(script.SOURCE.read_text("utf-8"))
    assert script.TARGET.read_text("utf-8") == made, "run `make js-types`"
