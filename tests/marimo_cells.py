"""A marimo notebook with a run's card, a sweep's card, and the panel of a run that works."""

import marimo

app = marimo.App()


@app.cell
def _():
    import nb_agents
    from nb_agents.testing import Answer, ScriptedModel, scripted_team

    return Answer, ScriptedModel, nb_agents, scripted_team


@app.cell
def _(Answer, ScriptedModel, nb_agents, scripted_team):
    team = scripted_team(a=ScriptedModel(Answer("An LRU cache.")))
    run = nb_agents.start("Name a cache.", team)
    run.wait()
    run  # noqa: B018  shown
    return


@app.cell
def _(Answer, ScriptedModel, nb_agents, scripted_team):
    rows = [{"q": "one"}, {"q": "two"}]
    answers = scripted_team(a=ScriptedModel(Answer("So."), Answer("So.")))
    sweep = nb_agents.map(rows, "Answer {{q}}", answers, name="asked")
    sweep.wait()
    sweep  # noqa: B018
    return


@app.cell
def _(nb_agents):
    live = nb_agents.start("Count to a million.")
    live.panel  # noqa: B018
    return


if __name__ == "__main__":
    app.run()
