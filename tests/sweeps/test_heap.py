"""During a sweep, the garbage collector examines fewer objects less often."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

import nb_agents
from nb_agents import RunOptions
from nb_agents.extensions.sweeps.heap import YOUNG, less_garbage_collection
from nb_agents.testing import Answer, Gate, ScriptedModel, scripted_team
from tests.model_server import wait_until
from tests.team_kit import WAIT_S


class Knot:
    """Garbage that only the collector can find."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    gc.unfreeze()  # objects from the imports of the tests
    thresholds = gc.get_threshold()
    yield
    gc.freeze()
    gc.set_threshold(*thresholds)


def test_old_garbage_is_found_after_all_blocks_and_new_garbage_within() -> None:
    knot = Knot()
    before = weakref.ref(knot)
    with less_garbage_collection():
        with less_garbage_collection():
            del knot
            within = weakref.ref(Knot())
            gc.collect()
            assert (before() is None, within()) == (False, None)
        gc.collect()
        assert before() is not None
    gc.collect()
    assert before() is None


def test_heap_frozen_by_the_program_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with less_garbage_collection():
        assert 0 < gc.get_freeze_count() <= frozen  # some objects are freed
    assert 0 < gc.get_freeze_count() <= frozen


@pytest.mark.parametrize("own", [(700, 10, 10), (0, 10, 10), (50_000, 5, 5)])
def test_new_objects_are_collected_less_often(own: tuple[int, ...]) -> None:
    gc.set_threshold(*own)
    with less_garbage_collection():
        assert gc.get_threshold() == (YOUNG if own[0] == 700 else own[0], *own[1:])
    assert gc.get_threshold() == own


def test_threshold_changed_by_the_program_is_kept() -> None:
    with less_garbage_collection():
        gc.set_threshold(1_000, 2, 2)
    assert gc.get_threshold() == (1_000, 2, 2)


def test_forked_child_finds_garbage_again() -> None:
    own = gc.get_threshold()
    with less_garbage_collection():
        child = os.fork()
        if not child:
            os._exit(gc.get_freeze_count() > 0 or gc.get_threshold() != own)
        assert os.waitpid(child, 0)[1] == 0
        assert gc.get_freeze_count()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_sweep_restores_the_collectors_settings(tmp_path: Path, is_stopped: bool) -> None:
    own, gate = gc.get_threshold(), Gate()
    team = scripted_team(a=ScriptedModel(Answer("So.", text="I think ", gate=gate)))
    options = RunOptions(session_root=tmp_path)
    sweep = nb_agents.map(range(3), "{{value}}?", team, limit=2, options=options)
    gate.wait_reached(2)
    # A run may have come this far before the sweep knows that it has started.
    wait_until(lambda: gc.get_freeze_count() and gc.get_threshold() != own, WAIT_S)
    if is_stopped:
        sweep.stop(now=True)
    gate.open()
    sweep.wait(WAIT_S)
    assert gc.get_freeze_count() == 0 and gc.get_threshold() == own
