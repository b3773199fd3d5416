"""The public surface of nb_agents as text files: every change to it changes one of them.

    surface/        the Python API, help, REST, schemas of files, events, errors
    projections/    for each stored turn: view, timeline, points, log, transcripts, spans, files
    cards/          for each stored turn and sweep: its cards and its panel
    journals/       the stored turns; what is there stays, as later versions have to read it

``python -m tests.golden`` writes the text files, and `tests/test_golden.py` compares them.
"""
