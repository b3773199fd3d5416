from __future__ import annotations

import pytest

from nb_agents.config.backends import BACKEND_TYPES
from nb_agents.config.secret_names import is_secret_name


@pytest.mark.parametrize(
    "name", sorted({name for row in BACKEND_TYPES.values() for name in row.variables})
)
def test_every_variable_of_a_models_key_is_a_secret(name: str) -> None:
    assert is_secret_name(name)
