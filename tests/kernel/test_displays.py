"""The output of a cell that ends with a run, its receipt or its view; completion of lines."""

from __future__ import annotations

from tests.kernel.notebook import Notebook
from tests.kit.cards import TURN_MIME
from tests.kit.cells import DRAWN_REQUEST


def test_run_as_last_value_shows_its_panel_and_then_its_card(notebook: Notebook) -> None:
    turn = notebook.start_held("--out team")
    [panel] = notebook.kernel.run("team").displays
    assert panel.data[TURN_MIME]["state"] == "running"
    assert "application/vnd.jupyter.widget-view+json" in panel.data
    notebook.server.release()
    turn.wait_over()
    notebook.kernel.run("%agents wait")
    [card] = notebook.kernel.run("team").displays
    assert card.data[TURN_MIME]["state"] == "complete"
    assert notebook.kernel.eval("repr(team)").startswith("<Run r")


def test_receipt_and_view_are_tables_or_one_line_of_text(notebook: Notebook) -> None:
    turn = notebook.start("--out team --wait")
    turn.wait_over()
    for name, word in (("receipt", "finished"), ("view", "model")):
        [shown] = notebook.kernel.run(f"team.{name}").displays
        assert shown.data["text/html"].startswith("<table>")
        assert word in shown.data["text/html"]
        line = notebook.kernel.eval(f"repr(team.{name})")
        assert line.startswith(("<Receipt complete:", "<RunView "))
        assert "\n" not in line


def test_completion_offers_verbs_options_and_names(notebook: Notebook) -> None:
    def offered(line: str) -> list[str]:
        asked = f"get_ipython().kernel.do_complete({line!r}, {len(line)})['matches']"
        return list(notebook.kernel.eval(asked))

    assert offered("%agents resu") == ["resume"]
    assert offered("%%agents --conf") == ["--config"]
    assert "sorted" in offered("sort")


def test_mistyped_option_or_verb_gets_a_suggestion(notebook: Notebook) -> None:
    for line, near in (
        ("%agents stop --nwo", "There is no option --nwo. Did you mean --now?"),
        ("%agents stpo", "no verb 'stpo'. Did you mean 'stop'?"),
    ):
        error = notebook.kernel.run(line).error
        assert error
        assert near in error.evalue
    error = notebook.kernel.run("%%agents --confg=team.yaml\nA task").error
    assert error
    assert error.evalue.startswith("There is no option --confg. Did you mean --config?")


def test_page_that_draws_from_disk_gets_no_state_before_it_mounts_the_widget(
    notebook: Notebook,
) -> None:
    kernel = notebook.kernel
    turn = notebook.start_held("--out team")
    reply = kernel.control(DRAWN_REQUEST, {"shown": turn.name})
    assert reply["status"] == "ok"
    assert kernel.run("seen = []\nend = team.subscribe(seen.append)\nteam.say('x')").status == "ok"
    kernel.wait_until(lambda: kernel.eval("bool(seen and seen[-1].said)"), 60, "the text")
    assert notebook.panel(turn).state["state"]["said"] is None
    kernel.send_custom(notebook.panel(turn).comm_id, {"type": "mounted", "page": "p"})
    kernel.wait_until(lambda: notebook.panel(turn).state["state"]["said"], 60, "the state")
    kernel.run("team.say('y')")
    kernel.wait_until(
        lambda: notebook.panel(turn).state["state"]["said"]["text"] == "y", 60, "the next one"
    )


def test_page_request_about_an_unknown_run_is_ignored(notebook: Notebook) -> None:
    for content in ({"shown": "nobody/1"}, {"shown": 1}, {}):
        assert notebook.kernel.control(DRAWN_REQUEST, content)["status"] == "ok"
