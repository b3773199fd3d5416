"""While a sweep works, the collector passes over what was there before; then all is as it was."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.sweeps.heap import passed_over
from nb_agents.testing import Answer, Gate, ScriptedModel, scripted_team
from tests.team_kit import WAIT_S


class Knot:
    """Garbage that the collector alone finds."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    assert gc.get_freeze_count() == 0
    yield
    gc.unfreeze()


def test_garbage_of_before_is_found_after_all_blocks_and_garbage_of_within_at_once() -> None:
    knot = Knot()
    before = weakref.ref(knot)
    with passed_over():
        with passed_over():
            del knot
            within = weakref.ref(Knot())
            gc.collect()
            assert (before() is None, within()) == (False, None)
        gc.collect()
        assert before() is not None
    gc.collect()
    assert before() is None


def test_a_heap_that_the_program_has_frozen_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with passed_over():
        assert gc.get_freeze_count() == frozen
    assert gc.get_freeze_count() == frozen


def test_a_forked_child_finds_garbage_again() -> None:
    with passed_over():
        child = os.fork()
        if not child:
            os._exit(gc.get_freeze_count() and 1)
        assert os.waitpid(child, 0)[1] == 0
        assert gc.get_freeze_count()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_sweep_leaves_the_collector_as_it_was(tmp_path: Path, is_stopped: bool) -> None:
    gate = Gate()
    team = scripted_team(a=ScriptedModel(Answer("So.", text="I think ", gate=gate)))
    options = RunOptions(session_root=tmp_path)
    sweep = nb_agents.map(range(3), "{{value}}?", team, limit=2, options=options)
    gate.wait_reached(2)
    assert gc.get_freeze_count()
    if is_stopped:
        sweep.stop(now=True)
    gate.open()
    sweep.wait(WAIT_S)
    assert gc.get_freeze_count() == 0
